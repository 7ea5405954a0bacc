"""What a token mixer is, and where mixers are found by name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from ..errors import IcllError, first_line, unknown

RecurrentState = Any  # tensors, or tuples of them: whatever the mixer's step takes and returns


@dataclass
class Mixing:
    """A mixer's effect on one input as matrices: weights [B, C, L, L], one for each head or channel, times values [B, C, L, W].

    `close` is what the mixer does with the result, gates and output map, so that `output()` is what the mixer returns.
    """

    weights: torch.Tensor
    values: torch.Tensor
    close: Callable[[torch.Tensor], torch.Tensor]

    @property
    def mean(self) -> torch.Tensor:
        """The mean over heads or channels, [B, L, L]."""
        return self.weights.mean(1)

    def output(self) -> torch.Tensor:
        return self.close((self.weights @ self.values).transpose(1, 2).flatten(2))  # [B, L, C * W]


class Mixer(nn.Module):
    """A causal map of x [B, L, D] to [B, L, D]. Ours derive from this; a user's need not: any module with that map will do.

    A constructor takes `d_model` and, by name, whatever of `n_heads`, `n_layers`, `layer` (which one this is, from 0),
    `max_length` and `dropout` it asks for; its other arguments are options of the model. Whoever defines `initial_state` and
    `step` decodes one token at a time; whoever defines `mixing` shows its matrices.
    """

    forms: ClassVar[tuple[str, ...]] = ("fast",)  # equal results by different ways; the first is the default
    slow_parameters: ClassVar[tuple[str, ...]] = ()  # names of those to be trained with a smaller rate and without decay
    form: str

    def choose_form(self, form: str | None) -> None:
        if form is not None and form not in self.forms:
            raise unknown(f"form of {type(self).__name__}", form, self.forms)
        self.form = form or self.forms[0]

    def initial_state(self, batch_size: int) -> RecurrentState:
        raise NotImplementedError

    def step(self, x: torch.Tensor, recurrent_state: RecurrentState) -> tuple[torch.Tensor, RecurrentState]:
        """One token: x [B, D] and the state to y [B, D] and the next state. Nothing is changed in place."""
        raise NotImplementedError

    def mixing(self, x: torch.Tensor) -> Mixing | None:
        """The matrices for this input, exactly; None where there are none."""
        return None

    def operator_flops(self, length: int) -> float:
        """Floating-point operations per token at this length besides those of linear maps (a product and a sum are two)."""
        raise NotImplementedError

    def zeros(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Zeros like the mixer's parameters."""
        like = next(self.parameters())
        return torch.zeros(shape, dtype=dtype or like.dtype, device=like.device)


class Stacked(nn.Linear):
    """Several maps of the same input in one matrix, which is faster; Muon takes them one by one, as if they were apart."""

    def __init__(self, d_in: int, parts: Sequence[int], bias: bool = True):
        super().__init__(d_in, sum(parts), bias)
        self.parts = tuple(parts)


def by_steps(module: Any, x: torch.Tensor) -> torch.Tensor:
    """The recurrent form of a whole text [B, L, D]: its `step`, token after token."""
    state = module.initial_state(len(x))
    y = []
    for t in range(x.shape[1]):
        out, state = module.step(x[:, t], state)
        y.append(out)
    return torch.stack(y, 1)


def full_precision(like: torch.Tensor) -> AbstractContextManager[object]:
    """Without autocast: for filters and recurrences whose errors add up over the length."""
    kind = like.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def can_step(mixer: nn.Module) -> bool:
    """Whether it has a one-token form of its own."""
    own = type(mixer)
    return hasattr(own, "step") and hasattr(own, "initial_state") and own.step is not Mixer.step


def heads_of(d_model: int, n_heads: int) -> int:
    """The width of a head."""
    if n_heads < 1 or d_model % n_heads:
        raise IcllError(f"d_model {d_model} is not divisible by n_heads {n_heads}: choose a multiple of {max(n_heads, 1)}")
    return d_model // n_heads


