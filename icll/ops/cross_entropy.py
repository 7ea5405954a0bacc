"""The output map and its loss in one: the sum of cross-entropies of logits h W^T that never exist all at once.

A large vocabulary makes the logits [N, V] and their gradient the largest tensors of a text model. Here they live for some
rows at a time, and the gradients for h and W are made at once, while those rows are in the cache.

Shapes: hidden [N, D], weight [V, D], targets [N] with -100 where there is none; the result is a number.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

IGNORE = -100
SMALL = 1024  # up to so many ids all logits are made at once
LOGITS = 1 << 20  # held at a time


def output_loss(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The summed loss, differentiable in hidden and weight."""
    if len(weight) <= SMALL or not torch.is_grad_enabled():
        return naive_output_loss(hidden, weight, targets)
    return _OutputLoss.apply(hidden, weight, targets)


def naive_output_loss(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """With all logits."""
    logits = F.linear(hidden, weight)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum")


class _OutputLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        for_hidden, for_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        total = hidden.new_zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32))
        rows = max(1, LOGITS // len(weight))
        for h, y, out in zip(hidden.split(rows), targets.split(rows), for_hidden.split(rows), strict=True):
            logits = F.linear(h, weight).to(total.dtype)
            kept = y != IGNORE
            at = torch.where(kept, y, 0)[:, None]
            norm = logits.logsumexp(-1, keepdim=True)
            total += torch.where(kept[:, None], norm - logits.gather(1, at), 0).sum()
            gradient = logits.sub_(norm).exp_()  # softmax, minus 1 at the target
            gradient.scatter_add_(1, at, torch.full_like(norm, -1))
            gradient.mul_(kept[:, None])
            gradient = gradient.to(weight.dtype)
            out.copy_(gradient @ weight)
            for_weight += gradient.T @ h.to(weight.dtype)
        ctx.save_for_backward(for_hidden, for_weight)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        for_hidden, for_weight = ctx.saved_tensors
        return for_hidden * gradient.to(for_hidden.dtype), for_weight * gradient.to(for_weight.dtype), None
