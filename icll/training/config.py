"""What a run is made of: model, data, recipe and seed, as typed settings that a file holds completely."""

from __future__ import annotations

import hashlib
import importlib
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Protocol

from ..errors import IcllError, unknown, whole
from ..languages import Profile, get_profile
from ..languages.profile import profile_name
from ..model import ModelConfig
from ..tasks import Splits, associative_recall, regbench
from .source import ProblemSource, Source

TASKS = ("regbench", "recall")
OPTIMIZERS = ("adamw", "muon")
SCHEDULES = ("cosine", "plateau")


class Data(Protocol):
    """What a run trains on: a frozen dataclass of plain settings that can make a source of batches.

    Another kind than DataConfig has a class attribute `kind = "package.module:Class"`, by which config.yaml finds it again.
    """

    @property
    def label(self) -> str:
        """How much it is, for the run's name."""
        ...

    def source(self, recipe: Recipe, seed: int) -> Source: ...


@dataclass(frozen=True)
class DataConfig:
    task: str = "regbench"
    profile: str | Profile = "paper"
    train: int = 2500
    seed: int = 0
    relabel: bool = False  # permute the symbols of each training problem at random, anew every epoch

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise unknown("task", self.task, TASKS)
        whole("train", self.train, 1)
        whole("the data's seed", self.seed, 0)
        if self.task == "regbench" and isinstance(self.profile, str):
            get_profile(self.profile)  # an unknown one is told here
        if self.relabel and self.task != "regbench":
            raise IcllError("relabel is for regbench: the pairs of associative recall are random already")

    @classmethod
    def of(cls, splits: Splits, relabel: bool = False) -> DataConfig:
        """The settings that make these splits again: that is what a run keeps of its data."""
        origin = splits.test.origin
        profile = Profile(**origin.profile) if origin.profile else get_profile("paper")
        name = profile_name(profile)
        data = cls(origin.task, profile if name == "custom" else name, len(splits.train), origin.seed, relabel)
        made = dict(data.load().items())
        if changed := [part for part, problems in splits.items() if problems.fingerprint != made[part].fingerprint]:
            raise IcllError(
                f"the problems in {', '.join(changed)} are not all that {origin.task} with seed {origin.seed} makes: train on "
                "a folder as icll data make writes it"
            )
        return data

    def load(self) -> Splits:
        if self.task == "recall":
            return associative_recall(self.train, seed=self.seed)
        return regbench(self.train, self.profile, seed=self.seed)

    @property
    def label(self) -> str:
        return f"n{self.train}"

    def source(self, recipe: Recipe, seed: int) -> Source:
        return ProblemSource(self.load(), recipe.batch_size, seed, self.relabel, recipe.short * recipe.epochs)


@dataclass(frozen=True)
class Recipe:
    """How to train. Steps are counted in batches; `warmup` below 1 is a share of all of them."""

    name: str = "fast"
    optimizer: str = "adamw"  # muon: for matrices inside the layers, adamw for the rest
    rate: float = 3e-3  # of adamw
    muon_rate: float = 3e-3
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.1
    warmup: float = 0.1
    warmup_from: float = 1e-6
    floor: float = 0.1  # the last rate, as a share of the first
    epochs: int = 20
    batch_size: int = 32
    clip: float | None = 1.0  # largest norm of the gradient
    patience: int | None = None  # epochs without a better validation loss before it stops
    accumulate: int = field(default=1, metadata={"later": True})  # pieces a batch is computed in: less memory, one step
    # or plateau: half the rate after more than 5 epochs without a better validation loss
    schedule: str = field(default="cosine", metadata={"later": True})
    average: float = field(default=0.0, metadata={"later": True})  # decay of a running mean of the weights, which is kept
    # share of the steps, the first ones, that read only the beginning of each problem (source.SHORT tokens)
    short: float = field(default=0.0, metadata={"later": True})

    def __post_init__(self) -> None:
        whole("epochs", self.epochs, 1)
        whole("accumulate", self.accumulate, 1)
        whole("batch_size", self.batch_size, 1)
        if self.optimizer not in OPTIMIZERS:
            raise unknown("optimizer", self.optimizer, OPTIMIZERS)
        if self.schedule not in SCHEDULES:
            raise unknown("schedule", self.schedule, SCHEDULES)
        for name in ("rate", "muon_rate"):
            if not getattr(self, name) > 0:
                raise IcllError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.clip is not None and not self.clip > 0:
            raise IcllError(f"clip must be above 0, not {self.clip}")
        if self.patience is not None:
            whole("patience", self.patience, 0)
        if not 0 <= self.average < 1:
            raise IcllError(f"average must be from 0 (none) to below 1, such as 0.995, not {self.average}")
        if not 0 <= self.short <= 1:
            raise IcllError(f"short must be a share of the steps, from 0 to 1, not {self.short}")
        if self.warmup < 0 or self.weight_decay < 0 or not 0 <= self.floor <= 1:
            raise IcllError("warmup and weight_decay must be 0 or more, floor from 0 to 1")
        object.__setattr__(self, "betas", tuple(self.betas))


