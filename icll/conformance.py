"""Does a mixer keep the contract? Each check says what holds or what does not; `icll check` prints them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .mixers import Mixing, can_step, find_architecture, make_mixer
from .model import build_model, evaluating

D_MODEL, N_HEADS, MAX_LENGTH, LENGTH = 32, 2, 1024, 41
EXACT = 1e-9  # in float64, relative to the size of the outputs
Given = dict[str, Any]


@dataclass(frozen=True)
class Check:
    name: str
    passed: bool | None  # None: does not apply
    detail: str

    def __str__(self) -> str:
        return f"{ {True: 'holds', False: 'FAILS', None: 'skipped'}[self.passed]:8}{self.name}: {self.detail}"


def check_mixer(name: str, options: Given | None = None) -> list[Check]:
    """Run the suite on an architecture's name or `package.module:Class`. Whatever a check raises counts as its failure."""
    return list(_checks(name, options or {}))


def _checks(name: str, options: Given) -> Iterator[Check]:
    architecture = find_architecture(name)

    def make(seed: int = 0) -> nn.Module:
        given = {
            "d_model": D_MODEL, "n_heads": N_HEADS, "n_layers": 2, "layer": 0, "max_length": MAX_LENGTH, "dropout": 0.0,
        }  # fmt: skip
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            made = make_mixer(architecture, given, options)
            with torch.no_grad():  # maps that begin at zero would hide what lies before them
                for p in made.parameters():
                    if p.ndim > 1 and not p.any():
                        p.normal_(std=0.02)
            return made

    make()  # what cannot be built is an error of its own, with its own line
    for title, check in SUITE:
        try:
            passed, detail = check(make, name, options)
        except Exception as error:  # a stranger's code may raise anything
            passed, detail = False, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        yield Check(title, passed, detail)
        if passed is False and check is _shapes:  # nothing else can be asked then
            return


Make = Callable[[], nn.Module]
Result = tuple[bool | None, str]
SUITE: list[tuple[str, Callable[[Any, str, Given], Result]]] = []


def suite(title: str) -> Callable[[Callable[[Any, str, Given], Result]], Callable[[Any, str, Given], Result]]:
    def register(check: Callable[[Any, str, Given], Result]) -> Callable[[Any, str, Given], Result]:
        SUITE.append((title, check))
        return check

    return register


