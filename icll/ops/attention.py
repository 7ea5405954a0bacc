"""Causal softmax attention: torch's kernel, or in bfloat16 on a CPU one of our own, which is twice as fast there.

torch's makes bfloat16 scores one small tile at a time; here a block of queries meets all keys it may see in one product, which
the processor's bfloat16 units like better. The weights are kept for the way back: half of [B, H, L, L].

Shapes: q, k, v and the result [B, H, L, K].
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

BLOCK = 128  # queries at a time
LONGEST = 2048  # beyond, the weights are too large to keep


def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout: float = 0.0) -> torch.Tensor:
    """softmax(q k^T / sqrt(K)) v over what came before."""
    if q.dtype == torch.bfloat16 and q.device.type == "cpu" and not dropout and q.shape[2] <= LONGEST:
        return _BlockedAttention.apply(q, k, v)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)


class _BlockedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q = q / math.sqrt(q.shape[-1])
        out, kept = torch.empty_like(v), []
        with torch.autocast("cpu", enabled=False):
            for start in range(0, q.shape[2], BLOCK):
                rows = slice(start, start + BLOCK)
                scores = q[:, :, rows] @ k[:, :, : start + BLOCK].mT
                own = scores[..., start:]  # of keys in the block itself, some of which are ahead
                own.masked_fill_(torch.ones(own.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
                weights = scores.softmax(-1)
                out[:, :, rows] = weights @ v[:, :, : start + BLOCK]
                kept.append(weights)
        ctx.save_for_backward(q, k, v, *kept)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, k, v, *kept = ctx.saved_tensors
        for_q, for_k, for_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for weights, start in zip(kept, range(0, q.shape[2], BLOCK), strict=True):
            rows, seen = slice(start, start + BLOCK), slice(start + BLOCK)
            for_v[:, :, seen] += weights.mT @ gradient[:, :, rows]
            for_scores = torch._softmax_backward_data(gradient[:, :, rows] @ v[:, :, seen].mT, weights, -1, weights.dtype)
            for_q[:, :, rows] = for_scores @ k[:, :, seen]
            for_k[:, :, seen] += for_scores.mT @ q[:, :, rows]
        return for_q / math.sqrt(q.shape[-1]), for_k, for_v
