"""Which rule a head follows, and what the model loses without it.

A rule gives position i a set of positions to attend to, each with the same weight:

n tokens      what followed the earlier occurrences of the n tokens that end at i: an n-gram head of order n, as in section 6
              and `--ngram-heads`. n = 1 is the induction head; n tokens matched make the statistics of an (n+1)-gram model
k back        the token k places before (k = 1: previous-token heads; 0: the token itself)
state         what followed the earlier visits of the automaton's state at i

The score of a head for a rule is the mean overlap, sum over j of min(row_j, rule_j), of its rows with the rule's. For rows that
are distributions that is 1 - TVD; a row of zeros scores 0. Rows that are not distributions are made so, see mixing.rows_of; of
several channels the mean of absolute weights is scored, and each by itself.

N-gram and state rules are scored only where all of them attend to something, no two to the same, and none to i itself: there a
score tells one rule from the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import IcllError, whole
from ..model import Model
from ..ops.ngram import ngram_weights
from ..predictors import evaluate
from ..tasks.problems import Problems
from .mixing import BUILT_IN, Head, batch_size, find_heads, knocked_out, layer_mixing, rows_of

ORDERS = (1, 2, 3)
BACK = (0, 1, 2, 3)
THRESHOLD = 0.5  # a head is named after its best rule if it scores at least this
STATE = "state"


def order_rule(n: int) -> str:
    return f"n={n}"


def back_rule(k: int) -> str:
    return "self" if k == 0 else "previous" if k == 1 else f"{k} back"


def followers(contexts: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """[B, L, L]: uniform over the positions j <= i that came after the context at i: before[j] == contexts[i]."""
    L = contexts.shape[1]
    match = (contexts[:, :, None] == before[:, None, :]) & torch.ones(L, L, dtype=torch.bool).tril()
    return match / match.sum(-1, keepdim=True).clamp(min=1)


def make_rules(problems: Problems, orders: Sequence[int] = ORDERS) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Rows [B, L, L] of each rule, and where it is scored [B, L]."""
    tokens, states = problems.tokens, problems.states
    B, L = tokens.shape
    inside = torch.arange(L) < problems.lengths[:, None]
    told: dict[str, torch.Tensor] = {order_rule(n): ngram_weights(tokens, n, "keep").float() for n in orders}
    if problems.origin.task == "regbench":
        start = torch.zeros(B, 1, dtype=states.dtype)  # a problem begins in state 0
        told[STATE] = followers(states, torch.cat([start, states[:, :-1]], 1)).float()
    rows = list(told.values())
    apart = inside.clone()
    for i, row in enumerate(rows):
        apart &= (row.sum(-1) > 0) & (row.diagonal(dim1=1, dim2=2) == 0)
        for other in rows[:i]:
            apart &= (row != other).any(-1)
    plain = {back_rule(k): torch.eye(L).roll(-k, 1).tril().expand(B, L, L) for k in BACK}
    far = inside & (torch.arange(L) >= max(BACK))
    return told | plain, dict.fromkeys(told, apart) | dict.fromkeys(plain, far)


@dataclass(frozen=True)
class HeadScores:
    head: Head
    scores: dict[str, float]  # by rule
    channels: dict[str, tuple[int, float]]  # the channel that scores best, from 1, where there are several
    loss: float | None  # of the model without the head

    def named(self, threshold: float = THRESHOLD) -> str | None:
        """The rule it follows."""
        best = max(self.scores, key=self.scores.__getitem__)
        return best if self.scores[best] >= threshold else None


