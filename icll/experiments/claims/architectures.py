"""Statements that compare architectures: on RegBench, in recall, by depth."""

from __future__ import annotations

import numpy as np

from ..figures import N, mean, setting_of
from ..results import LABELS, WIRING, Known
from ..settings import DEPTHS, MODELS, WIRED_WRONGLY
from .base import CONVOLUTIONAL, Answer, listed, missing, models_at, needed, other_models, test


@test
def transformer_best(known: Known) -> Answer:
    said, holds = [], []
    for n in known.sizes("Transformer"):
        others = models_at(known, n, other_models())
        if n < N or not needed(n) <= {"Transformer", *others}:
            continue
        ours, first = known.runs("Transformer", n), {}
        for metric, best in (("tvd", min), ("accuracy", max)):
            name = best(others, key=lambda label: mean(others[label], metric))
            first[metric] = name
            sign = 1 if metric == "tvd" else -1
            holds.append(sign * mean(ours, metric) < sign * mean(others[name], metric))
            both = {"Transformer": ours, name: others[name]}
            told = [f"{label} {mean(runs, metric):.3f} ({setting_of(runs)})" for label, runs in both.items()]
            said.append(f"N = {n:,}, {metric}: {', '.join(told)}")
    return Answer(all(holds), "; ".join(said)) if holds else missing("the Transformer and all others at N = 2,500 or more")


@test
def data_efficient(known: Known) -> Answer:
    """The smallest training set with a TVD below the 3-gram's."""
    level = known.learner("3-gram")
    labels = [label for label in ("Transformer", *other_models()) if known.sizes(label)]
    sizes = sorted(set.intersection(*(set(known.sizes(label)) for label in labels))) if labels else []
    if level is None or not needed(N) <= set(labels) or len(sizes) < 2:
        return missing("3-gram, and all models at two sizes")
    enough = {label: min((n for n in sizes if mean(known.runs(label, n)) < level.tvd), default=10**9) for label in labels}
    said = [f"{k} {v:,}" if v < 10**9 else f"{k} more than {sizes[-1]:,}" for k, v in enough.items()]
    ours = enough.pop("Transformer")
    return Answer(ours < min(enough.values()), f"problems needed to beat the 3-gram: {', '.join(said)}")


@test
def below_baselines(known: Known) -> Answer:
    levels = {name: level.tvd for name in ("3-gram", "Baum-Welch") if (level := known.learner(name))}
    others = models_at(known, N, other_models())
    if "3-gram" not in levels or not needed(N) <= {"Transformer", *others}:
        return missing("3-gram and all architectures at N = 2,500")
    behind = [label for label, runs in others.items() if mean(runs) > max(levels.values())]
    scores = listed({k: mean(v) for k, v in others.items()})
    said = f"{len(behind)} of {len(others)} are behind all learners ({listed(levels)}): {scores}"
    return Answer(len(behind) > len(others) / 2, said)


@test
def convolutional_poor(known: Known) -> Answer:
    """At the largest size that enough models have; the paper's own numbers show no gap at N = 2,500."""
    for n in sorted({n for label in other_models() for n in known.sizes(label)}, reverse=True):
        found = models_at(known, n, other_models())
        poor = [mean(runs) for label, runs in found.items() if label in CONVOLUTIONAL]
        rest = [mean(runs) for label, runs in found.items() if label not in CONVOLUTIONAL]
        if n >= N and needed(n) <= {"Transformer", *found}:
            gap = float(np.mean(poor) - np.mean(rest))
            return Answer(gap > 0.03, f"N = {n:,}: mean TVD {np.mean(poor):.3f} against {np.mean(rest):.3f} of the others")
    return missing("all architectures at N = 2,500 or more")


