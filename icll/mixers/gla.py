"""Gated linear attention (appendix A.5): every channel of the keys decays at its own rate, set by the token.

q, k    W_q x, W_k x                             [B, L, H, K], K = d / 2 H
v, r    W_v x, W_r x                             [B, L, H, V], V = d / H
alpha   sigmoid(W_2 W_1 x + b)**(1 / 16)         [B, L, H, K], W_1 of rank 16
beta    the same for the values, of the paper's text; the authors ran without: `value_gate=True`
S_t     (alpha_t beta_t^T) * S_(t-1) + k_t v_t^T
y_t     W_o (swish(r_t) * norm(q_t^T S_t / sqrt(K))), the norm for each head
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from ..errors import IcllError
from ..ops.linear_attention import linear_step, linear_weights
from .base import Mixer, Mixing, architecture, heads_of
from .linear_transformer import FORMS
from .norm import RMSNorm

RANK = 16
TEMPERATURE = 16


@architecture("gla")
class GatedLinearAttention(Mixer):
    forms = tuple(FORMS)

    def __init__(self, d_model: int, n_heads: int, value_gate: bool = False, form: str | None = None):
        super().__init__()
        self.choose_form(form)
        self.n_heads, self.v_width = n_heads, heads_of(d_model, n_heads)
        if self.v_width % 2:
            raise IcllError(f"gla's keys have half the width of a head, which must be even, not {self.v_width}")
        self.k_width = self.v_width // 2
        self.q = nn.Linear(d_model, d_model // 2, bias=False)
        self.k = nn.Linear(d_model, d_model // 2, bias=False)
        self.v = nn.Linear(d_model, d_model, bias=False)
        self.gate = nn.Linear(d_model, d_model, bias=False)
        self.norm = RMSNorm(self.v_width, eps=1e-5)
        self.out = nn.Linear(d_model, d_model, bias=False)
        for linear in (self.q, self.k, self.v, self.gate, self.out):
            nn.init.xavier_uniform_(linear.weight, gain=2**-2.5)
        self.alpha = nn.Sequential(nn.Linear(d_model, RANK, bias=False), nn.Linear(RANK, d_model // 2))
        self.beta = nn.Sequential(nn.Linear(d_model, RANK, bias=False), nn.Linear(RANK, d_model)) if value_gate else None

    def _heads(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """q, k, v and the logarithms of both decays."""

        def split(part: torch.Tensor) -> torch.Tensor:
            return part.unflatten(-1, (self.n_heads, -1))

        alpha = F.logsigmoid(split(self.alpha(x))) / TEMPERATURE
        beta = None if self.beta is None else F.logsigmoid(split(self.beta(x))) / TEMPERATURE
        return split(self.q(x)) / math.sqrt(self.k_width), split(self.k(x)), split(self.v(x)), alpha, beta

    def _close(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        z = self.norm(z.unflatten(-1, (self.n_heads, -1)).to(self.norm.weight.dtype)).flatten(-2)
        return self.out(F.silu(self.gate(x)) * z)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._close(FORMS[self.form](*self._heads(x)).flatten(2), x)

    def mixing(self, x: torch.Tensor) -> Mixing:
        """For each head; with the values' gate, for each of their channels."""
        q, k, v, alpha, beta = self._heads(x)
        weights = linear_weights(q, k, alpha)  # [B, H, L, L]
        if beta is None:
            return Mixing(weights, v.transpose(1, 2), lambda z: self._close(z, x))
        total = beta.cumsum(1).flatten(2).mT  # [B, D, L]
        decay = torch.exp((total[..., :, None] - total[..., None, :]).clamp(max=0))
        weights = weights.repeat_interleave(self.v_width, 1) * decay
        return Mixing(weights, v.flatten(2).mT[..., None], lambda z: self._close(z, x))

    def initial_state(self, batch_size: int) -> torch.Tensor:
        return self.zeros(batch_size, self.n_heads, self.k_width, self.v_width)

    def step(self, x: torch.Tensor, recurrent_state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        recurrent_state, z = linear_step(recurrent_state, *self._heads(x))
        return self._close(z.flatten(1), x), recurrent_state

    def operator_flops(self, length: int) -> float:
        return (5 if self.beta is None else 6) * self.n_heads * self.k_width * self.v_width
