"""RWKV's weighted average of values: weights e**k, falling by e**-w with every step back, and e**(u + k) for the token itself.

    a_t = e**-w a_(t-1) + e**k_t v_t        b_t = e**-w b_(t-1) + e**k_t
    y_t = (a_(t-1) + e**(u + k_t) v_t) / (b_(t-1) + e**(u + k_t))

Shapes: w, u [D]; k, v, y [B, L, D]. All forms keep a and b divided by e**m, m the largest exponent so far: nothing overflows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from ..jit import kernel
from .cpu import BLOCK, CHUNK, FAST, arrays, exp, on_cpu, over_batch, same_dtype
from .gpu import fast_wkv

_LOWEST = -1e30  # the exponent of nothing
State = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def wkv(w: torch.Tensor, u: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """In O(L D) time: a kernel on the CPU, a parallel scan elsewhere."""
    dtype = v.dtype
    w, u, k, v = same_dtype(w, u, k, v)
    if on_cpu(w, u, k, v):
        return _Wkv.apply(w, u, k, v).to(dtype)
    fast = fast_wkv(w, u, k, v)
    return (parallel_wkv(w, u, k, v) if fast is None else fast).to(dtype)


def naive_wkv(w: torch.Tensor, u: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Token by token."""
    state = wkv_start(k[:, 0])
    y = []
    for t in range(k.shape[1]):
        state, out = wkv_step(state, w, u, k[:, t], v[:, t])
        y.append(out)
    return torch.stack(y, 1)


def wkv_start(like: torch.Tensor) -> State:
    """The state (a, b, m) before the first token."""
    zero = torch.zeros_like(like)
    return zero, zero, torch.full_like(like, _LOWEST)


