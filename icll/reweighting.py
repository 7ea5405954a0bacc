"""Learned n-gram reweighting (section 5.3, appendix D): a model that sees its text through n-gram statistics alone.

c_m    counts of every token after the last m tokens, m = 0, 1, 2        [B, L, V] each, see icll.ops.ngram_counts
f      lnw: c / 100;  lnw_r: c / its sum, 0 where there is none;  lnw_b: 1 where c > 0
y      W_2 gelu(W_1 [f_0, f_1, f_2] + b_1) + b_2                          60 to 1,024 to 20
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .errors import IcllError, unknown, whole
from .model import Model, ModelConfig, ModelState, Output
from .ops.ngram_counts import follower_counts

REWEIGHTING = {"lnw": "counts", "lnw_r": "frequencies", "lnw_b": "existence"}
CONTEXTS = 3
WIDTH = 1024
UNIT = 100.0  # counts of lnw come in hundreds, as the authors had them


class Reweighting(Model):
    """A predictor that is trained like any model. Its one option is `width`; it has no d_model, layers or heads."""

    def __init__(self, config: ModelConfig):
        nn.Module.__init__(self)
        self.config, self.name = config, config.model
        self.features = REWEIGHTING[config.model]
        for option in config.options:
            if option != "width":
                raise unknown(f"option of {config.model}", option, ["width"])
        if config.ngram_heads or config.authors_bug:
            raise IcllError(f"{config.model} has no layers for n-gram heads or wiring: leave them out")
        width = whole("width", config.options.get("width", WIDTH), 1)
        self.blocks, self.orders = [], []
        self.hidden = nn.Linear(CONTEXTS * config.vocab_size, width)
        self.output = nn.Linear(width, config.vocab_size)

    def forward(
        self,
        tokens: torch.Tensor,
        return_hidden: bool = False,
        return_mixing: bool = False,
        targets: torch.Tensor | None = None,
    ) -> Any:
        counts = follower_counts(tokens, CONTEXTS, self.config.vocab_size)  # [B, L, 3, V]
        if self.features == "counts":
            made = counts / UNIT
        elif self.features == "existence":
            made = (counts > 0).float()
        else:
            made = counts / counts.sum(-1, keepdim=True).clamp(min=1)
        hidden = F.gelu(self.hidden(made.flatten(2).to(self.hidden.weight)))
        logits = self.output(hidden)
        if targets is not None:
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")
        if not (return_hidden or return_mixing):
            return logits
        return Output(logits, [hidden] if return_hidden else None, [None] if return_mixing else None)

    def initial_state(self, batch_size: int, max_contexts: int | None = None) -> ModelState:
        """The tokens read: they are counted anew at every step."""
        return ModelState(0, (torch.zeros(batch_size, 0, dtype=torch.long),))

    def step(self, tokens: torch.Tensor, state: ModelState) -> tuple[torch.Tensor, ModelState]:
        text = torch.cat([state.layers[0].to(tokens.device), tokens[:, None]], 1)
        return self(text)[:, -1], ModelState(state.position + 1, (text,))

    def flops_per_token(self, length: int) -> float:
        return 2.0 * (self.hidden.weight.numel() + self.output.weight.numel())
