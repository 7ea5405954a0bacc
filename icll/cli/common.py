"""What commands share: names of options, where problems come from, tables."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from .. import __version__
from ..errors import IcllError, whole

if TYPE_CHECKING:
    from ..languages import Automaton, Profile
    from ..tasks.problems import Problems, Splits
    from ..training import DataConfig, Machine

app = App(  # the help of each command has an example
    name="icll",
    help="In-context language learning: data, learners, models and measurements.",
    version=__version__,
    help_format="markdown",
    default_parameter=Parameter(negative=()),
)

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
Source = Annotated[
    Path | None,
    Parameter(
        help="A data folder or file; without it, the set of --task, --profile, --seed, or if none of them is given the data "
        "that the runs were trained for."
    ),
]
# Of the commands that train: where, and into what.
RunSeed = Annotated[int, Parameter(help="Of weights, order and dropout.")]
Precision = Annotated[str, Parameter(help="`32-true`, `bf16-mixed` or `64-true`.")]
Accelerator = Annotated[str, Parameter(help="`cpu`, `cuda`, `mps` or `auto`.")]
LoggerName = Annotated[str | None, Parameter(help="Also log to `tensorboard`, `wandb` or `mlflow`, if installed.")]
RunFolder = Annotated[Path | None, Parameter(help="The run's folder; default: runs/ and a name.")]
Again = Annotated[bool, Parameter(help="Train again, even if the run is finished.")]
MixerOptions = Annotated[
    list[str] | None,
    Parameter(name="--option", help="An option of the mixer, such as `value_gate=true` of gla; may be repeated."),
]


@Parameter(name="*")
@dataclass(frozen=True)
class Where:
    """What a run is trained on: icll.training.Machine, as options."""

    accelerator: Accelerator = "auto"
    devices: Annotated[int, Parameter(help="Processes on each node.")] = 1
    nodes: Annotated[int, Parameter(help="Number of nodes.")] = 1
    strategy: Annotated[str, Parameter(help="`ddp`, `fsdp` or `auto`.")] = "auto"
    threads: Annotated[
        int | None,
        Parameter(help="For each process; default: torch's, or as many as the run had before, which gives the same bits."),
    ] = None

    def machine(self) -> Machine:
        from ..training import Machine

        return Machine(**asdict(self))


HERE = Where()


def interval(score: dict[str, float]) -> str:
    if score["low"] is None:  # of a single context or problem
        return f"{score['mean']:.3f}"
    return f"{score['mean']:.3f} [{score['low']:.3f}, {score['high']:.3f}]"


def numbers(option: str, text: str | None) -> tuple[int, ...]:
    """`1,2,3` as numbers."""
    try:
        return () if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise IcllError(f"{option} {text}: write numbers with commas between them, such as 1,2,3") from None


def count(option: str, value: float | None, least: int = 1) -> int | None:
    """A large number, which may be written as 2e7."""
    if value is None:
        return None
    if not math.isfinite(value):
        raise IcllError(f"{option} must be a whole number, not {value}")
    return whole(option, round(value), least, 10**13)


def check_places(ngram_after: str | None, ngram_heads: str | None) -> None:
    if ngram_after and not ngram_heads:
        raise IcllError("--ngram-after has no effect without --ngram-heads: add it, such as --ngram-heads 1,2,3")


def allow_local_plugins() -> None:
    """`package.module:Class` may stand in the current folder, as with `python -m`."""
    here = str(Path.cwd())  # by its full name: other processes are given the same path
    if here not in sys.path:
        sys.path.append(here)


def parse_options(pairs: Sequence[str] | None) -> dict[str, object]:
    """`name=value` pairs; values as in JSON, else as text."""
    options: dict[str, object] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise IcllError(f"--option {pair}: write name=value")
        try:
            options[name] = json.loads(value.lower() if value in ("True", "False") else value)
        except json.JSONDecodeError:
            options[name] = value
    return options


def refuse(option: str, **others: object) -> None:
    """Refuse options that would have no effect beside another."""
    for name, value in others.items():
        if value is not None:
            raise IcllError(f"--{name} has no effect with {option}: leave one of them out")


def profile_of(name: str | None, **ranges: Range | None) -> Profile:
    """A named profile, with the ranges given in its place."""
    from ..languages.profile import get_profile

    return replace(get_profile(name or "paper"), **{key: value for key, value in ranges.items() if value is not None})


def open_problems(
    path: Path | None,
    split: Split | None,
    task: Task | None,
    profile: str | None,
    seed: int | None,
    predictors: Sequence[str] = (),
) -> Problems:
    """A set from a folder, from a file, or made on the spot: as asked for, else what runs among the predictors were trained
    for."""
    from ..tasks import associative_recall, load, regbench
    from ..tasks.problems import split_path

    if path is not None:
        if not path.exists():
            raise IcllError(f"{path} does not exist: give a folder that `icll data make` wrote, or one of its files")
        refuse(str(path), task=task, profile=profile, seed=seed)
        if path.is_dir():
            return load(split_path(path, split or "test"))
        refuse(f"the file {path}", split=split)
        return load(path)
    if task is None and profile is None and seed is None and (own := _data_of_runs(predictors)) is not None:
        return getattr(own.load(), split or "test")
    if task == "recall":
        refuse("--task recall", profile=profile)
        made: Splits = associative_recall(seed=seed or 0)
    else:
        made = regbench(profile=profile or "paper", seed=seed or 0)
    return getattr(made, split or "test")


def _data_of_runs(predictors: Sequence[str]) -> DataConfig | None:
    """What the runs among the predictors were trained for; None if there is no run."""
    from ..scoring import is_run
    from ..training import change, problem_data, read_config

    found: dict[str, tuple[str, DataConfig]] = {}
    for run in filter(is_run, predictors):
        data = change(
            problem_data(read_config(Path(run)), Path(run)), train=1, relabel=False
        )  # test sets do not depend on them
        found[str(data)] = run, data
    if len(found) > 1:
        (one, _), (two, _), *_ = found.values()
        raise IcllError(f"{one} and {two} were trained on different data: choose with --profile, --task, --seed or --data")
    return next((data for _, data in found.values()), None)


def read_automata(path: Path) -> list[Automaton]:
    from ..languages import Automaton

    try:
        blocks = [block for block in re.split(r"\n\s*\n", path.read_text("utf-8")) if block.strip()]
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


def draw_curves(root: Path) -> None:
    """curves.png in every finished run's folder below `root`, where it is not yet."""
    from ..report import draw_training, save_figure
    from ..training import find_runs

    for run in find_runs(root):
        if run.result is not None and run.rows and not (run.folder / "curves.png").exists():
            save_figure(draw_training(run.rows), run.folder / "curves.png")


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns by blanks: as easy to read as to cut."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        cells = [cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))]
        print("  ".join(cells).rstrip())


def named(text: str) -> tuple[str | None, str]:
    """The name in NAME=PREDICTOR, if there is one, and the predictor."""
    name, equals, spec = text.partition("=")
    return (None, text) if not equals or "/" in name else (name, spec)  # a path may hold the sign, a name no slash
