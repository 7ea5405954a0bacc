"""Maps of a model's attention over a stretch of one problem (section 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..errors import IcllError
from ..model import Model
from ..tasks.problems import Problems
from .mixing import Head, find_heads, layer_mixing


@dataclass(frozen=True)
class AttentionMap:
    """One head over positions start..stop - 1: rows attend to columns."""

    head: Head
    channels: torch.Tensor  # [C, W, W]: of each channel, one for a head of attention
    before: torch.Tensor  # [C, W]: each row's weight on tokens before the stretch

    @property
    def mean(self) -> torch.Tensor:
        """Over channels, [W, W]."""
        return self.channels.mean(0)

    def channel(self, number: int | None) -> torch.Tensor:
        """One channel's, from 1; None: the mean."""
        if number is None:
            return self.mean
        if not 1 <= number <= len(self.channels):
            raise IcllError(f"head {self.head.name} has {len(self.channels)} channels, counted from 1: there is no {number}")
        return self.channels[number - 1]


@dataclass(frozen=True)
class AttentionMaps:
    """Maps of several heads over the same tokens."""

    model: str
    problem: int
    start: int
    tokens: list[str]  # of the whole text up to the end of the stretch
    states: list[int]  # of the automaton after each token
    maps: list[AttentionMap]

    @property
    def labels(self) -> list[str]:
        """Token and state at each position of the stretch."""
        return [f"{t} {s}" for t, s in zip(self.tokens[self.start :], self.states[self.start :], strict=True)]


def attention_maps(
    model: Model,
    problems: Problems,
    problem: int = 0,
    start: int = 50,
    stop: int = 80,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> AttentionMaps:
    """The exact matrices of the chosen layers and heads (all, if None; both count from 1) at positions start..stop - 1."""
    if not 0 <= problem < len(problems):
        raise IcllError(f"problem {problem} does not exist: there are 0..{len(problems) - 1}")
    one = problems[problem]
    length = int(one.lengths[0])
    if not 0 <= start < stop <= length:
        raise IcllError(f"positions {start}:{stop} are outside problem {problem}, which has positions 0:{length}")
    found = find_heads(model)
    for wanted, there, what in ((layers, [h.layer for h in found], "layer"), (heads, [h.number for h in found], "head")):
        for number in wanted or ():
            if number not in there:
                raise IcllError(f"{model.name} has no {what} {number} with a matrix: choose from {_listed(there)}")
    chosen = [h for h in found if (layers is None or h.layer in layers) and (heads is None or h.number in heads)]
    if not chosen:
        raise IcllError(f"no layer of {list(layers or ())} has a head of {list(heads or ())}: layers and heads count from 1")
    tokens = one.tokens[:, :stop]
    maps = []
    for layer, made in enumerate(layer_mixing(model, tokens), 1):
        for head in chosen:
            if head.layer == layer:
                assert made is not None
                rows = made.weights[0, head.channels, start:stop].detach()
                maps.append(AttentionMap(head, rows[..., start:stop].clone(), rows[..., :start].sum(-1)))
    shown = [problems.vocabulary.decode([t]) for t in tokens[0].tolist()]
    return AttentionMaps(model.name, problem, start, shown, one.states[0, :stop].tolist(), maps)


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(set(numbers))))
