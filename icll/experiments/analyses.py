"""Analyses of trained runs, as tables that figures and claims read. Each is given the runs' folders by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import IcllError
from ..predictors import Predictor
from ..scoring import open_predictor
from ..tasks import regbench
from .results import learner_label

Progress = Callable[[int, int], object]
FIRST = 100  # positions of each problem that distances are taken over


def distances(
    folders: dict[str, Path], *, learners: tuple[str, ...], problems: int, lnw: bool = False, progress: Progress
) -> dict[str, Any]:
    """Mean TVD between every two predictors over the first 100 positions of each test problem: names and a matrix."""
    test = regbench(train=1, profile="repo", seed=0).test[:problems]
    specs = {**{name: str(folder) for name, folder in folders.items()}, **{learner_label(spec): spec for spec in learners}}
    tokens, scored = test.tokens[:, :FIRST], test.scored[:, :FIRST]
    rows: dict[str, torch.Tensor] = {}
    for i, (name, spec) in enumerate(specs.items()):
        rows[name] = _predictions(open_predictor(spec, test), tokens)[scored]
        progress(i + 1, len(specs))
    names = list(rows)
    matrix = np.zeros((len(names), len(names)))
    for i, a in enumerate(names):
        for j in range(i):
            matrix[i, j] = matrix[j, i] = float((rows[a] - rows[names[j]]).abs().sum(-1).mean() / 2)
    return {"names": names, "matrix": np.round(matrix, 5).tolist(), "problems": problems, "first": FIRST}


def _predictions(predictor: Predictor, tokens: torch.Tensor, batch: int = 50) -> torch.Tensor:
    return torch.cat([predictor.predict(part).float() for part in tokens.split(batch)])


def attention(folders: dict[str, Path], *, progress: Progress) -> dict[str, Any]:
    raise IcllError("attention needs icll.analysis")


def probes(folders: dict[str, Path], *, epochs: int | None, train: int, progress: Progress) -> dict[str, Any]:
    raise IcllError("probes need icll.analysis")


def text_table(folders: dict[str, Path], *, budget: str, progress: Progress) -> dict[str, Any]:
    raise IcllError("table1b needs icll.text")
