"""Diagonal state-space models, channel by channel: the kernel of S4D, shared by the mixers S4 and H3 (appendices A.7, A.8).

dt   step size, exp(log_dt)                       [D]
A    complex, Re < 0, half of the conjugate pairs [D, N / 2]
C    complex output weights; B is 1               [D, N / 2]
h_t  exp(dt A) h_(t-1) + (exp(dt A) - 1) / A x_t  (zero-order hold)
y_t  2 Re(C h_t) + skip x_t
"""

from __future__ import annotations

import math

import torch
from torch import nn

from ..errors import unknown
from ..ops.convolution import diagonal_filter, diagonal_step, long_convolve
from .base import full_precision

INITS = ("lin", "inv", "legs")


def initial_spectrum(kind: str, pairs: int) -> torch.Tensor:
    """Eigenvalues of A: S4D-Lin, S4D-Inv or S4D-Legs, [pairs] in complex128, in ascending order of frequency."""
    n = torch.arange(pairs, dtype=torch.float64)
    if kind == "lin":
        return torch.complex(torch.full_like(n, -0.5), math.pi * n)
    if kind == "inv":
        size = 2 * pairs
        return torch.complex(torch.full_like(n, -0.5), size / math.pi * (size / (2 * n + 1) - 1)).flip(0)
    if kind == "legs":
        # HiPPO-LegS is -1/2 plus a skew matrix plus one of rank one; these are the eigenvalues without the latter.
        root = torch.sqrt(2 * torch.arange(2 * pairs, dtype=torch.float64) + 1)
        skew = -0.5 * torch.outer(root, root)
        skew = skew.tril(-1) - skew.tril(-1).T
        frequencies = torch.linalg.eigvalsh(skew * -1j)
        return torch.complex(torch.full_like(n, -0.5), frequencies[frequencies > 0])
    raise unknown("initialisation of the state space", kind, INITS)


class DiagonalStateSpace(nn.Module):
    """x [B, L, D] to [B, L, D], every channel by its own linear system with N states."""

    parameters_to_train_slowly = ("log_dt", "log_rate", "frequency")

    def __init__(self, d_model: int, states: int, init: str, dt: tuple[float, float] = (0.001, 0.1)):
        super().__init__()
        spectrum = initial_spectrum(init, states // 2)
        low, high = math.log(dt[0]), math.log(dt[1])
        self.log_dt = nn.Parameter(low + torch.rand(d_model) * (high - low))
        self.log_rate = nn.Parameter(torch.log(-spectrum.real).float().repeat(d_model, 1))
        self.frequency = nn.Parameter(spectrum.imag.float().repeat(d_model, 1))
        self.weight = nn.Parameter(torch.randn(d_model, states // 2, 2) * math.sqrt(0.5))
        self.skip = nn.Parameter(torch.randn(d_model))

    def discrete(self) -> tuple[torch.Tensor, torch.Tensor]:
        """dt A and C (exp(dt A) - 1) / A, complex [D, N / 2]."""
        A = torch.complex(-torch.exp(self.log_rate), self.frequency)
        rate = A * torch.exp(self.log_dt)[:, None]
        return rate, torch.view_as_complex(self.weight) * torch.expm1(rate) / A

    def filters(self, length: int) -> torch.Tensor:
        """The convolution's filters with the skip as part of them, [D, length]."""
        with full_precision(self.skip):
            return diagonal_filter(*self.discrete(), length) + nn.functional.pad(self.skip[:, None], (0, length - 1))

    def forward(self, x: torch.Tensor, form: str = "convolution") -> torch.Tensor:
        if form == "convolution":
            return long_convolve(x, self.filters(x.shape[1]))
        h = self.initial_state(len(x))
        y = []
        for t in range(x.shape[1]):
            out, h = self.step(x[:, t], h)
            y.append(out)
        return torch.stack(y, 1)

    def initial_state(self, batch_size: int) -> torch.Tensor:
        dtype = torch.complex128 if self.skip.dtype == torch.float64 else torch.complex64
        return torch.zeros(batch_size, *self.frequency.shape, dtype=dtype, device=self.skip.device)

    def step(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h, y = diagonal_step(h, x, *self.discrete())
        return y + self.skip * x, h

    def flops(self, length: int) -> float:
        """Per token by the Fourier transform: three transforms of two lengths and a product."""
        return len(self.skip) * (3 * 2 * 2.5 * math.log2(max(2, 2 * length)) + 12)
