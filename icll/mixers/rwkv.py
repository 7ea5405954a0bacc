"""RWKV's time-mix, version 4 (appendix A.6).

shift    x_k = mu_k x_t + (1 - mu_k) x_(t-1), likewise for v and r
k, v, r  W_k x_k, W_v x_v, W_r x_r                    [B, L, D]
w, u     decay (w = exp(time_decay) > 0) and bonus of the current token     [D]
z        wkv(w, u, k, v), see icll.ops.wkv
y        W_o (sigmoid(r) * z)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from ..ops.wkv import State, naive_wkv, parallel_wkv, wkv, wkv_start, wkv_step, wkv_weights
from .base import Mixer, Mixing, architecture

FORMS: dict[str, Callable[..., torch.Tensor]] = {"fast": wkv, "recurrent": naive_wkv, "parallel": parallel_wkv}


@architecture("rwkv")
class Rwkv(Mixer):
    forms = tuple(FORMS)

    def __init__(self, d_model: int, n_layers: int = 1, layer: int = 0, form: str | None = None):
        super().__init__()
        self.choose_form(form)
        depth = layer / max(1, n_layers - 1)  # 0 in the first layer, 1 in the last
        at = torch.arange(d_model) / d_model
        mix = at ** (1 - layer / n_layers)
        self.mix_k = nn.Parameter(mix.clone())
        self.mix_v = nn.Parameter(mix + 0.3 * depth)
        self.mix_r = nn.Parameter(at ** (0.5 * (1 - layer / n_layers)))
        place = torch.arange(d_model) / max(1, d_model - 1)
        self.time_decay = nn.Parameter(-5 + 8 * place ** (0.7 + 1.3 * depth))
        self.time_first = nn.Parameter(math.log(0.3) + 0.5 * ((torch.arange(d_model) + 1) % 3 - 1))
        self.k, self.v, self.r, self.out = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def _keys(self, x: torch.Tensor, before: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def shifted(mix: torch.Tensor) -> torch.Tensor:
            return x * mix + before * (1 - mix)

        return self.k(shifted(self.mix_k)), self.v(shifted(self.mix_v)), self.r(shifted(self.mix_r))

    def _before(self, x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, (0, 0, 1, -1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        k, v, r = self._keys(x, self._before(x))
        z = FORMS[self.form](torch.exp(self.time_decay), self.time_first, k, v)
        return self.out(torch.sigmoid(r) * z)

    def mixing(self, x: torch.Tensor) -> Mixing:
        k, v, r = self._keys(x, self._before(x))
        weights = wkv_weights(torch.exp(self.time_decay), self.time_first, k)
        return Mixing(weights, v.mT[..., None], lambda z: self.out(torch.sigmoid(r) * z))

    def initial_state(self, batch_size: int) -> tuple[torch.Tensor, State]:
        """The last input and wkv's (a, b, m)."""
        zero = self.zeros(batch_size, len(self.time_decay))
        return zero, wkv_start(zero)

    def step(
        self, x: torch.Tensor, recurrent_state: tuple[torch.Tensor, State]
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, State]]:
        before, state = recurrent_state
        k, v, r = self._keys(x, before)
        state, z = wkv_step(state, torch.exp(self.time_decay), self.time_first, k, v)
        return self.out(torch.sigmoid(r) * z), (x, state)

    def operator_flops(self, length: int) -> float:
        return 27 * len(self.time_decay)
