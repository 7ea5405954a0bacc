"""Statements about what models learned: attention, probes, distances."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np

from ..figures import N
from ..results import Known
from .base import Answer, listed, missing, other_models, test

ANALYSES = {  # tests of what models learned, and the tables they read
    **dict.fromkeys(("previous_token_heads", "two_gram_head", "not_by_state"), "attention"),
    **dict.fromkeys(("probe_best", "probe_existence", "probe_larger", "probe_counts"), "probes"),
    **dict.fromkeys(("nearer", "nearest_model"), "distances"),
}


def looked_into(known: Known, table: str) -> str:
    """How good the models were that an analysis looked into."""
    named = json.loads(known.tables[table]["key"])[1] if "key" in known.tables.get(table, {}) else []
    found = {name: entry.tvd for name, hash_ in named if (entry := known.run(hash_))}
    return f" (of models with a TVD of: {listed(found)})" if found else ""


def _attention(known: Known) -> list[dict[str, Any]] | None:
    table = known.tables.get("attention-2500")
    return table["heads"] if table else None


@test
def previous_token_heads(known: Known) -> Answer:
    heads = _attention(known)
    if not heads:
        return missing("figure4")
    early = [h for h in heads if h["layer"] <= max(1, max(x["layer"] for x in heads) // 2)]
    best = max(early, key=lambda h: h["scores"]["previous"])
    return Answer(best["scores"]["previous"] > 0.5, f"layer {best['layer']}: score {best['scores']['previous']:.2f}")


def _two_gram(heads: list[dict[str, Any]]) -> dict[str, Any]:
    return max(heads, key=lambda h: h["scores"]["n=2"])


@test
def two_gram_head(known: Known) -> Answer:
    heads = _attention(known)
    if not heads:
        return missing("figure4")
    best = _two_gram(heads)
    scores = best["scores"]
    said = ", ".join(f"{rule} {scores[rule]:.2f}" for rule in ("n=1", "n=2", "n=3", "state"))
    return Answer(scores["n=2"] > 0.5 and scores["n=2"] > scores["n=1"], f"layer {best['layer']}: {said}")


@test
def not_by_state(known: Known) -> Answer:
    heads = _attention(known)
    if not heads:
        return missing("figure4")
    scores = _two_gram(heads)["scores"]
    return Answer(
        scores["n=2"] > scores["state"],
        f"overlap with the n = 2 rule {scores['n=2']:.2f}, with the state rule {scores['state']:.2f}",
    )


def _probe(known: Known, task: str, n: int, train: int) -> dict[str, float]:
    table = known.tables.get(f"probes-{train}")
    rows = table["rows"] if table else []
    return {row["model"]: row["value"] for row in rows if (row["task"], row["n"]) == (task, n)}


@test
def probe_best(known: Known, task: str, n: int, train: int) -> Answer:
    found = _probe(known, task, n, train)
    others = {k: v for k, v in found.items() if not k.startswith("Transformer")}
    ours = {k: v for k, v in found.items() if k.startswith("Transformer")}
    if not ours or len(others) < 3:
        return missing(f"probes of Transformers and three other models trained on {train:,}")
    best, what = (min, "relative error") if task in ("frequency", "count") else (max, "accuracy")
    first, second = best(ours.values()), best(others.values())
    holds = first != second and best(first, second) == first
    rows = [row for row in known.tables[f"probes-{train}"]["rows"] if (row["task"], row["n"]) == (task, n)]
    ends = [(row["low"], row["high"]) for value in (first, second) for row in rows if row["value"] == value and "low" in row]
    chance = (
        "; the intervals of the two best overlap"
        if len(ends) == 2 and ends[0][0] < ends[1][1] and ends[1][0] < ends[0][1]
        else ""
    )
    return Answer(holds, f"{what}: {listed(found)}{chance}")


@test
def probe_existence(known: Known, train: int) -> Answer:
    """Means over n = 1, 2, 3."""
    by_order = [_probe(known, "existence", n, train) for n in (1, 2, 3)]
    found = {k: float(np.mean([v[k] for v in by_order])) for k in by_order[0] if all(k in v for v in by_order)}
    second, rest = {"RetNet", "Mamba"}, {k for k in found if not k.startswith("Transformer")} - {"RetNet", "Mamba"}
    if "Transformer" not in found or not second <= set(found) or not rest:
        return missing(f"probes of the Transformer, RetNet, Mamba and others trained on {train:,}")
    best = max(v for k, v in found.items() if k.startswith("Transformer"))
    holds = best > max(found[k] for k in second) and min(found[k] for k in second) > max(found[k] for k in rest)
    return Answer(holds, f"accuracy: {listed(found)}")


@test
def probe_larger(known: Known, train: int) -> Answer:
    found = {k: v for k, v in _probe(known, "frequency", 3, train).items() if k.startswith("Transformer")}
    if len(found) < 2:
        return missing("probes of Transformers of several depths")
    by_depth = sorted(found, key=lambda k: int(k.partition("/")[2] or 99))
    values = [found[k] for k in by_depth]
    return Answer(all(a > b for a, b in pairwise(values)), listed(found))


@test
def probe_counts(known: Known, train: int) -> Answer:
    said, holds = [], []
    for n in (1, 2, 3):
        found = _probe(known, "count", n, train)
        ours = [v for k, v in found.items() if k.startswith("Transformer")]
        others = [v for k, v in found.items() if not k.startswith("Transformer")]
        if ours and others:
            holds.append(min(ours) > 0.85 * min(others))
            said.append(f"n = {n}: {min(ours):.3f}, best of the others {min(others):.3f}")
    return Answer(all(holds), "; ".join(said)) if holds else missing("count probes")


def distance(known: Known, a: str, b: str, train: int = N) -> float | None:
    table = known.tables.get(f"distances-{train}")
    if not table or a not in table["names"] or b not in table["names"]:
        return None
    return table["matrix"][table["names"].index(a)][table["names"].index(b)]


@test
def nearer(known: Known, a: str, order: list[str]) -> Answer:
    """`a` is nearer to the first than to each of the others."""
    found = {b: distance(known, a, b) for b in order}
    if any(v is None for v in found.values()):
        return missing(*(b for b, v in found.items() if v is None))
    values = {b: v for b, v in found.items() if v is not None}
    return Answer(all(values[order[0]] < values[b] for b in order[1:]), f"from {a}: {listed(values)}")


@test
def nearest_model(known: Known, label: str, learner: str) -> Answer:
    """Of all models, this one is nearest to the learner."""
    found = {m: d for m in (label, *other_models()) if (d := distance(known, m, learner)) is not None}
    if label not in found or len(found) < 4:
        return missing(f"distances of {label} and three other models to the {learner}")
    return Answer(min(found, key=lambda m: found[m]) == label, f"from the {learner}: {listed(found)}")