def _noise(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def _gap(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference, relative to the size of the outputs."""
    return float(((a - b).abs().max() / b.abs().max().clamp(min=1e-30)).detach()) if b.numel() else 0.0


def _within(gap: float, tolerance: float, what: str) -> Result:
    return gap <= tolerance, f"{what} differ by {gap:.1e} of their size (limit {tolerance:.0e})"


@suite("shapes")
def _shapes(make: Make, name: str, options: Given) -> Result:
    mixer = make().double().eval()
    for batch, length in ((1, 1), (2, 2), (3, 7), (1, 33), (2, 64)):
        x = _noise(batch, length, D_MODEL)
        y = mixer(x)
        if not isinstance(y, torch.Tensor):
            return False, f"returns a {type(y).__name__}, not a tensor"
        if y.shape != x.shape:
            return False, f"maps {list(x.shape)} to {list(y.shape)}"
        if not y.isfinite().all():
            return False, f"has values that are not finite at {list(x.shape)}"
    return True, "[B, L, D] to [B, L, D], finite"


@suite("repeatable")
def _repeatable(make: Make, name: str, options: Given) -> Result:
    mixer, x = make().double().eval(), _noise(2, LENGTH, D_MODEL)
    return _within(_gap(mixer(x), mixer(x)), 0.0, "two calls in evaluation mode")


@suite("causal, by perturbation")
def _causal(make: Make, name: str, options: Given) -> Result:
    mixer, x = make().double().eval(), _noise(2, LENGTH, D_MODEL)
    y, worst, where = mixer(x), 0.0, 0
    for t in range(1, LENGTH):
        changed = x.clone()
        changed[:, t] += _noise(2, D_MODEL, seed=t)
        gap = float(((mixer(changed) - y)[:, :t].abs().max() / y.abs().max().clamp(min=1e-30)).detach())
        if gap > worst:
            worst, where = gap, t
    if worst > EXACT:
        return False, f"changing token {where} changes outputs before it, by {worst:.1e} of their size"
    return True, "changing a token never changes outputs before it"


@suite("causal, by gradient")
def _causal_gradient(make: Make, name: str, options: Given) -> Result:
    mixer, x = make().double().eval(), _noise(1, LENGTH, D_MODEL).requires_grad_()
    y, weight = mixer(x), _noise(1, D_MODEL, seed=3)
    for t in range(LENGTH - 1):
        (gradient,) = torch.autograd.grad((y[:, t] * weight).sum(), x, retain_graph=True)
        future = float(gradient[:, t + 1 :].abs().max())
        if future > EXACT * max(1e-30, float(gradient.abs().max())):
            return False, f"output {t} has a gradient at later tokens, {future:.1e}"
    return True, "no output has a gradient at a later token"


@suite("uses the past")
def _uses_past(make: Make, name: str, options: Given) -> Result:
    mixer, x = make().double().eval(), _noise(1, LENGTH, D_MODEL).requires_grad_()
    (gradient,) = torch.autograd.grad((mixer(x)[:, -1] * _noise(1, D_MODEL)).sum(), x)
    reach = int((gradient[0].abs().amax(-1) > 0).sum())
    return reach > 1, f"the last output depends on {reach} of {LENGTH} tokens"


@suite("independent of the length")
def _length(make: Make, name: str, options: Given) -> Result:
    mixer, x = make().double().eval(), _noise(2, LENGTH, D_MODEL)
    y = mixer(x)
    gap = max(_gap(mixer(x[:, :n]), y[:, :n]) for n in (1, 2, 16, 17, LENGTH - 1))
    return _within(gap, EXACT, "the outputs of a prefix alone and in a longer text")


@suite("independent of the batch")
def _batch(make: Make, name: str, options: Given) -> Result:
    mixer, x = make().double().eval(), _noise(5, LENGTH, D_MODEL)
    y = mixer(x)
    gap = max(_gap(mixer(x[i : i + 1]), y[i : i + 1]) for i in range(5))
    return _within(gap, EXACT, "outputs alone and in a batch")


@suite("one token at a time")
def _steps(make: Make, name: str, options: Given) -> Result:
    mixer, x = make().double().eval(), _noise(2, LENGTH, D_MODEL)
    if not can_step(mixer):
        return None, "no `initial_state` and `step`: a model keeps the prefix of its inputs instead"
    state, y = mixer.initial_state(2), mixer(x)  # type: ignore[operator]
    first_state, gap = state, 0.0
    for t in range(LENGTH):
        out, state = mixer.step(x[:, t], state)  # type: ignore[operator]
        gap = max(gap, _gap(out, y[:, t]))
    passed, detail = _within(gap, EXACT, "`step` and the whole sequence")
    again, _ = mixer.step(x[:, 0], first_state)  # type: ignore[operator]
    if passed and _gap(again, y[:, 0]) > EXACT:
        return False, "`step` changes a state it was given: make a new one"
    return passed, detail


@suite("gradients")
def _gradients(make: Make, name: str, options: Given) -> Result:
    for length in (1, 2, 1024):
        mixer = make().train()
        x = _noise(1, length, D_MODEL, dtype=torch.float32).requires_grad_()
        mixer(x).square().mean().backward()
        for what, gradient in [("x", x.grad), *((n, p.grad) for n, p in mixer.named_parameters())]:
            if gradient is not None and not gradient.isfinite().all():
                return False, f"the gradient of {what} is not finite at L = {length}"
    silent = [n for n, p in mixer.named_parameters() if p.grad is None]
    if silent:
        return False, f"no gradient reaches {', '.join(silent)}"
    return True, "finite at L = 1, 2 and 1,024, and every parameter has one"


@suite("dtypes")
def _dtypes(make: Make, name: str, options: Given) -> Result:
    mixer = make().eval()
    x = _noise(2, LENGTH, D_MODEL)
    single, double = mixer.float()(x.float()), mixer.double()(x)
    if single.dtype != torch.float32 or double.dtype != torch.float64:
        return False, f"float32 gives {single.dtype}, float64 gives {double.dtype}"
    gap = _gap(single.double(), double)
    if gap > 1e-3:
        return False, f"float32 and float64 differ by {gap:.1e} of their size"
    with torch.autocast("cpu", torch.bfloat16):
        half = mixer.float()(x.float())
    coarse = _gap(half.double(), double)
    return coarse < 0.1, f"float32 within {gap:.0e} of float64, bf16 autocast within {coarse:.0e}"


@suite("devices")
def _devices(make: Make, name: str, options: Given) -> Result:
    """A tensor made on the CPU in the middle of the forward pass shows on any other device; torch's `meta` is always there."""
    device = "cuda" if torch.cuda.is_available() else "meta"
    mixer = make().to(device)
    y = mixer(_noise(2, LENGTH, D_MODEL, dtype=torch.float32).to(device))
    return y.device.type == device, f"moves to {device}" + ("" if device == "cuda" else " (no GPU here)")


@suite("state dict")
def _state_dict(make: Any, name: str, options: Given) -> Result:
    x = _noise(2, LENGTH, D_MODEL)
    one, other = make(0).double().eval(), make(1).double().eval()
    weights = copy.deepcopy(one.state_dict())
    other.load_state_dict(weights)
    return _within(_gap(other(x), one(x)), 0.0, "outputs after loading another's weights")


@suite("loss at the start")
def _loss(make: Make, name: str, options: Given) -> Result:
    model = build_model(name, d_model=D_MODEL, n_layers=2, n_heads=N_HEADS, seed=0, **options)
    tokens = torch.randint(1, 20, (8, 65), generator=torch.Generator().manual_seed(0))
    with evaluating(model):
        loss = float(F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()))
    expected = math.log(model.config.vocab_size)
    return abs(loss - expected) < 0.2 * expected, f"{loss:.2f} in a model of two layers, log V is {expected:.2f}"


@suite("mixing matrices")
def _mixing(make: Make, name: str, options: Given) -> Result:
    mixer, x = make().double().eval(), _noise(2, LENGTH, D_MODEL)
    matrices = mixer.mixing(x) if hasattr(mixer, "mixing") else None  # type: ignore[operator]
    if matrices is None:
        return None, "has no `mixing`"
    if not isinstance(matrices, Mixing):
        return False, f"`mixing` returns a {type(matrices).__name__}, not an icll.mixers.Mixing"
    if matrices.weights.detach().triu(1).any():
        return False, "weights above the diagonal are not 0"
    return _within(_gap(matrices.output(), mixer(x)), EXACT, "matrices times values and the outputs")
