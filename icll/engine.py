"""Spreading independent pieces of work over processes of this machine, or over a Ray cluster.

A piece is lost only if it fails itself: a worker that is killed costs its piece another try, and pieces that are kept in a
folder are not done again when the work was stopped.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import IcllError, unknown, whole

ENGINES = ("local", "ray")
TRIES = 3

Progress = Callable[[int, int], object]
Finished = Callable[[int, Any], object]  # number and result of a piece


@dataclass(frozen=True)
class Kept:
    """Where finished pieces lie until all of them are: a folder for this work cut into these pieces, and no other."""

    folder: Path
    read: Callable[[Path], Any]  # None if there is none, or it cannot be read
    write: Callable[[Any, Path], object]

    def path(self, number: int) -> Path:
        return self.folder / f"{number}.safetensors"


def run_pieces(
    work: Callable[[Any], Any],
    pieces: Sequence[Any],
    *,
    engine: str = "local",
    jobs: int | None = None,
    address: str | None = None,
    progress: Progress = lambda done, total: None,
    kept: Kept | None = None,
) -> list[Any]:
    """[work(p) for p in pieces], in that order. `jobs` is the number of processes (default: one for each core)."""
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if address is not None and engine != "ray":
        raise IcllError("--address is for --engine ray: add it, or leave the address out")
    jobs = whole("the number of jobs", jobs or os.cpu_count() or 1, 1, 10_000)
    results: dict[int, Any] = {}

    def finished(number: int, result: Any) -> None:
        if kept is not None:
            kept.write(result, kept.path(number))
        results[number] = result
        progress(len(results), len(pieces))

    if kept is not None:
        results |= {i: found for i in range(len(pieces)) if (found := kept.read(kept.path(i))) is not None}
    todo = {i: piece for i, piece in enumerate(pieces) if i not in results}
    if engine == "ray":
        _run_on_ray(work, todo, address, finished)
    elif jobs == 1 or len(todo) <= 1:
        for i, piece in todo.items():
            finished(i, work(piece))
    else:
        _run_in_processes(work, todo, min(jobs, len(todo)), finished)
    return [results[i] for i in range(len(pieces))]


def _run_in_processes(work: Callable[[Any], Any], pieces: dict[int, Any], jobs: int, finished: Finished) -> None:
    left = dict(pieces)
    deaths = 0  # pools that broke since a piece was last finished
    while left:
        before = len(left)
        # spawn: a fork of a process with running threads may hang
        with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            with _deaf_to_interrupts():  # processes are started here: Ctrl-C is for this one, which ends them
                waiting: dict[Future[Any], int] = {pool.submit(work, piece): i for i, piece in left.items()}
            try:
                while waiting:
                    done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                    for future in done:
                        finished(waiting[future], future.result())
                        del left[waiting.pop(future)]
            except BrokenProcessPool:
                pass  # a worker was killed: what is missing goes to new ones
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        deaths = deaths + 1 if len(left) == before else 0
        if deaths == TRIES:
            raise IcllError(f"worker processes were killed {TRIES} times in a row: is there enough memory? try fewer --jobs")


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """What is started in the meantime inherits it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _run_on_ray(work: Callable[[Any], Any], pieces: dict[int, Any], address: str | None, finished: Finished) -> None:
    with connected_ray(address) as ray:

        def piece_of_work(piece: Any) -> Any:  # ray takes functions alone, `work` may be a partial one
            return work(piece)

        remote = ray.remote(max_retries=TRIES)(piece_of_work)
        waiting = {remote.remote(piece): i for i, piece in pieces.items()}
        while waiting:
            (done,), _ = ray.wait(list(waiting))
            finished(waiting.pop(done), ray.get(done))


@contextmanager
def connected_ray(address: str | None) -> Iterator[Any]:
    """The module ray, connected to a cluster; one that is connected already is left so."""
    try:
        import ray
    except ImportError:
        raise IcllError("--engine ray needs the package ray: pip install 'ray[tune]'") from None
    started = not ray.is_initialized()
    if started:
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
        except ConnectionError as error:
            raise IcllError(f"no Ray cluster at {address}: {error}") from None
    try:
        yield ray
    finally:
        if started:
            ray.shutdown()
