"""One LSTM layer (appendix A.4).

i, f, c~, o   gates of W x_t + U y_(t-1) + b, in torch's order    [B, D] each
c_t           f * c_(t-1) + i * c~
y_t           o * tanh(c_t)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .base import Mixer, architecture, by_steps, full_precision


@architecture("lstm", norm=None, feed_forward=None, residual=False)
class Lstm(Mixer):
    forms = ("fast", "recurrent")

    def __init__(self, d_model: int, form: str | None = None):
        super().__init__()
        self.choose_form(form)
        self.d_model = d_model
        self.lstm = nn.LSTM(d_model, d_model, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.form == "fast":
            with full_precision(x):  # not every processor has this layer in half precision
                return self.lstm(x.to(next(self.parameters()).dtype))[0].to(x.dtype)
        return by_steps(self, x)

    def initial_state(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        zero = self.zeros(batch_size, self.d_model)
        return zero, zero

    def step(
        self, x: torch.Tensor, recurrent_state: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        y, c = recurrent_state
        layer: Any = self.lstm
        gates = x @ layer.weight_ih_l0.T + layer.bias_ih_l0 + y @ layer.weight_hh_l0.T + layer.bias_hh_l0
        i, f, new, o = gates.chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(new)
        y = torch.sigmoid(o) * torch.tanh(c)
        return y, (y, c)

    def operator_flops(self, length: int) -> float:
        return 16 * self.d_model**2 + 9 * self.d_model  # torch keeps its linear maps inside the layer, so they are counted here
