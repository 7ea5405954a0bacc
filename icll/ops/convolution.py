"""Causal convolutions over time, channel by channel, and the filters of diagonal state-space models.

Shapes: x, y [B, L, D]; a filter [D, n] with its value for the token itself first.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F


def long_convolve(x: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
    """y_t = sum over s <= t of filters[t - s] x_s, for filters as long as x, in O(L log L) by the fast Fourier transform."""
    L = x.shape[1]
    filters = filters[:, :L]
    size = _quick_length(L + filters.shape[1] - 1)
    dtype = torch.float64 if torch.float64 in (x.dtype, filters.dtype) else torch.float32  # there is no half-precision FFT
    spectrum = torch.fft.rfft(x.mT.to(dtype).contiguous(), n=size) * torch.fft.rfft(filters.to(dtype), n=size)
    return torch.fft.irfft(spectrum, n=size)[..., :L].mT.to(x.dtype)


def naive_long_convolve(x: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
    """The sum as it stands, O(L^2)."""
    return torch.einsum("dts,bsd->btd", toeplitz(filters, x.shape[1]), x)


def toeplitz(filters: torch.Tensor, length: int) -> torch.Tensor:
    """The matrices [D, length, length] of the convolutions."""
    at = torch.arange(length, device=filters.device)
    distance = at[:, None] - at
    filters = F.pad(filters[:, :length], (0, max(0, length - filters.shape[1])))
    return filters[:, distance.clamp(min=0)] * (distance >= 0)


def short_convolve(x: torch.Tensor, filters: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The same for filters of a few values, directly. `filters` [D, n] as above."""
    n = filters.shape[1]
    return F.conv1d(F.pad(x.mT, (n - 1, 0)), filters.flip(1)[:, None], bias, groups=len(filters)).mT


def short_step(
    window: torch.Tensor, x: torch.Tensor, filters: torch.Tensor, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token: the window [B, n - 1, D] of the last inputs and x [B, D] to the next window and y [B, D]."""
    window = torch.cat([window, x[:, None]], 1)
    y = (window * filters.flip(1).T).sum(1)
    return window[:, 1:], y if bias is None else y + bias


def diagonal_filter(log_rate: torch.Tensor, weight: torch.Tensor, length: int) -> torch.Tensor:
    """2 Re sum over n of weight[d, n] exp(log_rate[d, n] l), for l < length: [D, length]. Both complex [D, N], N pairs.

    l is split into a high and a low digit, so that O(sqrt(length)) exponentials and one matrix product do.
    """
    base = max(1, math.isqrt(length - 1) + 1)
    high = torch.exp(log_rate[..., None] * (base * torch.arange(-(-length // base), device=weight.device)))  # [D, N, high]
    low = torch.exp(log_rate[..., None] * torch.arange(base, device=weight.device))  # [D, N, low]
    # The real part of a product, by real matrices: complex ones would compute the imaginary part, too.
    left = weight[..., None] * high
    left = torch.cat([left.real, -left.imag], 1)
    return 2 * (left.mT @ torch.cat([low.real, low.imag], 1)).flatten(1)[:, :length]


def naive_diagonal_filter(log_rate: torch.Tensor, weight: torch.Tensor, length: int) -> torch.Tensor:
    """The sum as it stands."""
    powers = torch.exp(log_rate[..., None] * torch.arange(length, device=weight.device))
    return 2 * (weight[..., None] * powers).real.sum(1)


def diagonal_step(
    h: torch.Tensor, x: torch.Tensor, log_rate: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token of the recurrence with that filter: h complex [B, D, N], x [B, D] to the next h and y [B, D]."""
    h = torch.exp(log_rate) * h + x[..., None]
    return h, 2 * (weight * h).real.sum(-1)


def _quick_length(least: int) -> int:
    """The smallest number from `least` on without a prime factor above 5: the Fourier transform is quick there."""
    best = 1 << max(0, least - 1).bit_length()
    five = 1
    while five < best:
        three = five
        while three < best:
            best = min(best, three << max(0, -(-least // three) - 1).bit_length())
            three *= 3
        five *= 5
    return best
