"""Statements about n-gram heads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...training import RunConfig
from ..figures import mean, setting_of
from ..results import LABELS, Entry, Known
from ..settings import MODELS
from ..statistics import Difference, paired
from .base import CONVOLUTIONAL, NOT_RUN, RECURRENT, Answer, all_of, listed, missing, test


@test
def head_parameters(known: Known) -> Answer:
    from ...mixers import NGramHead

    d = 64
    count = sum(p.numel() for p in NGramHead(d, 1).parameters())
    return Answer(count in (2 * d * d, 2 * d * d + d, 2 * d * d + 2 * d), f"d = {d}: {count:,} = 2 d^2 + {count - 2 * d * d}")


@test
def head_decoding(known: Known) -> Answer:
    table = known.tables.get("ngram_heads")
    if not table:
        return missing("benchmarks/ngram_heads.py")
    times = [microseconds for _, microseconds in table["microseconds_per_token"]]
    tenth = max(1, len(times) // 10)
    first, last = float(np.mean(times[:tenth])), float(np.mean(times[-tenth:]))
    tokens = table["microseconds_per_token"][-1][0]
    return Answer(last < 1.2 * first, f"{first:.0f} us per token at first, {last:.0f} us after {tokens:,} tokens")


@test
def improves(known: Known, base: str, heads: list[int], least: float) -> Answer:
    name = f"{base}+NGH({','.join(map(str, heads))})"
    found = all_of(known, [base, name])
    if found is None:
        return missing(base, name)
    return Answer(1 - mean(found[1]) / mean(found[0]) > least, _gained(known, *found))


def _gained(known: Known, base: list[Entry], heads: list[Entry]) -> str:
    """By how much heads lower the TVD of a model at its best; and of one that is trained just as the one with heads."""

    def said(runs: list[Entry]) -> str:
        share = 1 - mean(heads) / mean(runs)
        return f"{mean(runs):.3f} ({setting_of(runs)}) to {mean(heads):.3f} ({setting_of(heads)}): by {share:.0%}"

    alike = [e for one in heads if one.config and (e := known.run(_headless(one).hash))]
    same = {e.source for e in alike} == {e.source for e in base}
    return said(base) + (f"; trained alike: {said(alike)}" if alike and not same else "")


def _headless(entry: Entry) -> RunConfig:
    """The config of the same run without heads."""
    assert entry.config is not None
    return replace(entry.config, model=replace(entry.config.model, ngram_heads=()))


@test
def improves_less(known: Known, base: str, heads: list[int], than: str) -> Answer:
    suffix = f"+NGH({','.join(map(str, heads))})"
    found = all_of(known, [base, base + suffix, than, than + suffix])
    if found is None:
        return missing(base, than)
    ours, theirs = (mean(found[i]) - mean(found[i + 1]) for i in (0, 2))
    said = [f"{found[i][0].label} {_gained(known, found[i], found[i + 1])}" for i in (0, 2)]
    return Answer(0 < ours < theirs, "; ".join(said))


@test
def matches(known: Known, label: str, other: str, within: float) -> Answer:
    """No worse by more than `within`; better counts."""
    found = all_of(known, [label, other])
    if found is None:
        return missing(label, other)
    return Answer(mean(found[0]) < mean(found[1]) + within, _compared(*found))


@test
def improves_on(known: Known, label: str, other: str) -> Answer:
    found = all_of(known, [label, other])
    if found is None:
        return missing(label, other)
    tested = _paired(*found)
    # without scores of each problem the means must do
    holds = tested[1].high < 0 if tested else mean(found[0]) < mean(found[1])
    return Answer(holds, _compared(*found))


def _paired(a: list[Entry], b: list[Entry]) -> tuple[int | None, Difference] | None:
    """Of the first seed both have, and which that is; if they share none, of the first of each."""
    both = [(x, y) for x in a for y in b if x.seed == y.seed or None in (x.seed, y.seed)]
    one, other = both[0] if both else (a[0], b[0])
    difference = paired(one, other)
    return (one.seed, difference) if difference else None


def _compared(a: list[Entry], b: list[Entry]) -> str:
    said = ", ".join(f"{runs[0].label} {mean(runs):.3f} ({setting_of(runs)})" for runs in (a, b))
    tested = _paired(a, b)
    return said + (f"; problem by problem, seed {tested[0]}: {tested[1]}" if tested else "")


@test
def more_accurate(known: Known, labels: list[str], other: str) -> Answer:
    found = all_of(known, [*labels, other])
    if found is None:
        return missing(*labels, other)
    scores = {runs[0].label: mean(runs, "accuracy") for runs in found}
    return Answer(all(scores[label] > scores[other] for label in labels), listed(scores))


@test
def heads_help(known: Known) -> Answer:
    """Attention, recurrences and convolutions: one of each at least."""
    architectures = {"Llama", *(LABELS[m] for m in MODELS)}  # mixers of one's own are no part of the statement
    pairs = {}
    for label in known.labels():
        base, _, heads = label.partition("+")
        if base in architectures and heads == "NGH(1,2,3)" and (found := all_of(known, [base, label])):
            pairs[base] = mean(found[0]) - mean(found[1])
    if not all(set(kind) & set(pairs) for kind in (("Transformer", "Llama"), RECURRENT, CONVOLUTIONAL)):
        seen = f"; TVD lower by: {listed(pairs)}" if pairs else ""
        return Answer(None, f"{NOT_RUN}: a Transformer, a recurrent and a convolutional model with and without heads{seen}")
    return Answer(all(gain > 0 for gain in pairs.values()), f"TVD lower by: {listed(pairs)}")
