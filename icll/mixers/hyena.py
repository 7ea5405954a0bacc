"""Hyena (appendix A.9): gates and long convolutions in turn, with filters that a small network makes from the position.

    x_0 .. x_N    N + 1 linear maps of x, each through a short convolution of 3     [B, L, D]
    l_n           filter: MLP(features of position) * window, and a skip            [D, L]
    z             x_N;   for n = N - 1 .. 1:  z = l_n * (x_n z), * a convolution
    y             W_o (x_0 z)

As in its authors' code the order N counts the gates: there are N - 1 filters, so one at order 2.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from ..errors import whole
from ..ops.convolution import long_convolve, naive_long_convolve, short_convolve, toeplitz
from .base import Mixer, Mixing, Stacked, architecture, full_precision

WIDTH = 64  # of the filter's network
FEATURES = 5  # of a position: itself, two cosines and two sines
FREQUENCY = 10.0  # of the network's sines
SHORT = 3
_FAST, _SLOW, _FLOOR = 0.3, 1.5, 1e-2  # a filter's window falls to the floor after this part of max_length


class Sine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frequency = nn.Parameter(torch.full((WIDTH,), FREQUENCY))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(self.frequency * x)


@architecture("hyena")
class Hyena(Mixer):
    """It has no recurrent form: one token at a time, the model keeps the prefix and applies the mixer to all of it."""

    forms = ("convolution", "direct")

    decay: torch.Tensor

    def __init__(self, d_model: int, max_length: int = 1024, order: int = 2, form: str | None = None):
        super().__init__()
        self.choose_form(form)
        self.order, self.max_length = whole("order", order, 2), max_length
        self.maps = Stacked(d_model, (d_model,) * (order + 1))
        self.short = nn.Parameter(torch.empty((order + 1) * d_model, SHORT).uniform_(-1, 1) / math.sqrt(SHORT))
        self.short_bias = nn.Parameter(torch.empty((order + 1) * d_model).uniform_(-1, 1) / math.sqrt(SHORT))
        inner = [layer for _ in range(2) for layer in (nn.Linear(WIDTH, WIDTH), Sine())]
        self.filter = nn.Sequential(nn.Linear(FEATURES, WIDTH), Sine(), *inner)
        self.filter_out = nn.Linear(WIDTH, (order - 1) * d_model, bias=False)
        self.skip = nn.Parameter(torch.randn(order - 1, d_model))
        self.out = nn.Linear(d_model, d_model)
        rates = -math.log(_FLOOR) * torch.linspace(1 / _SLOW, 1 / _FAST, d_model)
        self.register_buffer("decay", rates)

    def filters(self, length: int) -> torch.Tensor:
        """[order - 1, D, length], skips included. Positions count in units of max_length, so a prefix has the same filter."""
        at = torch.arange(length, device=self.skip.device, dtype=self.skip.dtype)
        t = at[:, None] / max(1, self.max_length - 1)  # [L, 1]
        bands = torch.linspace(1e-4, (FEATURES - 1) // 2 - 1, (FEATURES - 1) // 2, device=t.device, dtype=t.dtype)
        angle = 2 * math.pi * at[:, None] / self.max_length * bands
        features = torch.cat([t, angle.cos(), -angle.sin()], -1)
        with full_precision(features):
            made = self.filter_out(self.filter(features)).T.unflatten(0, (self.order - 1, -1))  # [order - 1, D, L]
        made = made * torch.exp(-t.T * self.decay[:, None])
        return made + F.pad(self.skip[..., None], (0, length - 1))

    def _gates(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return short_convolve(self.maps(x), self.short, self.short_bias).chunk(self.order + 1, -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, *gates, z = self._gates(x)
        convolve = long_convolve if self.form == "convolution" else naive_long_convolve
        for gate, filters in zip(reversed(gates), self.filters(x.shape[1]), strict=True):
            z = convolve(gate * z, filters)
        return self.out(first * z)

    def mixing(self, x: torch.Tensor) -> Mixing:
        """Of the last map's output: the product, for each channel, of its gates and convolutions."""
        first, *gates, z = (part.mT for part in self._gates(x))  # [B, D, L]
        L = x.shape[1]
        weights = None
        for gate, filters in zip(reversed(gates), self.filters(L), strict=True):
            factor = toeplitz(filters, L) * gate[..., None, :]
            weights = factor if weights is None else factor @ weights
        assert weights is not None
        return Mixing(first[..., None] * weights, z[..., None], self.out)

    def operator_flops(self, length: int) -> float:
        D = self.skip.shape[1]
        transforms = 3 * 2 * 2.5 * math.log2(max(2, 2 * length)) + 12
        return D * ((self.order - 1) * transforms + (self.order + 1) * 2 * SHORT + self.order)
