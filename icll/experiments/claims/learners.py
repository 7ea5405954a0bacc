"""Statements about the data and the learners."""

from __future__ import annotations

from ..figures import mean
from ..results import Known
from ..statistics import paired
from .base import Answer, listed, missing, test


@test
def mean_length(known: Known, expected: float) -> Answer:
    """The paper's number counts symbols; separators come on top."""
    from ...tasks import regbench

    said = []
    for profile in ("paper", "repo"):
        problems = regbench(2500, profile).train
        symbols = float((problems.flat != problems.vocabulary.separator_id).sum()) / len(problems)
        said.append((symbols, f"{profile}: {symbols:.0f} symbols, {len(problems.flat) / len(problems):.0f} tokens"))
    return Answer(abs(said[0][0] - expected) < 8, "; ".join(text for _, text in said))


@test
def disjoint_languages(known: Known) -> Answer:
    from ...tasks import regbench

    data = regbench(2500, "repo")
    tables = [a for part in (data.train, data.valid, data.test) for a in part.automata]
    return Answer(len(set(tables)) == len(tables), f"{len(set(tables)):,} different languages in {len(tables):,} problems")


@test
def learner_order(known: Known, better: str, worse: str, metric: str = "tvd") -> Answer:
    """On the same problems, the most there are."""
    pairs = [
        (a, b) for a in known.entries for b in known.entries
        if (a.label, b.label) == (better, worse) and a.fingerprint == b.fingerprint and a.learner and b.learner
    ]  # fmt: skip
    if not pairs:
        return missing(better, worse)
    a, b = max(pairs, key=lambda pair: pair[0].n_problems)
    gap = a.scores[metric][0] - b.scores[metric][0]
    seen = f"{metric}: {listed({e.label: e.scores[metric][0] for e in (a, b)})}, on {a.n_problems} problems"
    if difference := paired(a, b, metric):
        seen += f"; problem by problem: {difference}"
    elif max(e.scores[metric][1] for e in (a, b)) < min(e.scores[metric][2] for e in (a, b)):
        seen += "; their intervals overlap"
    return Answer(gap < 0 if metric == "tvd" else gap > 0, seen)


@test
def beats_learner(known: Known, label: str, learner: str) -> Answer:
    """With enough data: at the training set where the model is best."""
    runs = [known.runs(label, n) for n in known.sizes(label)]
    other = known.learner(learner)
    entry = known.learner(label)
    found = min(runs, key=mean) if runs else [entry] if entry else []
    if not found or other is None:
        return missing(label, learner)
    at = f" at N = {found[0].train:,}" if found[0].train else ""
    return Answer(mean(found) < other.tvd, listed({label + at: mean(found), other.label: other.tvd}))
