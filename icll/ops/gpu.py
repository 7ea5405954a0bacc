"""flash-linear-attention's Triton kernels in place of our torch forms, on a GPU that has them (the extra `gpu`).

Each function returns None where they do not apply, and the caller goes on with torch. Written against the signatures its
documentation gives: `chunk_linear_attn`, `chunk_simple_gla`, `chunk_gla`, `fused_recurrent_rwkv4`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch


def fast_linear_attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay: torch.Tensor | None
) -> torch.Tensor | None:  # fmt: skip
    """See linear_attention.py; the decay of values has no kernel."""
    if not _applies(q, k, v):
        return None
    if log_decay is None:
        return _kernel("linear_attn", "chunk_linear_attn")(q, k, v, scale=1.0, normalize=False)[0]
    if log_decay.dim() == 1:
        return _kernel("simple_gla", "chunk_simple_gla")(q, k, v, g_gamma=log_decay.to(q.device, torch.float32), scale=1.0)[0]
    return _kernel("gla", "chunk_gla")(q, k, v, g=log_decay, scale=1.0)[0]


def fast_wkv(w: torch.Tensor, u: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor | None:
    """See wkv.py. The kernel takes the logarithm of w, and its state as [B, 3, 1, D]."""
    if not _applies(w, u, k, v):
        return None
    state = k.new_zeros(k.shape[0], 3, 1, k.shape[2])
    state[:, 2] = -1e30
    return _kernel("rwkv4", "fused_recurrent_rwkv4")(torch.log(w), u, k, v, state)[0]


def _applies(*tensors: torch.Tensor) -> bool:
    return all(t.is_cuda and t.dtype != torch.float64 for t in tensors) and _installed()


@cache
def _installed() -> bool:
    return find_spec("fla") is not None and find_spec("triton") is not None


@cache
def _kernel(folder: str, name: str) -> Any:
    return getattr(import_module(f"fla.ops.{folder}"), name)
