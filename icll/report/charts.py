"""Charts on paper: every kind of panel with matplotlib, in the house style."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..experiments.charts import Bars, Chart, Heat, Language, Lines, Panel, Series
from ..experiments.results import LABELS, WIRING
from ..languages.automaton import Automaton
from .automaton import draw_automaton, plan_automaton
from .style import INK, MARKERS, PALETTE

LEARNER_GREY = "#777777"
_SLOTS = {name: i for i, name in enumerate(LABELS.values())}


def look_of(name: str) -> tuple[int, int]:
    """Colour and marker (as numbers) of a model: the same in every figure; heads and wiring keep their model's colour. What
    stands behind a dot (how many problems it was trained on) does not count."""
    name = name.partition(" · ")[0]
    base = name.partition("+")[0].partition("/")[0].removesuffix(WIRING)
    slot = _SLOTS.get(base)
    if slot is None:  # a stranger's: by its name
        slot = len(_SLOTS) + sum(map(ord, base)) % 5
    marker = (slot + (4 if WIRING in name else 0) + name.count(",") + 2 * ("+" in name)) % len(MARKERS)
    return slot % len(PALETTE), marker


def draw_chart(chart: Chart) -> Figure:
    """All panels of a chart side by side."""
    if len(chart.panels) == 1 and isinstance(chart.panels[0], Language):
        return _draw_language(chart.panels[0])
    sizes = [_size(panel) for panel in chart.panels]
    columns = min(len(sizes), 4 if isinstance(chart.panels[0], Heat) else 2)
    rows = -(-len(sizes) // columns)
    width, height = max(s[0] for s in sizes), max(s[1] for s in sizes)
    figure = Figure(figsize=(width * columns + 1.6, height * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(sizes) :]:
        axes.set_visible(False)
    for axes, panel in zip(grid.flat, chart.panels, strict=False):
        _draw(axes, panel)
    if isinstance(chart.panels[0], Lines):
        _legend(figure, chart.panels)
    return figure


def _size(panel: Panel) -> tuple[float, float]:
    if isinstance(panel, Bars):
        return 4.6, 0.9 + 0.16 * len(panel.categories) * (1 + len(panel.series))
    if isinstance(panel, Heat):
        side = max(2.6, 0.52 * len(panel.rows) if panel.show_values else 0.14 * len(panel.rows))
        return side + 0.5, side + 0.6
    return 5.2, 4.0


def _draw(axes: Axes, panel: Panel) -> None:
    if isinstance(panel, Lines):
        _draw_lines(axes, panel)
    elif isinstance(panel, Bars):
        _draw_bars(axes, panel)
    elif isinstance(panel, Heat):
        _draw_heat(axes, panel)
    if panel.title:
        axes.set_title(panel.title, fontsize=10)


def _draw_lines(axes: Axes, panel: Lines) -> None:
    top = max(y for series in panel.series for y in series.y if y is not None)
    above = -np.inf  # names of levels stand apart, from the lowest up
    for series in sorted((s for s in panel.series if not s.x), key=lambda s: s.y[0] or 0):
        level = series.y[0] or 0
        above = max(level, above + 0.035 * top)
        axes.axhline(level, color=LEARNER_GREY, lw=0.9, ls=(0, (1, 1.5)), zorder=1)
        place = {"xycoords": ("axes fraction", "data"), "xytext": (3, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(series.name, (1, above), fontsize=7, color=LEARNER_GREY, **place)
    for series in (s for s in panel.series if s.x):
        colour, marker = look_of(series.name)
        style = _line_style(series, colour, marker)
        axes.plot(series.x, _numbers(series.y), **style)
        if series.low and series.role == "ours":
            axes.fill_between(series.x, _numbers(series.low), _numbers(series.high), color=PALETTE[colour], alpha=0.12, lw=0)
    if panel.log_x:
        axes.set_xscale("log")
    ticks = sorted({x for series in panel.series for x in series.x})
    axes.set_xticks(ticks, [f"{x:,.0f}" for x in ticks], fontsize=7)
    axes.minorticks_off()
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.set_ylim(bottom=0, top=1.02 if "accuracy" in panel.y_label else None)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _line_style(series: Series, colour: int, marker: int) -> dict:
    style = {"color": PALETTE[colour], "marker": MARKERS[marker], "ms": 4.5}
    if series.role == "paper":
        return {**style, "lw": 0.9, "ls": "--", "mfc": "white", "alpha": 0.65}
    return {**style, "lw": 1.6, "ls": "-." if WIRING in series.name else "-"}


def _legend(figure: Figure, panels: Iterable[Panel]) -> None:
    handles: dict[str, Line2D] = {}
    for panel in panels:
        for series in panel.series if isinstance(panel, Lines) else ():
            if series.x and series.role == "ours":
                colour, marker = look_of(series.name)
                handles.setdefault(series.name, Line2D([], [], label=series.name, **_line_style(series, colour, marker)))
    style = {"color": INK, "lw": 0.9, "ls": "--", "marker": "o", "mfc": "white", "ms": 4.5}
    if any(series.role == "paper" for panel in panels if isinstance(panel, Lines) for series in panel.series):
        handles["paper"] = Line2D([], [], label="the paper's", **style)
    figure.legend(handles=list(handles.values()), frameon=False, fontsize=8, loc="outside right upper")


def _draw_bars(axes: Axes, panel: Bars) -> None:
    """Horizontal, one group for each category, the first at the top."""
    places = np.arange(len(panel.categories))
    drawn = [s for s in panel.series if any(y is not None for y in s.y)]
    height = 0.8 / max(1, len(drawn))
    for i, series in enumerate(drawn):
        at = places + (i - (len(drawn) - 1) / 2) * height
        values = _numbers(series.y)
        hollow = series.role == "paper"
        colour = "none" if hollow else PALETTE[i]
        bars = axes.barh(
            at, values, height * 0.86, color=colour, edgecolor=INK if hollow else colour, lw=0.8, label=series.name
        )
        if series.low:
            reach = [np.maximum(values - _numbers(series.low), 0), np.maximum(_numbers(series.high) - values, 0)]
            axes.errorbar(values, at, xerr=reach, fmt="none", ecolor=INK, elinewidth=0.8)
        for bar, value, low in zip(bars, values, series.high or series.y, strict=True):
            if not np.isnan(value):
                end = max(value, low if low is not None else value)
                axes.annotate(
                    f"{value:.3f}", (end, bar.get_y() + bar.get_height() / 2), xytext=(3, 0), textcoords="offset points",
                    va="center", fontsize=7, color=INK,
                )  # fmt: skip
    axes.set_yticks(places, panel.categories, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(panel.x_label)
    axes.margins(x=0.14, y=0.01)
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)
    if len(drawn) > 1:
        axes.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(drawn))


def _draw_heat(axes: Axes, panel: Heat) -> None:
    values = np.array([_numbers(row) for row in panel.values])
    limit = float(np.nanmax(values))
    axes.imshow(values, cmap="Blues", vmin=0, vmax=limit, aspect="equal")
    size = 8 if panel.show_values else 5
    axes.set_xticks(range(len(panel.columns)), panel.columns, rotation=90, fontsize=size)
    axes.set_yticks(range(len(panel.rows)), panel.rows, fontsize=size)
    axes.set_xlabel(panel.column_label, fontsize=9)
    axes.set_ylabel(panel.row_label, fontsize=9)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for i, j in np.ndindex(values.shape) if panel.show_values else ():
        if not np.isnan(values[i, j]):
            dark = values[i, j] > 0.55 * limit
            axes.text(j, i, f"{values[i, j]:.2f}", ha="center", va="center", fontsize=7, color="white" if dark else INK)


def _draw_language(panel: Language) -> Figure:
    """The automaton, and the problem's strings under it."""
    automaton = Automaton(np.array(panel.table))
    low, high = plan_automaton(automaton).bounds
    height = min(7.0, 7.0 * (high[1] - low[1]) / (high[0] - low[0]))
    figure = Figure(figsize=(7, height + 1.4))
    share = height / (height + 1.4)
    draw_automaton(automaton, figure.add_axes((0.0, 1 - share, 1.0, share)))
    text = panel.text if len(panel.text) <= 360 else panel.text[:357] + "..."
    lines = [text[i : i + 72] for i in range(0, len(text), 72)]
    place = {"ha": "center", "va": "top", "color": INK}
    figure.text(0.5, 1 - share, "\n".join(lines), family="monospace", fontsize=9, **place)
    return figure


def _numbers(values: Iterable[float | None]) -> np.ndarray:
    return np.array([np.nan if v is None else v for v in values], dtype=float)
