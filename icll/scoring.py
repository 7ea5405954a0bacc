"""Scores of named predictors: in pieces, over processes or a cluster, and kept for the next time they are asked for."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from . import __version__
from .engine import Kept, Progress, run_pieces
from .errors import IcllError
from .files import replacing
from .learners import make_predictor
from .metrics import Scores
from .predictors import Oracle, Predictor, evaluate
from .tasks.problems import Problems

QUICK = 5.0  # seconds: less work than this is not worth starting processes for
_PIECES = 64  # at least, however few processes: what a stopped work has finished is not done again
_PARTS = 8  # pieces for each process, so that all end at about the same time


def score(
    spec: str,
    problems: Problems,
    *,
    cache: Path | None = None,
    engine: str = "local",
    jobs: int | None = None,
    address: str | None = None,
    progress: Progress = lambda done, total: None,
) -> Scores:
    """Scores of the predictor called `spec`. `cache` is a folder to look in first, and to keep the scores in; those of a slow
    predictor piece by piece, so that it goes on where it was stopped."""
    predictor = open_predictor(spec, problems)
    path = None if cache is None else cache / f"{score_key(spec, problems)}.safetensors"
    if path is not None and (found := read_scores(path)) is not None:
        return replace(found, name=spec)
    lengths = np.diff(problems.offsets)
    scored = np.flatnonzero(lengths > 1)  # in a problem of one token there is nothing to predict
    expected = 0.0
    if not isinstance(predictor, Oracle) and len(scored):
        shortest = problems[int(scored[lengths[scored].argmin()])]
        predictor.predict(shortest.tokens)  # kernels compile here, off the clock
        begin = time.perf_counter()
        evaluate(predictor, shortest)
        expected = (time.perf_counter() - begin) * len(problems.flat) / len(shortest.flat)
    kept = None
    if engine == "local" and expected < QUICK:
        scores = evaluate(predictor, problems, name=spec, progress=progress)
    else:
        workers = jobs or os.cpu_count() or 1
        parts = np.array_split(scored, max(1, min(len(scored), max(_PIECES, workers * _PARTS))))
        if path is not None:
            kept = Kept(path.with_name(f"{path.stem}-{len(parts)}"), read_scores, write_scores)
        found_parts = run_pieces(
            partial(_score_piece, spec, jobs == 1), [problems[part] for part in parts],
            engine=engine, jobs=jobs, address=address, progress=progress, kept=kept,
        )  # fmt: skip
        scores = _join(spec, len(problems), found_parts, parts)
    if path is not None:
        write_scores(scores, path)
    if kept is not None:
        shutil.rmtree(kept.folder, ignore_errors=True)
    return scores


def open_predictor(spec: str, problems: Problems) -> Predictor:
    """By name, such as `ngram:3`, or the model of a run's folder."""
    if not is_run(spec):
        if Path(spec).is_dir():
            raise IcllError(f"{spec} is a folder, but not a run: it has no config.yaml; `icll runs` lists those there are")
        return make_predictor(spec, problems)
    from .training import load_run  # torch models take a second to import, which learners need not wait for

    model = load_run(spec)
    if model.config.vocab_size != problems.vocab_size:
        raise IcllError(f"{spec} was trained on {model.config.vocab_size} token ids, these problems have {problems.vocab_size}")
    return model


def is_run(spec: str) -> bool:
    return (Path(spec) / "config.yaml").is_file()


def _score_piece(spec: str, alone: bool, problems: Problems) -> Scores:
    predictor = open_predictor(spec, problems)
    if hasattr(predictor, "threads") and not alone:
        predictor.threads = 1  # the other cores have pieces of their own
    if not isinstance(predictor, Oracle):
        predictor.predict(problems.tokens[:1, :2])  # this process loads the kernels off the clock
    return evaluate(predictor, problems, name=spec)


def _join(name: str, n_problems: int, parts: list[Scores], indices: list[np.ndarray]) -> Scores:
    return Scores(
        name,
        n_problems,
        np.concatenate([s.tokens for s in parts]),
        np.concatenate([i[s.problem].astype(np.int32) for s, i in zip(parts, indices, strict=True)]),
        np.concatenate([s.position for s in parts]),
        np.concatenate([s.strings for s in parts]),
        sum(s.seconds for s in parts),
    )


# --- the cache ---


def default_cache() -> Path:
    """`icll` in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "icll" / "scores"


def score_key(spec: str, problems: Problems) -> str:
    """Changes with all that the scores depend on: the predictor, its weights, the problems and our code."""
    weights = ""
    if is_run(spec):
        from .mixers import source_of
        from .training import as_plain, read_config

        model = read_config(Path(spec)).model
        settings = json.dumps([as_plain(model), source_of(model.model)])
        weights = hashlib.sha256((Path(spec) / "model.safetensors").read_bytes() + settings.encode()).hexdigest()
    parts = json.dumps([weights or spec, problems.fingerprint, __version__, _code_version(bool(weights))])
    return hashlib.sha256(parts.encode()).hexdigest()[:32]


@lru_cache(maxsize=2)
def _code_version(models: bool) -> str:
    """Changes with the code that scores depend on: predictors and everything below them."""
    root = Path(__file__).parent
    rooms = [root / "languages", root / "tasks", *([root / "ops", root / "mixers"] if models else [root / "learners"])]
    single = ["metrics.py", "predictors.py", *(["model.py", "reweighting.py"] if models else [])]
    files = [*(root / name for name in single), *(f for room in rooms for f in room.glob("*.py"))]
    return hashlib.sha256(b"".join(f.name.encode() + f.read_bytes() for f in sorted(files))).hexdigest()


def write_scores(scores: Scores, path: Path) -> None:
    arrays = {name: getattr(scores, name) for name in ("tokens", "problem", "position", "strings")}
    header = json.dumps({"name": scores.name, "n_problems": scores.n_problems, "seconds": scores.seconds})
    with replacing(path) as (temporary,):
        save_file({name: np.ascontiguousarray(a) for name, a in arrays.items()}, temporary, metadata={"icll": header})


def read_scores(path: Path) -> Scores | None:
    """Scores that `write_scores` wrote; None if there are none, or they cannot be read."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, "numpy") as file:
            header = json.loads(file.metadata()["icll"])
            return Scores(**header, **{name: file.get_tensor(name) for name in ("tokens", "problem", "position", "strings")})
    except (SafetensorError, KeyError, TypeError, ValueError):
        return None
