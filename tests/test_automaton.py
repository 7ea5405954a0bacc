"""Automata: minimisation and canonical form against an independent library and by their laws."""

from __future__ import annotations

import itertools
from random import Random

import numpy as np
import pytest
from automata.fa.dfa import DFA
from hypothesis import given, settings
from hypothesis import strategies as st

from icll import IcllError
from icll.languages import PROFILES, Automaton, Profile, sample_automata
from icll.languages.plain import plain_draw, plain_minimise
from icll.tokens import N_SYMBOLS

DENSE = Profile(states=(3, 12), alphabet=(1, 3), edges=(1, 3))  # few symbols: many equivalent states


@st.composite
def automata(draw, max_states=9, max_symbols=3):
    n = draw(st.integers(1, max_states))
    symbols = draw(st.integers(1, max_symbols))
    cells = draw(st.lists(st.integers(-1, n - 1), min_size=n * symbols, max_size=n * symbols))
    table = np.full((n, N_SYMBOLS), -1)
    table[:, :symbols] = np.reshape(cells, (n, symbols))
    return Automaton(table)


def outside_form(automaton: Automaton) -> DFA:
    """The same language in automata-lib: complete, with an explicit sink."""
    sink, symbols = automaton.n_states, [str(a + 1) for a in range(automaton.n_symbols)]
    transitions = {sink: dict.fromkeys(symbols, sink)}
    for s, row in enumerate(automaton.transitions):
        transitions[s] = {a: int(t) if t >= 0 else sink for a, t in zip(symbols, row, strict=True)}
    return DFA(
        states=set(transitions), input_symbols=set(symbols), transitions=transitions, initial_state=0,
        final_states=set(range(automaton.n_states)),
    )  # fmt: skip


def same_language(a: Automaton, b: Automaton) -> bool:
    """Walk both at once over every reachable pair of states."""
    todo, seen = [(0, 0)], {(0, 0)}
    while todo:
        s, t = todo.pop()
        for x, y in zip(a.transitions[s], b.transitions[t], strict=True):
            if (x < 0) != (y < 0):
                return False
            if x >= 0 and (x, y) not in seen:
                seen.add((x, y))
                todo.append((x, y))
    return True


def restarted(a: Automaton, state: int) -> Automaton:
    """The language from another state on."""
    order = [state, *(s for s in range(a.n_states) if s != state)]
    return relabelled(a, np.argsort(order))


def relabelled(a: Automaton, new_name: np.ndarray) -> Automaton:
    table = np.empty_like(a.transitions)
    renamed = np.append(new_name, -1)  # index -1 stays -1
    table[new_name] = renamed[a.transitions]
    return Automaton(table)


@given(automata())
@settings(max_examples=400, deadline=None)
def test_minimal_automaton_has_the_same_language_and_no_two_equivalent_states(automaton):
    minimal = automaton.minimal()
    assert same_language(automaton, minimal)
    for s, t in itertools.combinations(range(minimal.n_states), 2):
        assert not same_language(restarted(minimal, s), restarted(minimal, t))


@given(automata(), st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_canonical_form_does_not_depend_on_names_of_states(automaton, random):
    names = list(range(1, automaton.n_states))
    random.shuffle(names)
    other = relabelled(automaton, np.array([0, *names]))
    assert np.array_equal(automaton.minimal().transitions, other.minimal().transitions)
    assert automaton == other and hash(automaton) == hash(other)


@given(automata(max_states=4, max_symbols=2), automata(max_states=4, max_symbols=2))
@settings(max_examples=300, deadline=None)
def test_equality_is_equality_of_languages(a, b):
    assert (a == b) == same_language(a, b)


@pytest.mark.parametrize("profile", [*PROFILES, DENSE], ids=[*PROFILES, "dense"])
def test_minimisation_agrees_with_automata_lib(profile):
    for raw in sample_automata(1000, profile, seed=7, minimal=False):
        outside = outside_form(raw).minify()
        minimal = raw.minimal()
        assert len(outside.states) == minimal.n_states + 1  # the library keeps the sink
        assert outside == outside_form(minimal)


@pytest.mark.parametrize("profile", [*PROFILES.values(), DENSE], ids=[*PROFILES, "dense"])
def test_kernels_agree_with_the_plain_form(profile):
    rng = Random(3)
    for _ in range(1000):
        edges = plain_draw(profile, rng)
        table = np.full((len(edges), N_SYMBOLS), -1)
        for s, out in enumerate(edges):
            for symbol, target in out.items():
                table[s, symbol - 1] = target
        plain = plain_minimise(edges)
        ours = Automaton(table).minimal().transitions
        assert [{int(a) + 1: int(row[a]) for a in np.flatnonzero(row >= 0)} for row in ours] == plain


def test_trace_accepts_and_next_probs():
    a = Automaton.from_table([{"a": 1, "b": 2}, {"c": 0}, {"a": 0}])
    assert a.trace("acb").tolist() == [1, 0, 2]
    assert a.trace([1, 3, 2]).tolist() == [1, 0, 2]
    assert a.trace("aab").tolist() == [1, -1, -1]
    assert a.accepts("acba") and a.accepts("") and not a.accepts("aa")
    assert a.next_probs(0)[:3].tolist() == [0.5, 0.5, 0.0]
    assert a.next_probs(1).sum() == 1
    string = a.sample(200, np.random.default_rng(0))
    assert a.accepts(string) and np.array_equal(string, a.sample(200, 0))


def test_table_text_reads_back():
    for a in sample_automata(50, "paper", seed=1):
        assert np.array_equal(Automaton.from_table(a.table()).transitions, a.transitions)
    assert Automaton.from_table({1: {"a": 0}, 0: {"b": 1}}).n_states == 2
    assert Automaton.from_table(" a b\n0 1 .\n1 . 0").accepts("abab")


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda: Automaton([[5] * N_SYMBOLS]), "names state 5"),
        (lambda: Automaton([[0.5]]), "whole numbers"),
        (lambda: Automaton(np.zeros((0, 18), int)), "at least one of each"),
        (lambda: Automaton.from_table([{"z": 0}]), "'z' is not a symbol"),
        (lambda: Automaton.from_table({0: {}, 2: {}}), r"states must be 0\.\.1"),
        (lambda: Automaton.from_table(""), "empty"),
        (lambda: Automaton.from_table("a b\n0 1"), "must have a state and 2 targets"),
        (lambda: Automaton.from_table("a\n0 x"), "for each symbol a state or '.'"),
        (lambda: Automaton.from_table("a b\n0 1 -7\n1 0 ."), "for each symbol a state or '.'"),
        (lambda: Automaton.from_table("a a\n0 0 0"), "names a symbol twice"),
        (lambda: Automaton.from_table("a b"), "no states"),
        (lambda: Automaton.from_table("a\n0 99999999999999999999"), "at most 0"),
        (lambda: Automaton.from_table([{"a": 0.7}]), "whole number"),
        (lambda: Automaton.from_table([{"a": 0}]).trace([1.9]), "not a symbol"),
        (lambda: Automaton.from_table("a\n0 0\n0 0"), "two lines for state 0"),
        (lambda: Automaton.from_table([{}]).next_probs(0), "no outgoing edge"),
        (lambda: Automaton.from_table([{"a": 0}]).next_probs(3), "state 3 does not exist"),
        (lambda: Automaton.from_table([{"a": 0}]).trace([19]), "token 19 is not a symbol"),
        (lambda: Automaton.from_table([{"a": 0}]).sample(-1), "at least 0, not -1"),
    ],
)
def test_bad_automata_are_refused(make, cause):
    with pytest.raises(IcllError, match=cause):
        make()
