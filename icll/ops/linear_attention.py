"""Linear attention with decay: the operator of the linear Transformer, RetNet and GLA.

    S_t = (alpha_t beta_t^T) * S_(t-1) + k_t v_t^T        z_t = q_t^T S_t

Shapes: q, k [B, L, H, K]; v, z [B, L, H, V]. The decay of keys, alpha, is given by its logarithm, `log_decay`: None (no decay),
[H] (a constant for each head: RetNet) or [B, L, H, K] (GLA); that of values, beta, by `log_value_decay`: None or [B, L, H, V].
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from ..jit import kernel
from .cpu import FAST, arrays, exp, on_cpu, over_batch, same_dtype
from .gpu import fast_linear_attend

Decay = torch.Tensor | None


def linear_attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay: Decay = None, log_value_decay: Decay = None
) -> torch.Tensor:
    """In O(L K V) time and O(L (K + V)) memory: a kernel on the CPU that keeps S in the cache, chunks elsewhere."""
    dtype = v.dtype
    if not on_cpu(q, k, v):
        fast = fast_linear_attend(q, k, v, log_decay) if log_value_decay is None else None
        if fast is not None:
            return fast
        return chunked_linear_attend(q, k, v, log_decay, log_value_decay).to(dtype)
    q, k, v = same_dtype(q, k, v)
    # The kernel's gradient of a decay is that of one for each token and channel; autograd adds up what was expanded.
    keys = None if log_decay is None else _full(log_decay, q)
    values = None if log_value_decay is None else log_value_decay.to(v.dtype)
    return _Recurrence.apply(q, k, v, keys, values).to(dtype)


def _full(log_decay: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    log_decay = log_decay.to(q)
    return log_decay[:, None].expand_as(q) if log_decay.dim() == 1 else log_decay


def linear_weights(q: torch.Tensor, k: torch.Tensor, log_decay: Decay = None) -> torch.Tensor:
    """The matrix that multiplies the values, [B, H, L, L], without their decay."""
    L = q.shape[1]
    causal = torch.ones(L, L, dtype=torch.bool, device=q.device).tril()
    if log_decay is None:
        return torch.einsum("bthk,bshk->bhts", q, k).masked_fill(~causal, 0)
    if log_decay.dim() == 1:
        return torch.einsum("bthk,bshk->bhts", q, k) * _powers(log_decay.to(q), L, L)
    total = log_decay.cumsum(1)
    # From the differences of the logarithms, which are never positive: a ratio of the products themselves would overflow.
    return torch.stack([
        torch.einsum("bhk,bshk->bhs", q[:, t], k * _decay_between(total, t, causal[t])) for t in range(L)
    ], 2)  # fmt: skip


def _decay_between(total: torch.Tensor, t: int, causal: torch.Tensor) -> torch.Tensor:
    between = (total[:, t : t + 1] - total).masked_fill(~causal[:, None, None], float("-inf"))
    return torch.exp(between)


def _powers(log_decay: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """decay**(t - s) for s <= t, else 0: [H, rows, columns]."""
    distance = torch.arange(rows, device=log_decay.device)[:, None] - torch.arange(columns, device=log_decay.device)
    powers = torch.exp(log_decay[:, None, None] * distance.clamp(min=0))
    return powers.masked_fill(distance < 0, 0)


def attention_linear_attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay: Decay = None, log_value_decay: Decay = None
) -> torch.Tensor:
    """The attention form, O(L^2)."""
    weights = linear_weights(q, k, log_decay)
    if log_value_decay is None:
        return torch.einsum("bhts,bshv->bthv", weights, v)
    total = log_value_decay.cumsum(1)
    causal = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool, device=q.device).tril()
    return torch.stack([
        torch.einsum("bhs,bshv->bhv", weights[:, :, t], v * _decay_between(total, t, causal[t])) for t in range(q.shape[1])
    ], 1)  # fmt: skip


def naive_linear_attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay: Decay = None, log_value_decay: Decay = None
) -> torch.Tensor:
    """The recurrence, token by token."""
    S = q.new_zeros(q.shape[0], *q.shape[2:], v.shape[3])
    z = []
    for t in range(q.shape[1]):
        now = None if log_decay is None else log_decay if log_decay.dim() == 1 else log_decay[:, t]
        S, out = linear_step(S, q[:, t], k[:, t], v[:, t], now, None if log_value_decay is None else log_value_decay[:, t])
        z.append(out)
    return torch.stack(z, 1)


def linear_step(
    S: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay: Decay = None, log_value_decay: Decay = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token: S [B, H, K, V], q and k [B, H, K], v [B, H, V] to the next S and z [B, H, V]."""
    if log_decay is not None:
        decay = torch.exp(log_decay.to(S))
        S = S * (decay[:, None, None] if decay.dim() == 1 else decay[..., None])
    if log_value_decay is not None:
        S = S * torch.exp(log_value_decay)[..., None, :]
    S = S + k[..., None] * v[..., None, :]
    return S, torch.einsum("bhk,bhkv->bhv", q, S)


