"""How well a model predicts text: perplexity per token and per byte, and by position in the context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ..errors import IcllError, whole
from ..metrics import pooled
from ..model import Model, evaluating

LOGITS = 1 << 25  # numbers that are held at a time, for a batch of contexts
DECODED = 1 << 16  # tokens turned into text at a time
GROUPS = 1 << 12  # that the interval is drawn over, at most


@dataclass(frozen=True)
class TextScores:
    """Losses of a text that is read in contexts, one after the other; each begins with an empty memory."""

    name: str
    losses: np.ndarray  # float32 [T], -log p of tokens 1..T
    context: int
    text_bytes: int  # of the tokens that were predicted, separators not among them

    @cached_property
    def _pooled(self) -> tuple[float, float, float]:
        """Mean loss with a 95 % interval over contexts (of very long texts, over groups of them)."""
        contexts = -(-len(self.losses) // self.context)
        starts = np.arange(0, len(self.losses), self.context * -(-contexts // GROUPS))
        sums = np.add.reduceat(self.losses.astype(np.float64), starts)[:, None]
        counts = np.diff([*starts, len(self.losses)])[:, None]
        mean, low, high = pooled(sums, counts)
        return float(mean[0]), float(low[0]), float(high[0])

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self._pooled[0]

    @property
    def perplexity(self) -> float:
        return float(np.exp(self.loss))

    @property
    def byte_perplexity(self) -> float:
        """Which does not depend on the tokenizer, if it keeps all of the text."""
        return float(np.exp(self.losses.sum(dtype=np.float64) / self.text_bytes))

    @property
    def by_position(self) -> np.ndarray:
        """Perplexity [context] after 1, 2, ... tokens of the context."""
        position = np.arange(len(self.losses)) % self.context
        sums = np.bincount(position, self.losses.astype(np.float64), self.context)
        with np.errstate(invalid="ignore"):  # a text shorter than a context has no tokens at its end
            return np.exp(sums / np.bincount(position, minlength=self.context))

    def bands(self) -> list[tuple[int, int, float]]:
        """Perplexity in positions from..to that double in number: 1, 2, 3-4, 5-8, ..."""
        bands, first = [], 0
        position = np.arange(len(self.losses)) % self.context
        while first < min(self.context, len(self.losses)):
            last = min(max(1, 2 * first), self.context)
            inside = self.losses[(position >= first) & (position < last)]
            bands.append((first + 1, last, float(np.exp(inside.mean(dtype=np.float64)))))
            first = last
        return bands

    def as_dict(self) -> dict[str, Any]:
        per_byte = self.text_bytes / len(self.losses)
        loss, low, high = self._pooled
        intervals = {"loss": (loss, low, high), "perplexity": tuple(np.exp([loss, low, high]))}
        return {
            "name": self.name, "tokens": len(self.losses), "bytes": self.text_bytes, "context": self.context,
            **{k: dict(zip(("mean", "low", "high"), map(_finite, v), strict=True)) for k, v in intervals.items()},
            "byte_perplexity": self.byte_perplexity, "bits_per_byte": loss / np.log(2) / per_byte,
            "by_position": [{"from": a, "to": b, "perplexity": p} for a, b, p in self.bands()],
        }  # fmt: skip

    def __str__(self) -> str:
        loss, low, high = self._pooled
        interval = f" [{np.exp(low):.2f}, {np.exp(high):.2f}]" if np.isfinite(low) else ""
        return (
            f"{self.name}: perplexity {np.exp(loss):.2f}{interval} per token, "
            f"{self.byte_perplexity:.3f} per byte, on {len(self.losses):,} tokens"
        )


def _finite(value: float) -> float | None:
    """One context has no interval: null in JSON, which knows no NaN."""
    return float(value) if np.isfinite(value) else None


def score_text(
    model: Model,
    ids: np.ndarray,
    context: int,
    decode: Callable[[np.ndarray], str],
    *,
    name: str = "",
    most: int | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> TextScores:
    """Score the first `most` tokens. `decode` turns ids into text, whose bytes are counted."""
    total = len(ids) - 1 if most is None else min(len(ids) - 1, most)
    if total < 1:
        raise IcllError("there is no text to score: it has fewer than two tokens")
    size = max(1, LOGITS // model.config.vocab_size // whole("--context", context, 1))
    losses = []
    with evaluating(model):
        for start in range(0, total, size * context):
            part = torch.from_numpy(ids[start : min(start + size * context, total) + 1].astype(np.int64))
            full = (len(part) - 1) // context * context
            for first, last, length in ((0, full, context), (full, len(part) - 1, len(part) - 1 - full)):
                if last > first:
                    tokens, targets = part[first:last].view(-1, length), part[first + 1 : last + 1]
                    logits = model(tokens.to(model.embedding.weight.device)).flatten(0, 1).float().cpu()
                    losses.append(F.cross_entropy(logits, targets, reduction="none").numpy())
            progress(min(start + size * context, total), total)
    return TextScores(name or model.name, np.concatenate(losses), context, max(1, _text_bytes(ids[1 : total + 1], decode)))


def _text_bytes(ids: np.ndarray, decode: Callable[[np.ndarray], str]) -> int:
    """Part by part; a character whose bytes are several tokens is not cut."""
    count, start = 0, 0
    while start < len(ids):
        for end in range(start + DECODED, start + DECODED + 8):
            text = decode(ids[start:end])
            if not text.endswith("\ufffd"):
                break
        count += len(text.encode())
        start = end
    return count
