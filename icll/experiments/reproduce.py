"""Doing what an experiment needs: say how long it takes, train what is missing, score, analyse. Safe to stop and ask again."""

from __future__ import annotations

import heapq
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from ..errors import IcllError, whole
from ..files import read_json, replacing
from ..model import ModelConfig, model_of
from ..scoring import default_cache, score
from ..tasks import regbench
from ..training import RunConfig, find_runs, read_result
from ..training.optimize import make_optimizers
from ..training.runs import METRICS
from ..training.search import Outcome, run_all
from ..training.source import SHORT
from .catalogue import Analysis, Plan
from .results import LENGTH, TEXT, Known, by_problem, on_text, packed, read_folder, text_table, write_details

SAMPLE = 8  # problems in a measured step
LARGE = 5e7  # parameters: a step of such a model is not measured, it takes minutes here
HELD_OUT = 500

Bar = Callable[[str], AbstractContextManager[Callable[[int, int], object]]]  # as icll.progress.progress_bar


def no_bar(description: str) -> AbstractContextManager[Callable[[int, int], object]]:
    return nullcontext(lambda done, total: None)


@dataclass(frozen=True)
class Estimate:
    """Seconds on this machine: a training step and a prediction of each distinct model were measured, the rest is counting."""

    training: float
    learners: float
    runs: int  # still to train
    finished: int
    unmeasured: tuple[str, ...] = ()  # analyses and slow learners no time is known for

    @property
    def seconds(self) -> float:
        return self.training + self.learners

    def __str__(self) -> str:
        parts = [f"{self.runs} runs to train, {self.finished} finished before"]
        if self.seconds or not self.runs:
            parts.append(f"about {duration(self.seconds)} on this machine (a step of each model measured)")
        if self.unmeasured:
            parts.append(f"not counting {', '.join(self.unmeasured)}")
        return "; ".join(parts)


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 72 * 3600 else f"{seconds / 86400:.0f} days"


def missing(plan: Plan, root: Path) -> list[RunConfig]:
    """Runs of the plan that are not finished in this folder."""
    return [config for config in plan.runs if read_result(root / config.name) is None]


def estimate(
    plan: Plan, root: Path, *, jobs: int | None = None, progress: Callable[[int, int], object] = lambda done, total: None
) -> Estimate:
    if jobs is not None:
        whole("the number of jobs", jobs, 1)
    todo = missing(plan, root)
    cores = os.cpu_count() or 1
    at_once = min(jobs or cores, cores, max(1, len(todo)))
    large = {c.hash for c in todo if _parameters(c.model) > LARGE}
    distinct: dict[str, RunConfig] = {repr(c.model): c for c in todo if c.hash not in large}
    step, predict = {}, {}
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, cores // at_once))  # as each run will have
    try:
        for i, (key, config) in enumerate(distinct.items()):
            step[key], predict[key] = _measure(config.model, config)
            progress(i + 1, len(distinct))
    finally:
        torch.set_num_threads(before)
    free = [0.0] * at_once  # a heap: when each process will be; the next run goes to the first of them
    for config in todo:
        key = repr(config.model)
        if key in step:
            left = 1 - _epochs_done(config, root) / config.recipe.epochs
            training = left * step[key] * _problems(config)
            scoring = predict[key] * HELD_OUT * (left * config.recipe.epochs + 2)
            heapq.heapreplace(free, free[0] + (training + scoring) / SAMPLE)
    known = sorted((e for e in packed().entries if e.learner), key=lambda e: e.n_problems)  # the last counts: of most problems
    per_problem = {e.learner: (e.seconds or 0) / e.n_problems for e in known}
    learners = [spec for spec in plan.learners if not _learner_file(root, spec, plan.problems).exists()]
    slow = [spec for spec in learners if spec not in per_problem]
    slow += [f"{len(large)} runs of more than {LARGE / 1e6:.0f}M parameters"] if large else []
    waiting = [a.name for a in plan.analyses if not _analysed(a, root)]
    return Estimate(
        max(free), sum(per_problem.get(spec, 0.0) * plan.problems for spec in learners) / cores, len(todo),
        len(plan.runs) - len(todo), (*slow, *waiting),
    )  # fmt: skip


def _problems(config: RunConfig) -> float:
    """How many problems, or as much text, a run reads."""
    data: Any = config.data
    if on_text(config):
        return data.tokens / LENGTH
    return data.train * config.recipe.epochs * (1 - config.recipe.short * (1 - SHORT / LENGTH))


def _parameters(config: ModelConfig) -> int:
    try:
        with torch.device("meta"):
            return model_of(config).n_parameters()
    except IcllError:  # a mixer of one's own that needs real numbers to be made
        return model_of(config).n_parameters()


def _measure(model_config: ModelConfig, config: RunConfig) -> tuple[float, float]:
    """Seconds of a training step, and of a prediction, on SAMPLE problems of the usual length."""
    model = model_of(model_config, 0)
    optimizers = make_optimizers(model, config.recipe)
    tokens = torch.randint(1, model_config.vocab_size, (SAMPLE, LENGTH), generator=torch.Generator().manual_seed(0))
    steps = []
    for i in range(4):
        begin = time.perf_counter()
        F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if i:  # in the first one kernels are compiled
            steps.append(time.perf_counter() - begin)
        if sum(steps) > 4:  # a large model need not be measured as often
            break
    model.predict(tokens[:, :2])
    begin = time.perf_counter()
    model.predict(tokens)
    return min(steps), time.perf_counter() - begin


