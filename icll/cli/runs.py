"""Train, resume and list runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from ..errors import IcllError, unknown
from .common import (
    HERE,
    JSON,
    Again,
    LoggerName,
    MixerOptions,
    Precision,
    ProfileName,
    RunFolder,
    RunSeed,
    TaskName,
    Where,
    allow_local_plugins,
    app,
    check_places,
    draw_curves,
    interval,
    numbers,
    parse_options,
    print_json,
    print_table,
    refuse,
)

if TYPE_CHECKING:
    from ..training import DataConfig, Machine, RunConfig, RunSummary


Orders = Annotated[str | None, Parameter(help="Orders of n-gram heads, such as 1,2,3.")]


@app.command(name="train")
def train_command(
    model: str,
    /,
    *,
    d_model: int | None = None,
    layers: int | None = None,
    heads: int | None = None,
    dropout: float | None = None,
    ngram_heads: Orders = None,
    ngram_after: str | None = None,
    init: str = "native",
    embedding_std: float = 0.02,
    max_length: int = 1024,
    authors_bug: bool = False,
    option: MixerOptions = None,
    data: Path | None = None,
    task: TaskName = None,
    profile: ProfileName = None,
    train: int | None = None,
    data_seed: int | None = None,
    relabel: bool = False,
    recipe: str | None = None,
    optimizer: str | None = None,
    rate: float | None = None,
    muon_rate: float | None = None,
    weight_decay: float | None = None,
    warmup: float | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    clip: float | None = None,
    patience: int | None = None,
    average: float | None = None,
    short: float | None = None,
    seed: RunSeed = 0,
    precision: Precision = "32-true",
    where: Where = HERE,
    logger: LoggerName = None,
    out: RunFolder = None,
    force: Again = False,
    json_: JSON = False,
) -> None:
    """Train a model and score it on validation and test. A run is a folder; the same settings are the same run.

    An interrupted run goes on where it was, by the same command or by `icll resume`; a finished one shows its result.

    Example: `icll train retnet --ngram-heads 1,2,3 --profile repo --train 2500 --out runs/retnet-ngh`

    Parameters
    ----------
    model
        A name of `icll models`, `package.module:Class`, or a learned reweighting of n-gram statistics: `lnw` (of counts),
        `lnw_r` (of frequencies) or `lnw_b` (of existence), whose one setting is `--option width=1024`.
    d_model
        Width; default: 64.
    layers
        How many; default: 2.
    heads
        How many, for the models that have heads; default: 2.
    dropout
        Of the embedding and of softmax attention; default: 0.1.
    ngram_after
        Behind how many layers the n-gram heads stand, such as 1 or 1,-1 (-1: the last); default: 1.
    init
        `native` (a mixer's own) or `authors`.
    embedding_std
        Of the first embeddings; attention finds earlier tokens sooner from large ones, such as 1 (see docs/training.md).
    max_length
        Tokens that models with learned positions can read, when they are trained and later.
    authors_bug
        The published wiring of lstm and mamba.
    data
        A folder of `icll data make`, in place of --task, --profile, --train and --data-seed. The run keeps the settings that
        made it, and needs the folder no longer.
    train
        Number of training problems; default: 2500.
    data_seed
        Another seed gives other languages; default: 0.
    relabel
        Permute the symbols of each training problem, anew every epoch. Not the paper's setting.
    recipe
        `fast` (ours, default), `authors` (their code), `text` (the paper's text) or `lnw` (the paper's for learned reweighting,
        and the default there); the options below change single settings of it.
    optimizer
        `adamw` or `muon`.
    rate
        Learning rate of AdamW.
    muon_rate
        Learning rate of Muon.
    weight_decay
        Of weight matrices.
    warmup
        Steps, or below 1 a share of all.
    epochs
        Passes over the training problems.
    batch_size
        Problems in a step.
    clip
        Largest norm of the gradient.
    patience
        Epochs without a better validation loss before it stops.
    average
        Score and keep a running mean of the weights with this decay, such as 0.995.
    short
        A share of the steps, the first ones, that read only the first 128 tokens of each problem.
    """
    from ..model import ModelConfig
    from ..reweighting import REWEIGHTING
    from ..tokens import RECALL, VOCAB_SIZE
    from ..training import RECIPES, RunConfig, change

    allow_local_plugins()
    if model in REWEIGHTING:
        refuse(model, **{"d-model": d_model, "layers": layers, "heads": heads, "dropout": dropout})
    check_places(ngram_after, ngram_heads)
    recipe = recipe or ("lnw" if model in REWEIGHTING else "fast")
    if recipe not in RECIPES:
        raise unknown("recipe", recipe, RECIPES)
    problems = _problems(data, task, profile, train, data_seed, relabel)
    chosen = change(
        RECIPES[recipe], optimizer=optimizer, rate=rate, muon_rate=muon_rate, weight_decay=weight_decay, warmup=warmup,
        epochs=epochs, batch_size=batch_size, clip=clip, patience=patience, average=average, short=short,
    )  # fmt: skip
    if chosen.optimizer != "muon" and muon_rate is not None:
        raise IcllError(
            f"--muon-rate has no effect with the optimizer {chosen.optimizer}: leave it out, or add --optimizer muon"
        )
    config = RunConfig(
        ModelConfig(
            model, 64 if d_model is None else d_model, 2 if layers is None else layers, 2 if heads is None else heads,
            RECALL.size if problems.task == "recall" else VOCAB_SIZE, dropout=0.1 if dropout is None else dropout, init=init,
            authors_bug=authors_bug, ngram_heads=numbers("--ngram-heads", ngram_heads),
            ngram_after=numbers("--ngram-after", ngram_after) or (1,), options=parse_options(option),
            embedding_std=embedding_std, max_length=max_length,
        ),
        problems, chosen, seed, precision,
    )  # fmt: skip
    train_and_show(config, out or Path("runs") / config.name, where.machine(), force, logger, json_)


def _problems(
    folder: Path | None, task: str | None, profile: str | None, train: int | None, seed: int | None, relabel: bool
) -> DataConfig:  # fmt: skip
    """What to train on: as a folder has it, or as the options say."""
    from ..tasks import load
    from ..training import DataConfig

    if folder is not None:
        refuse("--data", **{"task": task, "profile": profile, "train": train, "data-seed": seed})
        if not folder.is_dir():
            raise IcllError(f"{folder} is not a folder: give one that icll data make wrote")
        return DataConfig.of(load(folder), relabel)
    if task == "recall":
        refuse("--task recall", profile=profile)
    return DataConfig(task or "regbench", profile or "paper", 2500 if train is None else train, seed or 0, relabel)


@app.command
def resume(
    run: Path,
    /,
    *,
    where: Where = HERE,
    logger: LoggerName = None,
    json_: JSON = False,
) -> None:
    """Go on with a run that was interrupted; the weights become those of a run that was not.

    A run of several processes goes on in one, unless --devices, --nodes and --strategy are given again; another number of them
    will do, with other random numbers.

    Example: `icll resume runs/retnet-ngh`

    Parameters
    ----------
    run
        The run's folder.
    """
    from ..training import read_config

    allow_local_plugins()
    train_and_show(read_config(run), run, where.machine(), False, logger, json_)


def train_and_show(config: RunConfig, out: Path, machine: Machine, force: bool, logger: str | None, json_: bool) -> None:
    from ..training import train as train_run
    from ..training.watching import make_logger, watching

    try:
        with watching(config) as watch:
            result = train_run(
                config, out, machine=machine, force=force, loggers=make_logger(logger, out) if logger else None, watch=watch
            )  # fmt: skip
    except KeyboardInterrupt:
        print(f"icll: stopped, and kept: go on with `icll resume {out}`", file=sys.stderr)
        sys.exit(130)
    if not result:  # another process prints
        return
    draw_curves(out)
    if json_:
        print_json(result)
        return
    print(
        f"{out}: {result['epochs']} epochs, {result['steps']:,} steps, {result['seconds']:.0f} s, "
        f"best in epoch {result['best_epoch']}"
    )
    labels = {"tvd": "TVD", "accuracy": "accuracy", "cross_entropy": "cross-entropy", "perplexity": "perplexity"}
    shown = [metric for metric in labels if metric in result["test"]]
    rows = [[part, *(interval(result[part][m]) for m in shown)] for part in ("valid", "test")]
    print_table(["", *(labels[m] for m in shown)], rows)


@app.command
def runs(
    root: Path = Path("runs"),
    /,
    *,
    sort: Literal["name", "tvd", "accuracy", "seconds", "train", "parameters"] = "name",
    filter_: Annotated[str | None, Parameter(name="--filter", help="Only runs whose name or settings contain this.")] = None,
    json_: JSON = False,
) -> None:
    """All runs below a folder: settings, state and scores.

    Example: `icll runs runs --sort tvd --filter retnet`

    Parameters
    ----------
    root
        Where to look.
    sort
        By name, by a score on the test set (best first), by time, by training problems or by parameters.
    """
    from ..training import as_plain, find_runs

    if not root.is_dir():
        raise IcllError(f"{root} is not a folder: give the one runs are in")
    found = [r for r in find_runs(root) if filter_ is None or any(filter_ in text for text in _settings(as_plain(r.config), r))]
    table = []
    for run in found:
        test = (run.result or {}).get("test", {})
        last = run.rows[-1] if run.rows else {}
        table.append({
            "run": str(run.folder), "model": run.config.model.model, "heads": list(run.config.model.ngram_heads),
            "d_model": run.config.model.d_model, "layers": run.config.model.n_layers,
            "data": _data(run.config), "train": getattr(run.config.data, "train", None),
            "recipe": run.config.recipe.name, "seed": run.config.seed,
            "status": run.status, "epochs": last.get("epoch", 0), "of": run.config.recipe.epochs,
            "valid_tvd": min((r["valid_tvd"] for r in run.rows if "valid_tvd" in r), default=None),
            "test_perplexity": test.get("perplexity", {}).get("mean"),
            "test_tvd": test.get("tvd", {}).get("mean"), "test_accuracy": test.get("accuracy", {}).get("mean"),
            "parameters": (run.result or {}).get("parameters"), "seconds": (run.result or last).get("seconds"),
        })  # fmt: skip
    keys = {"tvd": "test_tvd", "accuracy": "test_accuracy", "name": "run"}
    key = keys.get(sort, sort)
    sign = -1 if sort == "accuracy" else 1
    table.sort(key=lambda r: (r[key] is None, r[key] if isinstance(r[key], str) else sign * (r[key] or 0)))
    if json_:
        print_json(table)
        return
    if not table:
        print(f"no runs in {root}")
        return
    rows = []
    any_text = any(r["test_perplexity"] for r in table)
    for r in table:
        number = [f"{r[m]:.3f}" if r[m] is not None else "-" for m in ("valid_tvd", "test_tvd", "test_accuracy")]
        heads = ",".join(map(str, r["heads"])) or "-"
        size = f"{r['d_model']}x{r['layers']}"
        times = f"{r['seconds']:.0f}" if r["seconds"] is not None else "-"
        progress = f"{r['epochs']}/{r['of']}"
        rows.append(
            [
                r["run"],
                r["model"],
                heads,
                size,
                r["data"],
                str(r["train"] or "-"),
                r["recipe"],
                str(r["seed"]),
                progress,
                *number,
                *([f"{r['test_perplexity']:.2f}" if r["test_perplexity"] else "-"] if any_text else []),
                times,
                r["status"],
            ]
        )
    header = [
        "run",
        "model",
        "n-gram heads",
        "d x layers",
        "data",
        "train",
        "recipe",
        "seed",
        "epochs",
        "valid TVD",
        "test TVD",
        "accuracy",
        *(["perplexity"] if any_text else []),
        "s",
        "",
    ]
    print_table(header, rows)


def _settings(plain: object, run: RunSummary | None = None) -> Iterator[str]:
    """All values of a config as text, and the run's folder."""
    if run is not None:
        yield str(run.folder)
    values = plain.values() if isinstance(plain, dict) else plain if isinstance(plain, list) else None
    if values is None:
        yield str(plain)
    for value in values or ():
        yield from _settings(value)


def _data(config: RunConfig) -> str:
    """What a run was trained on: the profile, the task recall, or a text."""
    from ..training import DataConfig

    data = config.data
    if not isinstance(data, DataConfig):
        return str(getattr(data, "corpus", None) or data.label)
    name = data.task if data.task == "recall" else data.profile if isinstance(data.profile, str) else "own profile"
    return name + (f", seed {data.seed}" if data.seed else "") + (", relabelled" if data.relabel else "")
