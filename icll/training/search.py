"""Many runs at once: a list of them, or a budgeted search among them (ASHA), in processes of this machine or on Ray Tune.

A trial is a run like any other, in a folder of its own. There is no other state: what was stopped goes on from the folders.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from ..engine import ENGINES, Progress, connected_ray
from ..errors import IcllError, unknown, whole
from .config import RunConfig
from .grid import Sweep
from .loop import Machine
from .runs import METRICS, check_folder, read_result, train

TRIES = 3  # of a trial that fails or is killed: each goes on from its last checkpoint

BAD_INPUT = 2  # the exit code of a process whose settings are wrong


@dataclass(frozen=True)
class Outcome:
    """What became of a trial: a result, an error, or neither if a search stopped it on the way."""

    config: RunConfig
    folder: Path
    result: dict[str, Any] | None = None
    error: str | None = None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each epoch trained."""
        path = self.folder / METRICS
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []

    @property
    def loss(self) -> float:
        """The lowest validation loss so far."""
        return min((row["valid_loss"] for row in self.rows), default=math.inf)


@dataclass(frozen=True)
class Workers:
    """Where trials run. `jobs` of them at a time share the cores, so that no thread waits for another."""

    engine: str = "local"
    jobs: int | None = None  # default: one for each core
    address: str | None = None  # of a Ray cluster
    tries: int = TRIES

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise unknown("engine", self.engine, ENGINES)
        if self.address is not None and self.engine != "ray":
            raise IcllError("--address is for --engine ray: add it, or leave the address out")
        if self.jobs is not None:
            whole("the number of jobs", self.jobs, 1, 10_000)

    @property
    def at_once(self) -> int:
        return self.jobs or os.cpu_count() or 1

    @property
    def threads(self) -> int:
        """Of each trial."""
        return max(1, (os.cpu_count() or 1) // self.at_once)


@dataclass(frozen=True)
class Asha:
    """Asynchronous successive halving: a trial is trained to the first rung, and on to the next if it is among the best
    1/eta of all that have reached its rung."""

    trials: int = 20
    first: int = 1  # epochs of the first rung
    eta: int = 3
    seed: int = 0  # of the choice of trials

    def __post_init__(self) -> None:
        whole("trials", self.trials, 1)
        whole("the epochs of the first rung", self.first, 1)
        whole("eta", self.eta, 2)

    def rungs(self, epochs: int) -> list[int]:
        """Epochs at which a trial waits, the last being its end."""
        found = [self.first]
        while found[-1] * self.eta < epochs:
            found.append(found[-1] * self.eta)
        return [r for r in found if r < epochs] + [epochs]

    def draw(self, configs: Sequence[RunConfig]) -> list[RunConfig]:
        return random.Random(self.seed).sample(list(configs), min(self.trials, len(configs)))


def run_all(
    configs: Sequence[RunConfig],
    root: Path,
    *,
    engine: str = "local",
    jobs: int | None = None,
    address: str | None = None,
    tries: int = TRIES,
    asha: Asha | None = None,
    progress: Progress = lambda done, total: None,
) -> list[Outcome]:
    """Train every run in `root / config.name`, or with `asha` only the promising ones to their end, in the order given.

    Finished runs are taken as they are, unfinished ones go on. A trial that fails or whose process is killed is tried again;
    after `tries` of them its error is in its outcome, and the others go on.
    """
    workers = Workers(engine, jobs, address, whole("--tries", tries, 1))
    if engine == "local":  # of fewer trials each has more threads
        workers = replace(workers, jobs=max(1, min(workers.at_once, len(configs))))
    trials = [_Trial(config, root / config.name) for config in configs]
    for trial in trials:
        check_folder(trial.config, trial.folder)
    if engine == "ray":
        _on_ray(trials, workers, asha, progress)
    else:
        _in_processes(trials, workers, asha, progress)
    return [Outcome(t.config, t.folder, read_result(t.folder), t.error) for t in trials]


def search(
    sweep: Sweep, root: Path, *, asha: Asha | None = None, progress: Progress = lambda done, total: None, **workers: Any
) -> list[Outcome]:
    """The protocol of appendix B: the grid, then wider models as long as the widest is the best. Best first: by validation
    loss, those that were trained to their end before those that were not."""
    configs, found = sweep.first(), list[Outcome]()
    if asha is not None:
        configs = asha.draw(configs)
    while configs:
        found += run_all(configs, root, asha=asha, progress=progress, **workers)
        found.sort(key=lambda o: (o.result is None, o.loss))
        tried = {o.config.hash for o in found}
        configs = [] if found[0].result is None else sweep.next(found[0].config)
        if any(c.hash in tried for c in configs):  # that width has had its turn
            configs = []
        if asha is not None:
            configs = asha.draw(configs)
    return found


@dataclass
class _Trial:
    config: RunConfig
    folder: Path
    error: str | None = None
    failures: int = 0
    epochs: int = field(init=False)  # trained

    def __post_init__(self) -> None:
        self.read()

    def read(self) -> None:
        rows = Outcome(self.config, self.folder).rows
        self.finished = read_result(self.folder) is not None
        self.epochs = self.config.recipe.epochs if self.finished else len(rows)
        self.losses = [row["valid_loss"] for row in rows]

    def loss_at(self, epochs: int) -> float:
        return min(self.losses[:epochs], default=math.inf)


# --- local processes ---


def _in_processes(trials: list[_Trial], workers: Workers, asha: Asha | None, progress: Progress) -> None:
    """Every trial in a process of its own: whatever kills one leaves the others alone."""
    running: dict[Any, tuple[_Trial, Any, Connection]] = {}
    spawn = multiprocessing.get_context("spawn")  # a fork of a process with running threads may hang
    progress(0, len(trials))
    try:
        while True:
            busy = {id(trial) for trial, _, _ in running.values()}
            idle = [t for t in trials if id(t) not in busy and t.error is None and not t.finished]
            while len(running) < workers.at_once and (chosen := _next(trials, idle, asha, bool(running))) is not None:
                trial, until = chosen
                idle.remove(trial)
                mine, theirs = spawn.Pipe(duplex=False)
                job = spawn.Process(target=_train_here, args=(trial.config, trial.folder, until, workers.threads, theirs))
                with _threads(workers.threads):
                    job.start()
                theirs.close()
                running[job.sentinel] = (trial, job, mine)
            if not running:
                return
            for sentinel in wait(list(running)):
                trial, job, mine = running.pop(sentinel)
                job.join()
                trial.read()
                if job.exitcode != 0:
                    trial.failures += 1
                    try:
                        cause = mine.recv()
                    except EOFError:  # it had no time to say
                        cause = f"its process ended with code {job.exitcode}"
                    if trial.failures == workers.tries or job.exitcode == BAD_INPUT:  # which fails again
                        trial.error = cause
                    else:
                        warnings.warn(f"{trial.folder.name}: {cause}; it is tried again", stacklevel=3)
                progress(sum(t.finished or t.error is not None for t in trials), len(trials))
    finally:
        for _, job, _ in running.values():
            job.terminate()
            job.join()


def _next(trials: list[_Trial], idle: list[_Trial], asha: Asha | None, others_run: bool) -> tuple[_Trial, int] | None:
    """Which trial to train, and to which epoch."""
    if asha is None:
        return (idle[0], idle[0].config.recipe.epochs) if idle else None
    choices = []
    for trial in idle:
        rungs = asha.rungs(trial.config.recipe.epochs)
        level = sum(trial.epochs >= r for r in rungs)  # rungs it has reached
        if level and trial.epochs == rungs[level - 1]:
            reached = sorted(t.loss_at(trial.epochs) for t in trials if t.epochs >= trial.epochs)
            best = reached[: len(reached) // asha.eta]
            if not best or trial.loss_at(trial.epochs) > best[-1]:
                continue
        choices.append((-level, trial.loss_at(trial.epochs), trial, rungs[min(level, len(rungs) - 1)]))
    if choices:
        *_, trial, until = min(choices, key=lambda c: c[:2])
        return trial, until
    if idle and not others_run and not any(t.finished for t in trials):  # somebody has to reach the end
        trial = min(idle, key=lambda t: (-t.epochs, t.loss_at(t.epochs)))
        return trial, trial.config.recipe.epochs
    return None


def _train_here(config: RunConfig, folder: Path, until: int, threads: int, tell: Connection) -> None:
    """The whole life of a trial's process, which ends with the one that started it."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        train(config, folder, machine=Machine(threads=threads), until=until)
    except KeyboardInterrupt:
        os._exit(130)
    except BaseException as error:
        ours = isinstance(error, IcllError)
        tell.send(str(error) if ours else f"{type(error).__name__}: {error}")
        tell.close()
        os._exit(BAD_INPUT if ours else 1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # at any moment: checkpoints are whole or not there


@contextmanager
def _threads(n: int) -> Iterator[None]:
    """New processes start with so many threads in every library."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: str(n) for name in names})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# --- Ray Tune ---


def _on_ray(trials: list[_Trial], workers: Workers, asha: Asha | None, progress: Progress) -> None:
    """One Tune trial for each that is not finished. The folders must be on a disk that all nodes share."""
    waiting = [t for t in trials if not t.finished]
    progress(len(trials) - len(waiting), len(trials))
    if not waiting:
        return
    with connected_ray(workers.address):
        from ray import tune
        from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

        longest = max(t.config.recipe.epochs for t in waiting)
        scheduler: Any = FIFOScheduler()
        if asha is not None:
            scheduler = ASHAScheduler("epoch", max_t=longest, grace_period=min(asha.first, longest), reduction_factor=asha.eta)
        root = waiting[0].folder.parent.absolute()
        root.mkdir(parents=True, exist_ok=True)
        threads = workers.threads if workers.jobs else 1
        jobs = [(t.config, t.folder.absolute(), threads) for t in waiting]
        done = _counting(progress, len(trials) - len(waiting), len(trials))
        tuner = tune.Tuner(
            tune.with_resources(tune.with_parameters(_train_on_ray, jobs=jobs), {"cpu": float(threads)}),
            param_space={"number": tune.grid_search(list(range(len(jobs))))},
            tune_config=tune.TuneConfig("min", "loss", scheduler=scheduler, max_concurrent_trials=workers.jobs or 0),
            run_config=tune.RunConfig(
                name="tune", storage_path=str(root / ".ray"), verbose=0, callbacks=[done],
                failure_config=tune.FailureConfig(max_failures=workers.tries - 1),
            ),
        )  # fmt: skip
        results = tuner.fit()
    for i in range(len(results)):
        trial, error = waiting[results[i].config["number"]], results[i].error  # type: ignore[index]
        trial.error = None if error is None else str(error).strip().splitlines()[-1]
    for trial in waiting:
        trial.read()


def _train_on_ray(parameters: dict[str, Any], jobs: list[tuple[RunConfig, Path, int]]) -> None:
    from ray import tune

    config, folder, threads = jobs[parameters["number"]]

    def watch(state: Any, row: dict[str, Any]) -> None:
        if "valid_loss" in row and row["epoch"] < config.recipe.epochs:
            tune.report({"epoch": row["epoch"], "loss": state.best})

    train(config, folder, machine=Machine(threads=threads), watch=watch)
    # Tune may end a trial at any report: the last comes when the result is written.
    tune.report({"epoch": config.recipe.epochs, "loss": Outcome(config, folder).loss})


def _counting(progress: Progress, before: int, total: int) -> Any:
    from ray.tune import Callback

    class Counting(Callback):
        def __init__(self) -> None:
            self.done = before

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            self.done += 1
            progress(self.done, total)

    return Counting()
