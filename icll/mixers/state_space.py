"""State-space models, channel by channel: the linear systems inside the mixers S4 and H3 (appendices A.7, A.8).

    dt   step size, exp(log_dt)                                     [D]
    A    N x N; complex, in conjugate pairs, so that N / 2 describe it
    h_t  A_bar h_(t-1) + B_bar x_t                                  [D, N]
    y_t  C h_t + skip x_t

`DiagonalStateSpace` (S4D): A = diag(lambda), B = 1, discretised by zero-order hold.
`LowRankStateSpace` (S4): A = diag(lambda) - p p*, at the start HiPPO-LegS exactly, discretised by the bilinear rule.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from ..errors import IcllError, unknown, whole
from ..ops.convolution import diagonal_filter, diagonal_step, long_convolve
from .base import by_steps, full_precision

SPECTRA = ("lin", "inv", "legs")
_DT = math.log(0.001), math.log(0.1)


def legs(states: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """HiPPO-LegS as (A, p, B) in float64, such that A + p p^T is -1/2 plus a skew matrix."""
    n = torch.arange(states, dtype=torch.float64)
    root = torch.sqrt(2 * n + 1)
    A = -(torch.outer(root, root).tril(-1) + torch.diag(n + 1))
    return A, torch.sqrt(n + 0.5), root


def legs_pairs(states: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same in the basis where A + p p^T is diagonal: (lambda, p, B), complex [N / 2], one of each pair."""
    A, p, B = legs(states)
    skew = A + torch.outer(p, p)
    frequencies, basis = torch.linalg.eigh((skew + 0.5 * torch.eye(states)) * -1j)
    keep = frequencies > 0
    basis = basis[:, keep].conj().T
    spectrum = torch.complex(torch.full_like(frequencies[keep], -0.5), frequencies[keep])
    return spectrum, basis @ p.to(basis.dtype), basis @ B.to(basis.dtype)


def initial_spectrum(kind: str, pairs: int) -> torch.Tensor:
    """S4D-Lin, S4D-Inv or S4D-Legs, [pairs] in complex128, in ascending order of frequency."""
    n = torch.arange(pairs, dtype=torch.float64)
    if kind == "lin":
        return torch.complex(torch.full_like(n, -0.5), math.pi * n)
    if kind == "inv":
        size = 2 * pairs
        return torch.complex(torch.full_like(n, -0.5), size / math.pi * (size / (2 * n + 1) - 1)).flip(0)
    if kind == "legs":
        return legs_pairs(2 * pairs)[0]
    raise unknown("spectrum of the state space", kind, SPECTRA)


