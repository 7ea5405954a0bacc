"""Softmax attention (appendix A.1): the Transformer's mixer, and the Llama-style one with rotary positions.

q, k, v   W_q x, W_k x, W_v x       [B, H, L, K]
A         softmax(q k^T / sqrt(K)), causal
y         W_o (A v)
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from ..errors import IcllError
from .base import Mixer, Mixing, architecture, heads_of
from .rotary import rotate


@architecture("transformer", positions=True)
@architecture("llama", norm="rms", feed_forward="swiglu", rotary=True, bias=False)
class Attention(Mixer):
    forms = ("fast", "attention")

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        n_layers: int = 1,
        dropout: float = 0.0,
        rotary: bool = False,
        bias: bool = True,
        form: str | None = None,
    ):
        super().__init__()
        self.choose_form(form)
        self.n_heads, self.width, self.dropout, self.rotary = n_heads, heads_of(d_model, n_heads), dropout, rotary
        if rotary and self.width % 2:
            raise IcllError(f"rotary positions need heads of even width, not {self.width}: change d_model or n_heads")
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=bias)
        self.out = nn.Linear(d_model, d_model, bias=bias)
        for linear, std in ((self.qkv, 0.02), (self.out, 0.02 / math.sqrt(2 * n_layers))):
            nn.init.normal_(linear.weight, std=std)
            if bias:
                nn.init.zeros_(linear.bias)

    def _heads(self, x: torch.Tensor, start: int = 0) -> tuple[torch.Tensor, ...]:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, self.width)).unbind(2)  # [B, L, H, K]
        if self.rotary:
            q, k = rotate(q, start), rotate(k, start)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self._heads(x)
        dropout = self.dropout if self.training else 0.0
        if self.form == "fast":
            z = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        else:
            z = F.dropout(self._weights(q, k), dropout) @ v
        return self.out(z.transpose(1, 2).flatten(2))

    def _weights(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        scores = q @ k.mT / math.sqrt(self.width)
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        return scores.masked_fill(future, float("-inf")).softmax(-1)

    def mixing(self, x: torch.Tensor) -> Mixing:
        q, k, v = self._heads(x)
        return Mixing(self._weights(q, k), v, self.out)

    def initial_state(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values read so far, [B, H, 0, K]: they grow with the text."""
        empty = self.zeros(batch_size, self.n_heads, 0, self.width)
        return empty, empty

    def step(
        self, x: torch.Tensor, recurrent_state: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        keys, values = recurrent_state
        q, k, v = self._heads(x[:, None], start=keys.shape[2])
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        z = F.scaled_dot_product_attention(q, keys, values)
        return self.out(z.transpose(1, 2).flatten(2))[:, 0], (keys, values)

    def operator_flops(self, length: int) -> float:
        return 4 * self.n_heads * self.width * (length + 1) / 2  # scores and average, over half of the positions in the mean
