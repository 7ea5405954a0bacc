"""The report: one HTML page with everything inside, and each figure as PNG and PDF beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

import icll

from ..experiments.board import differences, leaderboard, seed_spread
from ..experiments.catalogue import EXPERIMENTS
from ..experiments.charts import Chart, Language, Lines, Panel
from ..experiments.fidelity import Row, fidelity, summary
from ..experiments.figures import N
from ..experiments.results import Known
from ..files import replacing
from ..languages.automaton import Automaton
from ..training import as_plain
from .charts import draw_chart, look_of
from .explorer import drawing
from .style import DARK_PALETTE, PALETTE, save_figure

PAGE = "index.html"


def write_report(known: Known, explorer: dict[str, Any], out: Path) -> list[Row]:
    """Write the page, the figures and the fidelity table (JSON and Markdown) to a folder; returns the table."""
    rows = fidelity(known)
    charts = [chart for e in EXPERIMENTS.values() if not (chart := e.chart(known.lasting)).empty]
    with replacing(out / PAGE, out / "fidelity.json", out / "fidelity.md") as (page, table, markdown):
        page.write_text(page_text(known, charts, rows, explorer), encoding="utf-8")
        table.write_text(json.dumps([{**asdict(row), "difference": row.difference} for row in rows], indent=1) + "\n", "utf-8")
        markdown.write_text(fidelity_markdown(rows), "utf-8")
    for chart in charts:
        for kind in ("png", "pdf"):
            save_figure(draw_chart(chart), out / "figures" / f"{chart.name}.{kind}")
    return rows


def page_text(known: Known, charts: Sequence[Chart], rows: Sequence[Row], explorer: dict[str, Any]) -> str:
    sizes = sorted({n for label in known.labels() for n in known.sizes(label)} | {N})
    lasting = known.lasting
    data = {
        "version": icll.__version__, "summary": summary(rows), "charts": [plain_chart(chart) for chart in charts],
        "fidelity": [{**asdict(row), "difference": row.difference} for row in rows],
        "boards": {n: [asdict(place) for place in leaderboard(known, n)] for n in sizes},
        "differences": [{"a": d.a, "b": d.b, "text": str(d.difference), "p": d.difference.p} for d in differences(lasting)],
        "seed_spread": seed_spread(lasting), "explorer": explorer, "colours": PALETTE, "dark_colours": DARK_PALETTE,
    }  # fmt: skip
    room = files(__package__).joinpath("assets")
    # a "</script>" inside the data would end it, a "<!--" would swallow what follows
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    page = room.joinpath("page.html").read_text("utf-8")
    for mark, part in (
        ("/*css*/", room.joinpath("page.css").read_text("utf-8")),
        ("/*js*/", room.joinpath("page.js").read_text("utf-8")),
        ("/*data*/", text),
    ):
        page = page.replace(mark, part)
    return page


def plain_chart(chart: Chart) -> dict[str, Any]:
    return {**as_plain(chart), "panels": [_plain_panel(panel) for panel in chart.panels]}


def _plain_panel(panel: Panel) -> dict[str, Any]:
    plain = as_plain(panel)
    if isinstance(panel, Lines):
        for series in plain["series"]:
            series["look"] = look_of(series["name"])
    if isinstance(panel, Language):
        plain["automaton"] = drawing(Automaton(np.array(panel.table)))
    return plain


def fidelity_markdown(rows: Sequence[Row]) -> str:
    lines = [
        summary(rows) + ".",
        "",
        "| where | what | paper | ours | difference | verdict | |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [row.where, row.what, _cell(row.paper), _cell(row.ours), _cell(row.difference, "+"), row.verdict, row.why]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.3f}"
