"""What a model has learned: attention maps, heads, probes, distances."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ..errors import IcllError
from .common import (
    JSON,
    ProfileName,
    Seed,
    Source,
    Split,
    SplitOf,
    Task,
    TaskName,
    allow_local_plugins,
    app,
    interval,
    named,
    numbers,
    open_problems,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from ..model import Model
    from ..tasks.problems import Problems

Run = Annotated[Path, Parameter(help="A run's folder.")]
RunSource = Annotated[Path | None, Parameter(help="A data folder or file; without it, the data the run was trained for.")]
Picture = Annotated[Path | None, Parameter(help="Draw the result to this file (.svg, .png or .pdf).")]


def open_run(
    run: Path, data: Path | None, split: Split | None, profile: str | None, seed: int | None
) -> tuple[Model, Problems]:  # fmt: skip
    """A run's model, and problems for it: of its own task, profile and seed unless others are asked for."""
    from ..training import change, load_run, problem_data, read_config

    allow_local_plugins()
    own = problem_data(read_config(run), run)
    model = load_run(run)
    if data is None and profile is None and seed is None:
        return model, getattr(change(own, train=1).load(), split or "test")  # valid and test do not depend on train
    task: Task | None = None if data is not None else "recall" if own.task == "recall" else "regbench"
    problems = open_problems(data, split, task, profile, seed)
    if problems.vocab_size != model.config.vocab_size:
        raise IcllError(f"{run} was trained on {model.config.vocab_size} token ids, these problems have {problems.vocab_size}")
    return model, problems


def some(problems: Problems, count: int) -> Problems:
    if not 1 <= count <= len(problems):
        raise IcllError(f"--problems must be 1..{len(problems)} for this set, not {count}")
    return problems[:count]


@app.command
def attention(
    run: Run,
    /,
    *,
    problem: int = 0,
    positions: str = "50:80",
    layers: str | None = None,
    heads: str | None = None,
    channel: int | None = None,
    data: RunSource = None,
    split: SplitOf = None,
    profile: ProfileName = None,
    seed: Seed = None,
    picture: Path | None = None,
    page: Path | None = None,
    json_: JSON = False,
) -> None:
    """Draw whom each position attends to, layer by layer: a picture, and a page to explore in a browser.

    For models without softmax attention, the exact matrix of weights each layer applies to this input; where it differs from
    channel to channel, their mean, or the one of --channel.

    Example: `icll attention runs/transformer --positions 50:80 --picture attention.pdf`

    Parameters
    ----------
    problem
        Which of the problems, from 0.
    positions
        From the first to before the last, counted from 0.
    layers
        Only these, such as 2,3,5, counted from 1.
    heads
        Only these of each layer, counted from 1.
    channel
        For models whose matrices differ by channel: this one, counted from 1, in place of their mean.
    picture
        Where to draw (.svg, .png or .pdf); default: attention.png in the run's folder.
    page
        Where to write the page; default: attention.html in the run's folder.
    """
    from ..analysis import attention_maps
    from ..report import draw_attention, picture_format, save_figure, write_attention_page

    first, colon, last = positions.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal()):
        raise IcllError(f"--positions {positions}: write two numbers, such as 50:80")
    picture, page = picture or run / "attention.png", page or run / "attention.html"
    picture_format(picture)  # what is wrong with the name is said first
    model, problems = open_run(run, data, split, profile, seed)
    wanted = numbers("--layers", layers) or None, numbers("--heads", heads) or None
    maps = attention_maps(model, problems, problem, int(first), int(last), *wanted)
    if channel is not None and all(len(m.channels) == 1 for m in maps.maps):
        raise IcllError(f"--channel {channel}: a head of {model.name} has one matrix, not one for each channel: leave it out")
    save_figure(draw_attention(maps, channel), picture)
    write_attention_page(maps, page)
    if json_:
        shown = [
            {
                "layer": m.head.layer, "head": m.head.number, "mixer": m.head.label, "channels": len(m.channels),
                "weights": m.channel(channel if len(m.channels) > 1 else None).tolist(),
            }
            for m in maps.maps
        ]  # fmt: skip
        places = {"picture": str(picture), "page": str(page), "problem": problem, "start": maps.start}
        print_json({**places, "tokens": maps.tokens, "states": maps.states, "channel": channel, "maps": shown})
        return
    print(f"{maps.model}, problem {problem} of {problems.origin}: {''.join(maps.tokens[maps.start :])}")
    print(f"picture: {picture}\npage: {page}")


