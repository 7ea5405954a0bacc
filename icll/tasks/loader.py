"""Problems as batches for training: similar lengths together, so that little padding is computed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from ..errors import IcllError
from .problems import Problems


class Batch(NamedTuple):
    tokens: torch.Tensor  # int64 [B, L]
    targets: torch.Tensor  # int64 [B, L]: token t + 1 where it is in the loss, else -100, which torch's cross-entropy ignores
    scored: torch.Tensor  # bool [B, L]: token t + 1 counts in the scores
    lengths: torch.Tensor  # int64 [B]


def collate(problems: Any, *, separators: bool = False) -> Batch:
    """One batch of all these `Problems`, as the dataset gives them. `separators=True` puts separators into the loss too."""
    tokens = problems.tokens
    trained = problems._has_next if separators else problems.trained
    following = torch.nn.functional.pad(tokens[:, 1:], (0, 1))
    return Batch(tokens, following.masked_fill(~trained, -100), problems.scored, problems.lengths)


class ProblemDataset(Dataset[Problems]):
    """A map-style torch dataset: item i is problem i. Use it with `collate`: DataLoader(dataset, 32, collate_fn=collate)."""

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
    separators: bool = False,
) -> DataLoader[Any]:
    """A torch loader of `Batch`es. `loader.batch_sampler.set_epoch(n)` reshuffles; `separators` as in `collate`."""
    buckets = LengthBuckets(np.diff(problems.offsets), batch_size, shuffle=shuffle, seed=seed, pool=pool)
    make = partial(collate, separators=separators)
    return DataLoader(ProblemDataset(problems), batch_sampler=buckets, collate_fn=make, num_workers=workers)
