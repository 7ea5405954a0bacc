"""The norm of Llama-style skeletons and of the heads of RetNet and GLA."""

from __future__ import annotations

import torch
from torch import nn

from ..ops.rms_norm import rms_norm


class RMSNorm(nn.RMSNorm):
    """torch's, with our operator."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, torch.finfo(x.dtype).eps if self.eps is None else self.eps)