@app.command(name="heads")
def heads_command(
    run: Run,
    /,
    *,
    problems: int | None = None,
    first: int = 200,
    orders: str = "1,2,3",
    threshold: float = 0.5,
    no_ablation: bool = False,
    data: RunSource = None,
    split: SplitOf = None,
    profile: ProfileName = None,
    seed: Seed = None,
    picture: Picture = None,
    json_: JSON = False,
) -> None:
    """Name the heads of a model: n-gram heads, previous-token heads, and what the loss is without each of them.

    A score is 1 - TVD between a head's row and the row of a rule: n=2 attends to what followed the last 2 tokens before (as
    `--ngram-heads 2` does), `previous` to the token before, `state` to what followed the automaton's state before.

    Example: `icll heads runs/transformer --problems 100`

    Parameters
    ----------
    problems
        How many, from the first; default: 50, or all there are.
    first
        Tokens of each problem.
    orders
        Of the n-gram rules to tell apart.
    threshold
        The least score for a head to be named after a rule.
    no_ablation
        Leave out the loss without each head.
    """
    from ..analysis import score_heads
    from ..progress import progress_bar

    model, chosen = open_run(run, data, split, profile, seed)
    chosen = some(chosen, min(50, len(chosen)) if problems is None else problems).cut(first)
    if not 0 < threshold <= 1:
        raise IcllError(f"--threshold must be above 0 and at most 1, not {threshold}")
    if not numbers("--orders", orders):
        raise IcllError("--orders is empty: give some, such as 1,2,3")
    with progress_bar("heads") as progress:
        table = score_heads(
            model, chosen, orders=numbers("--orders", orders), ablate=not no_ablation, threshold=threshold, progress=progress
        )
    if picture is not None:
        from ..report import draw_heads, save_figure

        save_figure(draw_heads(table), picture)
    if json_:
        print_json({"data": str(chosen.origin), "problems": len(chosen), "first": first, **table.as_dict()})
        return
    rules = list(table.chance)
    rows = []
    for one in table.heads:
        rise = "-" if one.loss is None else f"{one.loss - table.loss:+.3f}"
        rows.append(
            [one.head.name, one.head.label, *(f"{one.scores[r]:.2f}" for r in rules), rise, one.named(threshold) or "-"]
        )
    rows.append(["chance", "", *(f"{table.chance[r]:.2f}" for r in rules), "", ""])
    apart = table.positions[rules[0]]
    print(
        f"{chosen.origin}: {len(chosen)} problems, first {first} tokens; n-gram and state rules differ at {apart:,} positions"
    )
    print_table(["head", "mixer", *rules, "loss rise", "follows"], rows)
    grouped = [one for one in table.heads if one.channels]
    if grouped:
        print("\nbest single channel:")
        rows = [[one.head.name, *(f"{score:.2f} ({c})" for c, score in one.channels.values())] for one in grouped]
        print_table(["head", *rules], rows)
    print(f"\nloss {table.loss:.3f}; circuit: {table.sentence()}")


