"""Reproduce the paper, report on it, and place a mixer of one's own among the rest."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from .common import JSON, allow_local_plugins, app, print_json, print_table

Budget = Annotated[
    Literal["demo", "cpu", "paper"],
    Parameter(help="`demo`: minutes. `cpu`: two cores, Table 1(a) in a night at most. `paper`: the published setting."),
]
Root = Annotated[Path, Parameter(help="Folder for runs, scores and figures; what is finished there is used again.")]


@app.command
def reproduce(
    name: str,
    /,
    *,
    budget: Budget = "cpu",
    out: Root = Path("runs"),
    dry_run: bool = False,
    engine: Literal["local", "ray"] = "local",
    jobs: int | None = None,
    address: str | None = None,
    json_: JSON = False,
) -> None:
    """Redo a figure or table of the paper: train, score, analyse, draw, beside the paper's numbers.

    Says beforehand how long it will take. Stop it at any time: the same command goes on.

    Example: `icll reproduce table1a --budget cpu`

    Parameters
    ----------
    name
        figure1, figure2, figure3a, figure3bc, figure3d, figure4, figure5, figure6, figure7, table1a, table1b or all.
    dry_run
        Only list the runs and say how long they will take.
    engine
        Where runs are trained: `local` processes, or a `ray` cluster (needs the extra of that name).
    jobs
        How many runs at once; default: as many as there are cores.
    address
        Of the Ray cluster; default: a new one on this machine.
    """
    from functools import reduce
    from operator import add

    from ..experiments.catalogue import Plan, find
    from ..experiments.reproduce import carry_out, check_outcomes, estimate, found_for
    from ..experiments.results import label_of
    from ..progress import progress_bar
    from ..report import draw_chart, save_figure
    from ..training import as_plain

    experiments = find(name)
    plan = reduce(add, (e.plans[budget] for e in experiments), Plan())
    with progress_bar("measuring a step of each model") as progress:
        expected = estimate(plan, out, jobs=jobs, progress=progress)
    if dry_run:
        runs = [{"run": c.name, "label": label_of(c), "config": as_plain(c)} for c in plan.runs]
        if json_:
            print_json({"runs": runs, "learners": plan.learners, "analyses": [a.name for a in plan.analyses],
                        "estimate": as_plain(expected), "seconds": expected.seconds})  # fmt: skip
            return
        for c in plan.runs:
            model, recipe = c.model, c.recipe
            size = f"{model.d_model} x {model.n_layers}"
            print(f"{c.name}: {label_of(c)}, {size}, N = {c.data.train:,}, {recipe.name}, {recipe.epochs} epochs")
        print(f"{name}, budget {budget}: {expected}")
        return
    print(f"{name}, budget {budget}: {expected}", file=sys.stderr)
    try:
        failed = carry_out(plan, out, engine=engine, jobs=jobs, address=address, bar=progress_bar)
    except KeyboardInterrupt:
        print("icll: stopped, and kept: the same command goes on", file=sys.stderr)
        sys.exit(130)
    charts = []
    for experiment in experiments:
        chart = experiment.chart(found_for(experiment.plans[budget], out))
        if not chart.empty:
            for kind in ("png", "pdf"):
                save_figure(draw_chart(chart), out / "figures" / f"{chart.name}.{kind}")
        charts.append(chart)
    if json_:
        print_json([as_plain(chart) for chart in charts])
    else:
        for chart in charts:
            _print_chart(chart)
            if not chart.empty:
                print(f"figure: {out / 'figures' / chart.name}.png and .pdf")
    check_outcomes(failed)


def _print_chart(chart: object) -> None:
    """The numbers of a chart as tables."""
    from ..experiments.charts import Bars, Chart, Heat, Language, Lines

    assert isinstance(chart, Chart)
    print(f"\n{chart.title}\n{chart.caption}")
    if chart.empty:
        print("nothing to show at this budget")
    for panel in chart.panels:
        if isinstance(panel, Bars):
            header = [panel.x_label, *(s.name for s in panel.series)]
            print_table(header, [[c, *(_number(s.y[i]) for s in panel.series)] for i, c in enumerate(panel.categories)])
        elif isinstance(panel, Lines):
            at = sorted({x for s in panel.series for x in s.x})
            header = [panel.y_label, *(f"{x:,.0f}" for x in at)]
            rows = []
            for s in panel.series:
                values = dict(zip(s.x, s.y, strict=True)) if s.x else dict.fromkeys(at, s.y[0])
                rows.append([s.name + (" (paper)" if s.role == "paper" else ""), *(_number(values.get(x)) for x in at)])
            print_table(header, rows)
        elif isinstance(panel, Heat) and panel.show_values:
            rows = [[name, *map(_number, row)] for name, row in zip(panel.rows, panel.values, strict=True)]
            print_table(["", *panel.columns], rows)
        elif isinstance(panel, Language):
            print(panel.text)
    for note in chart.notes:
        print(note)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


__all__ = ["allow_local_plugins", "reproduce"]