class StateSpace(nn.Module):
    """x [B, L, D] to [B, L, D], every channel by its own linear system with N states."""

    train_slowly: ClassVar[tuple[str, ...]] = ("log_dt", "log_rate", "frequency")

    def __init__(self, d_model: int, spectrum: torch.Tensor):
        super().__init__()
        self.log_dt = nn.Parameter(_DT[0] + torch.rand(d_model) * (_DT[1] - _DT[0]))
        self.log_rate = nn.Parameter(torch.log(-spectrum.real).float().repeat(d_model, 1))
        self.frequency = nn.Parameter(spectrum.imag.float().repeat(d_model, 1))
        self.weight = nn.Parameter(torch.randn(d_model, len(spectrum), 2) * math.sqrt(0.5))  # C, as real and imaginary part
        self.skip = nn.Parameter(torch.randn(d_model))

    def filters(self, length: int) -> torch.Tensor:
        """The convolution's filters with the skip as part of them, [D, length]."""
        with full_precision(self.skip):
            return self._filters(length) + F.pad(self.skip[:, None], (0, length - 1))

    def _filters(self, length: int) -> torch.Tensor:
        raise NotImplementedError

    def spectrum(self) -> torch.Tensor:
        """lambda, complex [D, N / 2]."""
        return torch.complex(-torch.exp(self.log_rate), self.frequency)

    def forward(self, x: torch.Tensor, form: str = "convolution") -> torch.Tensor:
        if form == "convolution":
            return long_convolve(x, self.filters(x.shape[1]))
        return by_steps(self, x)

    def initial_state(self, batch_size: int) -> torch.Tensor:
        """Complex [B, D, N / 2]."""
        dtype = torch.complex128 if self.skip.dtype == torch.float64 else torch.complex64
        return torch.zeros(batch_size, *self.frequency.shape, dtype=dtype, device=self.skip.device)

    def step(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        raise NotImplementedError

    def flops(self, length: int) -> float:
        """Per token by the Fourier transform: three transforms of twice the length and a product."""
        return len(self.skip) * (3 * 2 * 2.5 * math.log2(max(2, 2 * length)) + 12)


class DiagonalStateSpace(StateSpace):
    """S4D."""

    def __init__(self, d_model: int, states: int, spectrum: str):
        super().__init__(d_model, initial_spectrum(spectrum, states // 2))

    def _discrete(self) -> tuple[torch.Tensor, torch.Tensor]:
        """dt A and C (exp(dt A) - 1) / A, complex [D, N / 2]."""
        A = self.spectrum()
        rate = A * torch.exp(self.log_dt)[:, None]
        return rate, torch.view_as_complex(self.weight) * torch.expm1(rate) / A

    def _filters(self, length: int) -> torch.Tensor:
        return diagonal_filter(*self._discrete(), length)

    def step(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h, y = diagonal_step(h, x, *self._discrete())
        return y + self.skip * x, h


class LowRankStateSpace(StateSpace):
    """S4: diagonal plus low rank.

    The powers of A_bar are made by squaring the N x N matrices: for states as few as here that is a few small matrix products,
    exact at every length, where the Cauchy kernel of the original is a filter for one length only.
    """

    train_slowly = (*StateSpace.train_slowly, "low_rank", "into")

    def __init__(self, d_model: int, states: int):
        spectrum, p, B = legs_pairs(states)
        super().__init__(d_model, spectrum)
        self.low_rank = nn.Parameter(torch.view_as_real(p).float().repeat(d_model, 1, 1))
        self.into = nn.Parameter(torch.view_as_real(B).float().repeat(d_model, 1, 1))

    def _discrete(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A_bar [D, N, N], B_bar and C [D, N], complex, both of every pair."""

        def both(half: torch.Tensor) -> torch.Tensor:
            return torch.cat([half, half.conj()], -1)

        p, B, C = (both(torch.view_as_complex(w)) for w in (self.low_rank, self.into, self.weight))
        A = torch.diag_embed(both(self.spectrum())) - p[..., None] * p.conj()[..., None, :]
        half_step = (torch.exp(self.log_dt) / 2)[:, None, None]
        eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
        back = eye - half_step * A
        A_bar = torch.linalg.solve(back, eye + half_step * A)
        return A_bar, torch.linalg.solve(back, 2 * half_step[..., 0] * B), C

    def _filters(self, length: int) -> torch.Tensor:
        """C A_bar**l B_bar: l in two digits, each digit's powers by doubling."""
        A, B, C = self._discrete()
        base = 1 << (length - 1).bit_length() // 2
        columns, power = B[..., None], A  # [D, N, 1 .. base]
        while columns.shape[-1] < base:
            columns, power = torch.cat([columns, power @ columns], -1), power @ power
        rows = C[:, None]  # [D, 1 .., N], times A**base each
        while rows.shape[1] * base < length:
            rows, power = torch.cat([rows, rows @ power], 1), power @ power
        return (rows @ columns).flatten(1)[:, :length].real

    def step(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        A, B, C = self._discrete()
        both = torch.cat([h, h.conj()], -1)
        both = torch.einsum("dmn,bdn->bdm", A, both) + B * x[..., None]
        y = (C * both).sum(-1).real
        return y + self.skip * x, both[..., : h.shape[-1]]


def make_state_space(d_model: int, states: int, spectrum: str, structure: str) -> StateSpace:
    """`structure`: diagonal, with a spectrum of lin, inv or legs; or dplr, which is LegS itself."""
    whole("states", states, 2)
    if states % 2:
        raise IcllError(f"states come in pairs: choose an even number, not {states}")
    if structure == "dplr":
        return LowRankStateSpace(d_model, states)
    if structure != "diagonal":
        raise unknown("structure of the state space", structure, ("diagonal", "dplr"))
    return DiagonalStateSpace(d_model, states, spectrum)
