"""Sizes of text models. All share one skeleton (RMSNorm, SwiGLU, tied embeddings): only the mixers differ.

In each a layer has as many parameters as a bundle of three n-gram blocks, 12 d^2 + 18 d: the feed-forward is as wide as that
needs. Two bundles then take the places of two layers, and the model is as large as before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ..errors import IcllError, unknown
from ..mixers import NGramBlock
from ..model import Block, Model, ModelConfig, architecture_of, model_of
from ..training import Recipe

MODELS = ("llama", "retnet", "gla")
BUNDLE = 3  # blocks that are as large as a layer
PLACES = (1, -2)  # the second layer and the second-to-last one

# Appendix G. It does not mention clipping: 1 is ours. Batches are of 0.5M tokens: 244 contexts of 2,048.
APPENDIX_G = Recipe(
    "appendix-g", "adamw", rate=3e-4, betas=(0.9, 0.95), weight_decay=0.01, warmup=5e8 / 7e9, warmup_from=0.0, floor=0.1,
    epochs=28, batch_size=244, clip=1.0, accumulate=61,
)  # fmt: skip


@dataclass(frozen=True)
class Size:
    d_model: int
    n_layers: int
    n_heads: dict[str, int]
    vocab_size: int  # of the tokenizer that is trained if none is given
    context: int
    tokens: int
    recipe: Recipe


def _small(name: str, rate: float, accumulate: int) -> Recipe:
    """Appendix G for small models: batches of 16k tokens, and a rate that fits the width."""
    return replace(APPENDIX_G, name=name, rate=rate, batch_size=32, epochs=10, accumulate=accumulate)


SIZES = {
    "5m": Size(224, 7, {"llama": 4, "retnet": 4, "gla": 4}, 4096, 512, 20_000_000, _small("text-5m", 2e-3, 8)),
    "20m": Size(448, 7, {"llama": 7, "retnet": 7, "gla": 7}, 8192, 512, 100_000_000, _small("text-20m", 1e-3, 16)),
    "340m": Size(1024, 24, {"llama": 16, "retnet": 4, "gla": 4}, 32_000, 2048, 7_000_000_000, APPENDIX_G),
}


def find_size(name: str) -> Size:
    if name not in SIZES:
        raise unknown("size", name, SIZES)
    return SIZES[name]


def text_model(
    model: str,
    size: Size,
    ngram_heads: tuple[int, ...] = (),
    *,
    vocab_size: int | None = None,
    context: int | None = None,
    separator: int = 0,
    ngram_after: tuple[int, ...] = PLACES,
) -> ModelConfig:
    """The config of a text model. With n-gram heads a bundle of them is in place of the layers `ngram_after`, and n-grams do
    not span the separator of documents."""
    heads = size.n_heads.get(model, size.n_heads["llama"])
    config = ModelConfig(
        model, size.d_model, size.n_layers, heads, vocab_size or size.vocab_size, max_length=context or size.context,
        ngram_heads=ngram_heads, ngram_after=ngram_after, ngram_mode="replace", ngram_reset=(separator,), ngram_mlp=True,
        norm="rms", feed_forward="swiglu",
    )  # fmt: skip
    return replace(config, ff_width=fitting_width(config))


def fitting_width(config: ModelConfig) -> int:
    """Of the feed-forward, a multiple of 8: so that a layer is as large as a bundle of three n-gram blocks."""
    small, large = (layer_parameters(replace(config, ff_width=width)) for width in (8, 16))
    wanted = bundle_parameters(config)
    width = 8 + 8 * round((wanted - small) / (large - small))
    if width < 8:
        raise IcllError(f"a layer of {config.model} has more than 12 d^2 parameters without its feed-forward: choose another")
    return width


def layer_parameters(config: ModelConfig) -> int:
    with torch.device("meta"):
        return _size(Block(config, architecture_of(config), 0))


def bundle_parameters(config: ModelConfig) -> int:
    with torch.device("meta"):
        norm = torch.nn.RMSNorm if config.norm == "rms" else torch.nn.LayerNorm
        return sum(_size(NGramBlock(config.d_model, n + 1, norm=norm, mlp=True)) for n in range(BUNDLE))


def count_parameters(config: ModelConfig) -> int:
    """Without making the model's weights."""
    with torch.device("meta"):
        made: Model = model_of(config)
    return made.n_parameters()


def _size(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
