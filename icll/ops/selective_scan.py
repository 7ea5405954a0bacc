"""Mamba's selective scan: a diagonal linear recurrence whose coefficients depend on the token.

    h_t[d, n] = exp(dt_t[d] A[d, n]) h_(t-1)[d, n] + dt_t[d] B_t[n] x_t[d]
    y_t[d]    = sum over n of C_t[n] h_t[d, n]

Shapes: x, dt [B, L, D]; A [D, N], negative; B, C [B, L, N]; y [B, L, D].
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from ..jit import kernel
from .cpu import BLOCK, CHUNK, FAST, arrays, exp, on_cpu, over_batch, same_dtype


def selective_scan(
    x: torch.Tensor, dt: torch.Tensor, A: torch.Tensor, B: torch.Tensor, C: torch.Tensor
) -> torch.Tensor:  # fmt: skip
    """The scan in O(L D N) time and O(L D N / 32) memory: a kernel on the CPU, chunks of a parallel scan elsewhere."""
    dtype = x.dtype
    x, dt, A, B, C = same_dtype(x, dt, A, B, C)
    y = _Scan.apply(x, dt, A, B, C) if on_cpu(x, dt, A, B, C) else chunked_selective_scan(x, dt, A, B, C)
    return y.to(dtype)


def naive_selective_scan(
    x: torch.Tensor, dt: torch.Tensor, A: torch.Tensor, B: torch.Tensor, C: torch.Tensor
) -> torch.Tensor:  # fmt: skip
    """Token by token."""
    h = x.new_zeros(x.shape[0], *A.shape)
    y = []
    for t in range(x.shape[1]):
        h, out = selective_step(h, x[:, t], dt[:, t], A, B[:, t], C[:, t])
        y.append(out)
    return torch.stack(y, 1)


def selective_step(
    h: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, A: torch.Tensor, B: torch.Tensor, C: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token: h [B, D, N], x and dt [B, D], B and C [B, N] to the next h and y [B, D]."""
    h = torch.exp(dt[..., None] * A) * h + (dt * x)[..., None] * B[:, None]
    return h, (h * C[:, None]).sum(-1)


def chunked_selective_scan(
    x: torch.Tensor, dt: torch.Tensor, A: torch.Tensor, B: torch.Tensor, C: torch.Tensor, chunk: int = CHUNK
) -> torch.Tensor:
    """In torch alone, for any device: a parallel scan inside each chunk, recomputed in the backward pass."""
    h = x.new_zeros(x.shape[0], *A.shape)
    y = []
    for start in range(0, x.shape[1], chunk):
        part = slice(start, start + chunk)
        h, out = checkpoint(_scan_chunk, h, x[:, part], dt[:, part], A, B[:, part], C[:, part], use_reentrant=False)
        y.append(out)
    return torch.cat(y, 1)