RECIPES = {
    # The authors' code.
    "authors": Recipe("authors", rate=2.5e-4, warmup=0.1, epochs=200, clip=None),
    # The paper's text.
    "text": Recipe("text", rate=2.5e-4, betas=(0.9, 0.99), warmup=25_000, warmup_from=1e-7, epochs=200, clip=None),
    # Appendix D, for learned reweighting (lnw, lnw_r, lnw_b). It says Adam, so nothing decays.
    "lnw": Recipe(
        "lnw", rate=1e-3, betas=(0.9, 0.99), weight_decay=0.0, warmup=0.0, floor=0.01, epochs=50, clip=None, schedule="plateau"
    ),
    # Ours: see docs/training.md for the measurements.
    "fast": Recipe("fast", optimizer="muon", rate=3e-3, muon_rate=3e-3, epochs=10, batch_size=16),
}


@dataclass(frozen=True)
class RunConfig:
    model: ModelConfig
    data: Any = field(default_factory=DataConfig)  # of the kind `Data`
    recipe: Recipe = RECIPES["fast"]
    seed: int = 0
    precision: str = "32-true"  # or bf16-mixed

    def __post_init__(self) -> None:
        whole("seed", self.seed, 0)
        if self.precision not in ("32-true", "bf16-mixed", "64-true"):
            raise unknown("precision", self.precision, ("32-true", "bf16-mixed", "64-true"))

    @property
    def hash(self) -> str:
        """Two runs with the same one are the same run."""
        return hashlib.sha256(json.dumps(as_plain(self), sort_keys=True).encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        heads = "".join(map(str, self.model.ngram_heads))
        parts = [self.model.model.replace(":", "-"), f"ngh{heads}" if heads else "", self.data.label, f"s{self.seed}"]
        return "-".join([p for p in parts if p] + [self.hash[:8]])


def as_plain(value: Any) -> Any:
    """Dataclasses and tuples as dicts and lists: what YAML and JSON hold.

    Settings marked as later are left out at their default: configs from before there were any keep their hash.
    """
    if is_dataclass(value) and not isinstance(value, type):
        kept = [f for f in fields(value) if not f.metadata.get("later") or getattr(value, f.name) != f.default]
        kind = {"kind": value.kind} if hasattr(value, "kind") else {}
        return kind | {f.name: as_plain(getattr(value, f.name)) for f in kept}
    if isinstance(value, tuple | list):
        return [as_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: as_plain(v) for k, v in value.items()}
    return value


def from_plain(kind: type, plain: Any, where: str = "config") -> Any:
    """The other way round, strictly: unknown names are errors."""
    if not isinstance(plain, Mapping):
        raise IcllError(f"{where} must be a table of settings, not {plain!r}")
    hints = typing.get_type_hints(kind)
    names = [f.name for f in fields(kind)]
    settings = {}
    for name, value in plain.items():
        if name not in names:
            raise unknown(f"setting of {where}", str(name), names)
        hint = hints[name]
        if kind is RunConfig and name == "data":
            hint, value = _data_kind(value)
        tables = [part for part in (hint, *typing.get_args(hint)) if isinstance(part, type) and is_dataclass(part)]
        if tables and (isinstance(value, Mapping) or tables[0] is hint):
            value = from_plain(tables[0], value, name)
        elif isinstance(value, list) and _is_tuple(hint):
            value = tuple(value)
        settings[name] = value
    try:
        return kind(**settings)
    except TypeError as error:
        raise IcllError(f"{where}: {error}") from None


def _data_kind(plain: Any) -> tuple[type, Any]:
    """The class of a table of data settings, and the settings without its name."""
    if not isinstance(plain, Mapping) or "kind" not in plain:
        return DataConfig, plain
    path = str(plain["kind"])
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, ValueError, AttributeError) as error:
        raise IcllError(f"data of kind {path!r} cannot be read: {error}") from None
    if not is_dataclass(found):
        raise IcllError(f"data of kind {path!r} cannot be read: it is no table of settings")
    return found, {key: value for key, value in plain.items() if key != "kind"}  # type: ignore[return-value]


def _is_tuple(hint: Any) -> bool:
    if isinstance(hint, types.UnionType):
        return any(_is_tuple(part) for part in typing.get_args(hint))
    return typing.get_origin(hint) is tuple


def change(config: Any, **changes: Any) -> Any:
    """The same with some settings changed; None leaves one as it is."""
    return replace(config, **{name: value for name, value in changes.items() if value is not None})