def wkv_step(state: State, w: torch.Tensor, u: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[State, torch.Tensor]:
    """One token: k and v [B, D] to the next state and y [B, D]."""
    a, b, m = state
    top = torch.maximum(m, u + k)
    past, now = torch.exp(m - top), torch.exp(u + k - top)
    y = (past * a + now * v) / (past * b + now)
    top = torch.maximum(m - w, k)
    past, now = torch.exp(m - w - top), torch.exp(k - top)
    return (past * a + now * v, past * b + now, top), y


def parallel_wkv(w: torch.Tensor, u: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """In torch alone, for any device: a scan over spans that double, O(L log L)."""
    # a, b, m of the span that ends before t, so shifted by one.
    a, b, m = (torch.cat([first[:, None], rest[:, :-1]], 1) for first, rest in zip(
        wkv_start(k[:, 0]), (v, torch.ones_like(v), k), strict=True))  # fmt: skip
    step = 1
    while step < k.shape[1]:
        left_m = m[:, :-step] - step * w
        top = torch.maximum(left_m, m[:, step:])
        past, now = torch.exp(left_m - top), torch.exp(m[:, step:] - top)
        a = torch.cat([a[:, :step], past * a[:, :-step] + now * a[:, step:]], 1)
        b = torch.cat([b[:, :step], past * b[:, :-step] + now * b[:, step:]], 1)
        m = torch.cat([m[:, :step], top], 1)
        step *= 2
    top = torch.maximum(m, u + k)
    past, now = torch.exp(m - top), torch.exp(u + k - top)
    return (past * a + now * v) / (past * b + now)


def wkv_weights(w: torch.Tensor, u: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The average's weights, [B, D, L, L]: rows sum to 1."""
    L = k.shape[1]
    at = torch.arange(L, device=k.device)
    distance = (at[:, None] - at - 1).clamp(min=0)  # [L, L]
    exponent = k.mT[:, :, None] - distance * w[:, None, None]  # [B, D, L, L]
    diagonal = (k + u).mT[..., None]
    exponent = torch.where(at[:, None] == at, diagonal, exponent)
    return exponent.masked_fill(at[:, None] < at, float("-inf")).softmax(-1)


class _Wkv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, w: torch.Tensor, u: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        w_, u_, k_, v_ = arrays(w, u, k, v)
        y = np.empty_like(k_)
        over_batch(lambda start, stop: _forward(w_, u_, k_, v_, start, stop, y), len(k_))
        out = torch.from_numpy(y)
        ctx.save_for_backward(w, u, k, v, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: torch.Tensor) -> tuple[torch.Tensor, ...]:
        w, u, k, v, y = arrays(*ctx.saved_tensors)
        (gy_,) = arrays(gy)
        gk, gv = np.empty_like(k), np.empty_like(k)
        gw, gu = np.zeros((len(k), w.size), k.dtype), np.zeros((len(k), w.size), k.dtype)
        over_batch(lambda start, stop: _backward(w, u, k, v, y, gy_, start, stop, gw, gu, gk, gv), len(k))
        return tuple(torch.from_numpy(g) for g in (gw.sum(0), gu.sum(0), gk, gv))


@kernel(fastmath=FAST, error_model="numpy")
def _update(a, b, m, w, k, v):
    """The state after one token, in place. Of two weights divided by the larger one is 1, so one exponential will do."""
    for d in range(a.size):
        past = m[d] - w[d]
        gap = past - k[d]
        small = exp(-abs(gap))
        keep, new = (1, small) if gap > 0 else (small, 1)
        a[d] = keep * a[d] + new * v[d]
        b[d] = keep * b[d] + new
        m[d] = max(past, k[d])


@kernel(fastmath=FAST, error_model="numpy")
def _forward(w, u, k, v, start, stop, y):
    L, D = k.shape[1:]
    for i in range(start, stop):
        a, b, m = np.zeros(D, k.dtype), np.zeros(D, k.dtype), np.full(D, _LOWEST, k.dtype)
        for t in range(L):
            kt, vt, yt = k[i, t], v[i, t], y[i, t]
            for d in range(D):
                own = u[d] + kt[d]
                gap = m[d] - own
                small = exp(-abs(gap))
                past, now = (1, small) if gap > 0 else (small, 1)
                yt[d] = (past * a[d] + now * vt[d]) / (past * b[d] + now)
            _update(a, b, m, w, kt, vt)


@kernel(fastmath=FAST, error_model="numpy")
def _backward(w, u, k, v, y, gy, start, stop, gw, gu, gk, gv):
    """Reverse pass. ga and gb are the gradients of a_t and b_t divided by e**o: o makes up for the division by e**m."""
    L, D = k.shape[1:]
    chunks = (L + CHUNK - 1) // CHUNK
    for i in range(start, stop):
        for d0 in range(0, D, BLOCK):
            d1 = min(d0 + BLOCK, D)
            W = d1 - d0
            wd, ud = w[d0:d1], u[d0:d1]
            a, b, m = np.zeros(W, k.dtype), np.zeros(W, k.dtype), np.full(W, _LOWEST, k.dtype)
            before = np.empty((chunks, 3, W), k.dtype)
            for t in range(L):
                if t % CHUNK == 0:
                    before[t // CHUNK, 0], before[t // CHUNK, 1], before[t // CHUNK, 2] = a, b, m
                _update(a, b, m, wd, k[i, t, d0:d1], v[i, t, d0:d1])
            states = np.empty((CHUNK, 3, W), k.dtype)
            ga, gb, o = np.zeros(W, k.dtype), np.zeros(W, k.dtype), np.full(W, _LOWEST, k.dtype)
            sum_w, sum_u = gw[i, d0:d1], gu[i, d0:d1]
            for chunk in range(chunks - 1, -1, -1):
                first = chunk * CHUNK
                last = min(first + CHUNK, L)
                a[:], b[:], m[:] = before[chunk, 0], before[chunk, 1], before[chunk, 2]
                for t in range(first, last):
                    states[t - first, 0], states[t - first, 1], states[t - first, 2] = a, b, m
                    _update(a, b, m, wd, k[i, t, d0:d1], v[i, t, d0:d1])
                for t in range(last - 1, first - 1, -1):
                    old_a, old_b, old_m = states[t - first, 0], states[t - first, 1], states[t - first, 2]
                    kt, vt, yt, gyt = k[i, t, d0:d1], v[i, t, d0:d1], y[i, t, d0:d1], gy[i, t, d0:d1]
                    gkt, gvt = gk[i, t, d0:d1], gv[i, t, d0:d1]
                    for d in range(W):
                        own = ud[d] + kt[d]
                        top = max(old_m[d], own)
                        now = exp(own - top)
                        g_top = gyt[d] / (exp(old_m[d] - top) * old_b[d] + now)  # of the numerator, times e**top
                        g_own = now * g_top * (vt[d] - yt[d])
                        later = exp(kt[d] + o[d])
                        gkt[d] = g_own + later * (vt[d] * ga[d] + gb[d])
                        gvt[d] = now * g_top + later * ga[d]
                        sum_u[d] += g_own
                        sum_w[d] -= exp(old_m[d] - wd[d] + o[d]) * (old_a[d] * ga[d] + old_b[d] * gb[d])
                        past = o[d] - wd[d]
                        up = max(-top, past)
                        keep, new = exp(past - up), exp(-top - up)
                        ga[d] = keep * ga[d] + new * g_top
                        gb[d] = keep * gb[d] - new * g_top * yt[d]
                        o[d] = up
