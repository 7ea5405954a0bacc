"""A stranger's mixer among all others: the same training for it, with and without n-gram heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..training import RunConfig, change
from .board import Compared, Place, compared, leaderboard
from .results import known
from .settings import run

QUICK_TRAIN = 300
HEADS: tuple[tuple[int, ...], ...] = ((), (1, 2, 3))


def bench_configs(
    mixer: str,
    *,
    quick: bool = False,
    d_model: int | None = None,
    layers: int | None = None,
    heads: int | None = None,
    options: dict[str, Any] | None = None,
    seed: int = 0,
) -> tuple[RunConfig, ...]:
    """As all others at the budget cpu, or quickly."""
    if quick:
        made = [run(mixer, "demo", QUICK_TRAIN, heads=orders, seed=seed) for orders in HEADS]
    else:
        made = [run(mixer, "cpu", heads=orders, seed=seed) for orders in HEADS]
    changes = {"d_model": d_model, "n_layers": layers, "n_heads": heads, "options": options or None}
    return tuple(replace(c, model=change(c.model, **changes)) for c in made)


def bench_board(configs: Sequence[RunConfig], root: Path) -> tuple[list[Place], list[Compared]]:
    """Everything known at that size, and tests: with heads against without, and against the Transformer. A quick run is
    compared with runs that were as quick."""
    data, recipe = configs[0].data, configs[0].recipe
    quick = data.train == QUICK_TRAIN
    found = known(root)
    places = leaderboard(found, data.train, recipe.epochs if quick else None, [c.hash for c in configs])
    mine = [[entry] for config in configs if (entry := found.run(config.hash))]
    alike = [e.config.hash for e in found.entries if e.config and e.config.recipe.epochs == recipe.epochs]
    best = (found.only(alike) if quick else found).runs("Transformer", data.train)
    pairs = [(b, a) for a, b in pairwise(mine)] + [(runs, best) for runs in mine if best]
    return places, [one for a, b in pairs for one in compared(a, b)]
