"""Probes: what can be read from hidden states, model by model and layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .style import COLOURS, INK, MARKERS

if TYPE_CHECKING:
    from ..analysis.probes import ProbeResult, RunProbes

_PANELS = (
    ("count", "counts", "relative error (lower is better)"),
    ("frequency", "frequencies", "relative error (lower is better)"),
    ("existence", "existence", "accuracy (higher is better)"),
    ("state", "same state", "accuracy (higher is better)"),
)
_HATCHES = ["", "//", "..", "xx", "\\\\", "++", "oo", "--"]


def _targets(kind: str) -> list[str]:
    from ..analysis.probes import TARGETS

    return [name for name in TARGETS if name.split()[0] == kind]


def draw_probes(runs: Sequence[RunProbes]) -> Figure:
    """Bars at the best layer, as the paper's Figure 5: a bar for each run; with a single run, its controls beside it."""
    bars: list[tuple[str, ProbeResult]] = [(run.run, run.result) for run in runs]
    if len(runs) == 1:
        names = {"untrained": "before training", "shuffled": "shuffled targets"}
        bars += [(names[name], control) for name, control in runs[0].controls.items()]
    figure = Figure(figsize=(14.5, 3.6), layout="constrained")
    panels = figure.subplots(1, 4, width_ratios=[3, 3, 3, 1.6])
    width = 0.8 / len(bars)
    for axes, (kind, title, label) in zip(panels, _PANELS, strict=True):
        targets = _targets(kind)
        for i, (name, result) in enumerate(bars):
            mean, low, high = np.array([result.best[t] for t in targets], dtype=float).T
            at = np.arange(len(targets)) + (i - (len(bars) - 1) / 2) * width
            spread = np.nan_to_num([mean - low, high - mean]).clip(min=0)
            axes.bar(
                at, mean, width * 0.92, yerr=spread, color=COLOURS[i % len(COLOURS)], hatch=_HATCHES[i % len(_HATCHES)],
                edgecolor="white", lw=0.4, label=name, error_kw={"lw": 1, "ecolor": INK, "capsize": 2},
            )  # fmt: skip
        for j, name in enumerate(targets):  # what needs no hidden state
            constant = runs[0].constant[name]
            axes.plot(
                [j - 0.45, j + 0.45], [constant] * 2, color=INK, ls="--", lw=1.3, label="best constant" if j == 0 else None
            )
        axes.set_xticks(range(len(targets)), [f"n = {t.split()[1]}" if " " in t else "" for t in targets])
        axes.set_title(title, fontsize=10)
        axes.set_ylabel(label, fontsize=9)
        if kind in ("existence", "state"):
            axes.set_ylim(0.4, 1.0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
        axes.set_axisbelow(True)
    panels[-1].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def draw_probe_layers(run: RunProbes) -> Figure:
    """Test scores after every layer of one run; a ring marks the layer chosen on the validation problems."""
    figure = Figure(figsize=(14.5, 3.4), layout="constrained")
    panels = figure.subplots(1, 4)
    for axes, (kind, title, label) in zip(panels, _PANELS, strict=True):
        for i, name in enumerate(_targets(kind)):
            scores = run.result.test[name]
            shown = f"n = {name.split()[1]}" if " " in name else None
            layers = range(1, len(scores) + 1)
            axes.plot(layers, scores, color=COLOURS[i], marker=MARKERS[i], ms=4, lw=1.6, label=shown)
            chosen = run.result.layer[name]
            axes.plot(chosen, scores[chosen - 1], "o", ms=11, mfc="none", mec=COLOURS[i], mew=1.4)
            if "untrained" in run.controls:
                before = run.controls["untrained"].test[name]
                axes.plot(layers, before, color=COLOURS[i], ls=":", lw=1.2)
        axes.set_title(f"{run.run}: {title}", fontsize=10)
        axes.set_xlabel("layer")
        axes.set_ylabel(label, fontsize=9)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    handles, labels = panels[0].get_legend_handles_labels()
    handles += panels[-1].plot([], [], color=INK, ls=":", lw=1.2) + panels[-1].plot([], [], "o", ms=11, mfc="none", mec=INK)
    labels += ["before training", "chosen on validation"]
    panels[-1].legend(handles, labels, frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))  # over no line
    return figure
