"""The gate of SwiGLU in one pass: silu(a) * b for the two halves of a row, silu(a) = a / (1 + exp(-a)).

Shapes: x [..., 2 W]; the result is [..., W].
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from ..jit import kernel
from .cpu import FAST, arrays, exact_on_cpu, exp, over_batch


def swiglu(x: torch.Tensor) -> torch.Tensor:
    return _SwiGLU.apply(x) if exact_on_cpu(x) else naive_swiglu(x)


def naive_swiglu(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return F.silu(a) * b


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        (x_,) = arrays(x.reshape(-1, x.shape[-1]))
        y = np.empty((len(x_), x_.shape[1] // 2), x_.dtype)
        over_batch(lambda start, stop: _forward(x_, start, stop, y), len(x_))
        ctx.save_for_backward(x)
        return torch.from_numpy(y).view(*x.shape[:-1], y.shape[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        x_, g_ = arrays(x.reshape(-1, x.shape[-1]), gradient.reshape(-1, gradient.shape[-1]))
        dx = np.empty_like(x_)
        over_batch(lambda start, stop: _backward(x_, g_, start, stop, dx), len(x_))
        return torch.from_numpy(dx).view(x.shape)


@kernel(fastmath=FAST, error_model="numpy")
def _forward(x, start, stop, y):
    W, f = y.shape[1], x.dtype.type
    for i in range(start, stop):
        for j in range(W):
            y[i, j] = x[i, j] * x[i, W + j] / (f(1) + exp(-x[i, j]))


@kernel(fastmath=FAST, error_model="numpy")
def _backward(x, g, start, stop, dx):
    W, f = g.shape[1], x.dtype.type
    for i in range(start, stop):
        da, db = dx[i, :W], dx[i, W:]  # apart, so that the compiler sees that they do not overlap
        for j in range(W):
            a, sigmoid = x[i, j], f(1) / (f(1) + exp(-x[i, j]))
            da[j] = g[i, j] * x[i, W + j] * sigmoid * (f(1) + a * (f(1) - sigmoid))
            db[j] = g[i, j] * a * sigmoid
