"""The published setting without its price: the real models on torch's meta device, and two steps of narrow ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from ..model import Model, ModelConfig, model_of
from ..training.optimize import make_optimizers
from .data import steps_of_epoch
from .presets import Size, bundle_parameters, count_parameters, fitting_width, layer_parameters, text_model
from .table1b import Row

WIDTHS = (64, 128)  # of the narrow models


@dataclass(frozen=True)
class DryRun:
    name: str
    parameters: int
    layer: int  # parameters of a layer
    bundle: int  # and of three n-gram blocks
    tokens: int
    steps: int
    batch_tokens: int
    state_gb: float  # weights, gradients and both averages of AdamW, in float32
    activations_gb: float  # of one piece of a batch, from those of narrow models
    losses: tuple[float, float]  # of the two steps

    def as_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "losses": list(self.losses)}


def dry_run(row: Row, size: Size, contexts: int = 1) -> DryRun:
    """A row of the table at its full size, and two steps of it at WIDTHS[0] on random tokens."""
    config = text_model(row.model, size, row.heads)
    recipe = size.recipe
    tokens = torch.randint(0, config.vocab_size, (contexts, size.context + 1), generator=torch.Generator().manual_seed(0))
    kept = [_kept(model_of(_narrow(config, width), seed=0), tokens) for width in WIDTHS]
    slope = (kept[1] - kept[0]) / (WIDTHS[1] - WIDTHS[0])
    piece = -(-recipe.batch_size // recipe.accumulate) / contexts
    model = model_of(_narrow(config, WIDTHS[0]), seed=0)
    optimizers = make_optimizers(model, recipe)
    losses = []
    for _ in range(2):
        loss = model(tokens[:, :-1], targets=tokens[:, 1:]) / tokens[:, 1:].numel()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    parameters = count_parameters(config)
    batch = recipe.batch_size * size.context
    return DryRun(
        row.name, parameters, layer_parameters(config), bundle_parameters(config), size.tokens,
        recipe.epochs * steps_of_epoch(size.tokens, size.context, recipe), batch,
        16 * parameters / 1e9, piece * (kept[0] + slope * (config.d_model - WIDTHS[0])) / 1e9, (losses[0], losses[1]),
    )  # fmt: skip


def _narrow(config: ModelConfig, width: int) -> ModelConfig:
    narrow = replace(config, d_model=width, ff_width=None)
    return replace(narrow, ff_width=fitting_width(narrow))


def _kept(model: Model, tokens: torch.Tensor) -> int:
    """Bytes the forward pass keeps for the backward one, weights not among them."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(tokens[:, :-1], targets=tokens[:, 1:])
    del loss
    return sum(seen.values())
