"""A stranger's mixer among all others: the same training for it, with and without n-gram heads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..model import ModelConfig
from ..training import RECIPES, DataConfig, RunConfig, change
from .board import Place, leaderboard
from .results import known

QUICK_TRAIN, QUICK_EPOCHS = 300, 4
HEADS: tuple[tuple[int, ...], ...] = ((), (1, 2, 3))


def bench_configs(
    mixer: str, *, quick: bool = False, d_model: int = 64, layers: int = 2, heads: int = 2, seed: int = 0
) -> tuple[RunConfig, ...]:
    recipe = change(RECIPES["fast"], epochs=QUICK_EPOCHS) if quick else RECIPES["fast"]
    data = DataConfig(profile="repo", train=QUICK_TRAIN if quick else 2500)
    return tuple(
        RunConfig(ModelConfig(mixer, d_model, layers, heads, dropout=0.1, ngram_heads=orders), data, recipe, seed)
        for orders in HEADS
    )


def bench_board(configs: Sequence[RunConfig], root: Path) -> list[Place]:
    """Everything known at that size. A quick run is compared with runs that were as quick."""
    data, recipe = configs[0].data, configs[0].recipe
    quick = data.train == QUICK_TRAIN
    return leaderboard(known(root), data.train, epochs=recipe.epochs if quick else None)