@test
def recall_learned(known: Known, train: int) -> Answer:
    found = models_at(known, train, [LABELS[m] for m in MODELS], "recall")
    if not needed(train, "recall") <= set(found):
        return missing(f"recall of all models at N = {train:,}")
    scores = {label: mean(runs, "accuracy") for label, runs in found.items()}
    learned = all(score >= 0.9 for label, score in scores.items() if label != "S4")
    return Answer(learned and scores["S4"] < 0.9, listed(scores))


@test
def recall_low_data(known: Known) -> Answer:
    weak = (*CONVOLUTIONAL, "LSTM", "RWKV")
    for n in sorted({n for label in known.labels("recall") for n in known.sizes(label, "recall")}, reverse=True):
        found = {k: mean(v, "accuracy") for k, v in models_at(known, n, [LABELS[m] for m in MODELS], "recall").items()}
        low = [found[k] for k in weak if k in found]
        rest = [v for k, v in found.items() if k not in weak]
        if n <= 1250 and needed(n, "recall") <= set(found):
            return Answer(float(np.mean(rest)) > float(np.mean(low)) + 0.05, f"N = {n:,}: {listed(found)}")
    return missing("recall of all models with at most 1,250 problems")


@test
def contrast(known: Known) -> Answer:
    """How many models come within 0.1 of the best accuracy, at the largest size both tasks have."""
    labels = [LABELS[m] for m in MODELS]
    sizes = {n for label in labels for n in known.sizes(label)} & {n for label in labels for n in known.sizes(label, "recall")}
    for n in sorted(sizes, reverse=True):
        both = [
            {k: mean(v, "accuracy") for k, v in models_at(known, n, labels, task).items()} for task in ("regbench", "recall")
        ]
        shared = set(both[0]) & set(both[1])
        if needed(n) & needed(n, "recall") <= shared:
            near = [sum(one[k] > max(one[x] for x in shared) - 0.1 for k in shared) for one in both]
            said = f"N = {n:,}: {near[0]} of {len(shared)} models are within 0.1 of the best accuracy, in recall {near[1]}"
            return Answer(near[0] < near[1], said)
    return missing("all models at the same size in both tasks")


@test
def one_layer(known: Known) -> Answer:
    level = known.learner("2-gram")
    found = {label: mean(runs) for m in MODELS if (runs := known.by_depth(label := LABELS[m], N).get(1))}
    if len(found) < 3 or level is None:
        return missing("three models of one layer at N = 2,500")
    return Answer(all(v > level.tvd for v in found.values()), f"{listed(found)}; the 2-gram has {level.tvd:.3f}")


def _by_depth(known: Known, label: str, metric: str = "accuracy") -> dict[int, float]:
    return {k: mean(runs, metric) for k, runs in known.by_depth(label, N).items() if k in DEPTHS}


@test
def depth_transformer(known: Known) -> Answer:
    by_depth = _by_depth(known, "Transformer")
    if len(by_depth) < 3:
        return missing("Transformers of three depths")
    steps = np.diff(list(by_depth.values()))
    return Answer(bool((steps > 0).all()), ", ".join(f"{k} layer{'s' * (k > 1)} {v:.3f}" for k, v in by_depth.items()))


@test
def depth_others(known: Known) -> Answer:
    """From two layers to the best depth: more than 0.01 of accuracy is a gain. LSTM and Mamba as published decide, where they
    are there; with stacked layers they are told beside it."""
    labels = [*other_models(), *(LABELS[m] + WIRING for m in WIRED_WRONGLY)]
    found = {label: by for label in labels if len(by := _by_depth(known, label)) >= 3 and 2 in by}
    gains = {label: max(by.values()) - by[2] for label, by in found.items()}
    stacked = {label: gains.pop(label) for label in [*gains] if label + WIRING in gains}
    if len(gains) < 3:
        return missing("three models other than the Transformer at three depths")
    said = f"accuracy gained over two layers: {listed(gains)}"
    if stacked:
        said += f"; once layers are stacked: {listed(stacked)}"
    return Answer(all(g <= 0.01 for g in gains.values()), said)
