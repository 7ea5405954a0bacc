"""Retention (appendix A.3): linear attention with rotary positions and a fixed decay for each head.

q, k      rotary(W_q x), rotary(W_k x)            [B, L, H, K], K = d / H
v, r      W_v x, W_r x                            [B, L, H, 2 K]
lambda_h  1 - 2**(-5 - h)
S_t       lambda S_(t-1) + k_t v_t^T
y_t       W_o (swish(r_t) * norm(q_t^T S_t / sqrt(K))), the norm for each head
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from ..errors import IcllError
from ..ops.linear_attention import linear_step, linear_weights
from .base import Mixer, Mixing, Stacked, architecture, heads_of
from .linear_transformer import FORMS
from .norm import RMSNorm
from .rotary import rotate


@architecture("retnet")
class Retention(Mixer):
    forms = tuple(FORMS)

    def __init__(self, d_model: int, n_heads: int, form: str | None = None):
        super().__init__()
        self.choose_form(form)
        self.n_heads, self.width = n_heads, heads_of(d_model, n_heads)
        if self.width % 2:
            raise IcllError(f"rotary positions need heads of even width, not {self.width}: change d_model or n_heads")
        self.qk = Stacked(d_model, (d_model, d_model), bias=False)
        self.v = nn.Linear(d_model, 2 * d_model, bias=False)
        self.gate = nn.Linear(d_model, 2 * d_model, bias=False)
        self.norm = RMSNorm(2 * self.width, eps=1e-5)
        self.out = nn.Linear(2 * d_model, d_model, bias=False)
        for linear in (self.qk, self.v, self.gate, self.out):
            nn.init.xavier_uniform_(linear.weight, gain=2**-2.5)

    @property
    def log_decay(self) -> torch.Tensor:
        """[H], in float64 whatever the model is moved to: over thousands of tokens the last digits count."""
        return torch.log(1 - 2.0 ** (-5 - torch.arange(self.n_heads, dtype=torch.float64)))

    def _heads(self, x: torch.Tensor, start: int = 0) -> tuple[torch.Tensor, ...]:
        q, k = self.qk(x).unflatten(-1, (2, self.n_heads, self.width)).unbind(2)
        v = self.v(x).unflatten(-1, (self.n_heads, -1))
        return rotate(q, start) / math.sqrt(self.width), rotate(k, start), v

    def _close(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        z = self.norm(z.unflatten(-1, (self.n_heads, -1)).to(self.norm.weight.dtype)).flatten(-2)
        return self.out(F.silu(self.gate(x)) * z)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._close(FORMS[self.form](*self._heads(x), self.log_decay).flatten(2), x)

    def mixing(self, x: torch.Tensor) -> Mixing:
        q, k, v = self._heads(x)
        return Mixing(linear_weights(q, k, self.log_decay), v.transpose(1, 2), lambda z: self._close(z, x))

    def initial_state(self, batch_size: int) -> tuple[int, torch.Tensor]:
        """The position, for the rotation, and S."""
        return 0, self.zeros(batch_size, self.n_heads, self.width, 2 * self.width)

    def step(self, x: torch.Tensor, recurrent_state: tuple[int, torch.Tensor]) -> tuple[torch.Tensor, tuple[int, torch.Tensor]]:
        at, S = recurrent_state
        q, k, v = (part[:, 0] for part in self._heads(x[:, None], start=at))
        S, z = linear_step(S, q, k, v, self.log_decay)
        return self._close(z.flatten(1), x), (at + 1, S)

    def operator_flops(self, length: int) -> float:
        return 5 * self.n_heads * self.width * 2 * self.width
