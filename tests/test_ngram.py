"""The n-gram learner against a recount for every prefix, written from the definition alone."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

import icll
from icll import IcllError, evaluate
from icll.learners import NGram
from icll.tasks import regbench

START = "<s>"


def recount(text: str, order: int) -> np.ndarray:
    """The authors' row for the prefix `text`, unnormalised: [18]."""
    strings = [[START] * (order - 1) + list(s) for s in text.split("|")]
    counts = {n: Counter(tuple(s[i : i + n]) for s in strings for i in range(len(s) - n + 1)) for n in range(1, order + 1)}
    words = sorted(set(text) - {"|"})
    if not words:
        return np.full(18, 1 / 18)

    def probability(n: int, history: tuple[str, ...]) -> dict[str, float]:
        total = counts[n - 1][history] if n > 1 else sum(counts[1].values())
        row = {w: counts[n][(*history, w)] / total for w in words if counts[n][(*history, w)] > 0}
        unseen = [w for w in words if w not in row]
        if unseen:
            lower = probability(n - 1, history[1:])
            beta, rest = 1 - sum(row.values()), sum(lower[w] for w in unseen)
            row |= {w: beta * lower[w] / rest for w in unseen}
        return row

    row = probability(order, tuple(strings[-1][len(strings[-1]) - order + 1 :]))
    out = np.zeros(18)
    for w, p in row.items():
        out[icll.encode(w)[0] - 1] = p
    return out


@pytest.mark.parametrize("profile", ["repo", "paper"])
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_equals_a_recount_for_every_prefix(profile, order):
    problems = regbench(1, profile, seed=order).test[:120]
    ours = NGram(order, normalize=False).predict(problems.tokens)
    normal = NGram(order).predict(problems.tokens)
    rng = np.random.default_rng(0)
    for i in range(len(problems)):
        text = problems.text(i)
        for t in sorted({0, 1, 2, len(text) - 1, *rng.integers(0, len(text), 8)}):
            want = recount(text[: t + 1], order)
            assert np.abs(ours[i, t, 1:19].numpy() - want).max() < 1e-12
            assert np.abs(normal[i, t, 1:19].numpy() - want / want.sum()).max() < 1e-12


@pytest.mark.parametrize(
    ("profile", "order", "tvd", "accuracy"),
    [("repo", 3, 0.254, 0.933), ("repo", 2, 0.329, 0.820), ("paper", 3, 0.295, 0.917), ("paper", 2, 0.352, 0.818)],
)
def test_scores_are_those_of_the_authors_model(profile, order, tvd, accuracy):
    scores = evaluate(NGram(order), regbench(1, profile, seed=0).test)
    assert scores.tvd == pytest.approx(tvd, abs=0.015) and scores.accuracy == pytest.approx(accuracy, abs=0.01)


def row(text: str, **options) -> dict[str, float]:
    probs = NGram(**options).predict(torch.from_numpy(icll.encode(text))[None])[0, -1]
    return {symbol: probs[i].item() for i, symbol in enumerate(" abcdefghijklmnopqr|") if probs[i] > 0}


def test_options_by_hand():
    text = "abacaba"  # after a: b twice, c once; the last a is followed by nothing
    assert row(text, n=2, smoothing="none") == pytest.approx({"b": 2 / 3, "c": 1 / 3})
    assert row(text, n=2, smoothing="none", spread="uniform") == pytest.approx({"b": 1 / 2, "c": 1 / 2})
    assert row(text, n=2, smoothing="add-one") == pytest.approx({"a": 1 / 6, "b": 3 / 6, "c": 2 / 6})
    assert row(text, n=2) == pytest.approx({"a": 1 / 4, "b": 2 / 4, "c": 1 / 4})  # a has what b and c leave
    assert row("ab", n=2, smoothing="none") == pytest.approx({"a": 0.5, "b": 0.5})  # nothing was seen after b
    assert row(text, n=1) == pytest.approx({"a": 4 / 7, "b": 2 / 7, "c": 1 / 7})


def test_variants_have_names_on_the_command_line(repo):
    some = repo.test[:2]
    for spec, options in {
        "ngram": {"n": 3},
        "ngram:2": {"n": 2},
        "ngram:3:add-one": {"n": 3, "smoothing": "add-one"},
        "ngram:3:none": {"n": 3, "smoothing": "none"},
        "ngram:4:uniform": {"n": 4, "spread": "uniform"},
    }.items():
        assert torch.equal(icll.make_predictor(spec, some).predict(some.tokens), NGram(**options).predict(some.tokens))
    with pytest.raises(IcllError, match="ngram:3:add-one"):
        icll.make_predictor("ngram:3:kneser", some)


def test_odd_problems():
    assert row("|||", n=3) == pytest.approx(dict.fromkeys("abcdefghijklmnopqr", 1 / 18))
    assert row("a", n=3) == {"a": 1.0}
    assert row("a|a|", n=3) == {"a": 1.0}
    long = NGram(3).predict(torch.randint(1, 20, (1, 10_000), generator=torch.Generator().manual_seed(0)))
    assert torch.allclose(long.sum(-1), torch.ones(1, 10_000, dtype=torch.float64))
    assert NGram(3).predict(torch.zeros(2, 0, dtype=torch.long)).shape == (2, 0, 20)


@pytest.mark.parametrize("options", [{"n": 0}, {"n": 17}, {"smoothing": "laplace"}, {"spread": "even"}])
def test_bad_options_are_refused(options):
    with pytest.raises(IcllError):
        NGram(**options)
