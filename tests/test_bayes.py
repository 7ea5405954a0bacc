"""The Bayes filter against the posterior summed over every automaton of a tiny prior."""

from __future__ import annotations

import itertools
from math import comb

import numpy as np
import pytest
import torch

import icll
from icll import IcllError, evaluate
from icll.languages import Profile
from icll.learners import BayesFilter, NGram
from icll.tasks import regbench
from icll.tokens import N_SYMBOLS, SEP


def state_choices(state: int, n: int, alphabet: tuple[str, ...], edges: tuple[int, int]):
    """Every way to give a state its edges, with its probability (section 3.1, step 3)."""
    most = min(edges[1], n - 1, len(alphabet))
    others = [s for s in range(n) if s != state]
    for m in range(edges[0], most + 1):
        symbol_sets = list(itertools.combinations(alphabet, m))
        target_lists = list(itertools.permutations(others, m))
        for symbols, targets in itertools.product(symbol_sets, target_lists):
            share = 1 / (most - edges[0] + 1) / len(symbol_sets) / len(target_lists)
            yield share, dict(zip(symbols, targets, strict=True))


def every_automaton(profile: Profile, observed: str):
    """All automata with their prior probabilities. Symbols that never occur are alike: written 1, 2, ... and counted."""
    for n in range(profile.states[0], profile.states[1] + 1):
        for c in range(profile.alphabet[0], profile.alphabet[1] + 1):
            for k in range(min(c, len(observed)) + 1):
                for inside in itertools.combinations(observed, k):
                    outside = comb(N_SYMBOLS - len(observed), c - k) / comb(N_SYMBOLS, c)
                    alphabet = (*inside, *map(str, range(c - k)))
                    choices = [list(state_choices(s, n, alphabet, profile.edges)) for s in range(n)]
                    prior = (
                        outside / (profile.states[1] - profile.states[0] + 1) / (profile.alphabet[1] - profile.alphabet[0] + 1)
                    )
                    for states in itertools.product(*choices):
                        yield prior * np.prod([p for p, _ in states]), [edges for _, edges in states]


def exact(profile: Profile, text: str) -> np.ndarray:
    """The posterior predictive distribution after each token [L, 20], by summing over every automaton."""
    observed = "".join(sorted(set(text) - {"|"}))
    rows = np.zeros((len(text), N_SYMBOLS + 2))
    for weight, edges in every_automaton(profile, observed):
        state = 0
        for t, x in enumerate(text):
            if x == "|":
                state = 0
            elif x not in edges[state]:
                break
            else:
                weight /= len(edges[state])
                state = edges[state][x]
            for symbol in edges[state]:
                share = weight / len(edges[state])
                if symbol in observed:
                    rows[t, icll.encode(symbol)[0]] += share
                else:
                    never = [i for i in range(1, N_SYMBOLS + 1) if icll.decode([i]) not in observed]
                    rows[t, never] += share / len(never)
    return rows / rows.sum(axis=1, keepdims=True)


TINY = Profile(states=(2, 3), alphabet=(2, 3), edges=(1, 2), length=(1, 6), strings=(3, 5))
COUPLED = Profile(states=(2, 4), alphabet=(1, 2), edges=(1, 3), length=(1, 5), strings=(2, 4))  # n and c bound the edges


@pytest.mark.slow
@pytest.mark.parametrize("profile", [TINY, COUPLED], ids=["tiny", "coupled"])
def test_with_room_for_all_hypotheses_it_is_the_exact_posterior(profile):
    problems = regbench(1, profile, valid=1, test=2, seed=1).test
    ours = BayesFilter(5000, profile=profile, moves=10).predict(problems.tokens).numpy()
    for i in range(len(problems)):
        text = problems.text(i)
        assert np.abs(ours[i, : len(text)] - exact(profile, text)).max() < 1e-4  # the grain of slack is all that differs


def test_with_few_hypotheses_it_errs_by_chance_not_by_habit():
    problems = regbench(1, TINY, valid=1, test=2, seed=2).test
    want = np.concatenate([exact(TINY, problems.text(i)) for i in range(len(problems))])
    inside = problems.tokens.numpy() != 0
    runs = np.stack([BayesFilter(2, profile=TINY, seed=s).predict(problems.tokens).numpy()[inside] for s in range(200)])
    single = np.abs(runs - want).mean()
    together = np.abs(runs.mean(axis=0) - want).mean()
    assert 0 < together < single / 2


def test_it_is_the_best_learner_and_knows_what_it_does_not_know(repo):
    some = repo.test[:25]
    bayes, ngram = evaluate(BayesFilter(500, profile="repo"), some), evaluate(NGram(3), some)
    assert bayes.tvd < 0.6 * ngram.tvd and bayes.accuracy > ngram.accuracy and bayes.kl < 0.6 * ngram.kl
    assert bayes.ruled_out < 0.1 * ngram.ruled_out


def test_more_hypotheses_and_more_moves_help(repo):
    some = repo.test[:25]
    few, moved, many = (
        evaluate(BayesFilter(p, moves=m, profile="repo"), some).cross_entropy for p, m in ((30, 0), (30, 300), (500, 750))
    )
    assert many < moved < few


def test_seeds_threads_and_prefixes(repo):
    tokens = repo.test[[3, 9]].tokens[:, :80]
    want = BayesFilter(50, profile="repo").predict(tokens)
    assert torch.equal(want, BayesFilter(50, profile="repo", threads=1).predict(tokens))
    assert torch.equal(want[1:], BayesFilter(50, profile="repo").predict(tokens[1:]))
    assert torch.equal(want[:, :30], BayesFilter(50, profile="repo").predict(tokens[:, :30]))  # causal
    assert not torch.equal(want, BayesFilter(50, profile="repo", seed=1).predict(tokens))


@pytest.mark.parametrize("text", ["a", "|||", "a|a|a", "|a", "aaaaaaaaaaaaaaa", "abcdefghijklmnopqr"])
def test_odd_problems(text):
    probs = BayesFilter(100).predict(torch.from_numpy(icll.encode(text))[None])
    assert torch.allclose(probs.sum(-1), torch.ones(1, len(text), dtype=torch.float64)) and (probs >= -1e-12).all()
    assert (probs[..., [0, SEP]] == 0).all()


def test_long_problems_and_other_priors():
    long = regbench(1, Profile(length=(400, 500), strings=(20, 20)), valid=1, test=1).test
    assert evaluate(BayesFilter(200, profile="paper"), long).tvd < 0.1
    paper = regbench(1, "paper").test[:5]
    assert evaluate(BayesFilter(200, profile="paper"), paper).tvd < 0.25
    assert evaluate(BayesFilter(200, profile="repo"), paper).tvd < 0.5  # the wrong prior is worse, not fatal


def test_what_cannot_be_is_said(repo):
    with pytest.raises(IcllError, match="cannot occur under the filter's profile"):
        BayesFilter(50, profile=TINY).predict(repo.test.tokens[:1])
    for options in ({"particles": 0}, {"moves": -1}, {"profile": "x"}, {"profile": Profile(states=(4, 200))}, {"seed": -1}):
        with pytest.raises(IcllError):
            BayesFilter(**options)