def carry_out(
    plan: Plan,
    root: Path,
    *,
    engine: str = "local",
    jobs: int | None = None,
    address: str | None = None,
    bar: Bar = no_bar,
) -> list[Outcome]:
    """Train, score and analyse what is missing, all below `root`; returns the runs that failed."""
    root.mkdir(parents=True, exist_ok=True)
    todo = missing(plan, root)
    failed: list[Outcome] = []
    if todo:
        with bar("training, in epochs") as progress, _epochs_shown(todo, root, progress):
            outcomes = run_all(todo, root, engine=engine, jobs=jobs, address=address)
        failed = [o for o in outcomes if o.error is not None]
    with bar("scores of each problem") as progress:
        for i, config in enumerate(plan.runs):
            if read_result(root / config.name) is not None:
                write_details(root / config.name, config)
            progress(i + 1, len(plan.runs))
    for spec in plan.learners:
        with bar(spec) as progress:
            score_learner(spec, plan.problems, root, engine=engine, jobs=jobs, address=address, progress=progress)
    for analysis in plan.analyses:
        if not any(o.config.hash == config.hash for o in failed for _, config in analysis.runs):
            with bar(analysis.name) as progress:
                analyse(analysis, root, progress)
    return failed


@contextmanager
def _epochs_shown(configs: Sequence[RunConfig], root: Path, progress: Callable[[int, int], object]) -> Iterator[None]:
    """Tell how many epochs are done, from what the runs write down; they are trained in other processes."""
    total = sum(config.recipe.epochs for config in configs)
    over = threading.Event()

    def done() -> int:
        return sum(_epochs_done(config, root) for config in configs)

    def look() -> None:
        while not over.wait(1.0):
            progress(done(), total)

    looker = threading.Thread(target=look, daemon=True)
    looker.start()
    try:
        yield
    finally:
        over.set()
        looker.join()
        progress(done(), total)


def _epochs_done(config: RunConfig, root: Path) -> int:
    metrics = root / config.name / METRICS
    if read_result(root / config.name) is not None:
        return config.recipe.epochs
    return len(metrics.read_text("utf-8").splitlines()) if metrics.exists() else 0


def _learner_file(root: Path, spec: str, problems: int) -> Path:
    return root / "learners" / f"{spec.replace(':', '-')}-{problems}.json"


def score_learner(spec: str, problems: int, root: Path, **options: Any) -> None:
    """Score a learner on the first test problems of the profile `repo`, once."""
    path = _learner_file(root, spec, problems)
    if path.exists():
        return
    test = regbench(train=1, profile="repo", seed=0).test[:problems]
    scores = score(spec, test, cache=default_cache(), **options)
    plain = {**scores.as_dict(), "name": spec, "by_problem": by_problem(scores)}
    with replacing(path) as (temporary,):
        document = {"data": str(test.origin), "fingerprint": test.fingerprint, "scores": [plain]}
        temporary.write_text(json.dumps(document) + "\n", "utf-8")


def _analysis_file(root: Path, analysis: Analysis) -> Path:
    return root / "analysis" / f"{analysis.name}.json"


def _key(analysis: Analysis) -> str:
    return json.dumps([analysis.function, [[n, c.hash] for n, c in analysis.runs], analysis.options], default=list)


def _analysed(analysis: Analysis, root: Path) -> bool:
    """Of these very runs: the file of an analysis is replaced when it is asked for on others."""
    path = _analysis_file(root, analysis)
    return path.exists() and read_json(path).get("key") == _key(analysis)


def analyse(analysis: Analysis, root: Path, progress: Callable[[int, int], object] = lambda done, total: None) -> None:
    """Run an analysis on its runs' folders, once for the same runs and options."""
    from . import analyses

    if _analysed(analysis, root):
        return
    folders = {name: root / config.name for name, config in analysis.runs}
    table = getattr(analyses, analysis.function)(folders, progress=progress, **dict(analysis.options))
    with replacing(_analysis_file(root, analysis)) as (temporary,):
        temporary.write_text(json.dumps({"key": _key(analysis), **table}) + "\n", "utf-8")


def found_for(plan: Plan, root: Path) -> Known:
    """What a folder has of a plan's own runs, learners and analyses."""
    hashes = {c.hash for c in plan.runs}
    found = read_folder(root).only(hashes, plan.learners, [a.name for a in plan.analyses if _analysed(a, root)])
    text = text_table([run for run in find_runs(root) if run.config.hash in hashes])
    return found + Known((), {TEXT: text} if text else {})


def check_outcomes(failed: Sequence[Outcome]) -> None:
    if failed:
        first = failed[0]
        raise IcllError(
            f"{len(failed)} runs failed; the first is {first.folder}: {first.error}; the same command tries again and goes on"
        )
