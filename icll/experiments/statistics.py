"""Are two predictors different? Tests that pair problems, or compare seeds; and how far two orders agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from ..errors import IcllError
from .results import Entry

DRAWS = 10_000


@dataclass(frozen=True)
class Difference:
    """Of pooled means, a minus b. `p` is two-sided."""

    mean: float
    low: float  # 95 % interval; nan where there is none
    high: float
    p: float
    over: str  # "500 problems" or "3 + 3 seeds"

    def __str__(self) -> str:
        interval = "" if np.isnan(self.low) else f" [{self.low:+.3f}, {self.high:+.3f}]"
        return f"{self.mean:+.3f}{interval}, p {'<' if self.p < 0.001 else '='} {max(self.p, 0.001):.3f} over {self.over}"


def paired(a: Entry, b: Entry, metric: str = "tvd") -> Difference | None:
    """Over problems that both predicted: signs of their differences are flipped at random. None without scores of each."""
    if not a.by_problem or not b.by_problem or a.fingerprint != b.fingerprint:
        return None
    tokens = np.array(a.by_problem["tokens"], dtype=float)
    gaps = tokens * (np.array(a.by_problem[metric]) - np.array(b.by_problem[metric]))
    return paired_means(gaps, tokens)


def paired_means(gaps: np.ndarray, tokens: np.ndarray, draws: int = DRAWS) -> Difference:
    """The same from sums of differences [N] over the tokens [N] of each problem."""
    if len(gaps) != len(tokens) or len(gaps) < 2:
        raise IcllError("a paired test needs the same two or more problems on both sides")
    rng = np.random.default_rng(0)
    mean = gaps.sum() / tokens.sum()
    signs = rng.integers(0, 2, size=(draws, len(gaps)), dtype=np.int8) * 2 - 1
    flipped = np.abs(signs @ gaps) / tokens.sum()
    p = (1 + (flipped >= abs(mean) - 1e-12).sum()) / (1 + draws)
    weights = rng.multinomial(len(gaps), np.full(len(gaps), 1 / len(gaps)), size=draws // 10)
    low, high = np.quantile((weights @ gaps) / (weights @ tokens), [0.025, 0.975])
    return Difference(float(mean), float(low), float(high), float(p), f"{len(gaps)} problems")


def over_seeds(a: Sequence[float], b: Sequence[float]) -> Difference | None:
    """Exact permutation test of the means of runs with different seeds; None with fewer than two on a side."""
    if len(a) < 2 or len(b) < 2:
        return None
    together = np.array([*a, *b])
    mean = np.mean(a) - np.mean(b)
    gaps = []
    for chosen in combinations(range(len(together)), len(a)):
        rest = np.delete(together, chosen)
        gaps.append(abs(together[list(chosen)].mean() - rest.mean()))
    p = float(np.mean(np.array(gaps) >= abs(mean) - 1e-12))
    return Difference(float(mean), float("nan"), float("nan"), p, f"{len(a)} + {len(b)} seeds")


def ranks(values: Sequence[float]) -> np.ndarray:
    """From 1; ties share their mean rank."""
    array = np.asarray(values, dtype=float)
    return np.array([(array < v).sum() + ((array == v).sum() + 1) / 2 for v in array])


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's: the correlation of ranks."""
    if len(a) != len(b) or len(a) < 2:
        raise IcllError("a rank correlation needs two lists of the same length, of two or more")
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])