@app.command
def compare(
    predictors: Annotated[list[str], Parameter(consume_multiple=True)],
    /,
    *,
    first: int = 100,
    problems: int | None = None,
    data: Source = None,
    split: SplitOf = None,
    task: TaskName = None,
    profile: ProfileName = None,
    seed: Seed = None,
    jobs: int | None = None,
    picture: Picture = None,
    json_: JSON = False,
) -> None:
    """How far predictors are from each other: the mean TVD of each pair over the first tokens of every problem.

    Example: `icll compare TF=runs/transformer LNWr=runs/lnw_r ngram:2 ngram:3 oracle --profile repo --picture heat.png`

    Parameters
    ----------
    predictors
        As of `icll score`: runs, learners, `oracle` for the truth; NAME=PREDICTOR gives one a name of its own.
    first
        Tokens of each problem.
    problems
        How many problems, from the first; default: all.
    jobs
        Processes for slow learners; default: one for each core.
    """
    from ..analysis import distances
    from ..progress import progress_bar
    from ..scoring import default_cache

    allow_local_plugins()
    specs: dict[str, str] = {}
    for text in predictors:
        given, spec = named(text)
        name = given or (Path(spec).name if Path(spec).is_dir() else spec)
        if name in specs:
            raise IcllError(f"two predictors are called {name}: name them apart, as in A={spec}")
        specs[name] = spec
    chosen = open_problems(data, split, task, profile, seed, list(specs.values()))
    if problems is not None:
        chosen = some(chosen, problems)
    with progress_bar("compare") as progress:
        found = distances(specs, chosen, first=first, jobs=jobs, cache=default_cache(), progress=progress)
    if picture is not None:
        from ..report import draw_distances, save_figure

        save_figure(draw_distances(found, f"first {first} tokens of {len(chosen)} problems"), picture)
    if json_:
        print_json(
            {"data": str(chosen.origin), "problems": len(chosen), "first": first, "predictors": specs, **found.as_dict()}
        )
        return
    print(f"{chosen.origin}: mean TVD over {found.tokens:,} tokens, the first {first} of {len(chosen)} problems")
    rows = [[name, *(f"{value:.3f}" for value in row)] for name, row in zip(found.names, found.mean, strict=True)]
    print_table(["", *found.names], rows)
    if picture is not None:
        print(f"picture: {picture}")


@app.command
def probe(
    runs: Annotated[list[Path], Parameter(consume_multiple=True)],
    /,
    *,
    epochs: int = 150,
    problems: int = 2500,
    seed: int = 0,
    no_controls: bool = False,
    force: bool = False,
    picture: Picture = None,
    layers_picture: Path | None = None,
    json_: JSON = False,
) -> None:
    """What can be read from hidden states: counts, frequencies and existence of n-grams, and whether two states are equal.

    MLP probes as in the paper's appendix E, one for each layer and target, trained on hidden states of the run's training
    problems; the layer is chosen on its validation problems, the scores are of its test problems. Controls: the same model
    before training, and shuffled targets. The result is kept in the run's folder (probes.json).

    Example: `icll probe runs/transformer runs/retnet --picture probes.png`

    Parameters
    ----------
    runs
        Folders of one or several runs.
    epochs
        Of the probes; the paper had 1,000.
    problems
        Training problems the probes learn from, at most.
    seed
        Of the probes and of what they are asked.
    no_controls
        Leave out the controls, which take two thirds of the time.
    force
        Train the probes again, even if their result is kept.
    layers_picture
        Draw the scores after every layer of the first run to this file.
    """
    from ..analysis import ProbeConfig, probe_run
    from ..analysis.probes import CONTROLS, TARGETS, is_error
    from ..progress import progress_bar
    from ..report import draw_probe_layers, draw_probes, picture_format, save_figure
    from ..training import load_run

    allow_local_plugins()
    for path in filter(None, (picture, layers_picture)):
        picture_format(path)
    for run in runs:
        load_run(run)  # what is wrong with one is said before the first is probed
    found = []
    config = ProbeConfig(epochs=epochs, problems=problems, seed=seed)
    for run in runs:
        with progress_bar(f"probe {run.name}") as progress:
            found.append(probe_run(run, config, controls=not no_controls, force=force, progress=progress))
    if picture is not None:
        save_figure(draw_probes(found), picture)
    if layers_picture is not None:
        save_figure(draw_probe_layers(found[0]), layers_picture)
    if json_:
        print_json([one.as_dict() for one in found])
        return
    for one in found:
        print(f"{one.run}: probes of {config.epochs} epochs, on test at the layer chosen on validation ({one.seconds:.0f} s)")
        rows = []
        for name in TARGETS:
            score = interval(dict(zip(("mean", "low", "high"), one.result.best[name], strict=True)))
            others = [f"{one.controls[c].best[name][0]:.3f}" if c in one.controls else "-" for c in CONTROLS]
            measure = "relative error" if is_error(name) else "accuracy"
            rows.append([name, measure, str(one.result.layer[name]), score, *others, f"{one.constant[name]:.3f}"])
        print_table(["target", "measure", "layer", "score", "before training", "shuffled", "constant"], rows)
