"""Rotary position embedding: the halves of a head's channels are the two coordinates of points, turned by an angle that grows
with the position, so that products of queries and keys depend on their distance alone."""

from __future__ import annotations

import torch


def rotate(x: torch.Tensor, start: int = 0, base: float = 10_000.0) -> torch.Tensor:
    """Turn x [B, L, H, K], whose first token stands at position `start`."""
    half = x.shape[-1] // 2
    exact = torch.float64 if x.dtype == torch.float64 else torch.float32
    rate = base ** -(torch.arange(half, device=x.device, dtype=exact) / half)
    angle = (start + torch.arange(x.shape[1], device=x.device, dtype=exact))[:, None, None] * rate  # [L, 1, K / 2]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
