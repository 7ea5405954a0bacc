"""Linear attention with the identity as its feature map (appendix A.2).

q, k, v   W_q x, W_k x, W_v x          [B, L, H, K]
S_t       S_(t-1) + k_t v_t^T          [B, H, K, K]
y_t       W_o (q_t^T S_t / sqrt(K)),   or (q k^T / sqrt(K)) v below the diagonal, without a normaliser
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from ..ops.linear_attention import (
    attention_linear_attend,
    chunked_linear_attend,
    linear_attend,
    linear_step,
    linear_weights,
    naive_linear_attend,
)
from .base import Mixer, Mixing, Stacked, architecture, heads_of

FORMS: dict[str, Callable[..., torch.Tensor]] = {
    "fast": linear_attend,
    "attention": attention_linear_attend,
    "recurrent": naive_linear_attend,
    "chunked": chunked_linear_attend,
}


@architecture("linear_transformer")
class LinearAttention(Mixer):
    forms = tuple(FORMS)

    def __init__(self, d_model: int, n_heads: int, n_layers: int = 1, form: str | None = None):
        super().__init__()
        self.choose_form(form)
        self.n_heads, self.width = n_heads, heads_of(d_model, n_heads)
        self.qkv = Stacked(d_model, (d_model,) * 3)
        self.out = nn.Linear(d_model, d_model)
        for linear, std in ((self.qkv, 0.02), (self.out, 0.02 / math.sqrt(2 * n_layers))):
            nn.init.normal_(linear.weight, std=std)
            nn.init.zeros_(linear.bias)

    def _heads(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, self.width)).unbind(-3)
        return q / math.sqrt(self.width), k, v

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(FORMS[self.form](*self._heads(x)).flatten(2))

    def mixing(self, x: torch.Tensor) -> Mixing:
        q, k, v = self._heads(x)
        return Mixing(linear_weights(q, k), v.transpose(1, 2), self.out)

    def initial_state(self, batch_size: int) -> torch.Tensor:
        return self.zeros(batch_size, self.n_heads, self.width, self.width)

    def step(self, x: torch.Tensor, recurrent_state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        recurrent_state, z = linear_step(recurrent_state, *self._heads(x))
        return self.out(z.flatten(1)), recurrent_state

    def operator_flops(self, length: int) -> float:
        return 4 * self.n_heads * self.width**2
