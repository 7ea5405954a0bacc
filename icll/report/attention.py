"""Maps of attention: as a figure, and as a page to explore them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from ..files import replacing

if TYPE_CHECKING:
    from ..analysis.attention import AttentionMaps

PANELS = 4  # side by side
SKIP = 3.0  # a diagonal so many times larger than the rest is a skip connection
PAGE_WEIGHTS = 4_000_000  # of single channels a page holds at most; with more there are the means alone


def draw_attention(maps: AttentionMaps, channel: int | None = None) -> Figure:
    """Panels of layers side by side; colour is the weight as a share of the panel's largest, which its title tells."""
    shown = [(m.head, m.channel(channel if len(m.channels) > 1 else None).numpy(force=True)) for m in maps.maps]
    signed = any(matrix.min() < -1e-6 * np.abs(matrix).max() for _, matrix in shown)
    colours, norm = ("PuOr", Normalize(-1, 1)) if signed else ("cividis", Normalize(0, 1))
    columns = min(PANELS, len(shown))
    rows = -(-len(shown) // columns)
    size = max(2.6, 0.115 * len(maps.labels) + 0.6)
    figure = Figure(figsize=(size * columns + 0.6, (size + 0.35) * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    ticks = range(len(maps.labels))
    several = len({h.number for h, _ in shown}) > 1
    for axes, (head, matrix) in zip(panels, shown, strict=False):
        largest, own = _scale(matrix)
        past = np.ma.masked_where(np.triu(np.ones_like(matrix), 1) > 0, matrix / (largest or 1))
        axes.imshow(past, cmap=colours, norm=norm, interpolation="nearest")
        title = f"layer {head.layer}" + (f", head {head.number}" if several else "")
        axes.set_title(f"{title}: largest {largest:.2g}" + (f", diagonal {own:.2g}" if own > largest else ""), fontsize=9)
        axes.set_xticks(ticks, maps.labels, fontsize=5, rotation=90, family="monospace")
        axes.set_yticks(ticks, maps.labels, fontsize=5, family="monospace")
        axes.tick_params(length=1.5, pad=1)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in panels[len(shown) :]:
        axes.axis("off")
    for axes in panels[max(0, len(shown) - columns) : len(shown)]:  # the lowest of each column
        axes.set_xlabel("attended to: token, state after it", fontsize=8)
    for axes in panels[::columns]:
        axes.set_ylabel("attending", fontsize=8)
    label = "weight, as a share of the panel's largest"
    figure.colorbar(ScalarMappable(norm, colours), ax=panels.tolist(), shrink=0.6, pad=0.01).set_label(label, fontsize=9)
    channels = max(len(m.channels) for m in maps.maps)
    which = "" if channels == 1 else f", mean of {channels} channels" if channel is None else f", channel {channel}"
    end = maps.start + len(maps.labels)
    figure.suptitle(f"{maps.model}, problem {maps.problem}, positions {maps.start} to {end - 1}{which}", fontsize=10)
    return figure


def _scale(matrix: np.ndarray) -> tuple[float, float]:
    """The largest weight, and that on the diagonal. Where the latter is far larger, as a skip connection makes it, the former
    is the largest beside it: the diagonal is then drawn as the end of the scale, and the rest can be seen."""
    own, others = np.abs(matrix.diagonal()).max(), np.abs(np.tril(matrix, -1)).max()
    return (float(others), float(own)) if 0 < others < own / SKIP else (float(max(own, others)), float(own))


def write_attention_page(maps: AttentionMaps, path: Path) -> None:
    """One HTML file without any other: choose a head or channel, point at a cell, mark what a rule would attend to."""
    every = sum(m.channels.numel() for m in maps.maps) <= PAGE_WEIGHTS
    heads = []
    for m in maps.maps:
        matrices = [("mean of channels" if len(m.channels) > 1 else "", m.mean, m.before.mean(0))]
        if every and len(m.channels) > 1:
            matrices += [(f"channel {c}", *pair) for c, pair in enumerate(zip(m.channels, m.before, strict=True), 1)]
        packed = []
        for name, matrix, before in matrices:
            values = np.concatenate([matrix.numpy(force=True), before.numpy(force=True)[:, None]], 1)
            packed.append({"name": name, "values": _packed(values)})
        heads.append({"layer": m.head.layer, "number": m.head.number, "mixer": m.head.label, "matrices": packed})
    data = {
        "model": maps.model, "problem": maps.problem, "start": maps.start, "tokens": maps.tokens, "states": maps.states,
        "skip": SKIP, "heads": heads, "colours": _colours("cividis"), "signed": _colours("PuOr"),
    }  # fmt: skip
    text = json.dumps(data).replace("<", "\\u003c")
    template = Template((Path(__file__).parent / "attention.html").read_text("utf-8"))
    with replacing(path) as (temporary,):
        temporary.write_text(template.substitute(title=_escaped(f"Attention of {maps.model}"), data=text), "utf-8")


def _packed(values: np.ndarray) -> str:
    """Float32 numbers in base64."""
    return base64.b64encode(values.astype("<f4").tobytes()).decode()


def _colours(name: str) -> list[str]:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps[name](x)) for x in np.linspace(0, 1, 64)]


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
