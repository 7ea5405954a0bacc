from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch

import icll
from icll import IcllError, Oracle, Predictor, Uniform, compare, evaluate, make_predictor
from icll.languages import Automaton
from icll.learners import NGram
from icll.tasks import Problems, associative_recall, problems_of


class Says:
    """A predictor that returns whatever it is told to."""

    def __init__(self, make):
        self.predict = make


def test_everything_that_predicts_is_a_predictor(repo):
    for p in (Oracle(repo.test), Uniform(), NGram(2), Says(lambda tokens: tokens)):
        assert isinstance(p, Predictor)


def test_oracle_returns_the_truth_of_whole_problems_and_of_prefixes(repo):
    some = repo.test[[3, 40, 7]]
    oracle = Oracle(repo.test)
    assert torch.equal(oracle.predict(some.tokens), some.truth)
    for first in (1, 5, 60):
        probs = Oracle(some).predict(some.tokens[:, :first]) if first < 16 else oracle.predict(some.tokens[:, :first])
        assert torch.equal(probs, some.truth[:, :first])


def test_oracle_says_when_it_cannot_know(repo):
    with pytest.raises(IcllError, match="does not know this problem"):
        Oracle(repo.test).predict(repo.train.tokens[:1])
    a, b = Automaton.from_table([{"a": 0}]), Automaton.from_table([{"a": 0, "b": 0}])
    twins = Problems.from_strings([["aa"], ["aa"]], [a, b])
    with pytest.raises(IcllError, match="begin with these 2 tokens"):
        Oracle(twins).predict(twins.tokens)
    assert evaluate(Oracle(twins), twins).tvd == 0  # there the problems themselves are at hand
    assert compare(Oracle(twins), Oracle(twins), twins, first=1) == 0
    with pytest.raises(IcllError, match="outside the vocabulary"):
        Oracle(twins).predict(twins.tokens + 256)
    same = Problems.from_strings([["aa"], ["aa"]], [b, b])
    assert torch.equal(Oracle(same).predict(same.tokens), same.truth)


def test_uniform_spreads_over_the_symbols_seen():
    tokens = torch.tensor([icll.encode("ab|ca").tolist(), [icll.SEP] * 5])
    probs = Uniform().predict(tokens)
    assert probs[0, 0, 1] == 1 and probs[0, 2, 1] == 0.5
    assert torch.allclose(probs[0, 3, 1:4], torch.full((3,), 1 / 3))
    assert torch.allclose(probs[1, :, 1:19], torch.full((5, 18), 1 / 18)) and probs[1, 0, 19] == 0


def test_scores_do_not_depend_on_the_batch_size(repo):
    some = repo.test[:30]
    a, b = (evaluate(NGram(3), some, batch_size=size) for size in (1, 7))
    assert a.tvd == pytest.approx(b.tvd, abs=1e-12) and a.ci["tvd"] == pytest.approx(b.ci["tvd"])
    assert np.allclose(a.by_position["tvd"].mean, b.by_position["tvd"].mean, equal_nan=True)


def test_evaluate_agrees_with_a_direct_computation(repo):
    some = repo.test[:25]
    scores = evaluate(NGram(2), some)
    probs, truth, scored = NGram(2).predict(some.tokens), some.truth.double(), some.scored
    assert scores.tvd == pytest.approx(((probs - truth).abs().sum(-1) / 2)[scored].mean().item(), abs=1e-6)
    legal = truth.gather(-1, probs.argmax(-1, keepdim=True)).squeeze(-1) > 0
    assert scores.accuracy == pytest.approx(legal[scored].double().mean().item())
    assert len(scores.tokens) == int(scored.sum())
    at = 17
    assert scores.by_position["tvd"].tokens[at] == int(scored[:, at].sum())
    strings = some.strings_seen[scored]
    assert scores.by_strings["tvd"].tokens.tolist() == torch.bincount(strings).tolist()


def test_oracle_is_perfect_and_the_language_entropy_is_its_cross_entropy(repo):
    scores = evaluate(Oracle(repo.test), repo.test)
    assert (scores.tvd, scores.accuracy, scores.ruled_out) == (0, 1, 0)
    assert scores.kl == pytest.approx(0, abs=1e-6)
    assert scores.log_loss == pytest.approx(scores.cross_entropy, abs=0.01)


