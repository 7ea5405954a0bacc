"""One look for every figure, and one way to write it to a file."""

from __future__ import annotations

from pathlib import Path

import matplotlib

from ..errors import IcllError
from ..files import replacing

matplotlib.use("Agg")  # files only: no window, no display needed

from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart with every common kind of colour blindness.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
INK = "#222222"
FORMATS = ("svg", "png", "pdf")


def picture_format(path: str | Path) -> str:
    kind = Path(path).suffix.lower().lstrip(".")
    if kind not in FORMATS:
        raise IcllError(f"{path}: a picture's name must end with .{', .'.join(FORMATS)}")
    return kind


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure in the format its name ends with."""
    path, kind = Path(path), picture_format(path)
    # no date in the file, and ids from a fixed salt: the same figure gives the same bytes
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    with replacing(path) as (temporary,), matplotlib.rc_context({"svg.hashsalt": "icll"}):
        figure.savefig(temporary, format=kind, dpi=160, bbox_inches="tight", metadata=metadata)
