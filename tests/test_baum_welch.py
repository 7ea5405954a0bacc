"""Baum-Welch against hmmlearn, and by EM's laws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hmmlearn.hmm import CategoricalHMM

import icll
from icll import IcllError, evaluate
from icll.languages import Automaton, sample_automata
from icll.learners import BaumWelch, NGram
from icll.learners.baum_welch import em_step, em_step_dense, hmm_of, log_likelihood, random_hmm
from icll.tasks import regbench

N, SYMBOLS = 5, 7


def start(seed: int, n: int = N, symbols: int = SYMBOLS):
    parameters = np.empty(n), np.empty((n, n, n)), np.empty((symbols, n, n))
    random_hmm(n, symbols, np.array([seed], dtype=np.uint64), *parameters)
    return parameters


def strings(seed: int, symbols: int = SYMBOLS):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 20, 9)
    return rng.integers(1, symbols + 1, lengths.sum()), np.concatenate([[0], np.cumsum(lengths)])


def dense(start_, move, emit):
    """The pair model as a plain HMM over the pairs (i, j), i != j."""
    n = len(start_)
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    pi = np.array([start_[j] if i == 0 else 0.0 for i, j in pairs])
    a = np.array([[move[j, i, m] if j == k else 0.0 for k, m in pairs] for i, j in pairs])
    b = np.array([emit[:, i, j] for i, j in pairs])
    return pi, a, b


def outside(start_, move, emit, iterations: int = 1) -> CategoricalHMM:
    model = CategoricalHMM(n_components=len(start_) * (len(start_) - 1), n_iter=iterations, init_params="", tol=-np.inf)
    model.startprob_, model.transmat_, model.emissionprob_ = dense(start_, move, emit)
    model.n_features = emit.shape[0]
    return model


@pytest.mark.parametrize("seed", range(4))
def test_one_step_equals_hmmlearn(seed):
    sequence, at = strings(seed)
    model = outside(*start(seed))
    before = model.score((sequence - 1)[:, None], np.diff(at))
    model.fit((sequence - 1)[:, None], np.diff(at))
    ours = start(seed)
    assert em_step(sequence, at, *ours, False) == pytest.approx(before, abs=1e-9)
    pi, a, b = dense(*ours)
    assert np.abs(pi - model.startprob_).max() < 1e-10
    assert np.abs(a - model.transmat_).max() < 1e-10
    assert np.abs(b - model.emissionprob_).max() < 1e-10


def test_the_dense_form_equals_hmmlearn_too():
    sequence, at = strings(9)
    model = outside(*start(9))
    pi, a, b = (x.copy() for x in dense(*start(9)))
    model.fit((sequence - 1)[:, None], np.diff(at))
    emit = np.ascontiguousarray(b.T)
    em_step_dense(sequence, at, pi, a, emit)
    assert np.abs(a - model.transmat_).max() < 1e-10 and np.abs(emit.T - model.emissionprob_).max() < 1e-10


@pytest.mark.parametrize("time_mask", [False, True])
def test_likelihood_never_falls_and_masks_hold(time_mask):
    problem = regbench(1, "repo").test[0]
    symbols = problem.flat[problem.flat != icll.SEP].astype(np.int64)
    at = np.cumsum([0, *map(len, problem.strings(0))])
    parameters = start(3, n=12, symbols=18)
    likelihoods = [em_step(symbols, at, *parameters, time_mask) for _ in range(40)]
    assert (np.diff(likelihoods) > -1e-8).all() and likelihoods[-1] > likelihoods[0]
    first, move, emit = parameters
    assert first[0] == 0 and first.sum() == pytest.approx(1)
    for j in range(12):
        assert (move[j, :, j] == 0).all() and (emit[:, j, j] == 0).all()  # no H(j, j)
        others = [i for i in range(12) if i != j]
        assert np.allclose(move[j, others].sum(axis=1), 1) and np.allclose(emit[:, j, others].sum(axis=0), 1)


def test_the_hmm_of_an_automaton_has_its_string_probabilities():
    loops = Automaton.from_table([{"a": 0, "b": 1, "c": 1}, {"a": 0, "d": 1}])  # two symbols on one edge, and self-loops
    for automaton in [loops, *sample_automata(60, "paper", seed=5)]:
        hmm = hmm_of(automaton)
        for seed in range(3):
            string = automaton.sample(25, seed)
            states = np.concatenate([[0], automaton.trace(string)[:-1]])
            want = sum(np.log(automaton.next_probs(s)[x - 1]) for s, x in zip(states, string, strict=True))
            assert log_likelihood(hmm, string) == pytest.approx(want, abs=1e-9)
        never = next((x for x in range(1, 19) if automaton.transitions[0, x - 1] < 0), None)
        assert log_likelihood(hmm, np.array([never])) == -np.inf


def test_predictions_are_those_of_the_last_fit():
    text = "abab|abab|ab"
    probs = BaumWelch(states=4, iterations=30, restarts=3).predict(torch.from_numpy(icll.encode(text))[None])[0]
    assert torch.allclose(probs.sum(-1), torch.ones(len(text), dtype=torch.float64))
    assert probs[-1, 1] > 0.8  # a follows b
    assert probs[text.rindex("|"), 1] > 0.8  # strings start with a


def test_seeds_threads_and_batches():
    problems = regbench(1, "repo").test[[3, 9]]
    tokens = problems.tokens[:, :40]
    one = BaumWelch(states=6, iterations=3).predict(tokens)
    assert torch.equal(one, BaumWelch(states=6, iterations=3, threads=1).predict(tokens))
    assert torch.equal(one[1:], BaumWelch(states=6, iterations=3).predict(tokens[1:]))
    assert torch.equal(one[:, :20], BaumWelch(states=6, iterations=3).predict(tokens[:, :20]))  # causal
    assert not torch.equal(one, BaumWelch(states=6, iterations=3, seed=1).predict(tokens))


def test_every_variant_learns():
    problems = regbench(1, "repo").test[:3]
    short = type(problems)(problems.flat[:120], np.array([0, 120]), problems.automata.take(np.arange(1)), problems.origin)
    fresh, warm = (evaluate(BaumWelch(restart=r), short) for r in ("fresh", "warm"))
    chance = evaluate(NGram(1), short).tvd
    assert fresh.tvd < chance and warm.tvd < chance
    assert evaluate(BaumWelch(masks=False, states=5), short).tvd < chance
    assert evaluate(BaumWelch(time_mask=True), short).tvd < chance


@pytest.mark.parametrize("text", ["a", "|||", "a|a|a", "aaaa", "|a"])
def test_odd_problems(text):
    for learner in (BaumWelch(states=3), BaumWelch(states=3, restart="warm"), BaumWelch(states=2, masks=False)):
        probs = learner.predict(torch.from_numpy(icll.encode(text))[None])
        assert torch.allclose(probs.sum(-1), torch.ones(1, len(text), dtype=torch.float64)) and (probs >= 0).all()
    assert BaumWelch().predict(torch.zeros(1, 0, dtype=torch.long)).shape == (1, 0, 20)


@pytest.mark.parametrize(
    "options", [{"states": 1}, {"iterations": 0}, {"restarts": 0}, {"restart": "hot"}, {"time_mask": True, "masks": False}]
)
def test_bad_options_are_refused(options):
    with pytest.raises(IcllError):
        BaumWelch(**options)
