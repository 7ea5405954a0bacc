"""What the explorer shows: problems, their automata as drawings, and what each predictor says at every token."""

from __future__ import annotations

import base64
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import first_line
from ..experiments.results import LABELS, WIRING, Known, learner_label, read_folder
from ..languages.automaton import Automaton
from ..predictors import Predictor
from ..scoring import open_predictor
from ..tasks import regbench
from ..tasks.problems import Problems
from ..training import load_run
from ..training.runs import WEIGHTS
from .automaton import plan_automaton
from .charts import look_of

SCALE = 65535  # probabilities are kept as 16-bit numbers: right to 1e-5
LEARNERS = ("bayes", "ngram:3", "ngram:2")
ROOM = 3_800_000  # bytes of the page for predictions: all of it must stay below 5 MB


def explorer(
    roots: Sequence[Path],
    n_problems: int = 10,
    learners: Sequence[str] = LEARNERS,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> dict[str, Any]:
    """The first test problems of the profile `repo`, and the predictions of learners and of the best runs in `roots`."""
    problems = regbench(train=1, profile="repo", seed=0).test[:n_problems]
    specs = dict.fromkeys(("oracle", *learners))  # the first is shown as the truth
    names = [learner_label(spec) for spec in specs]
    predictors = {
        name if names.count(name) == 1 else f"{name} ({spec})": open_predictor(spec, problems)
        for name, spec in zip(names, specs, strict=True)
    }
    each = max(1, len(problems.flat) * problems.vocab_size * 2 * 4 // 3)  # bytes of a predictor in the page
    predictors |= best_models(roots, most=max(0, ROOM // each - len(predictors)))
    return explorer_data(problems, predictors, progress)


def best_models(roots: Sequence[Path], most: int) -> dict[str, Predictor]:
    """One run of each model that has its weights here: of the largest training set, best on validation. Of a model that several
    roots have, trained on more or fewer problems, one for each.

    If there are more than fit: models of one's own first, then the paper's, then variants of heads and wiring.
    """
    found: dict[tuple[str, int], Path] = {}
    losses: dict[tuple[str, int], float] = {}
    for root in roots:
        known = Known(tuple(e for e in read_folder(root).entries if e.config and (root / e.source / WEIGHTS).exists()))
        for label in known.labels():
            largest = max(known.sizes(label))
            best, key = known.runs(label, largest)[0], (label, largest)
            if best.valid["log_loss"] < losses.get(key, math.inf):
                found[key], losses[key] = root / best.source, best.valid["log_loss"]
    own = LABELS.values()

    def rank(key: tuple[str, int]) -> tuple[bool, bool]:
        base, _, heads = key[0].removesuffix(WIRING).partition("+")
        return heads not in ("", "NGH(1,2,3)") or WIRING in key[0], base in own

    chosen = sorted(found, key=rank)[:most]
    labels = [label for label, _ in chosen]
    models: dict[str, Predictor] = {}
    for (label, size), folder in found.items():
        if (label, size) in chosen:
            try:
                model = load_run(folder)
                model.predict(torch.ones(1, 2, dtype=torch.long))
            except Exception as error:  # such as a mixer of one's own that is not here, or no longer runs
                warnings.warn(f"not in the explorer: {folder}: {first_line(error)}", stacklevel=2)
            else:
                models[label if labels.count(label) == 1 else f"{label} · {size:,} problems"] = model
    return models


def explorer_data(
    problems: Problems, predictors: dict[str, Predictor], progress: Callable[[int, int], object] = lambda done, total: None
) -> dict[str, Any]:
    shown = []
    for i in range(len(problems)):
        problem = problems[i : i + 1]
        tokens = problem.tokens
        with torch.no_grad():
            probs = [encode(p.predict(tokens)[0]) for p in predictors.values()]
        shown.append({
            "number": i, "tokens": tokens[0].tolist(), "states": problem.states[0].tolist(),
            "scored": problem.scored[0].int().tolist(), "automaton": drawing(problem.automata[0]), "probs": probs,
        })  # fmt: skip
        progress(i + 1, len(problems))
    vocabulary = problems.vocabulary
    names = [{"name": name, "look": look_of(name)} for name in predictors]
    return {
        "symbols": ["", *vocabulary.symbols, vocabulary.separator or ""], "separator": vocabulary.separator_id,
        "predictors": names, "problems": shown, "scale": SCALE,
    }  # fmt: skip


def encode(probs: torch.Tensor) -> str:
    """Distributions [L, V] as base64 of little-endian 16-bit numbers."""
    whole = np.round(probs.double().clamp(0, 1).numpy() * SCALE).astype("<u2")
    return base64.b64encode(whole.tobytes()).decode()


def drawing(automaton: Automaton) -> dict[str, Any]:
    """Coordinates for the page, where y points down."""
    plan = plan_automaton(automaton)
    low, high = plan.bounds

    def at(point: np.ndarray) -> list[float]:
        return [round(float(point[0]), 3), round(-float(point[1]), 3)]

    arrows = [
        {
            "from": a.source, "to": a.target, "start": at(a.start), "control": at(a.control), "end": at(a.end),
            "symbols": a.symbols, "label": at(a.label),
        }
        for a in plan.arrows
    ]  # fmt: skip
    box = [float(low[0]), float(-high[1]), float(high[0] - low[0]), float(high[1] - low[1])]
    start = [at(plan.places[0] + plan.outward * reach) for reach in (0.65, 0.22)]
    return {"places": [at(p) for p in plan.places], "arrows": arrows, "box": [round(x, 3) for x in box], "start": start}
