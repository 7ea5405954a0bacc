"""Analyses of trained runs, as tables that figures and claims read. Each is given the runs' folders by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..scoring import default_cache
from ..tasks import regbench
from ..training import load_run
from .results import learner_label

Progress = Callable[[int, int], object]
POSITIONS = (50, 80)  # that attention is shown at, as in the paper
HEAD_PROBLEMS = 20  # that heads are scored on


def distances(folders: dict[str, Path], *, learners: tuple[str, ...], problems: int, progress: Progress) -> dict[str, Any]:
    """Mean TVD between every two predictors over the first 100 positions of each test problem: names and a matrix."""
    from ..analysis import distances as measure

    test = regbench(train=1, profile="repo", seed=0).test[:problems]
    specs = {**{name: str(folder) for name, folder in folders.items()}, **{learner_label(spec): spec for spec in learners}}
    found = measure(specs, test, cache=default_cache(), progress=progress)
    return {"names": found.names, "matrix": np.round(found.mean, 5).tolist(), "problems": problems}


def attention(folders: dict[str, Path], *, progress: Progress) -> dict[str, Any]:
    """Maps of every head of the one run at positions 50 to 80 of a test problem, and the scores of its heads."""
    from ..analysis import attention_maps, score_heads

    (folder,) = folders.values()
    model, test = load_run(folder), regbench(train=1, profile="repo", seed=0).test
    long_enough = int((test.lengths >= POSITIONS[1]).nonzero()[0])
    shown = attention_maps(model, test, long_enough, *POSITIONS)
    table = score_heads(model, test[:HEAD_PROBLEMS], progress=progress).as_dict()
    maps = [
        {"name": f"layer {m.head.layer}, head {m.head.number}", "weights": np.round(m.mean.numpy(), 3).tolist()}
        for m in shown.maps
    ]
    return {"problem": long_enough, "tokens": shown.labels, "maps": maps, "notes": [table["sentence"]], **table}


def probes(folders: dict[str, Path], *, epochs: int | None, progress: Progress) -> dict[str, Any]:
    """Test scores of the probes of every run at the layer that is best on validation: a row for each target."""
    from ..analysis.probes import STATE, ProbeConfig, probe_run

    config = ProbeConfig() if epochs is None else ProbeConfig(epochs=epochs)
    rows = []
    for i, (name, folder) in enumerate(folders.items()):
        found = probe_run(folder, config, controls=False).result
        for target, (value, low, high) in found.best.items():
            kind, _, order = target.partition(" ")
            task, n = ("equivalence", 0) if target == STATE else (kind, int(order))
            layer = found.layer[target]
            rows.append({"model": name, "task": task, "n": n, "value": value, "low": low, "high": high, "layer": layer})
        progress(i + 1, len(folders))
    return {"rows": rows, "epochs": config.epochs}
