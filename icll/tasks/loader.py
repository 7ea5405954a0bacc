"""Problems as batches for training: similar lengths together, so that little padding is computed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from ..errors import IcllError
from .problems import Problems


class Batch(NamedTuple):
    tokens: torch.Tensor  # int64 [B, L]
    scored: torch.Tensor  # bool [B, L]: token t + 1 counts
    lengths: torch.Tensor  # int64 [B]

    @property
    def targets(self) -> torch.Tensor:
        """int64 [B, L]: token t + 1 where it counts, else -100, which torch's cross-entropy ignores."""
        following = torch.zeros_like(self.tokens)
        following[:, :-1] = self.tokens[:, 1:]
        return following.masked_fill(~self.scored, -100)


class ProblemDataset(Dataset[Problems]):
    """A map-style torch dataset; item i is problem i, several at once are read as one set."""

    def __init__(self, problems: Problems):
        self.problems = problems

    def __len__(self) -> int:
        return len(self.problems)

    def __getitem__(self, index: int) -> Problems:
        return self.problems[index]

    def __getitems__(self, indices: list[int]) -> Problems:
        return self.problems[np.asarray(indices)]


class LengthBuckets(Sampler[list[int]]):
    """Batches of problems of similar length, in an order that depends on (seed, epoch) alone.

    Problems are shuffled, cut into pools of `pool` batches, sorted by length within a pool; then the batches are shuffled. A
    larger pool means less padding and less mixing. Call `set_epoch` before each epoch.
    """

    def __init__(self, lengths: np.ndarray, batch_size: int, *, shuffle: bool = True, seed: int = 0, pool: int = 32):
        if batch_size < 1 or pool < 1:
            raise IcllError(f"batch size and pool must be at least 1, not {batch_size} and {pool}")
        self.lengths, self.batch_size, self.shuffle, self.seed, self.pool = lengths, batch_size, shuffle, seed, pool
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-len(self.lengths) // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        if not self.shuffle:
            order = np.argsort(self.lengths, kind="stable")
            yield from (part.tolist() for part in self._cut(order))
            return
        rng = np.random.default_rng([self.seed, self.epoch])
        order = rng.permutation(len(self.lengths))
        batches: list[np.ndarray] = []
        for first in range(0, len(order), self.pool * self.batch_size):
            part = order[first : first + self.pool * self.batch_size]
            batches += self._cut(part[np.argsort(self.lengths[part], kind="stable")])
        yield from (batches[i].tolist() for i in rng.permutation(len(batches)))

    def _cut(self, order: np.ndarray) -> list[np.ndarray]:
        return [order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size)]


def make_loader(
    problems: Problems,
    batch_size: int = 32,
    *,
    shuffle: bool = True,
    seed: int = 0,
    pool: int = 32,
    workers: int = 0,
) -> DataLoader[Any]:
    """A torch loader of `Batch`es. `loader.batch_sampler.set_epoch(n)` reshuffles."""
    buckets = LengthBuckets(np.diff(problems.offsets), batch_size, shuffle=shuffle, seed=seed, pool=pool)
    return DataLoader(ProblemDataset(problems), batch_sampler=buckets, collate_fn=_collate, num_workers=workers)


def _collate(problems: Any) -> Batch:  # the Problems of one batch, from `__getitems__`
    return Batch(problems.tokens, problems.scored, problems.lengths)