def _scan_chunk(
    h: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, A: torch.Tensor, B: torch.Tensor, C: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    decay = torch.exp(dt[..., None] * A)  # [B, chunk, D, N]
    state = (dt * x)[..., None] * B[:, :, None]
    state = torch.cat([state[:, :1] + decay[:, :1] * h[:, None], state[:, 1:]], 1)
    step = 1
    while step < x.shape[1]:  # spans double: each position joins the span that ends `step` before it
        state = torch.cat([state[:, :step], state[:, step:] + decay[:, step:] * state[:, :-step]], 1)
        decay = torch.cat([decay[:, :step], decay[:, step:] * decay[:, :-step]], 1)
        step *= 2
    return state[:, -1], torch.einsum("btdn,btn->btd", state, C)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dt: torch.Tensor, A: torch.Tensor, B: torch.Tensor, C: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, dt, A, B, C)
        x_, dt_, A_, B_, C_ = arrays(x, dt, A.T, B, C)
        y = np.empty_like(x_)
        over_batch(lambda start, stop: _forward(x_, dt_, A_, B_, C_, start, stop, y), len(x_))
        return torch.from_numpy(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, dt, A, B, C = arrays(*(t.T if i == 2 else t for i, t in enumerate(ctx.saved_tensors)))
        (gy_,) = arrays(gy)
        gx, gdt, gB, gC = (np.zeros_like(a) for a in (x, dt, B, C))
        gA = np.zeros((len(x), *A.shape), A.dtype)  # one for each problem: threads do not share a sum
        over_batch(lambda start, stop: _backward(x, dt, A, B, C, gy_, start, stop, gx, gdt, gA, gB, gC), len(x))
        return tuple(torch.from_numpy(g) for g in (gx, gdt, gA.sum(0).T, gB, gC))


@kernel(fastmath=FAST, error_model="numpy")
def _advance(h, x, dt, A, b, c, y, decay, after):
    """One token, one block of channels: h [N, D] in place. `decay` and `after` are for the backward pass, if not empty."""
    N, D = h.shape
    keep = after.size > 0
    for n in range(N):
        hn, an, bn, cn = h[n], A[n], b[n], c[n]
        for d in range(D):
            a = exp(dt[d] * an[d])
            s = a * hn[d] + dt[d] * x[d] * bn
            hn[d] = s
            y[d] += s * cn
            if keep:
                decay[n, d] = a
                after[n, d] = s


@kernel(fastmath=FAST, error_model="numpy")
def _forward(x, dt, A, B, C, start, stop, y):
    L, D = x.shape[1:]
    N = A.shape[0]
    none = np.empty((0, 0), x.dtype)
    for b in range(start, stop):
        for d0 in range(0, D, BLOCK):
            d1 = min(d0 + BLOCK, D)
            h = np.zeros((N, d1 - d0), x.dtype)
            a = A[:, d0:d1].copy()
            for t in range(L):
                row = y[b, t, d0:d1]
                row[:] = 0
                _advance(h, x[b, t, d0:d1], dt[b, t, d0:d1], a, B[b, t], C[b, t], row, none, none)


@kernel(fastmath=FAST, error_model="numpy")
def _backward(x, dt, A, B, C, gy, start, stop, gx, gdt, gA, gB, gC):
    L, D = x.shape[1:]
    N = A.shape[0]
    chunks = (L + CHUNK - 1) // CHUNK
    none = np.empty((0, 0), x.dtype)
    for b in range(start, stop):
        for d0 in range(0, D, BLOCK):
            d1 = min(d0 + BLOCK, D)
            W = d1 - d0
            a = A[:, d0:d1].copy()
            waste = np.zeros(W, x.dtype)
            zero = np.zeros(1, x.dtype)[0]
            h = np.zeros((N, W), x.dtype)
            before = np.empty((chunks, N, W), x.dtype)  # the state at the start of each chunk
            for t in range(L):
                if t % CHUNK == 0:
                    before[t // CHUNK] = h
                _advance(h, x[b, t, d0:d1], dt[b, t, d0:d1], a, B[b, t], C[b, t], waste, none, none)
            states = np.empty((CHUNK + 1, N, W), x.dtype)
            decays = np.empty((CHUNK, N, W), x.dtype)
            gh = np.zeros((N, W), x.dtype)
            ga = np.zeros((N, W), x.dtype)
            gu = np.empty(W, x.dtype)
            for chunk in range(chunks - 1, -1, -1):
                first = chunk * CHUNK
                last = min(first + CHUNK, L)
                h[:] = before[chunk]
                states[0] = h
                for t in range(first, last):
                    i = t - first
                    _advance(
                        h, x[b, t, d0:d1], dt[b, t, d0:d1], a, B[b, t], C[b, t], waste, decays[i], states[i + 1]
                    )  # fmt: skip
                for t in range(last - 1, first - 1, -1):
                    i = t - first
                    xt, dtt, gyt, gdtt = x[b, t, d0:d1], dt[b, t, d0:d1], gy[b, t, d0:d1], gdt[b, t, d0:d1]
                    gu[:] = 0
                    for n in range(N):
                        bn, cn = B[b, t, n], C[b, t, n]
                        old, new, decay, an, ghn, gan = states[i, n], states[i + 1, n], decays[i, n], a[n], gh[n], ga[n]
                        sum_b = sum_c = zero
                        for d in range(W):
                            g = ghn[d] + gyt[d] * cn
                            sum_c += gyt[d] * new[d]
                            sum_b += g * dtt[d] * xt[d]
                            gu[d] += g * bn
                            back = g * decay[d]
                            through = back * old[d]
                            gan[d] += through * dtt[d]
                            gdtt[d] += through * an[d]
                            ghn[d] = back
                        gB[b, t, n] += sum_b
                        gC[b, t, n] += sum_c
                    for d in range(W):
                        gdtt[d] += gu[d] * xt[d]
                        gx[b, t, d0 + d] = gu[d] * dtt[d]
            gA[b, :, d0:d1] = ga