def test_compare_is_a_distance(repo):
    some = repo.test[:40]
    oracle = Oracle(some)
    assert compare(NGram(2), NGram(2), some) == 0
    assert compare(NGram(2), NGram(3), some) == pytest.approx(compare(NGram(3), NGram(2), some))
    whole = compare(NGram(3), oracle, some, first=None)
    assert whole == pytest.approx(evaluate(NGram(3), some).tvd, abs=1e-6)
    assert compare(NGram(3), oracle, some, first=50) > whole  # the beginning is harder
    positions = evaluate(NGram(3), some).by_position["tvd"]
    first = np.nansum(positions.mean[:50] * positions.tokens[:50]) / positions.tokens[:50].sum()
    assert compare(NGram(3), oracle, some, first=50) == pytest.approx(first, abs=1e-6)


def test_other_tasks_are_scored_alike():
    recall = associative_recall(1, test=40, valid=1).test
    assert evaluate(Oracle(recall), recall).accuracy == 1
    assert evaluate(make_predictor("ngram:2", recall), recall).accuracy == 1  # recall is a bigram
    assert evaluate(make_predictor("uniform", recall), recall).tvd == pytest.approx(1 - 1 / 33, abs=0.02)


def test_evaluate_streams(repo):
    """All distributions of 500 problems would be 50 MB in float64; a batch at a time needs far less."""
    tracemalloc.start()
    evaluate(Uniform(), repo.test)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30e6


def rows(value):
    return lambda tokens: torch.full((*tokens.shape, 20), value)


@pytest.mark.parametrize(
    ("predict", "cause"),
    [
        (lambda tokens: torch.ones(len(tokens), 20), r"must return a tensor of shape \[B, L, V\]"),
        (lambda tokens: torch.full((*tokens.shape, 18), 1 / 18), r"V\] = \[.*20\], not \[.*18\]"),
        (lambda tokens: "no", "not a str"),
        (lambda tokens: torch.full((*tokens.shape, 20), 0.05).numpy(), "not a ndarray"),
        (rows(0.01), r"problem \d+, position 0 sums to 0\.2"),
        (rows(0.1), "sums to 2"),
        (rows(float("nan")), "sums to nan"),
        (lambda tokens: torch.eye(20)[tokens] * 2 - torch.eye(20)[tokens.roll(1, 1)], "negative entry"),
    ],
)
def test_what_is_not_a_distribution_is_refused(repo, predict, cause):
    with pytest.raises(IcllError, match=cause):
        evaluate(Says(predict), repo.test[:5])


def test_rows_under_padding_may_be_anything(repo):
    def predict(tokens):
        probs = Uniform().predict(tokens)
        probs[tokens == 0] = 7.0
        return probs

    assert evaluate(Says(predict), repo.test[:40]).tvd == evaluate(Uniform(), repo.test[:40]).tvd


@pytest.mark.parametrize("bad", [torch.tensor([[25]]), torch.tensor([[-1]]), torch.tensor([1]), torch.tensor([[0.5]])])
def test_tokens_outside_the_vocabulary_are_refused(bad):
    for p in (Uniform(), NGram(2)):
        with pytest.raises(IcllError, match="token"):
            p.predict(bad)


def test_bad_requests_are_refused(repo):
    with pytest.raises(IcllError, match=r"unknown predictor 'ngrm'.*did you mean 'ngram'"):
        make_predictor("ngrm:3", repo.test)
    with pytest.raises(IcllError, match="batch size"):
        evaluate(Uniform(), repo.test, batch_size=0)
    with pytest.raises(IcllError, match="first"):
        compare(Uniform(), Uniform(), repo.test, first=0)
    single = problems_of([Automaton.from_table([{"a": 0}])])
    lonely = Problems(single.flat[:1], np.array([0, 1]), single.automata, single.origin)
    with pytest.raises(IcllError, match="no token of these problems is scored"):
        evaluate(Uniform(), lonely)
