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
# For figures with many models: the palette without its pale yellow, and four more of Tol's; then the same, for a dark page.
PALETTE = [*COLOURS[:7], "#882255", "#999933", "#332288", "#AA4499"]
DARK_PALETTE = [
    "#4FA8E0", "#F08A4B", "#35C79C", "#E2A0C6", "#F2B63C", "#8CCFF2", "#E8E8E8", "#D9708F", "#C9C95A", "#9A8CF0", "#D98AD0",
]  # fmt: skip
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
