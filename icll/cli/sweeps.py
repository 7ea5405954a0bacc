"""Search for the best settings of a model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from ..errors import IcllError
from .common import JSON, ProfileName, allow_local_plugins, app, draw_curves, interval, numbers, print_json, print_table, refuse

if TYPE_CHECKING:
    from ..training import Grid, Outcome, RunConfig

Values = Annotated[str | None, Parameter(help="Values in place of the grid's, with commas between them.")]


@app.command
def sweep(
    name: Literal["icll-grid", "recall-grid"],
    /,
    *,
    model: str,
    profile: ProfileName = None,
    train: int = 2500,
    recipe: str = "text",
    ngram_heads: str | None = None,
    dropout: float = 0.1,
    seed: int = 0,
    d_model: Values = None,
    wider: str | None = None,
    layers: Values = None,
    heads: Values = None,
    epochs: Values = None,
    rate: Values = None,
    weight_decay: Values = None,
    asha: int | None = None,
    first_rung: int | None = None,
    eta: int | None = None,
    engine: Literal["local", "ray"] = "local",
    jobs: int | None = None,
    address: str | None = None,
    tries: int = 3,
    out: Path | None = None,
    dry_run: bool = False,
    json_: JSON = False,
) -> None:
    """Search the paper's grid for a model: choose on validation, report the chosen one on test.

    Every trial is a run in a folder of its own. Stopped at any moment, the same command goes on. A trial that fails is tried
    again, then listed with its error.

    Example: `icll sweep icll-grid --model retnet --train 2500 --profile repo`

    Example: `icll sweep icll-grid --model retnet --recipe fast --asha 12 --jobs 2 --profile repo`

    Parameters
    ----------
    name
        `icll-grid` (widths of 512 and 1,024 follow if 256 is best) or `recall-grid` (widths up to 256).
    model
        A name of `icll models`, or `package.module:Class`.
    train
        Number of training problems.
    recipe
        `text` (the paper's grid), `authors` (as their code trains) or `fast` (ours, with rates and epochs of its own).
    ngram_heads
        Orders of n-gram heads, such as 1,2,3.
    dropout
        Of the embedding and of softmax attention.
    seed
        Of weights and order; with --asha also of the choice of trials.
    wider
        Widths to go on with when the widest is best; `none` for none, which is the default with --d-model.
    asha
        Search with a budget: so many trials drawn from the grid, most of them stopped early (asynchronous successive halving).
    first_rung
        With --asha: epochs before a trial may be stopped, default 1.
    eta
        With --asha: one in so many goes on at each rung, default 3.
    engine
        `local` processes, or a `ray` cluster by Ray Tune (needs the extra of that name, and a disk all nodes share).
    jobs
        How many trials at a time; the cores are divided among them. Default: one for each core.
    address
        Of the Ray cluster; default: the one that runs on this machine, or a new one.
    tries
        How often a trial is tried before it counts as failed.
    out
        Folder of the trials; default: sweeps/ and a name.
    dry_run
        List the settings, train nothing.
    """
    from ..progress import progress_bar
    from ..training import Asha, make_sweep, search

    allow_local_plugins()
    if name == "recall-grid":
        refuse("recall-grid", profile=profile)
    if asha is None:
        refuse("a whole grid (no --asha)", first_rung=first_rung, eta=eta)
    axes: dict[str, Any] = {
        "d_models": _values("--d-model", d_model, int), "layers": _values("--layers", layers, int),
        "heads": _values("--heads", heads, int), "epochs": _values("--epochs", epochs, int),
        "rates": _values("--rate", rate, float), "decays": _values("--weight-decay", weight_decay, float),
        # somebody who names widths wants these
        "wider": () if wider == "none" or (wider is None and d_model is not None) else _values("--wider", wider, int),
    }  # fmt: skip

    def changed(grid: Grid) -> Grid:
        from dataclasses import replace

        return replace(grid, **{key: value for key, value in axes.items() if value is not None})

    chosen = make_sweep(
        name, model, profile=profile or "paper", train=train, recipe=recipe, seed=seed, dropout=dropout,
        ngram_heads=numbers("--ngram-heads", ngram_heads), change=changed,
    )  # fmt: skip
    configs = chosen.first()
    if dry_run:
        _list(configs, json_, asha)
        return
    budget = Asha(asha, 1 if first_rung is None else first_rung, 3 if eta is None else eta, seed) if asha is not None else None
    parts = [
        name, model.replace(":", "-"), f"ngh{ngram_heads.replace(',', '')}" if ngram_heads else "",
        profile or ("paper" if name == "icll-grid" else ""), f"n{train}", recipe, f"dropout{dropout}" if dropout else "",
        f"s{seed}" if seed else "",
    ]  # fmt: skip
    folder = out or Path("sweeps") / "-".join(filter(None, parts))
    try:
        with progress_bar(f"{min(asha or len(configs), len(configs))} trials") as progress:
            found = search(
                chosen, folder, asha=budget, progress=progress, engine=engine, jobs=jobs, address=address, tries=tries
            )  # fmt: skip
    except KeyboardInterrupt:
        print("icll: stopped, and kept: the same command goes on", file=sys.stderr)
        sys.exit(130)
    report = _report(found)
    _write(report, folder / "sweep.json")
    draw_curves(folder)
    if json_:
        print_json(report)
    else:
        _print(found, folder)
    if found[0].result is None:
        raise IcllError(f"no trial of {folder} was trained to its end: {found[0].error}")


def _values(option: str, text: str | None, kind: type) -> tuple[float, ...] | None:
    try:
        return None if text is None else tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise IcllError(f"{option} {text}: write numbers with commas between them, such as 64,128") from None


def _settings(config: RunConfig) -> dict[str, float]:
    """What the grid varies."""
    return {
        "d_model": config.model.d_model, "layers": config.model.n_layers, "heads": config.model.n_heads,
        "epochs": config.recipe.epochs, "rate": config.recipe.rate, "weight_decay": config.recipe.weight_decay,
    }  # fmt: skip


def _list(configs: list[RunConfig], json_: bool, asha: int | None) -> None:
    rows = [{"run": c.name, **_settings(c)} for c in configs]
    if json_:
        print_json(rows)
        return
    drawn = f"{min(asha, len(rows))} of these are drawn: " if asha is not None else ""
    print(f"{drawn}{len(rows)} trials, before any that follow when the widest is best:")
    print_table(list(rows[0]), [[f"{v:g}" if not isinstance(v, str) else v for v in row.values()] for row in rows])


def _report(found: list[Outcome]) -> dict[str, object]:
    """Validation scores of all; the test set is looked at for the chosen one alone."""
    best = found[0]
    return {
        "best": best.result and {"run": best.folder.name, **_settings(best.config), "test": best.result["test"]},
        "trials": [
            {"run": o.folder.name, **_settings(o.config), "status": _status(o), "trained_epochs": len(o.rows),
             "valid_loss": o.loss if o.rows else None, "error": o.error}
            for o in found
        ],
    }  # fmt: skip


def _status(outcome: Outcome) -> str:
    return "finished" if outcome.result else "failed" if outcome.error else "stopped"


def _write(report: dict[str, object], path: Path) -> None:
    from ..files import replacing

    with replacing(path) as (temporary,):
        temporary.write_text(json.dumps(report, indent=2) + "\n", "utf-8")


def _print(found: list[Outcome], folder: Path) -> None:
    rows = []
    for o in found:
        tvd = min((r["valid_tvd"] for r in o.rows), default=None)
        numbers = [f"{v:g}" for v in _settings(o.config).values()]
        loss = [f"{o.loss:.4f}" if o.rows else "-", f"{tvd:.3f}" if tvd is not None else "-"]
        rows.append([o.folder.name, *numbers, str(len(o.rows)), *loss, _status(o)])
    header = ["trial", "d", "layers", "heads", "epochs", "rate", "decay", "trained", "valid loss", "valid TVD", ""]
    print_table(header, rows)
    for o in found:
        if o.error:
            print(f"{o.folder.name} failed: {o.error}")
    best = found[0]
    if best.result:
        print(f"\nbest on validation: {folder / best.folder.name}")
        test = best.result["test"]
        print(f"its test scores: TVD {interval(test['tvd'])}, accuracy {interval(test['accuracy'])}")
