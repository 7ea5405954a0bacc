"""Make, show and export data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from ..errors import IcllError
from .common import (
    JSON,
    ProfileName,
    Range,
    Seed,
    Source,
    SplitOf,
    TaskName,
    app,
    open_problems,
    print_json,
    profile_of,
    read_automata,
    refuse,
)

data = App(name="data", help="Make, show and export data sets.")
app.command(data)


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
    from ..progress import progress_bar
    from ..tasks import associative_recall, load, problems_of, regbench
    from ..tasks.problems import save_all, split_path

    ranges = {"states": states, "alphabet": alphabet, "edges": edges, "length": length, "strings": strings}
    number, size = seed or 0, 2500 if train is None else train
    if automata is not None:
        refuse("--automata", task=task, train=train)
        sets = {"test": problems_of(read_automata(automata), profile_of(profile, **ranges), number)}
        if any(split_path(out, other).exists() for other in ("train", "valid")):
            raise IcllError(f"{out} holds a data set with other splits: choose another --out")
    elif task == "recall":
        refuse("--task recall", profile=profile, **ranges)
        sets = dict(associative_recall(size, number).items())
    else:
        with progress_bar("languages") as progress:
            sets = dict(regbench(size, profile_of(profile, **ranges), number, progress=progress).items())
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
        print_json(report)
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
        from ..report import picture_format

        picture_format(picture)  # before anything is printed
    problems = open_problems(path, split, task, profile, seed)
    if not 0 <= problem < len(problems):
        raise IcllError(f"problem {problem} does not exist: there are 0..{len(problems) - 1}")
    one = problems[problem]
    automaton = one.automata[0]
    if json_:
        from ..tasks.export import records

        print_json(next(records(one)))
    else:
        strings = one.strings(0)
        print(f"problem {problem} of {problems.origin}: {len(strings)} strings, {len(one.flat)} tokens\n")
        print("\n".join(strings))
        print(f"\nautomaton: {automaton.n_states} states, start 0; the next state for each symbol, '.' where it is illegal\n")
        print(automaton.table())
    if picture is None and draw and not json_:
        picture = Path(f"automaton-{problems.origin.split}-{problem}.svg")
    if picture is not None:
        from ..report import draw_automaton, save_figure

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
    from ..progress import progress_bar
    from ..tasks import save_datasets, to_jsonl

    problems = open_problems(path, split, None, None, None)
    if out.exists():
        raise IcllError(f"{out} exists: choose another --out or remove it")
    if to == "datasets":
        save_datasets(problems, out, truth=truth)
    else:
        with progress_bar("problems") as progress:
            to_jsonl(problems, out, truth=truth, progress=lambda done: progress(done, len(problems)))
    print(f"{out}: {len(problems):,} problems")
