"""H3 (appendix A.8), head size 1: linear attention's outer product as the input of state-space models.

q, k, v   W_q x, W_k x, W_v x                                   [B, L, D]
k'        shift model: a learned filter over the last N keys
z         diagonal state-space model of k' * v, see state_space.py
y         W_o (q * z)
"""

from __future__ import annotations

import math

import torch
from torch import nn

from ..ops.convolution import long_convolve, short_step, toeplitz
from .base import Mixer, Mixing, Stacked, architecture, by_steps
from .state_space import LowRankStateSpace, make_state_space

State = tuple[torch.Tensor, torch.Tensor]


@architecture("h3")
class H3(Mixer):
    forms = ("convolution", "recurrent")
    slow_parameters = ("shift", *(f"ssm.{name}" for name in LowRankStateSpace.train_slowly))

    def __init__(
        self, d_model: int, states: int = 64, spectrum: str = "lin", structure: str = "diagonal", form: str | None = None
    ):
        super().__init__()
        self.choose_form(form)
        self.qkv = Stacked(d_model, (d_model,) * 3)
        self.shift = nn.Parameter(torch.randn(d_model, states) / math.sqrt(states))
        self.shift_skip = nn.Parameter(torch.randn(d_model))
        self.ssm = make_state_space(d_model, states, spectrum, structure)
        self.out = nn.Linear(d_model, d_model)

    def _shift(self) -> torch.Tensor:
        return self.shift + nn.functional.pad(self.shift_skip[:, None], (0, self.shift.shape[1] - 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.form == "recurrent":
            return by_steps(self, x)
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(q * self.ssm(long_convolve(k, self._shift()) * v))

    def mixing(self, x: torch.Tensor) -> Mixing:
        """Of the values: q_t filter(t - s) k'_s for each channel."""
        q, k, v = self.qkv(x).chunk(3, -1)
        k = long_convolve(k, self._shift())
        L = x.shape[1]
        weights = q.mT[..., None] * toeplitz(self.ssm.filters(L), L) * k.mT[..., None, :]
        return Mixing(weights, v.mT[..., None], self.out)

    def initial_state(self, batch_size: int) -> State:
        """The last keys and the state of the diagonal model."""
        D, N = self.shift.shape
        return self.zeros(batch_size, N - 1, D), self.ssm.initial_state(batch_size)

    def step(self, x: torch.Tensor, recurrent_state: State) -> tuple[torch.Tensor, State]:
        window, h = recurrent_state
        q, k, v = self.qkv(x).chunk(3, -1)
        window, k = short_step(window, k, self._shift())
        z, h = self.ssm.step(k * v, h)
        return self.out(q * z), (window, h)

    def operator_flops(self, length: int) -> float:
        return 2 * self.ssm.flops(length) + 2 * len(self.shift)
