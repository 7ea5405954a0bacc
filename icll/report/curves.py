"""Scores along a problem: how fast each predictor learns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..metrics import Scores
from .style import COLOURS, MARKERS

_LABELS = {"tvd": "TVD to the language (lower is better)", "accuracy": "accuracy (higher is better)"}
_MIN_TOKENS = 200  # fewer make a mean too noisy to draw


def draw_curves(scores: Sequence[Scores], metrics: Sequence[str] = ("tvd", "accuracy")) -> Figure:
    """Each metric against the number of strings read, a line with its confidence band for each predictor."""
    figure = Figure(figsize=(5.2 * len(metrics), 3.8), layout="constrained")
    for axes, metric in zip(figure.subplots(1, len(metrics), squeeze=False)[0], metrics, strict=True):
        for i, score in enumerate(scores):
            curve = score.by_strings[metric]
            at = np.flatnonzero(curve.tokens >= min(_MIN_TOKENS, curve.tokens.max()))
            colour = COLOURS[i % len(COLOURS)]
            marker = MARKERS[i % len(MARKERS)]
            axes.plot(at, curve.mean[at], color=colour, marker=marker, ms=4, lw=1.6, label=score.name)
            axes.fill_between(at, curve.low[at], curve.high[at], color=colour, alpha=0.18, lw=0)
        axes.set_xlabel("whole strings read")
        axes.set_ylabel(_LABELS.get(metric, metric.replace("_", " ")))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylim(bottom=0, top=1.02 if metric == "accuracy" else None)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))  # beside the last panel, over no line
    return figure


def draw_training(rows: Sequence[dict[str, Any]]) -> Figure:
    """Loss and scores of a run (TVD and accuracy, or perplexity) against its epochs, from the rows of metrics.jsonl."""
    epochs = [row["epoch"] for row in rows]
    possible = (
        (("train_loss", "valid_loss"), "loss (nats)"),
        (("valid_tvd",), _LABELS["tvd"]),
        (("valid_accuracy",), _LABELS["accuracy"]),
        (("valid_perplexity",), "perplexity (lower is better)"),
    )
    panels = [(names, label) for names, label in possible if names[0] in rows[0]]
    figure = Figure(figsize=(13 / 3 * len(panels), 3.6), layout="constrained")
    for axes, (names, label) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for i, name in enumerate(names):
            axes.plot(epochs, [row[name] for row in rows], color=COLOURS[i], lw=1.6, label=name.partition("_")[0])
        best = min(rows, key=lambda row: row["valid_loss"])
        axes.axvline(best["epoch"], color="grey", lw=0.8, ls=":", label="lowest validation loss")
        axes.set_xlabel("epoch")
        axes.set_ylabel(label)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(frameon=False, fontsize=8)
    return figure