def chunked_linear_attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: Decay = None,
    log_value_decay: Decay = None,
    chunk: int | None = None,
) -> torch.Tensor:
    """Attention inside a chunk, the recurrence between chunks: in torch alone, for any device, O(L chunk).

    Every decay is the exponential of a difference of logarithms that is never positive, so that nothing overflows.
    """
    B, L, H, K = q.shape
    gated = log_value_decay is not None or (log_decay is not None and log_decay.dim() == 4)
    chunk = chunk or (16 if gated else 64)
    pad = -L % chunk

    def split(x: torch.Tensor) -> torch.Tensor:  # [B, L, H, *] to [chunks, B, H, chunk, *]
        x = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, pad))
        return x.unflatten(1, (-1, chunk)).permute(1, 0, 3, 2, 4)

    qs, ks, vs = split(q), split(k), split(v)
    causal = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    if gated:
        gk = split(torch.zeros_like(q) if log_decay is None else _full(log_decay, q)).cumsum(-2)
        between = (gk[..., :, None, :] - gk[..., None, :, :]).masked_fill(~causal[..., None], float("-inf"))
        inside = torch.einsum("nbhtk,nbhsk,nbhtsk->nbhts", qs, ks, torch.exp(between))
        entering, leaving, across = torch.exp(gk), torch.exp(gk[..., -1:, :] - gk), torch.exp(gk[..., -1, :])[..., None]
    elif log_decay is not None:
        rate = log_decay.to(q)[:, None, None]  # [H, 1, 1]
        at = torch.arange(chunk, device=q.device)[:, None]
        inside = torch.einsum("nbhtk,nbhsk->nbhts", qs, ks) * _powers(log_decay.to(q), chunk, chunk)
        entering, leaving, across = (torch.exp(rate * n) for n in (at + 1, chunk - 1 - at, torch.tensor(chunk)))
    else:
        inside = torch.einsum("nbhtk,nbhsk->nbhts", qs, ks).masked_fill(~causal, 0)
        entering = leaving = across = q.new_ones(1, 1, 1)
    if log_value_decay is None:
        z = inside @ vs
        vs_leaving, entering_v = vs, None
    else:
        gv = split(log_value_decay).cumsum(-2)
        between = (gv[..., :, None, :] - gv[..., None, :, :]).masked_fill(~causal[..., None], float("-inf"))
        z = torch.einsum("nbhts,nbhsv,nbhtsv->nbhtv", inside, vs, torch.exp(between))
        vs_leaving, entering_v = vs * torch.exp(gv[..., -1:, :] - gv), torch.exp(gv)
        across = across * torch.exp(gv[..., -1, :])[..., None, :]
    added = (ks * leaving).mT @ vs_leaving  # [chunks, B, H, K, V]: what each chunk adds to S
    S = q.new_zeros(B, H, K, v.shape[3])
    states = []
    for n in range(len(added)):
        states.append(S)
        S = S * (across[n] if across.dim() == 5 else across) + added[n]
    old = (qs * entering) @ torch.stack(states)
    z = z + (old if entering_v is None else old * entering_v)
    return z.permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :L]


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gk: Decay, gv: Decay) -> torch.Tensor:
        q_, k_, v_ = arrays(q, k, v)
        gk_, gv_ = _decays(gk, q_), _decays(gv, v_)
        z = np.empty_like(v_)
        over_batch(lambda start, stop: _forward(q_, k_, v_, gk_, gv_, start, stop, z), q_.shape[0] * q_.shape[2])
        out = torch.from_numpy(z)
        ctx.save_for_backward(q, k, v, gk, gv, out if gv is not None else None)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gz: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, gk, gv, z = ctx.saved_tensors
        q_, k_, v_, gz_ = arrays(q, k, v, gz)
        gk_, gv_ = _decays(gk, q_), _decays(gv, v_)
        outs = np.empty_like(q_), np.empty_like(k_), np.empty_like(v_)
        over_batch(lambda start, stop: _backward(q_, k_, v_, gk_, gv_, gz_, start, stop, *outs), q_.shape[0] * q_.shape[2])
        dq, dk, dv = map(torch.from_numpy, outs)
        # The decay between s and t multiplies what t reads of s: its logarithm's gradient is the sum, from its token to the
        # end, of what is read minus what is written (as in the GLA paper).
        d_gk = _from_here_on(q * dq - k * dk) if ctx.needs_input_grad[3] else None
        d_gv = _from_here_on(z * gz - v * dv) if ctx.needs_input_grad[4] else None
        return dq, dk, dv, d_gk, d_gv


