"""Where a run's batches and scores come from. Problems of a task are here; icll.text has another; yours may be a third."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch

from ..errors import IcllError
from ..model import Model
from ..predictors import evaluate
from ..tasks import Batch, LengthBuckets, Splits, collate
from ..tokens import N_SYMBOLS

SHORT = 128  # tokens that are read of a problem in the first epochs, if the recipe says so


class Source(Protocol):
    """What a run is trained on and scored by."""

    vocab_size: int
    fingerprints: dict[str, str]  # of the sets, for result.json
    files: dict[str, str]  # what else belongs into the run's folder: names and contents

    def __len__(self) -> int:
        """Batches of an epoch."""
        ...

    def batches(self, epoch: int, skip: int, rank: int, world: int) -> Iterator[tuple[Batch, int]]:
        """An epoch's batches without the first `skip`: this process's share of each, and how many targets the whole has."""
        ...

    def validate(self, model: Model) -> dict[str, float]:
        """Scores for metrics.jsonl; the epoch with the lowest `valid_loss` is the best."""
        ...

    def score(self, model: Model, name: str) -> dict[str, dict[str, Any]]:
        """Scores on validation and test set, for result.json."""
        ...


class ProblemSource:
    """Problems of similar length together, in an order that depends on seed and epoch alone. In the first epochs, `short` of
    them (or a part of one), only the beginnings of problems are read."""

    def __init__(self, splits: Splits, batch_size: int, seed: int, relabel: bool = False, short: float = 0.0):
        self.splits, self.seed, self.relabel, self.short = splits, seed, relabel, short
        self.buckets = LengthBuckets(np.diff(splits.train.offsets), batch_size, seed=seed)
        self.vocab_size = splits.train.vocab_size
        self.fingerprints = {name: getattr(splits, name).fingerprint for name in ("train", "valid", "test")}
        self.files: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self.buckets)

    def batches(self, epoch: int, skip: int, rank: int, world: int) -> Iterator[tuple[Batch, int]]:
        self.buckets.set_epoch(epoch)
        if world > 1 and (smallest := min(len(indices) for indices in self.buckets)) < world:
            raise IcllError(f"a batch of {smallest} problems cannot be shared by {world} processes: lower --devices")
        for number, indices in enumerate(self.buckets):
            if number < skip:
                continue
            problems = self.splits.train[np.asarray(indices)]
            end = SHORT if epoch + number / len(self) < self.short else None
            tokens = int(problems.trained[:, :end].sum())
            if world > 1:
                problems = problems[np.arange(rank, len(indices), world)]
            batch = beginning(collate(problems), end)
            yield relabelled(batch, [self.seed, epoch, number, rank]) if self.relabel else batch, tokens

    def validate(self, model: Model) -> dict[str, float]:
        scores = evaluate(model, self.splits.valid)
        return {
            "valid_loss": scores.log_loss, "valid_tvd": scores.tvd, "valid_accuracy": scores.accuracy,
            "valid_cross_entropy": scores.cross_entropy,
        }  # fmt: skip

    def score(self, model: Model, name: str) -> dict[str, dict[str, Any]]:
        return {part: evaluate(model, getattr(self.splits, part), name=name).as_dict() for part in ("valid", "test")}


def beginning(batch: Batch, end: int | None) -> Batch:
    """The first tokens of every problem."""
    tokens, targets, scored = (part[:, :end].contiguous() for part in batch[:3])
    return Batch(tokens, targets, scored, batch.lengths.clamp(max=tokens.shape[1]))


def relabelled(batch: Batch, seed: list[int]) -> Batch:
    """Every problem with its symbols permuted: as likely a problem, since the prior over languages knows no symbol from
    another."""
    rng = np.random.default_rng(seed)
    size = N_SYMBOLS + 2
    table = np.tile(np.arange(size), (len(batch.tokens), 1))
    for row in table:
        row[1 : N_SYMBOLS + 1] = rng.permutation(N_SYMBOLS) + 1
    mapping = torch.from_numpy(table)
    tokens = mapping.gather(1, batch.tokens)
    targets = torch.where(batch.targets >= 0, mapping.gather(1, batch.targets.clamp(min=0)), batch.targets)
    return Batch(tokens, targets, batch.scored, batch.lengths)
