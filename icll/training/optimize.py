"""Optimisers and the schedule of a recipe."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..mixers.base import Stacked
from ..model import Block, Model
from .config import Recipe

PATIENCE, BETTER = 5, 1e-4  # of the schedule "plateau": epochs, and by which share a loss must fall to count
SLOW_RATE = 1e-3  # at most, for the kernels of state-space models


def make_optimizers(model: Model, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """One optimiser, or two: Muon for the matrices inside layers, AdamW for the rest. Vectors and slow parameters do not
    decay."""
    slow = {
        id(p)
        for block in model.blocks
        if isinstance(block, Block)
        for name, p in block.mixer.named_parameters()
        if name in getattr(block.mixer, "slow_parameters", ())
    }
    linear = {id(m.weight): m for block in model.blocks for m in block.modules() if isinstance(m, nn.Linear)}
    groups: dict[str, list[nn.Parameter]] = {"decayed": [], "plain": [], "slow": []}
    matrices: dict[tuple[int, ...], list[nn.Parameter]] = {}  # for Muon, by the rows of the maps they hold
    for parameter in model.parameters():
        if id(parameter) in slow:
            groups["slow"].append(parameter)
        elif recipe.optimizer == "muon" and id(parameter) in linear:
            module = linear[id(parameter)]
            parts = module.parts if isinstance(module, Stacked) else (module.out_features,)
            matrices.setdefault(parts, []).append(parameter)
        else:
            groups["decayed" if parameter.dim() >= 2 else "plain"].append(parameter)
    adam = [
        {"params": groups["decayed"], "weight_decay": recipe.weight_decay, "scale": 1.0},
        {"params": groups["plain"], "weight_decay": 0.0, "scale": 1.0},
        {"params": groups["slow"], "weight_decay": 0.0, "scale": min(1.0, SLOW_RATE / recipe.rate)},
    ]
    on_cpu = next(model.parameters()).device.type in ("cpu", "cuda")
    adamw = torch.optim.AdamW([g for g in adam if g["params"]], lr=recipe.rate, betas=recipe.betas, fused=on_cpu)
    if not matrices:
        return [adamw]
    muon = [{"params": parameters, "parts": parts} for parts, parameters in matrices.items()]
    return [adamw, Muon(muon, recipe.muon_rate, recipe.weight_decay)]


class Muon(torch.optim.Optimizer):
    """Momentum whose matrices are made orthogonal before each step (Jordan et al., 2024), as torch.optim.Muon.

    torch's does so in bfloat16, which on processors without it takes most of a training step; here it has the precision of the
    weights, and bfloat16 on a GPU alone. The rate is for a matrix of any shape the same, in units of what AdamW would do.

    `parts` of a group are the rows of the maps that its matrices hold one above the other. Each is made orthogonal by itself:
    together, queries and keys, whose gradients are small until a head forms, would hardly move beside the values.
    """

    def __init__(
        self, parameters: list[dict[str, Any]] | list[nn.Parameter], rate: float, weight_decay: float, momentum: float = 0.95
    ):
        super().__init__(parameters, {"lr": rate, "weight_decay": weight_decay, "momentum": momentum, "parts": None})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(p)
                buffer = state["momentum_buffer"].lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp(buffer, group["momentum"])
                parts = update.split(group["parts"] or len(update))
                update = torch.cat([orthogonal(part) * (0.2 * math.sqrt(max(part.shape))) for part in parts])
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"])


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """About U V^T of a matrix U S V^T: five steps of a quintic iteration that draws singular values towards 1."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix.bfloat16() if matrix.is_cuda else matrix
    x = x.mT if matrix.shape[0] > matrix.shape[1] else x
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if matrix.shape[0] > matrix.shape[1] else x).to(matrix.dtype)


def warmup_steps(recipe: Recipe, total: int) -> int:
    """A share of all steps, or a number of them; one that is more than half of the run is capped at a tenth."""
    if recipe.warmup < 1:
        return round(recipe.warmup * total)
    if recipe.warmup > total // 2:
        capped = total // 10
        warnings.warn(
            f"a warm-up of {recipe.warmup:,.0f} steps is too long for a run of {total:,}: capped at {capped:,}", stacklevel=2
        )
        return capped
    return int(recipe.warmup)


def rate_at(recipe: Recipe, step: int, total: int, warmup: int, losses: Sequence[float] = ()) -> float:
    """The rate of a step as a share of the recipe's: a line up, then a cosine down, or halves down by the validation losses of
    the epochs so far."""
    start = recipe.warmup_from / recipe.rate
    if step < warmup:
        return start + (1 - start) * (step + 1) / warmup
    if recipe.schedule == "plateau":
        return _on_plateau(losses, recipe.floor)
    progress = (step - warmup) / max(1, total - warmup)
    return recipe.floor + (1 - recipe.floor) * 0.5 * (1 + math.cos(math.pi * progress))


def _on_plateau(losses: Sequence[float], floor: float) -> float:
    """Half as much after more than PATIENCE epochs without a better loss. Nothing but the losses is remembered."""
    share, best, waited = 1.0, math.inf, 0
    for loss in losses:
        better = loss < best * (1 - BETTER)
        best, waited = (loss, 0) if better else (best, waited + 1)
        if waited > PATIENCE:
            share, waited = max(floor, share / 2), 0
    return share


def set_rate(optimizers: list[torch.optim.Optimizer], recipe: Recipe, share: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            base = recipe.rate * group["scale"] if "scale" in group else recipe.muon_rate
            group["lr"] = base * share
