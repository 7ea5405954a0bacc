"""The paper's own numbers and statements, as typed records (paper.json)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Number:
    """A published number. `label` is a model or learner, `other` the second one of a distance."""

    where: str
    source: str  # table, text, figure (error about 0.002) or rerun (by others, error about 0.02)
    label: str
    metric: str  # tvd, accuracy, recall, distance or perplexity
    train: int | None  # number of training problems
    value: float
    other: str | None = None


@dataclass(frozen=True)
class Claim:
    """A statement of the paper in our words, and the function of icll.experiments.claims that tests it on results."""

    name: str
    where: str
    claim: str
    test: str
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Paper:
    numbers: tuple[Number, ...]
    claims: tuple[Claim, ...]
    sizes: dict[str, dict[int, tuple[int, int, int]]]  # label -> train -> width, layers, heads of the best model

    def find(self, label: str, metric: str, train: int | None = None, where: str = "") -> Number | None:
        """The number for these; a table's before a figure's."""
        return next(self._matching(label, metric, train, where), None)

    def _matching(self, label: str, metric: str, train: int | None, where: str) -> Iterator[Number]:
        for n in self.numbers:
            if (n.label, n.metric, n.train) == (label, metric, train) and n.where.startswith(where) and n.source != "rerun":
                yield n

    def curve(self, label: str, metric: str, where: str) -> list[Number]:
        """Numbers of one line of a figure, by training problems."""
        found = [n for n in self.numbers if (n.label, n.metric, n.where) == (label, metric, where) and n.train is not None]
        return sorted(found, key=lambda n: n.train or 0)


@lru_cache(maxsize=1)
def load_paper() -> Paper:
    plain = json.loads(files(__package__).joinpath("paper.json").read_text("utf-8"))
    sizes = {
        label: {int(n): (size[0], size[1], size[2] if len(size) > 2 else 1) for n, size in by_train.items()}
        for label, by_train in plain["sizes"].items()
    }
    return Paper(
        tuple(Number(**n) for n in plain["numbers"]),
        tuple(Claim(**c) for c in plain["claims"]),
        sizes,
    )
