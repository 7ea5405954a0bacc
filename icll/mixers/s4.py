"""S4 (appendix A.7): a state-space model for each channel, then a gated linear map.

    u    state-space model of x, see state_space.py    [B, L, D]
    y    glu(W gelu(u)), W to 2 D

The authors ran the diagonal variant, S4D, the default here; `structure="dplr"` is the original.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..ops.convolution import toeplitz
from .base import Mixer, Mixing, Stacked, architecture
from .state_space import LowRankStateSpace, make_state_space


@architecture("s4")
class S4(Mixer):
    forms = ("convolution", "recurrent")
    slow_parameters = tuple(f"ssm.{name}" for name in LowRankStateSpace.train_slowly)

    def __init__(
        self, d_model: int, states: int = 64, spectrum: str = "lin", structure: str = "diagonal", form: str | None = None
    ):
        super().__init__()
        self.choose_form(form)
        self.ssm = make_state_space(d_model, states, spectrum, structure)
        self.out = Stacked(d_model, (d_model, d_model))

    def _close(self, u: torch.Tensor) -> torch.Tensor:
        return F.glu(self.out(F.gelu(u)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._close(self.ssm(x, self.form))

    def mixing(self, x: torch.Tensor) -> Mixing:
        B, L, _ = x.shape
        weights = toeplitz(self.ssm.filters(L), L).expand(B, -1, -1, -1)
        return Mixing(weights, x.mT[..., None], self._close)

    def initial_state(self, batch_size: int) -> torch.Tensor:
        return self.ssm.initial_state(batch_size)

    def step(self, x: torch.Tensor, recurrent_state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        u, recurrent_state = self.ssm.step(x, recurrent_state)
        return self._close(u), recurrent_state

    def operator_flops(self, length: int) -> float:
        return self.ssm.flops(length)
