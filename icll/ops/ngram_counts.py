"""What followed the last tokens before: counts of every token id after contexts of 0, 1, 2, ... tokens, at every position.

    counts_(i, m, w)   how often w followed the m tokens that end at i, within tokens 0..i

Shapes: tokens [B, L] to counts [B, L, M, V] for contexts of m = 0..M-1 tokens. Every token adds one count for each m, so the
work is that of writing the result.
"""

from __future__ import annotations

import numpy as np
import torch

from ..jit import kernel
from .cpu import arrays, over_batch
from .ngram import context_ids, ngram_weights


def follower_counts(tokens: torch.Tensor, contexts: int, vocab_size: int) -> torch.Tensor:
    """float32 [B, L, M, V], on the CPU."""
    B, L = tokens.shape
    tokens = tokens.cpu()
    ids = np.zeros((contexts, B, L), np.int32)  # every position has the same context of no tokens
    if contexts > 1:
        ids[1:] = context_ids(tokens, contexts - 1).numpy()
    (rows,) = arrays(tokens.long())
    out = np.empty((B, L, contexts, vocab_size), np.float32)
    over_batch(lambda start, stop: _count(rows, ids, start, stop, out), B)
    return torch.from_numpy(out)


def naive_follower_counts(tokens: torch.Tensor, contexts: int, vocab_size: int) -> torch.Tensor:
    """By the matrices of matches, O(L^2)."""
    seen = torch.nn.functional.one_hot(tokens, vocab_size).double()
    parts = [seen.cumsum(1)]
    for m in range(1, contexts):
        parts.append((ngram_weights(tokens, m, "keep") > 0).double() @ seen)
    return torch.stack(parts, 2).float()


@kernel
def _count(rows, ids, start, stop, out):
    L, contexts, size = out.shape[1:]
    table = np.empty((L, size), np.float32)
    for b in range(start, stop):
        for m in range(contexts):
            known = 0  # rows of the table in use
            for i in range(L):
                before = ids[m, b, i - 1] if i > 0 else (0 if m == 0 else -1)
                if m == 0 and i == 0:
                    table[0] = 0
                    known = 1
                if before >= 0:
                    table[before, rows[b, i]] += 1
                now = ids[m, b, i]
                if now < 0:
                    out[b, i, m] = 0
                    continue
                if now >= known:  # contexts are numbered in the order they come
                    table[now] = 0
                    known = now + 1
                out[b, i, m] = table[now]
