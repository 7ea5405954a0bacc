"""Tables as heat maps: a number in every cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from ..analysis.distance import Distances
    from ..analysis.heads import HeadTable

_INCH = 0.62  # of a cell


def draw_heat(
    values: np.ndarray, rows: Sequence[str], columns: Sequence[str], label: str, title: str, colours: str = "cividis"
) -> Figure:
    """A matrix with its numbers written in; nan stays empty."""
    figure = Figure(figsize=(_INCH * len(columns) + 2.8, _INCH * 0.8 * len(rows) + 1.9), layout="constrained")
    axes = figure.subplots()
    most = float(np.nanmax(values))
    image = axes.imshow(values, cmap=colours, vmin=0, vmax=most if most > 0 else 1, aspect="auto", interpolation="nearest")
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            red, green, blue, _ = image.cmap(image.norm(value))
            dark = 0.3 * red + 0.6 * green + 0.1 * blue < 0.5
            axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=9, color="white" if dark else "black")
    axes.set_xticks(range(len(columns)), columns, rotation=35, ha="right", rotation_mode="anchor", fontsize=9)
    axes.set_yticks(range(len(rows)), rows, fontsize=9)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(title, fontsize=10)
    figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02).set_label(label, fontsize=9)
    return figure


def draw_heads(table: HeadTable) -> Figure:
    """Every head's score for every rule, and chance."""
    rules = list(table.chance)
    scores = [[one.scores[rule] for rule in rules] for one in table.heads] + [[table.chance[rule] for rule in rules]]
    names = [
        one.head.name + ("" if one.loss is None else f"  ({one.loss - table.loss:+.2f})") for one in table.heads
    ]  # fmt: skip
    label = "score, 1 - TVD"
    title = f"{table.model}: heads against rules" + (
        "" if table.heads[0].loss is None else "\nin brackets: rise of the loss without it"
    )
    return draw_heat(np.array(scores), [*names, "chance"], rules, label, title)


def draw_distances(found: Distances, what: str) -> Figure:
    """The lower half, as the paper's Figure 6; light is near."""
    values = np.where(np.tri(len(found.names), k=-1) > 0, found.mean, np.nan)[1:, :-1]
    title = f"Mean TVD between predictors\n{what}"
    return draw_heat(values, found.names[1:], found.names[:-1], "TVD", title, "cividis_r")
