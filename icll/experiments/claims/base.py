"""What tests of statements share: the answer, the register of tests, and ways to find and to print what they need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..figures import N
from ..paper import load_paper
from ..results import LABELS, Entry, Known
from ..settings import MODELS

NOT_RUN = "the runs it needs are not there"
CONVOLUTIONAL = ("S4", "H3", "Hyena")
RECURRENT = ("RetNet", "GLA", "Mamba", "Linear Transformer", "LSTM", "RWKV")


class Answer(NamedTuple):
    holds: bool | None
    detail: str


TESTS: dict[str, Callable[..., Answer]] = {}


def test(function: Callable[..., Answer]) -> Callable[..., Answer]:
    TESTS[function.__name__] = function
    return function


def other_models() -> list[str]:
    return [LABELS[m] for m in MODELS if m != "transformer"]


def models_at(known: Known, train: int, labels: Sequence[str], task: str = "regbench") -> dict[str, list[Entry]]:
    return {label: runs for label in labels if (runs := known.runs(label, train, task))}


def needed(train: int, metric: str = "tvd") -> set[str]:
    """The models that a statement about all of them is about at this size: those the paper has there, or all ten."""
    labels = {LABELS[m] for m in MODELS}
    own = {n.label for n in load_paper().numbers if (n.metric, n.train) == (metric, train) and n.source != "rerun"} & labels
    return own if len(own) >= len(labels) // 2 else labels


def all_of(known: Known, labels: Sequence[str], train: int = N) -> list[list[Entry]] | None:
    found = [known.any(label, train) for label in labels]
    return found if all(found) else None


def listed(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in sorted(values.items(), key=lambda item: item[1]))


def missing(*names: str) -> Answer:
    return Answer(None, f"{NOT_RUN}: {', '.join(names)}")
