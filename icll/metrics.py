"""How good predictions are (section 4.4): accuracy, total variation distance, cross-entropy and KL, pooled and as curves.

Each metric is a number for every scored token. A mean is pooled over tokens; its confidence interval comes from resampling
problems, since tokens of one problem share a language and are not independent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch

# Probabilities count as at least this in logarithms: a learner that rules out a legal symbol pays -log(FLOOR) = 13.8 nats
# times that symbol's share, not an infinite price.
FLOOR = 1e-6
BOOTSTRAP = 1000
LEVEL = 0.95


def tvd(probs: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Total variation distance [...] of two distributions [..., V]: half the L1 distance."""
    return (probs - truth).abs().sum(-1) / 2


def accuracy(probs: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """1 where the likeliest token is one the language allows."""
    return (truth.gather(-1, probs.argmax(-1, keepdim=True)).squeeze(-1) > 0).to(probs.dtype)


def cross_entropy(probs: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Expected -log p of the next token, in nats, under the language's own distribution."""
    return -(truth * probs.clamp_min(FLOOR).log()).sum(-1)


def entropy(truth: torch.Tensor) -> torch.Tensor:
    return torch.special.entr(truth).sum(-1)


def kl(probs: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Nats above the language's own entropy: 0 for the truth."""
    return cross_entropy(probs, truth) - entropy(truth)


def log_loss(probs: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """-log p of the token that really followed [...]: what a model is trained on."""
    return -probs.gather(-1, following.unsqueeze(-1)).squeeze(-1).clamp_min(FLOOR).log()


METRICS = ("tvd", "accuracy", "cross_entropy", "kl", "log_loss", "ruled_out")


def token_metrics(probs: torch.Tensor, truth: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """All of METRICS [T, 6] for T tokens: distributions [T, V], truth [T, V], the tokens that followed [T].

    `ruled_out` is 1 where a legal symbol got less than FLOOR, so that the cross-entropy is bounded by it.
    """
    probs, truth = probs.double(), truth.double()
    ruled_out = ((probs < FLOOR) & (truth > 0)).any(-1).double()
    columns = [
        tvd(probs, truth),
        accuracy(probs, truth),
        cross_entropy(probs, truth),
        kl(probs, truth),
        log_loss(probs, following),
        ruled_out,
    ]
    return torch.stack(columns, dim=-1)


@dataclass(frozen=True)
class Curve:
    """A metric along an axis: entry k is the mean over all tokens at k, with its confidence interval; nan where none is."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    tokens: np.ndarray  # how many tokens are at k

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.mean, dtype=dtype)

    def __len__(self) -> int:
        return len(self.mean)


@dataclass(frozen=True)
class Scores:
    """Scores of one predictor on one set of problems.

    `scores.tvd`, `.accuracy`, `.cross_entropy`, `.kl`, `.log_loss`, `.ruled_out` are pooled means, `.ci["tvd"]` is a 95 %
    interval, `.by_position["tvd"]` a `Curve` over the tokens read before the prediction (row t has read t + 1),
    `.by_strings["tvd"]` one over the whole strings read.
    """

    name: str
    n_problems: int
    tokens: np.ndarray = field(repr=False)  # float32 [T, metrics], a row for each scored token
    problem: np.ndarray = field(repr=False)  # [T] which problem it belongs to
    position: np.ndarray = field(repr=False)  # [T] the row t the prediction was made at
    strings: np.ndarray = field(repr=False)  # [T] whole strings read until then
    seconds: float = float("nan")  # spent predicting

    @cached_property
    def _pooled(self) -> dict[str, np.ndarray]:
        counts = np.bincount(self.problem, minlength=self.n_problems)[:, None]
        sums = np.stack([np.bincount(self.problem, w, self.n_problems) for w in self.tokens.T.astype(np.float64)], axis=1)
        mean, low, high = pooled(sums, np.broadcast_to(counts, sums.shape))
        return {name: np.array([mean[i], low[i], high[i]]) for i, name in enumerate(METRICS)}

    @property
    def tvd(self) -> float:
        return float(self._pooled["tvd"][0])

    @property
    def accuracy(self) -> float:
        return float(self._pooled["accuracy"][0])

    @property
    def cross_entropy(self) -> float:
        return float(self._pooled["cross_entropy"][0])

    @property
    def kl(self) -> float:
        return float(self._pooled["kl"][0])

    @property
    def log_loss(self) -> float:
        return float(self._pooled["log_loss"][0])

    @property
    def ruled_out(self) -> float:
        return float(self._pooled["ruled_out"][0])

    @property
    def ci(self) -> dict[str, tuple[float, float]]:
        return {name: (float(low), float(high)) for name, (_, low, high) in self._pooled.items()}

    @cached_property
    def by_position(self) -> dict[str, Curve]:
        return self._curves(self.position)

    @cached_property
    def by_strings(self) -> dict[str, Curve]:
        return self._curves(self.strings)

    def _curves(self, axis: np.ndarray) -> dict[str, Curve]:
        shape = (self.n_problems, int(axis.max()) + 1)
        cell = self.problem.astype(np.int64) * shape[1] + axis
        counts = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape)
        curves = {}
        for i, metric in enumerate(METRICS):
            sums = np.bincount(cell, self.tokens[:, i].astype(np.float64), counts.size).reshape(shape)
            curves[metric] = Curve(*pooled(sums, counts), tokens=counts.sum(axis=0))
        return curves

    def __str__(self) -> str:
        parts = []
        for metric, label in (("tvd", "TVD"), ("accuracy", "accuracy"), ("cross_entropy", "cross-entropy")):
            mean, low, high = self._pooled[metric]
            parts.append(f"{label} {mean:.3f} [{low:.3f}, {high:.3f}]")
        return f"{self.name}: {', '.join(parts)} on {self.n_problems} problems ({len(self.tokens):,} tokens)"

    def as_dict(self) -> dict[str, Any]:
        """Everything but the curves, ready for JSON."""
        out: dict[str, Any] = {"name": self.name, "problems": self.n_problems, "tokens": len(self.tokens)}
        for metric, (mean, low, high) in self._pooled.items():
            out[metric] = {"mean": float(mean), "low": float(low), "high": float(high)}
        return {**out, "seconds": self.seconds}


def pooled(sums: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pooled means [M] of per-problem sums and counts [N, M], and their bootstrap interval over problems."""
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = sums.sum(axis=0) / counts.sum(axis=0)
        weights = _bootstrap_weights(len(sums))
        samples = (weights @ sums) / (weights @ counts.astype(np.float64))
    tail = (1 - LEVEL) / 2
    low, high = np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    some = np.isfinite(mean) & (len(sums) > 1)  # one problem says nothing about the spread over problems
    # a resample may hold no problem that is long enough: it says nothing about that position
    if some.any():
        low[some], high[some] = np.nanquantile(samples[:, some], [tail, 1 - tail], axis=0)
    return mean, low, high


@lru_cache(maxsize=1)
def _bootstrap_weights(n: int) -> np.ndarray:
    """How often each of n problems is drawn in each resample [BOOTSTRAP, n]; the same for the same n."""
    return np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=BOOTSTRAP).astype(np.float32)
