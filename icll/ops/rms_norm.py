"""RMS normalisation in one pass over the rows: y = w x / sqrt(mean(x^2) + eps).

Shapes: x, y [..., D]; w [D].
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from ..jit import kernel
from .cpu import FAST, arrays, exact_on_cpu, over_batch

ROWS = 64  # whose part of w's gradient is summed at a time, whatever the number of threads


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _RMSNorm.apply(x, weight, eps) if exact_on_cpu(x, weight) else naive_rms_norm(x, weight, eps)


def naive_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        x_, w_ = arrays(x.reshape(-1, x.shape[-1]), _own(weight))
        y, scale = np.empty_like(x_), np.empty_like(x_[:, 0])
        over_batch(lambda start, stop: _forward(x_, w_, x_.dtype.type(eps), start, stop, y, scale), len(x_))
        ctx.save_for_backward(x, weight, torch.from_numpy(scale))
        return torch.from_numpy(y).view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        x_, w_, scale_, g_ = arrays(x.reshape(-1, x.shape[-1]), _own(weight), scale, gradient.reshape(-1, gradient.shape[-1]))
        blocks = -(-len(x_) // ROWS)
        dx, dw = np.empty_like(x_), np.zeros((blocks, len(w_)), w_.dtype)
        over_batch(lambda start, stop: _backward(x_, w_, scale_, g_, start, stop, dx, dw), blocks)
        return torch.from_numpy(dx).view(x.shape), torch.from_numpy(dw).sum(0), None


def _own(weight: torch.Tensor) -> torch.Tensor:
    """A copy: memory that an array looks at cannot be freed between layers, as FSDP does with that of weights."""
    return weight.detach().clone()


@kernel(fastmath=FAST, error_model="numpy")
def _forward(x, w, eps, start, stop, y, scale):
    D, f = x.shape[1], x.dtype.type
    for i in range(start, stop):
        total = f(0)
        for j in range(D):
            total += x[i, j] * x[i, j]
        scale[i] = f(1) / np.sqrt(total / f(D) + eps)
        for j in range(D):
            y[i, j] = x[i, j] * scale[i] * w[j]


@kernel(fastmath=FAST, error_model="numpy")
def _backward(x, w, scale, g, start, stop, dx, dw):
    N, D = x.shape
    f = x.dtype.type
    for block in range(start, stop):
        for i in range(block * ROWS, min(N, (block + 1) * ROWS)):
            s = scale[i]
            total = f(0)
            for j in range(D):
                total += g[i, j] * w[j] * x[i, j]
            along = total * s * s * s / f(D)
            for j in range(D):
                dx[i, j] = g[i, j] * w[j] * s - x[i, j] * along
                dw[block, j] += g[i, j] * x[i, j] * s
