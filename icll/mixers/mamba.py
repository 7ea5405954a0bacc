"""Mamba (appendix A.10): a state-space model whose step, input and output weights depend on the token, and a gate.

u, r      W_u x, W_r x                                        [B, L, E], E = 2 D
u         silu(short convolution of u)
dt, B, C  softplus(W_dt W_x u + b), W_B u, W_C u              [B, L, E], [B, L, N], [B, L, N]
A         -exp(log_A)                                         [E, N]
z         selective scan, see icll.ops.selective_scan, + skip * u
y         W_o (silu(r) * z)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from ..ops.convolution import short_convolve, short_step
from ..ops.selective_scan import chunked_selective_scan, naive_selective_scan, selective_scan, selective_step
from .base import Mixer, Mixing, Stacked, architecture

FORMS: dict[str, Callable[..., torch.Tensor]] = {
    "fast": selective_scan,
    "recurrent": naive_selective_scan,
    "chunked": chunked_selective_scan,
}
State = tuple[torch.Tensor, torch.Tensor]


@architecture("mamba", norm="rms", feed_forward=None)
class Mamba(Mixer):
    forms = tuple(FORMS)

    def __init__(
        self, d_model: int, states: int = 16, expand: int = 2, short: int = 4, rank: int | None = None, form: str | None = None
    ):  # fmt: skip
        super().__init__()
        self.choose_form(form)
        E, self.states, self.rank = expand * d_model, states, rank or -(-d_model // 16)
        self.maps = Stacked(d_model, (E, E), bias=False)
        self.short = nn.Parameter(torch.empty(E, short).uniform_(-1, 1) / math.sqrt(short))
        self.short_bias = nn.Parameter(torch.empty(E).uniform_(-1, 1) / math.sqrt(short))
        self.select = Stacked(E, (self.rank, states, states), bias=False)
        self.dt = nn.Linear(self.rank, E)
        nn.init.uniform_(self.dt.weight, -(self.rank**-0.5), self.rank**-0.5)
        # Steps between 0.001 and 0.1, evenly in their logarithm; softplus undone.
        dt = torch.exp(math.log(0.001) + torch.rand(E) * math.log(100))
        self.dt.bias.data = dt + torch.log(-torch.expm1(-dt))
        self.log_A = nn.Parameter(torch.log(torch.arange(1.0, states + 1)).repeat(E, 1))
        self.skip = nn.Parameter(torch.ones(E))
        self.out = nn.Linear(E, d_model, bias=False)

    def _select(self, u: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """dt, A, B, C for the scan."""
        low, B, C = self.select(u).split([self.rank, self.states, self.states], -1)
        return F.softplus(self.dt(low)), -torch.exp(self.log_A), B, C

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u, r = self.maps(x).chunk(2, -1)
        u = F.silu(short_convolve(u, self.short, self.short_bias))
        z = FORMS[self.form](u, *self._select(u)) + self.skip * u
        return self.out(F.silu(r) * z)

    def mixing(self, x: torch.Tensor) -> Mixing:
        """Of u after its convolution: C_t exp(A (dt_(s+1) + .. + dt_t)) dt_s B_s for each of the E channels."""
        u, r = self.maps(x).chunk(2, -1)
        u = F.silu(short_convolve(u, self.short, self.short_bias))
        dt, A, B, C = self._select(u)
        L = x.shape[1]
        total = dt.cumsum(1).mT  # [B, E, L]
        causal = torch.ones(L, L, dtype=torch.bool, device=x.device).tril()
        between = (total[..., :, None] - total[..., None, :]).masked_fill(~causal, 0)  # [B, E, L, L]
        weights = torch.zeros_like(between)
        for n in range(self.states):  # one state at a time: there is never a tensor over L, L, channels and states
            weights += torch.exp(between * A[:, n, None, None]) * (C[:, :, n, None] * B[:, None, :, n])[:, None]
        weights = weights * dt.mT[:, :, None] * causal + torch.diag_embed(self.skip[:, None].expand(-1, L))
        return Mixing(weights, u.mT[..., None], lambda z: self.out(F.silu(r) * z))

    def initial_state(self, batch_size: int) -> State:
        """The short convolution's window and the scan's states."""
        E, n = self.short.shape
        return self.zeros(batch_size, n - 1, E), self.zeros(batch_size, E, self.states)

    def step(self, x: torch.Tensor, recurrent_state: State) -> tuple[torch.Tensor, State]:
        window, h = recurrent_state
        u, r = self.maps(x).chunk(2, -1)
        window, u = short_step(window, u, self.short, self.short_bias)
        u = F.silu(u)
        h, z = selective_step(h, u, *self._select(u))
        return self.out(F.silu(r) * (z + self.skip * u)), (window, h)

    def operator_flops(self, length: int) -> float:
        E, n = self.short.shape
        return E * (2 * n + 8 * self.states + 6)