def _from_here_on(x: torch.Tensor) -> torch.Tensor:
    return x.double().flip(1).cumsum(1).flip(1).to(x.dtype)


def _decays(log_decay: Decay, like: np.ndarray) -> np.ndarray:
    """As an array that the kernels can index; one of length 0 says there is none."""
    return np.empty((0, 0, 0, 0), like.dtype) if log_decay is None else log_decay.detach().numpy()


@kernel(fastmath=FAST, error_model="numpy")
def _rates(log_decay, b, t, h, out):
    for i in range(out.size):
        out[i] = exp(log_decay[b, t, h, i])


@kernel(fastmath=FAST, error_model="numpy")
def _forward(q, k, v, gk, gv, start, stop, z):
    L, H, K = q.shape[1:]
    V = v.shape[3]
    decay_k, decay_v = gk.shape[0] > 0, gv.shape[0] > 0
    S = np.empty((K, V), q.dtype)
    alpha, beta = np.ones(K, q.dtype), np.ones(V, q.dtype)
    for bh in range(start, stop):
        b, h = bh // H, bh % H
        S[:] = 0
        for t in range(L):
            if decay_k:
                _rates(gk, b, t, h, alpha)
            if decay_v:
                _rates(gv, b, t, h, beta)
            vt, zt = v[b, t, h], z[b, t, h]
            zt[:] = 0
            for i in range(K):  # one pass over S writes and reads it
                row, ki, qi, a = S[i], k[b, t, h, i], q[b, t, h, i], alpha[i]
                if decay_v:
                    for j in range(V):
                        s = row[j] * (a * beta[j]) + ki * vt[j]
                        row[j] = s
                        zt[j] += qi * s
                else:
                    for j in range(V):
                        s = row[j] * a + ki * vt[j]
                        row[j] = s
                        zt[j] += qi * s


@kernel(fastmath=FAST, error_model="numpy")
def _backward(q, k, v, gk, gv, gz, start, stop, dq, dk, dv):
    """The gradient of q needs S, that of k and v the gradient G of S: one pass forward, one back, no S kept."""
    L, H, K = q.shape[1:]
    V = v.shape[3]
    decay_k, decay_v = gk.shape[0] > 0, gv.shape[0] > 0
    S = np.empty((K, V), q.dtype)
    alpha, beta = np.ones(K, q.dtype), np.ones(V, q.dtype)
    zero = np.zeros(1, q.dtype)[0]
    for bh in range(start, stop):
        b, h = bh // H, bh % H
        S[:] = 0
        for t in range(L):
            if decay_k:
                _rates(gk, b, t, h, alpha)
            if decay_v:
                _rates(gv, b, t, h, beta)
            vt, gzt = v[b, t, h], gz[b, t, h]
            for i in range(K):
                row, ki, a = S[i], k[b, t, h, i], alpha[i]
                total = zero
                if decay_v:
                    for j in range(V):
                        s = row[j] * (a * beta[j]) + ki * vt[j]
                        row[j] = s
                        total += s * gzt[j]
                else:
                    for j in range(V):
                        s = row[j] * a + ki * vt[j]
                        row[j] = s
                        total += s * gzt[j]
                dq[b, t, h, i] = total
        S[:] = 0  # from here on, G
        alpha[:] = 1
        beta[:] = 1
        for t in range(L - 1, -1, -1):  # alpha and beta are those of t + 1
            vt, gzt, dvt = v[b, t, h], gz[b, t, h], dv[b, t, h]
            dvt[:] = 0
            for i in range(K):
                row, ki, qi, a = S[i], k[b, t, h, i], q[b, t, h, i], alpha[i]
                total = zero
                if decay_v:
                    for j in range(V):
                        g = row[j] * (a * beta[j]) + qi * gzt[j]
                        row[j] = g
                        total += g * vt[j]
                        dvt[j] += ki * g
                else:
                    for j in range(V):
                        g = row[j] * a + qi * gzt[j]
                        row[j] = g
                        total += g * vt[j]
                        dvt[j] += ki * g
                dk[b, t, h, i] = total
            if decay_k:
                _rates(gk, b, t, h, alpha)
            if decay_v:
                _rates(gv, b, t, h, beta)
