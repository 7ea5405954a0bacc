"""Score predictors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from ..errors import IcllError
from .common import (
    JSON,
    ProfileName,
    Seed,
    Source,
    SplitOf,
    TaskName,
    allow_local_plugins,
    app,
    named,
    open_problems,
    print_json,
    print_table,
)


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
        `ngram:N`, `baum-welch`, `bayes:PARTICLES`, `state-merging`, `uniform`, `oracle`, or the folder of a run;
        NAME=PREDICTOR gives one a name of its own.
    problems
        How many problems, from the first; default: all.
    picture
        Draw the scores against the strings read, to this file (.svg, .png or .pdf).
    engine
        Where slow predictors run: `local` processes, or a `ray` cluster (needs the extra of that name).
    jobs
        How many local processes; default: one for each core.
    address
        Of the Ray cluster; default: the one that runs on this machine, or a new one.
    cache
        Folder to keep scores in; default: icll/scores in the user's cache folder.
    no_cache
        Neither look for kept scores, nor keep these.
    """
    from ..progress import progress_bar
    from ..scoring import default_cache, open_predictor
    from ..scoring import score as score_one

    allow_local_plugins()

    names, specs = zip(*map(named, predictors), strict=True)
    chosen = open_problems(data, split, task, profile, seed, specs)
    if problems is not None:
        if not 1 <= problems <= len(chosen):
            raise IcllError(f"--problems must be 1..{len(chosen)} for this set, not {problems}")
        chosen = chosen[:problems]
    for spec in specs:
        open_predictor(spec, chosen)  # what is wrong with one is said before the first is scored
    folder = None if no_cache else cache or default_cache()
    scores = []
    for name, spec in zip(names, specs, strict=True):
        with progress_bar(name or spec) as progress:
            one = score_one(spec, chosen, cache=folder, engine=engine, jobs=jobs, address=address, progress=progress)
            scores.append(replace(one, name=name or one.name))
    if picture is not None:
        from ..report import draw_curves, save_figure

        labels = [name or label for name, label in zip(names, _labels(specs), strict=True)]
        save_figure(draw_curves([replace(s, name=label) for s, label in zip(scores, labels, strict=True)]), picture)
    if json_:
        print_json({"data": str(chosen.origin), "fingerprint": chosen.fingerprint, "scores": [s.as_dict() for s in scores]})
        return
    rows = []
    for s in scores:
        cells = [
            f"{getattr(s, m):.3f} [{s.ci[m][0]:.3f}, {s.ci[m][1]:.3f}]" for m in ("tvd", "accuracy", "cross_entropy", "kl")
        ]
        rows.append([s.name, *cells, f"{1000 * s.seconds / s.n_problems:.2f}"])
    print(f"{chosen.origin}: {len(chosen)} problems, {len(scores[0].tokens):,} scored tokens; 95 % intervals over problems")
    print_table(["predictor", "TVD", "accuracy", "cross-entropy", "KL", "ms/problem"], rows)
    if picture is not None:
        print(f"picture: {picture}")


def _labels(specs: Sequence[str]) -> list[str]:
    """What predictors are called in a legend: a run by its model, or by its folder where that says too little."""
    from ..experiments.results import label_of, learner_label
    from ..scoring import is_run
    from ..training import read_config

    names = [label_of(read_config(Path(spec))) if is_run(spec) else learner_label(spec) for spec in specs]
    return [name if names.count(name) == 1 else spec for name, spec in zip(names, specs, strict=True)]