@dataclass(frozen=True)
class Architecture:
    """A mixer and the skeleton around it."""

    mixer: type[nn.Module]
    norm: str | None = "layer"  # before each mixer and feed-forward, and at the end: layer, rms or none
    feed_forward: str | None = "gelu"  # gelu: two linear maps; swiglu: three; none
    residual: bool = True
    positions: bool = False  # learned absolute ones, added to the embedding
    options: dict[str, Any] = field(default_factory=dict)  # for the mixer's constructor


ARCHITECTURES: dict[str, Architecture] = {}


def architecture(
    name: str,
    *,
    norm: str | None = "layer",
    feed_forward: str | None = "gelu",
    residual: bool = True,
    positions: bool = False,
    **options: Any,
) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Register a mixer under a name, with the skeleton it wants around it; `options` go to its constructor."""

    def register(mixer: type[nn.Module]) -> type[nn.Module]:
        ARCHITECTURES[name] = Architecture(mixer, norm, feed_forward, residual, positions, options)
        return mixer

    return register


def find_architecture(name: str) -> Architecture:
    """By registered name, by entry point of the group `icll.mixers`, or as `package.module:Class`."""
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    plugins = {point.name: point for point in entry_points(group="icll.mixers")}
    if name in plugins:
        mixer = _imported(plugins[name].value)
    elif ":" in name:
        mixer = _imported(name)
    else:
        raise unknown("model", name, [*ARCHITECTURES, *plugins, "package.module:Class"])
    # A module may register its mixer with a skeleton of its own when it is imported.
    return next((a for a in ARCHITECTURES.values() if a.mixer is mixer), Architecture(mixer))


def _imported(path: str) -> type[nn.Module]:
    module_name, _, class_name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever a stranger's module raises when it is imported
        missing = isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]
        where = " (the current folder, installed packages and PYTHONPATH are searched)" if missing else ""
        raise IcllError(
            f"cannot import {module_name!r} for {path!r}: {type(error).__name__}: {first_line(error)}{where}"
        ) from error
    mixer = getattr(module, class_name, None)
    if mixer is None:
        raise IcllError(f"{module_name!r} has no {class_name!r}: check the name behind the colon in {path!r}")
    if not (inspect.isclass(mixer) and issubclass(mixer, nn.Module)):
        raise IcllError(f"{path!r} is not a torch.nn.Module class: a mixer is a module that maps [B, L, D] to [B, L, D]")
    return mixer


def source_of(name: str) -> str | None:
    """The file that defines a mixer of one's own, as text: what its runs depend on. None for mixers of this package."""
    known = ":" in name or name in ARCHITECTURES or any(p.name == name for p in entry_points(group="icll.mixers"))
    mixer = find_architecture(name).mixer if known else None
    if mixer is None or mixer.__module__.partition(".")[0] == __name__.partition(".")[0]:
        return None
    file = inspect.getsourcefile(mixer)
    return Path(file).read_text("utf-8") if file else None


def takes_heads(architecture: Architecture) -> bool:
    """Whether the number of heads changes anything."""
    return "n_heads" in inspect.signature(architecture.mixer).parameters


def make_mixer(architecture: Architecture, given: dict[str, Any], options: dict[str, Any]) -> nn.Module:
    """Build a mixer from what the skeleton offers (`given`; it takes what its constructor names) and the user's options."""
    parameters = inspect.signature(architecture.mixer).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    own = [name for name in parameters if name not in given and name not in architecture.options]
    for name, value in options.items():
        if name not in own and not takes_any:
            raise unknown(f"option of {architecture.mixer.__name__}", name, own or ["none"])
        if name in parameters and isinstance(parameters[name].default, bool) and not isinstance(value, bool):
            raise IcllError(f"the option {name} of {architecture.mixer.__name__} is true or false, not {value!r}")
    offered = {name: value for name, value in given.items() if name in parameters}
    try:
        return architecture.mixer(**offered, **architecture.options, **options)
    except IcllError:
        raise
    except Exception as error:  # whatever a stranger's constructor raises
        known = ", ".join([*offered, *architecture.options, *options]) or "nothing"
        raise IcllError(
            f"cannot build {architecture.mixer.__name__}: {type(error).__name__}: {first_line(error)}; it was given {known}. "
            f"A constructor may name {', '.join(given)}, and takes arguments of its own by --option NAME=VALUE"
        ) from error
