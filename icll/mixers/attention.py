"""Softmax attention (appendix A.1): the Transformer's mixer, and the Llama-style one with rotary positions.

q, k, v   W_q x, W_k x, W_v x       [B, H, L, K]
A         softmax(q k^T / sqrt(K)), causal
y         W_o (A v)

`inner_ngram_heads=(1, 2)` adds n-gram heads beside the softmax ones: values of their own, averaged as in ngram.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from ..errors import IcllError, unknown, whole
from ..ops.attention import causal_attention
from ..ops.ngram import REPEATS
from .base import Mixer, Mixing, Stacked, architecture, heads_of
from .ngram import Contexts, WholeText
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
        inner_ngram_heads: Sequence[int] = (),
        inner_repeat: str = "drop",
        attention_dropout: float | None = None,  # of the weights alone; default: as everywhere
        form: str | None = None,
    ):
        super().__init__()
        self.choose_form(form)
        self.n_heads, self.width, self.rotary = n_heads, heads_of(d_model, n_heads), rotary
        self.dropout = dropout if attention_dropout is None else attention_dropout
        if rotary and self.width % 2:
            raise IcllError(f"rotary positions need heads of even width, not {self.width}: change d_model or n_heads")
        self.ngram_orders = tuple(whole("the order n of an n-gram head", n, 1) for n in inner_ngram_heads)
        if inner_repeat not in REPEATS:
            raise unknown("inner_repeat", inner_repeat, REPEATS)
        self.repeat, self.key = inner_repeat, "inner"
        extra = len(self.ngram_orders) * self.width
        self.qkv = Stacked(d_model, (d_model, d_model, d_model + extra), bias)
        self.out = nn.Linear(d_model + extra, d_model, bias=bias)
        for linear, std in ((self.qkv, 0.02), (self.out, 0.02 / math.sqrt(2 * n_layers))):
            nn.init.normal_(linear.weight, std=std)
            if bias:
                nn.init.zeros_(linear.bias)

    def _heads(self, x: torch.Tensor, start: int = 0) -> tuple[torch.Tensor, ...]:
        """q, k, v [B, H, L, K], and the values of n-gram heads [B, L, heads, K]."""
        made = self.qkv(x).unflatten(-1, (-1, self.width))
        q, k, v, extra = made.split([self.n_heads] * 3 + [len(self.ngram_orders)], 2)
        if self.rotary:
            q, k = rotate(q, start), rotate(k, start)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), extra

    def _close(self, z: torch.Tensor, extra: torch.Tensor, contexts: Contexts | None) -> torch.Tensor:
        parts = [z.transpose(1, 2).flatten(2)]
        for i, n in enumerate(self.ngram_orders):
            if contexts is None:
                raise IcllError("attention with n-gram heads inside needs the tokens' contexts: call it as mixer(x, contexts)")
            parts.append(contexts.average(f"{self.key}.{i}.{n}", n, self.repeat, extra[:, :, i]))
        return self.out(torch.cat(parts, -1) if self.ngram_orders else parts[0])

    def forward(self, x: torch.Tensor, contexts: Contexts | None = None) -> torch.Tensor:
        q, k, v, extra = self._heads(x)
        dropout = self.dropout if self.training else 0.0
        z = causal_attention(q, k, v, dropout) if self.form == "fast" else F.dropout(self._weights(q, k), dropout) @ v
        return self._close(z, extra, contexts)

    def _weights(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        scores = q @ k.mT / math.sqrt(self.width)
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        return scores.masked_fill(future, float("-inf")).softmax(-1)

    def mixing(self, x: torch.Tensor, contexts: Contexts | None = None) -> Mixing:
        """The n-gram heads, if there are any inside, come last."""
        q, k, v, extra = self._heads(x)
        weights, values = [self._weights(q, k)], [v]
        for i, n in enumerate(self.ngram_orders):
            assert isinstance(contexts, WholeText)
            weights.append(contexts.weights(n, self.repeat)[:, None].to(x.dtype))
            values.append(extra[:, None, :, i])
        return Mixing(torch.cat(weights, 1), torch.cat(values, 1), self.out)

    def initial_state(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values read so far, [B, H, 0, K]: they grow with the text."""
        empty = self.zeros(batch_size, self.n_heads, 0, self.width)
        return empty, empty

    def step(
        self,
        x: torch.Tensor,
        recurrent_state: tuple[torch.Tensor, torch.Tensor],
        contexts: Contexts | None = None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        keys, values = recurrent_state
        q, k, v, extra = self._heads(x[:, None], start=keys.shape[2])
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        z = F.scaled_dot_product_attention(q, keys, values)
        return self._close(z, extra, contexts)[:, 0], (keys, values)

    def operator_flops(self, length: int) -> float:
        return 4 * self.n_heads * self.width * (length + 1) / 2  # scores and average, over half of the positions in the mean