@dataclass(frozen=True)
class HeadTable:
    """All heads of a model: scores, chance (a row that is uniform over the past), the loss with and without each head."""

    model: str
    heads: list[HeadScores]
    chance: dict[str, float]
    positions: dict[str, int]  # how many rows each rule is scored on
    loss: float
    threshold: float

    def circuit(self) -> dict[str, list[str]]:
        """Names of the heads that follow each rule, for the rules that some head follows."""
        found: dict[str, list[str]] = {}
        for one in self.heads:
            rule = one.named(self.threshold)
            if rule is not None:
                found.setdefault(rule, []).append(one.head.name)
        return found

    def sentence(self) -> str:
        """The circuit in words. An n-gram head of attention needs heads before it that look back: they are named with it."""
        circuit = self.circuit()
        layer = {one.head.name: one.head.layer for one in self.heads}
        made = {one.head.name for one in self.heads if one.head.label.startswith(BUILT_IN)}
        lookers = [(name, rule) for rule in map(back_rule, BACK[1:]) for name in circuit.get(rule, [])]
        parts = []
        for rule in circuit:
            if not rule.startswith("n="):
                continue
            for name in circuit[rule]:
                earlier = [f"{at} ({kind})" for at, kind in lookers if layer[at] < layer[name]]
                fed = (
                    " built in"
                    if name in made
                    else f" fed by {', '.join(earlier)}"
                    if earlier
                    else " with nothing before it that looks back"
                )
                parts.append(f"{name} is a {rule.removeprefix('n=')}-gram head{fed}")
        if STATE in circuit:
            parts.append(f"{', '.join(circuit[STATE])} follow{'s' if len(circuit[STATE]) == 1 else ''} the automaton's state")
        if not parts and lookers:
            parts.append("no n-gram head; looking back: " + ", ".join(f"{at} ({kind})" for at, kind in lookers))
        return "; ".join(parts) or f"no head follows one of these rules (scores below {self.threshold:g})"

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": self.model, "loss": self.loss, "threshold": self.threshold, "chance": self.chance,
            "positions": self.positions, "circuit": self.circuit(), "sentence": self.sentence(),
            "heads": [
                {
                    "head": one.head.name, "layer": one.head.layer, "mixer": one.head.label, "channels": one.head.n_channels,
                    "scores": one.scores, "best_channels": one.channels, "follows": one.named(self.threshold),
                    "loss_without": one.loss, "loss_rise": None if one.loss is None else one.loss - self.loss,
                }
                for one in self.heads
            ],
        }  # fmt: skip


def score_heads(
    model: Model,
    problems: Problems,
    *,
    orders: Sequence[int] = ORDERS,
    ablate: bool = True,
    threshold: float = THRESHOLD,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> HeadTable:
    """Score every head of a model for every rule, and the model without each of them."""
    for n in orders:
        whole("the order n of an n-gram rule", n, 1)
    if len(set(orders)) < len(orders):
        raise IcllError(f"orders {list(orders)} name one twice: write each once")
    heads = find_heads(model)
    size = batch_size(heads, int(problems.lengths.max()))
    starts = range(0, len(problems), size)
    total = len(starts) + len(heads) * ablate
    sums: dict[tuple[int, str], np.ndarray] = {}  # over positions, for the head and each of its channels
    chance: dict[str, float] = {}
    positions: dict[str, int] = {}
    for done, start in enumerate(starts, 1):
        batch = problems[start : start + size]
        rules, where = make_rules(batch, orders)
        L = batch.tokens.shape[1]
        uniform = torch.ones(L, L).tril() / torch.arange(1, L + 1)[:, None]
        for rule, at in where.items():
            positions[rule] = positions.get(rule, 0) + int(at.sum())
            chance[rule] = chance.get(rule, 0.0) + float(torch.minimum(uniform, rules[rule]).sum(-1)[at].sum())
        for layer, made in enumerate(layer_mixing(model, batch.tokens), 1):
            for i, head in enumerate(heads):
                if head.layer != layer:
                    continue
                assert made is not None
                weights = made.weights[:, head.channels].float()
                if head.n_channels > 1:
                    weights = torch.cat([weights.abs().mean(1, keepdim=True), weights], 1)  # [B, 1 + channels, L, L]
                rows, past = rows_of(weights)
                for rule, at in where.items():
                    overlap = torch.minimum(rows if rule == back_rule(0) else past, rules[rule][:, None]).sum(-1).double()
                    sums[i, rule] = sums.get((i, rule), np.zeros(1)) + (overlap * at[:, None]).sum((0, 2)).numpy()
        progress(done, total)
    if not positions[order_rule(orders[0])]:
        raise IcllError(
            f"in none of these {len(problems)} problems do the rules of {', '.join(map(str, orders))} tokens ever disagree: "
            "take more or longer problems, or fewer orders"
        )
    loss = evaluate(model, problems, batch_size=size).log_loss
    result = []
    for i, head in enumerate(heads):
        means = {rule: sums[i, rule] / positions[rule] for rule in positions}
        best = {rule: (int(m[1:].argmax()) + 1, float(m[1:].max())) for rule, m in means.items()} if head.n_channels > 1 else {}
        without = None
        if ablate:
            with knocked_out(model, head):
                without = evaluate(model, problems, batch_size=size).log_loss
            progress(len(starts) + 1 + i, total)
        result.append(HeadScores(head, {rule: float(m[0]) for rule, m in means.items()}, best, without))
    return HeadTable(model.name, result, {rule: chance[rule] / positions[rule] for rule in chance}, positions, loss, threshold)
