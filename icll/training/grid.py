"""The search of appendix B: which settings are tried, and which are tried next when the widest model wins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from ..errors import IcllError, unknown
from ..mixers import find_architecture, takes_heads
from ..model import ModelConfig
from ..tokens import RECALL, VOCAB_SIZE
from .config import RECIPES, DataConfig, Recipe, RunConfig

FLOOR = 2.5e-5  # the smallest rate of the paper's text, whatever the first


@dataclass(frozen=True)
class Grid:
    """Values to combine. The defaults are the paper's table, for widths up to 256."""

    d_models: tuple[int, ...] = (64, 128, 256)
    wider: tuple[int, ...] = (512, 1024)  # tried one after the other, as long as the widest so far is the best
    layers: tuple[int, ...] = (1, 2, 4, 8, 12)
    heads: tuple[int, ...] = (1, 2, 4)  # one value for models without heads
    epochs: tuple[int, ...] = (200, 400)
    rates: tuple[float, ...] = (1e-4, 2.5e-4)
    decays: tuple[float, ...] = (0.01, 0.1)

    def __post_init__(self) -> None:
        for name, values in vars(self).items():
            if not values and name != "wider":
                raise IcllError(f"the grid has no {name}: give at least one value")


# Our recipe has rates of its own, and epochs that fit it; sizes and decays are the paper's.
GRIDS: dict[str, Grid] = {
    "text": Grid(),
    "authors": Grid(epochs=(200,)),
    "fast": Grid(epochs=(10, 20), rates=(1e-3, 3e-3)),
}

SWEEPS: dict[str, str] = {"icll-grid": "regbench", "recall-grid": "recall"}


@dataclass(frozen=True)
class Sweep:
    """A model on a task, and the grid over its settings. `first()` is the list to try; `next(best)` what follows from it."""

    model: ModelConfig  # its width, depth and heads are those of the grid
    data: DataConfig
    recipe: Recipe
    grid: Grid
    seed: int = 0

    def first(self) -> list[RunConfig]:
        return self._configs(self.grid.d_models, self.grid.rates, self.grid.decays)

    def next(self, best: RunConfig) -> list[RunConfig]:
        """The next width, if the best so far has the widest tried: with the larger rate and decay alone, as the paper did."""
        widths = (*self.grid.d_models, *self.grid.wider)
        later = [w for w in self.grid.wider if w > best.model.d_model]
        if best.model.d_model < max(self.grid.d_models) or best.model.d_model not in widths or not later:
            return []
        return self._configs(later[:1], [max(self.grid.rates)], [max(self.grid.decays)])

    def _configs(self, widths: Sequence[int], rates: Sequence[float], decays: Sequence[float]) -> list[RunConfig]:
        heads = self.grid.heads if takes_heads(find_architecture(self.model.model)) else self.grid.heads[:1]
        sizes = product(widths, self.grid.layers, heads)
        configs = [
            RunConfig(
                replace(self.model, d_model=d, n_layers=n, n_heads=h), self.data, self._recipe(rate, decay, epochs), self.seed
            )
            for (d, n, h), epochs, rate, decay in product(sizes, self.grid.epochs, rates, decays)
        ]
        return list({config.hash: config for config in configs}.values())  # a value that was given twice is tried once

    def _recipe(self, rate: float, decay: float, epochs: int) -> Recipe:
        floor = min(1.0, FLOOR / rate) if self.recipe.name == "text" else self.recipe.floor
        return replace(self.recipe, rate=rate, muon_rate=rate, weight_decay=decay, epochs=epochs, floor=floor)


def make_sweep(
    name: str,
    model: str,
    *,
    profile: str = "paper",
    train: int = 2500,
    recipe: str = "text",
    seed: int = 0,
    dropout: float = 0.1,
    ngram_heads: tuple[int, ...] = (),
    change: Callable[[Grid], Grid] = lambda grid: grid,
) -> Sweep:
    """A search by name: `icll-grid` or `recall-grid`, which stops at a width of 256 as the paper's did."""
    if name not in SWEEPS:
        raise unknown("sweep", name, SWEEPS)
    if recipe not in GRIDS:
        raise unknown("recipe", recipe, GRIDS)
    task = SWEEPS[name]
    grid = GRIDS[recipe] if task == "regbench" else replace(GRIDS[recipe], wider=())
    vocabulary = RECALL.size if task == "recall" else VOCAB_SIZE
    return Sweep(
        ModelConfig(model, vocab_size=vocabulary, dropout=dropout, ngram_heads=ngram_heads),
        DataConfig(task, profile, train), RECIPES[recipe], change(grid), seed,
    )  # fmt: skip
