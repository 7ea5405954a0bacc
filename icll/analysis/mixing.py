"""What each head of a model does with the past: its matrices layer by layer, and the model without it.

A head is what a mixer keeps apart: one of the heads of attention, of retention, of gated linear attention, an n-gram head.
Mixers that work channel by channel (Mamba, RWKV, S4, H3, Hyena) have a matrix for each channel and no heads: all channels of a
layer are one head then. LSTM has no matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..errors import IcllError
from ..mixers import Mixing, NGramBlock, NGramHead
from ..model import Model, evaluating, orders_inside

BUDGET = 32_000_000  # weights of one layer that are in memory at once, several times over
BUILT_IN = "n-gram head"


@dataclass(frozen=True)
class Head:
    """Channels of one layer's matrices. Layers and heads count from 1, as in the paper."""

    layer: int
    number: int
    channels: slice
    label: str  # what its mixer is

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.number}"

    @property
    def n_channels(self) -> int:
        return self.channels.stop - self.channels.start


def mixers_of(model: Model) -> list[nn.Module]:
    """What mixes tokens in each layer."""
    return [block.head if isinstance(block, NGramBlock) else block.mixer for block in model.blocks]


def layer_mixing(model: Model, tokens: torch.Tensor) -> Iterator[Mixing | None]:
    """The matrices of one layer after the other for tokens [B, L], so that only one layer's are in memory."""
    mixers, inputs = mixers_of(model), {}

    def keep(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        inputs[module] = arguments

    hooks = [mixer.register_forward_pre_hook(keep) for mixer in mixers]
    try:
        with evaluating(model):
            model(tokens, return_hidden=True)
    finally:
        for hook in hooks:
            hook.remove()
    for mixer in mixers:
        with evaluating(model):
            made = mixer.mixing(*inputs[mixer]) if hasattr(mixer, "mixing") else None  # type: ignore[operator]
        yield made if isinstance(made, Mixing) else None


def find_heads(model: Model) -> list[Head]:
    """All heads of a model that has matrices in some layer."""
    heads = []
    shapes = layer_mixing(model, torch.ones(1, 2, dtype=torch.long))
    for layer, (mixer, made) in enumerate(zip(mixers_of(model), shapes, strict=True), 1):
        if made is None:
            continue
        channels = made.weights.shape[1]
        # Values wider than 1 belong to a head; single channels to one of the mixer's heads, if it has any.
        count = channels if made.values.shape[-1] > 1 else getattr(mixer, "n_heads", 1)
        each = channels // count
        inner = [mixer.n] if isinstance(mixer, NGramHead) else orders_inside(mixer)  # n-gram heads, which come last
        labels = [type(mixer).__name__] * (count - len(inner)) + [f"{BUILT_IN} {n}" for n in inner]
        heads += [Head(layer, h + 1, slice(h * each, (h + 1) * each), labels[h]) for h in range(count)]
    if not heads:
        raise IcllError(f"{model.name} mixes tokens without matrices ({model.config.model}): choose a run of another model")
    return heads


def batch_size(heads: list[Head], length: int, most: int = 32) -> int:
    """How many problems of this length fit the budget."""
    channels = max(head.channels.stop for head in heads)
    return max(1, min(most, BUDGET // (channels * length**2)))


def rows_of(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as distributions [..., L, L]: over the past and the token itself, and as they are held to rules about the past.

    Rows that are distributions already, as of softmax, stay as they are, both times. Others may be negative and of any size:
    they are absolute weights divided by their sum, the second time without the token's own, which is often a skip connection
    that would hide everything else. A row of zeros stays one.
    """
    size = weights.abs()
    if bool((weights >= 0).all()) and bool(((size.sum(-1) - 1).abs() < 1e-3).all()):
        return size, size
    past = size * (1 - torch.eye(size.shape[-1], dtype=size.dtype, device=size.device))
    return _normalised(size), _normalised(past)


def _normalised(size: torch.Tensor) -> torch.Tensor:
    return size / size.sum(-1, keepdim=True).clamp(min=torch.finfo(size.dtype).tiny)


@contextmanager
def knocked_out(model: Model, head: Head) -> Iterator[None]:
    """The model without a head: its part of weights times values is 0 before the mixer's gates and output map."""
    mixer = mixers_of(model)[head.layer - 1]

    def without(module: nn.Module, arguments: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        made = module.mixing(*arguments)  # type: ignore[operator]
        if head.n_channels == made.weights.shape[1]:
            z = torch.zeros_like(made.values)
        else:
            z = made.weights @ made.values
            z[:, head.channels] = 0
        return made.close(z.transpose(1, 2).flatten(2))

    hook = mixer.register_forward_hook(without)
    try:
        yield
    finally:
        hook.remove()
