"""How far predictors are from each other (section 5.3): the mean TVD of each pair over the first tokens of every problem."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ..engine import Kept, Progress, run_pieces
from ..errors import IcllError, whole
from ..files import replacing
from ..metrics import pooled, tvd
from ..predictors import BATCH, Predictor, batches, name_of, predictions
from ..scoring import QUICK, open_predictor, score_key
from ..tasks.problems import Problems

FIRST = 100
PIECE = 4  # problems that a process predicts at once


@dataclass(frozen=True)
class Distances:
    """Mean TVD between each two of K predictors, [K, K], with 95 % intervals over problems."""

    names: list[str]
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    tokens: int

    def nearest(self, name: str) -> list[tuple[str, float]]:
        """The others, nearest first."""
        i = self.names.index(name)
        order = [int(j) for j in np.argsort(self.mean[i], kind="stable") if j != i]
        return [(self.names[j], float(self.mean[i, j])) for j in order]

    def as_dict(self) -> dict[str, Any]:
        def plain(matrix: np.ndarray) -> list[list[float | None]]:
            return [[None if np.isnan(value) else float(value) for value in row] for row in matrix]

        tables = {name: plain(getattr(self, name)) for name in ("mean", "low", "high")}
        return {"names": self.names, "tokens": self.tokens, **tables}


def distances(
    specs: Mapping[str, str],
    problems: Problems,
    *,
    first: int | None = FIRST,
    jobs: int | None = None,
    cache: Path | None = None,
    progress: Progress = lambda done, total: None,
) -> Distances:
    """Between predictors by name, each a learner's name or a run's folder as of `icll score`. Each predicts once.

    Slow learners are spread over processes, `jobs` of them, and leave what they have done in the folder `cache` until all is.
    """
    made = {name: open_predictor(spec, problems) for name, spec in specs.items()}  # what is wrong is said before the work
    rows = {}
    pieces = [problems[i : i + PIECE] for i in range(0, len(problems), PIECE)]
    folders = []
    for before, (name, spec) in enumerate(specs.items()):

        def told(done: int, total: int, before: int = before) -> None:
            progress(100 * before + 100 * done // total, 100 * len(specs))  # in hundredths of a predictor

        if _quick(made[name], problems, first):
            rows[name] = predicted(made[name], problems, first)
        else:
            kept = None if cache is None else Kept(cache / f"{score_key(spec, problems)}-first-{first}", _read, _write)
            rows[name] = torch.cat(
                run_pieces(partial(_predict_piece, spec, first), pieces, jobs=jobs, progress=told, kept=kept)
            )
            folders += [kept.folder] if kept else []
        told(1, 1)
    found = pairwise(rows, problems, first)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _quick(predictor: Predictor, problems: Problems, first: int | None) -> bool:
    shortest = problems[int(np.diff(problems.offsets).argmin())]
    predicted(predictor, shortest, first)  # kernels compile off the clock
    start = time.perf_counter()
    predicted(predictor, shortest, first)
    return (time.perf_counter() - start) * len(problems) < QUICK


def _write(rows: torch.Tensor, path: Path) -> None:
    with replacing(path) as (temporary,):
        save_file({"rows": rows}, temporary)


def _read(path: Path) -> torch.Tensor | None:
    try:
        return load_file(path)["rows"]
    except (OSError, SafetensorError, KeyError):
        return None


def _predict_piece(spec: str, first: int | None, problems: Problems) -> torch.Tensor:
    torch.set_num_threads(1)  # the other cores have pieces of their own
    return predicted(open_predictor(spec, problems), problems, first)


def predicted(predictor: Predictor, problems: Problems, first: int | None = FIRST) -> torch.Tensor:
    """Its distributions [T, V] at the scored tokens among the first of each problem, problem after problem."""
    parts: dict[int, torch.Tensor] = {}
    for indices, batch in batches(problems, BATCH):
        tokens, scored = batch.tokens[:, :first], batch.scored[:, :first]
        probs = predictions(predictor, name_of(predictor), tokens, batch, indices)
        parts |= {int(i): row[at].float() for i, row, at in zip(indices, probs, scored, strict=True)}
    return torch.cat([parts[i] for i in range(len(problems))])


def pairwise(rows: Mapping[str, torch.Tensor], problems: Problems, first: int | None = FIRST) -> Distances:
    """From what `predicted` gave for each."""
    if first is not None:
        whole("first", first, 1)
    if len(rows) < 2:
        raise IcllError("a distance is between two predictors: name at least two")
    counts = problems.scored[:, :first].sum(1).numpy()
    if not counts.sum():
        raise IcllError("no token of these problems is scored: each has a single token")
    owner = np.repeat(np.arange(len(counts)), counts)
    names = list(rows)
    mean, low, high = (np.zeros((len(names), len(names))) for _ in range(3))
    pairs = [(i, j) for i in range(len(names)) for j in range(i)]
    gaps = [tvd(rows[names[i]].double(), rows[names[j]].double()).numpy() for i, j in pairs]
    sums = np.stack([np.bincount(owner, gap, len(counts)) for gap in gaps], 1)
    for (i, j), *values in zip(pairs, *pooled(sums, np.broadcast_to(counts[:, None], sums.shape)), strict=True):
        for matrix, value in zip((mean, low, high), values, strict=True):
            matrix[i, j] = matrix[j, i] = value
    return Distances(names, mean, low, high, int(counts.sum()))
