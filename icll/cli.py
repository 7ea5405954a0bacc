"""The command line: parse, call, print. Whatever is slow to import is imported inside the command that needs it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, CycloptsError, Parameter

from . import __version__
from .errors import IcllError, unknown

if TYPE_CHECKING:
    from .languages import Automaton, Profile
    from .tasks.problems import Problems, Splits
    from .training import Machine, RunConfig

app = App(  # the help of each command has an example
    name="icll",
    help="In-context language learning: data, learners, models and measurements.",
    version=__version__,
    help_format="markdown",
    default_parameter=Parameter(negative=()),
)
data = App(name="data", help="Make, show and export data sets.")
app.command(data)

Split = Literal["train", "valid", "test"]
Task = Literal["regbench", "recall"]
TaskName = Annotated[Task | None, Parameter(help="Random regular languages (`regbench`, default) or associative `recall`.")]
Range = tuple[int, int]
JSON = Annotated[bool, Parameter(name="--json", help="Print the result as JSON.")]
ProfileName = Annotated[
    str | None, Parameter(help="`paper` (as the paper defines the data; default) or `repo` (what its published numbers used).")
]
Seed = Annotated[int | None, Parameter(help="Another seed gives other languages; default: 0.")]
SplitOf = Annotated[Split | None, Parameter(help="Which set of a data folder; default: test.")]
Source = Annotated[Path | None, Parameter(help="A data folder or file; without it, the set of --task, --profile, --seed.")]


@data.command
def make(
    *,
    out: Path,
    task: TaskName = None,
    profile: ProfileName = None,
    train: int | None = None,
    seed: Seed = None,
    states: Range | None = None,
    alphabet: Range | None = None,
    edges: Range | None = None,
    length: Range | None = None,
    strings: Range | None = None,
    automata: Path | None = None,
    force: bool = False,
    json_: JSON = False,
) -> None:
    """Make a data set: train, valid (500 problems) and test (500 problems), one file each.

    The same profile, seed and size give the same bytes anywhere.

    Example: `icll data make --profile repo --train 2500 --seed 0 --out data`

    Parameters
    ----------
    out
        Folder for train.safetensors, valid.safetensors and test.safetensors.
    train
        Number of training problems, default 2500. A smaller set is the beginning of a larger one.
    states
        Least and most states before minimisation, in place of the profile's.
    alphabet
        Least and most symbols of a language, in place of the profile's.
    edges
        Least and most outgoing edges of a state, in place of the profile's.
    length
        Least and most symbols of a string, in place of the profile's.
    strings
        Least and most strings of a problem, in place of the profile's.
    automata
        A text file of your own automata as tables, blank lines between them: one problem of each goes to test.safetensors.
    force
        Replace other data in the folder.
    """
    from .progress import progress_bar
    from .tasks import associative_recall, load, problems_of, regbench
    from .tasks.problems import save_all, split_path

    ranges = {"states": states, "alphabet": alphabet, "edges": edges, "length": length, "strings": strings}
    number, size = seed or 0, 2500 if train is None else train
    if automata is not None:
        _without("--automata", task=task, train=train)
        sets = {"test": problems_of(_read_automata(automata), _profile(profile, **ranges), number)}
        if any(split_path(out, other).exists() for other in ("train", "valid")):
            raise IcllError(f"{out} holds a data set with other splits: choose another --out")
    elif task == "recall":
        _without("--task recall", profile=profile, **ranges)
        sets = dict(associative_recall(size, number).items())
    else:
        with progress_bar("languages") as progress:
            sets = dict(regbench(size, _profile(profile, **ranges), number, progress=progress).items())
    files = {split_path(out, name): problems for name, problems in sets.items()}
    for path, problems in files.items():
        if path.is_file() and not force:
            try:
                same = load(path).fingerprint == problems.fingerprint
            except IcllError:
                same = False
            if not same:
                raise IcllError(f"{path} holds other data, or is damaged: choose another --out, or replace it with --force")
    save_all(files)
    report = [
        {"path": str(path), "problems": len(problems), "tokens": len(problems.flat), "fingerprint": problems.fingerprint}
        for path, problems in files.items()
    ]
    if json_:
        _print_json(report)
        return
    for row in report:
        print(f"{row['path']}: {row['problems']:,} problems, {row['tokens']:,} tokens, {str(row['fingerprint'])[:12]}")


@data.command
def show(
    path: Source = None,
    *,
    split: SplitOf = None,
    problem: int = 0,
    task: TaskName = None,
    profile: ProfileName = None,
    seed: Seed = None,
    picture: Path | None = None,
    draw: Annotated[bool, Parameter(negative="--no-draw")] = True,
    json_: JSON = False,
) -> None:
    """Show a problem: its strings, its automaton as a table, and a picture of it.

    Example: `icll data show data --problem 3 --picture automaton.svg`

    Parameters
    ----------
    problem
        Number of the problem, from 0.
    picture
        Where to draw the automaton (.svg, .png or .pdf); default: automaton-SPLIT-PROBLEM.svg in this folder.
    draw
        Draw the picture (with --json only if --picture is given).
    """
    if picture is not None:
        from .report import picture_format

        picture_format(picture)  # before anything is printed
    problems = _problems(path, split, task, profile, seed)
    if not 0 <= problem < len(problems):
        raise IcllError(f"problem {problem} does not exist: there are 0..{len(problems) - 1}")
    one = problems[problem]
    automaton = one.automata[0]
    if json_:
        from .tasks.export import records

        _print_json(next(records(one)))
    else:
        strings = one.strings(0)
        print(f"problem {problem} of {problems.origin}: {len(strings)} strings, {len(one.flat)} tokens\n")
        print("\n".join(strings))
        print(f"\nautomaton: {automaton.n_states} states, start 0; the next state for each symbol, '.' where it is illegal\n")
        print(automaton.table())
    if picture is None and draw and not json_:
        picture = Path(f"automaton-{problems.origin.split}-{problem}.svg")
    if picture is not None:
        from .report import draw_automaton, save_figure

        save_figure(draw_automaton(automaton), picture)
        if not json_:
            print(f"\npicture: {picture}")


@data.command
def export(
    path: Path,
    *,
    out: Path,
    split: SplitOf = None,
    to: Literal["jsonl", "datasets"] = "jsonl",
    truth: Annotated[bool, Parameter(negative="--no-truth")] = True,
) -> None:
    """Write a set for other trainers: JSON lines, or a Hugging Face dataset.

    Example: `icll data export data --split train --out train.jsonl`

    Parameters
    ----------
    path
        A data folder or file.
    out
        The file (jsonl) or folder (datasets) to write.
    to
        `jsonl`, or `datasets` (needs the extra of that name).
    truth
        Include the next-token distributions.
    """
    from .progress import progress_bar
    from .tasks import save_datasets, to_jsonl

    problems = _problems(path, split, None, None, None)
    if out.exists():
        raise IcllError(f"{out} exists: choose another --out or remove it")
    if to == "datasets":
        save_datasets(problems, out, truth=truth)
    else:
        with progress_bar("problems") as progress:
            to_jsonl(problems, out, truth=truth, progress=lambda done: progress(done, len(problems)))
    print(f"{out}: {len(problems):,} problems")


@app.command
def score(
    predictors: Annotated[list[str], Parameter(consume_multiple=True)],
    /,
    *,
    data: Source = None,
    split: SplitOf = None,
    problems: int | None = None,
    task: TaskName = None,
    profile: ProfileName = None,
    seed: Seed = None,
    picture: Path | None = None,
    engine: Literal["local", "ray"] = "local",
    jobs: int | None = None,
    address: str | None = None,
    cache: Path | None = None,
    no_cache: bool = False,
    json_: JSON = False,
) -> None:
    """Score predictors side by side: TVD, accuracy, cross-entropy and KL, with 95 % confidence intervals.

    Scores are kept, and taken from there when the same predictor, data and code are asked for again.

    Example: `icll score ngram:2 ngram:3 baum-welch bayes oracle --profile repo --problems 200`

    Parameters
    ----------
    predictors
        `ngram:N`, `baum-welch`, `bayes:PARTICLES`, `state-merging`, `uniform`, `oracle`, or the folder of a run.
    problems
        How many problems, from the first; default: all.
    picture
        Draw the scores against the strings read, to this file (.svg, .png or .pdf).
    engine
        Where slow predictors run: `local` processes, or a `ray` cluster (needs the extra of that name).
    jobs
        How many local processes; default: one for each core.
    address
        Of the Ray cluster; default: a new one on this machine.
    cache
        Folder to keep scores in; default: icll/scores in the user's cache folder.
    no_cache
        Neither look for kept scores, nor keep these.
    """
    from .progress import progress_bar
    from .scoring import default_cache, open_predictor
    from .scoring import score as score_one

    _allow_local_plugins()

    chosen = _problems(data, split, task, profile, seed)
    if problems is not None:
        if not 1 <= problems <= len(chosen):
            raise IcllError(f"--problems must be 1..{len(chosen)} for this set, not {problems}")
        chosen = chosen[:problems]
    for spec in predictors:
        open_predictor(spec, chosen)  # what is wrong with one is said before the first is scored
    folder = None if no_cache else cache or default_cache()
    scores = []
    for spec in predictors:
        with progress_bar(spec) as progress:
            scores.append(score_one(spec, chosen, cache=folder, engine=engine, jobs=jobs, address=address, progress=progress))
    if picture is not None:
        from .report import draw_curves, save_figure

        save_figure(draw_curves(scores), picture)
    if json_:
        _print_json({"data": str(chosen.origin), "fingerprint": chosen.fingerprint, "scores": [s.as_dict() for s in scores]})
        return
    rows = []
    for s in scores:
        cells = [
            f"{getattr(s, m):.3f} [{s.ci[m][0]:.3f}, {s.ci[m][1]:.3f}]" for m in ("tvd", "accuracy", "cross_entropy", "kl")
        ]
        rows.append([s.name, *cells, f"{1000 * s.seconds / s.n_problems:.2f}"])
    print(f"{chosen.origin}: {len(chosen)} problems, {len(scores[0].tokens):,} scored tokens; 95 % intervals over problems")
    _print_table(["predictor", "TVD", "accuracy", "cross-entropy", "KL", "ms/problem"], rows)
    if picture is not None:
        print(f"picture: {picture}")


MixerOptions = Annotated[
    list[str] | None,
    Parameter(name="--option", help="An option of the mixer, such as `value_gate=true` of gla; may be repeated."),
]


@app.command
def models(
    names: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    /,
    *,
    d_model: int = 64,
    layers: int = 2,
    heads: int = 2,
    vocab_size: int = 20,
    length: int = 400,
    json_: JSON = False,
) -> None:
    """The models there are: parameters, operations per token, and the size of the state when decoding.

    Example: `icll models --d-model 256 --layers 4 --length 1000`

    Parameters
    ----------
    names
        Only these; your own as `package.module:Class`.
    d_model
        Width.
    layers
        How many.
    heads
        How many, for the models that have heads.
    vocab_size
        Number of token ids.
    length
        Tokens read, for the operations and for states that grow.
    """
    from .mixers import ARCHITECTURES, can_step
    from .model import build_model

    _allow_local_plugins()
    rows, table = [], []
    for name in names or ARCHITECTURES:
        model = build_model(
            name, d_model=d_model, n_layers=layers, n_heads=heads, vocab_size=vocab_size, max_length=max(length, 1024)
        )  # fmt: skip
        mixer = model.blocks[0].mixer
        grows = model.state_bytes(length) > model.state_bytes(1) if length > 1 else False
        row = {
            "model": name,
            "parameters": model.n_parameters(),
            "flops_per_token": model.flops_per_token(length),
            "state_bytes": model.state_bytes(length),
            "state": "prefix kept" if not can_step(mixer) else "grows" if grows else "constant",
            "forms": list(getattr(mixer, "forms", [])),
        }
        rows.append(row)
        numbers = [f"{row[key]:,.0f}" for key in ("parameters", "flops_per_token", "state_bytes")]
        table.append([name, *numbers, str(row["state"]), ", ".join(getattr(mixer, "forms", []))])
    if json_:
        settings = {"d_model": d_model, "layers": layers, "heads": heads, "vocab_size": vocab_size, "length": length}
        _print_json({**settings, "models": rows})
        return
    print(f"{layers} layers of width {d_model}, {heads} heads, {vocab_size} token ids; after {length} tokens:")
    _print_table(["model", "parameters", "FLOPs/token", "state bytes", "state", "forms"], table)


@app.command
def check(mixer: str, /, *, option: MixerOptions = None, json_: JSON = False) -> None:
    """Hold a token mixer to the contract: shapes, causality, lengths, batches, steps, gradients, dtypes, devices.

    Exits with code 2 if something fails.

    Example: `icll check my_package.mixers:MyMixer`

    Parameters
    ----------
    mixer
        `package.module:Class` of a torch module that maps [B, L, D] to [B, L, D], or the name of a model.
    """
    from .conformance import check_mixer

    _allow_local_plugins()
    checks = check_mixer(mixer, _options(option))
    failed = [c for c in checks if c.passed is False]
    if json_:
        _print_json({"mixer": mixer, "passed": not failed, "checks": [vars(c) for c in checks]})
    else:
        print("\n".join(map(str, checks)))
    if failed:
        reasons = "; ".join(f"{c.name}: {c.detail}" for c in failed[:2])
        more = f" and {len(failed) - 2} more" if len(failed) > 2 else ""
        raise IcllError(f"{mixer} fails {len(failed)} of {len(checks)} checks: {reasons}{more}")


Orders = Annotated[str | None, Parameter(help="Orders of n-gram heads, such as 1,2,3.")]


@app.command(name="train")
def train_command(
    model: str,
    /,
    *,
    d_model: int = 64,
    layers: int = 2,
    heads: int = 2,
    dropout: float = 0.1,
    ngram_heads: Orders = None,
    ngram_after: str | None = None,
    init: str = "native",
    authors_bug: bool = False,
    option: MixerOptions = None,
    task: TaskName = None,
    profile: ProfileName = None,
    train: int = 2500,
    data_seed: int = 0,
    relabel: bool = False,
    recipe: str = "fast",
    optimizer: str | None = None,
    rate: float | None = None,
    muon_rate: float | None = None,
    weight_decay: float | None = None,
    warmup: float | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    clip: float | None = None,
    patience: int | None = None,
    seed: int = 0,
    precision: str = "32-true",
    accelerator: str = "auto",
    devices: int = 1,
    nodes: int = 1,
    strategy: str = "auto",
    threads: int | None = None,
    logger: str | None = None,
    out: Path | None = None,
    force: bool = False,
    json_: JSON = False,
) -> None:
    """Train a model and score it on validation and test. A run is a folder; the same settings are the same run.

    An interrupted run goes on where it was, by the same command or by `icll resume`; a finished one shows its result.

    Example: `icll train retnet --ngram-heads 1,2,3 --profile repo --train 2500 --out runs/retnet-ngh`

    Parameters
    ----------
    model
        A name of `icll models`, or `package.module:Class`.
    d_model
        Width.
    layers
        How many.
    heads
        How many, for the models that have heads.
    dropout
        Of the embedding and of softmax attention.
    ngram_after
        Behind how many layers the n-gram heads stand, such as 1 or 1,-2; default: 1.
    init
        `native` (a mixer's own) or `authors`.
    authors_bug
        The published wiring of lstm and mamba.
    train
        Number of training problems.
    data_seed
        Another seed gives other languages.
    relabel
        Permute the symbols of each training problem, anew every epoch. Not the paper's setting.
    recipe
        `fast` (ours), `authors` (their code) or `text` (the paper's text); the options below change single settings of it.
    optimizer
        `adamw` or `muon`.
    rate
        Learning rate of AdamW.
    muon_rate
        Learning rate of Muon.
    warmup
        Steps, or below 1 a share of all.
    clip
        Largest norm of the gradient.
    patience
        Epochs without a better validation loss before it stops.
    seed
        Of weights, order and dropout.
    precision
        `32-true` or `bf16-mixed`.
    accelerator
        `cpu`, `cuda`, `mps` or `auto`.
    devices
        Processes on each node.
    nodes
        Number of nodes.
    strategy
        `ddp`, `fsdp` or `auto`.
    threads
        For each process; default: torch's.
    logger
        Also log to `tensorboard`, `wandb` or `mlflow`, if installed.
    out
        The run's folder; default: runs/ and a name.
    force
        Train again, even if the run is finished.
    """
    from .model import ModelConfig
    from .tokens import RECALL, VOCAB_SIZE
    from .training import RECIPES, DataConfig, Machine, RunConfig, change

    _allow_local_plugins()
    if recipe not in RECIPES:
        raise unknown("recipe", recipe, RECIPES)
    task = task or "regbench"
    if task == "recall":
        _without("--task recall", profile=profile)
    chosen = change(
        RECIPES[recipe], optimizer=optimizer, rate=rate, muon_rate=muon_rate, weight_decay=weight_decay, warmup=warmup,
        epochs=epochs, batch_size=batch_size, clip=clip, patience=patience,
    )  # fmt: skip
    config = RunConfig(
        ModelConfig(
            model, d_model, layers, heads, RECALL.size if task == "recall" else VOCAB_SIZE, dropout=dropout, init=init,
            authors_bug=authors_bug, ngram_heads=_numbers("--ngram-heads", ngram_heads),
            ngram_after=_numbers("--ngram-after", ngram_after) or (1,), options=_options(option),
        ),
        DataConfig(task, profile or "paper", train, data_seed, relabel), chosen, seed, precision,
    )  # fmt: skip
    machine = Machine(accelerator, devices, nodes, strategy, threads)
    _train(config, out or Path("runs") / config.name, machine, force, logger, json_)


@app.command
def resume(run: Path, /, *, threads: int | None = None, logger: str | None = None, json_: JSON = False) -> None:
    """Go on with a run that was interrupted; the weights become those of a run that was not.

    Example: `icll resume runs/retnet-ngh`

    Parameters
    ----------
    run
        The run's folder.
    threads
        For each process; the same number as before gives the same bits.
    logger
        As of `icll train`.
    """
    from .training import Machine, read_config

    _allow_local_plugins()
    _train(read_config(run), run, Machine(threads=threads), False, logger, json_)


def _train(config: RunConfig, out: Path, machine: Machine, force: bool, logger: str | None, json_: bool) -> None:
    from .report import draw_training, save_figure
    from .training import find_runs
    from .training import train as train_run
    from .training.watching import make_logger, watching

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
    (run,) = (r for r in find_runs(out) if r.folder == out)
    if run.rows and not (out / "curves.png").exists():
        save_figure(draw_training(run.rows), out / "curves.png")
    if json_:
        _print_json(result)
        return
    print(
        f"{out}: {result['epochs']} epochs, {result['steps']:,} steps, {result['seconds']:.0f} s, "
        f"best in epoch {result['best_epoch']}"
    )
    rows = [[part, *(_interval(result[part][m]) for m in ("tvd", "accuracy", "cross_entropy"))] for part in ("valid", "test")]
    _print_table(["", "TVD", "accuracy", "cross-entropy"], rows)


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
    from .training import as_plain, find_runs

    if not root.is_dir():
        raise IcllError(f"{root} is not a folder: give the one runs are in")
    found = [r for r in find_runs(root) if filter_ is None or filter_ in f"{r.folder} {json.dumps(as_plain(r.config))}"]
    table = []
    for run in found:
        test = (run.result or {}).get("test", {})
        last = run.rows[-1] if run.rows else {}
        table.append({
            "run": str(run.folder), "model": run.config.model.model, "heads": list(run.config.model.ngram_heads),
            "d_model": run.config.model.d_model, "layers": run.config.model.n_layers, "train": run.config.data.train,
            "recipe": run.config.recipe.name, "seed": run.config.seed, "status": run.status, "epochs": last.get("epoch", 0),
            "of": run.config.recipe.epochs, "valid_tvd": min((r["valid_tvd"] for r in run.rows), default=None),
            "test_tvd": test.get("tvd", {}).get("mean"), "test_accuracy": test.get("accuracy", {}).get("mean"),
            "parameters": (run.result or {}).get("parameters"), "seconds": (run.result or last).get("seconds"),
        })  # fmt: skip
    keys = {"tvd": "test_tvd", "accuracy": "test_accuracy", "name": "run"}
    key = keys.get(sort, sort)
    sign = -1 if sort == "accuracy" else 1
    table.sort(key=lambda r: (r[key] is None, r[key] if isinstance(r[key], str) else sign * (r[key] or 0)))
    if json_:
        _print_json(table)
        return
    if not table:
        print(f"no runs in {root}")
        return
    rows = []
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
                str(r["train"]),
                r["recipe"],
                str(r["seed"]),
                progress,
                *number,
                times,
                r["status"],
            ]
        )
    header = [
        "run",
        "model",
        "heads",
        "d x layers",
        "train",
        "recipe",
        "seed",
        "epochs",
        "valid TVD",
        "test TVD",
        "accuracy",
        "s",
        "",
    ]
    _print_table(header, rows)


@app.command
def generate(
    run: Path,
    /,
    *others: str,
    prompt: str | None = None,
    strings: int = 5,
    length: int = 20,
    temperature: float = 1.0,
    seed: int = 0,
    score: bool = False,
    problems: int = 100,
    data: Source = None,
    profile: ProfileName = None,
    json_: JSON = False,
) -> None:
    """Write new strings of a language from a few of its strings; or score such writing over the test set.

    Models are not trained to end strings, so their length is given.

    Example: `icll generate runs/retnet-ngh --prompt "abcab|abab|cabc" --strings 5`

    Example: `icll generate runs/retnet-ngh ngram:3 bayes --score --profile repo --problems 20`

    Parameters
    ----------
    run
        A run's folder.
    others
        With --score: predictors to set beside it, as of `icll score`.
    prompt
        Strings of the language, `|` between them.
    strings
        How many to write.
    length
        Symbols of each.
    temperature
        0 takes the likeliest symbol.
    score
        Read each test problem, write strings, and count those its language accepts.
    problems
        With --score: how many test problems.
    """
    from .generation import score_writing, write_strings
    from .progress import progress_bar
    from .scoring import open_predictor
    from .tokens import decode, encode
    from .training import load_run

    _allow_local_plugins()
    model = load_run(run)
    if not score:
        if others:
            raise IcllError(f"{others[0]} is for --score: add it, or leave the predictors out")
        if not prompt:
            raise IcllError('give strings of the language: --prompt "abcab|abab", or --score')
        for token in write_strings(model, encode(prompt), [length] * strings, temperature, seed):
            text = decode([token])
            print("\n" if text == "|" else text, end="", flush=True)
        print()
        return
    chosen = _problems(data, None, None, profile, None)
    if not 1 <= problems <= len(chosen):
        raise IcllError(f"--problems must be 1..{len(chosen)} for this set, not {problems}")
    chosen = chosen[:problems]
    predictors = {model.name: model, **{spec: open_predictor(spec, chosen) for spec in others}}
    scores = []
    for name, predictor in predictors.items():
        with progress_bar(name) as progress:
            scores.append(score_writing(predictor, chosen, name, strings, length, temperature, seed, progress))
    if json_:
        _print_json([s.as_dict() for s in scores])
        return
    print(f"{chosen.origin}: {problems} problems, {strings} strings of {length} symbols each; 95 % intervals over problems")
    rows = [[s.name, *(f"{m:.3f} [{low:.3f}, {high:.3f}]" for m, low, high in (s.strings, s.symbols))] for s in scores]
    _print_table(["", "strings accepted", "symbols accepted"], rows)


# --- helpers ---


def _interval(score: dict[str, float]) -> str:
    return f"{score['mean']:.3f} [{score['low']:.3f}, {score['high']:.3f}]"


def _numbers(option: str, text: str | None) -> tuple[int, ...]:
    """`1,2,3` as numbers."""
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise IcllError(f"{option} {text}: write numbers with commas between them, such as 1,2,3") from None


def _allow_local_plugins() -> None:
    """`package.module:Class` may stand in the current folder, as with `python -m`."""
    if "" not in sys.path:
        sys.path.append("")


def _options(pairs: Sequence[str] | None) -> dict[str, object]:
    """`name=value` pairs; values as in JSON, else as text."""
    options: dict[str, object] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise IcllError(f"--option {pair}: write name=value")
        try:
            options[name] = json.loads(value)
        except json.JSONDecodeError:
            options[name] = value
    return options


def _without(option: str, **others: object) -> None:
    """Refuse options that would have no effect beside another."""
    for name, value in others.items():
        if value is not None:
            raise IcllError(f"--{name} has no effect with {option}: leave one of them out")


def _profile(name: str | None, **ranges: Range | None) -> Profile:
    """A named profile, with the ranges given in its place."""
    from dataclasses import replace

    from .languages.profile import get_profile

    return replace(get_profile(name or "paper"), **{key: value for key, value in ranges.items() if value is not None})


def _problems(path: Path | None, split: Split | None, task: Task | None, profile: str | None, seed: int | None) -> Problems:
    """A set from a folder, from a file, or made on the spot."""
    from .tasks import associative_recall, load, regbench
    from .tasks.problems import split_path

    if path is not None:
        _without(str(path), task=task, profile=profile, seed=seed)
        if path.is_dir():
            return load(split_path(path, split or "test"))
        _without(f"the file {path}", split=split)
        return load(path)
    if task == "recall":
        _without("--task recall", profile=profile)
        made: Splits = associative_recall(seed=seed or 0)
    else:
        made = regbench(profile=profile or "paper", seed=seed or 0)
    return getattr(made, split or "test")


def _read_automata(path: Path) -> list[Automaton]:
    from .languages import Automaton

    try:
        blocks = [block for block in re.split(r"\n\s*\n", path.read_text()) if block.strip()]
    except UnicodeDecodeError:
        raise IcllError(f"{path} is not text: write tables as `icll data show` prints them") from None
    if not blocks:
        raise IcllError(f"{path} has no table: write a line of symbols, then a line for each state")
    automata = []
    for number, block in enumerate(blocks, start=1):
        try:
            automata.append(Automaton.from_table(block))
        except IcllError as error:
            raise IcllError(f"{path}, table {number}: {error}") from None
    return automata


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def _print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns by blanks: as easy to read as to cut."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        cells = [cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))]
        print("  ".join(cells).rstrip())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Bad input is one line on standard error and exit code 2."""
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except (CycloptsError, IcllError) as error:
        _fail(str(error))
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _fail(f"{place}{error.strerror or error}: check the path, its permissions and the space left")
    except MemoryError:
        _fail("there is not enough memory for this: ask for fewer or shorter problems")
    except KeyboardInterrupt:
        print("icll: stopped", file=sys.stderr)
        sys.exit(130)


def _fail(text: str) -> None:
    print("icll: " + " ".join(text.split()), file=sys.stderr)
    sys.exit(2)
