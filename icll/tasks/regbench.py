"""RegBench (section 3): problems of random regular languages, in train, validation and test sets that share none."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from ..errors import IcllError, whole
from ..languages.automaton import Automata, Automaton, offsets_of
from ..languages.kernels import draw_problems, problem_lengths
from ..languages.profile import Profile, get_profile
from ..languages.sampling import distinct_automata, language_key
from ..tokens import REGBENCH
from .problems import MAX_PROBLEMS, Origin, Problems, Splits

HELD_OUT = 500  # problems in the test set, and in the validation set
SIZES = (150, 300, 625, 1250, 2500, 5000, 10_000, 20_000, 40_000)  # training sets of the paper's figures


def regbench(
    train: int = 2500,
    profile: str | Profile = "paper",
    seed: int = 0,
    *,
    valid: int = HELD_OUT,
    test: int = HELD_OUT,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Splits:
    """Train, validation and test problems of one profile and seed.

    The distinct languages of a profile and seed are one sequence: the first 500 make the test set, the next 500 the
    validation set, the rest the training set. So test and validation do not depend on `train`, a smaller training set is the
    beginning of a larger one, and no language is in two sets.
    """
    for name, size in (("train", train), ("valid", valid), ("test", test)):
        whole(f"the size of the {name} set", size, 1, MAX_PROBLEMS)
    profile = get_profile(profile)
    total = test + valid + train
    automata, drawn_at = distinct_automata(
        language_key(profile, seed, "regbench"), total, profile, lambda done: progress(done, total)
    )
    sets, first = {}, 0
    for name, size in (("test", test), ("valid", valid), ("train", train)):
        part = np.arange(first, first + size)
        origin = Origin(task="regbench", split=name, seed=int(seed), profile=profile.as_dict())
        sets[name] = _write_strings(automata.take(part), drawn_at[part], profile, seed, origin)
        first += size
    return Splits(**sets)


def problems_of(automata: Iterable[Automaton], profile: str | Profile = "paper", seed: int = 0) -> Problems:
    """One problem of each of a user's automata, with the profile's number and lengths of strings."""
    packed = Automata.pack(automata)
    whole("the seed", seed, 0)
    for i, automaton in enumerate(packed):
        if automaton.n_symbols != len(REGBENCH.symbols):
            raise IcllError(f"automaton {i} has {automaton.n_symbols} symbols: tables have {len(REGBENCH.symbols)} columns")
        for state in np.flatnonzero(automaton.out_degrees == 0):
            automaton.next_probs(int(state))  # says what is wrong
    profile = get_profile(profile)
    origin = Origin(task="regbench", split="own", seed=seed, profile=profile.as_dict())
    return _write_strings(packed, np.arange(len(packed)), profile, seed, origin)


def _write_strings(automata: Automata, indices: np.ndarray, profile: Profile, seed: int, origin: Origin) -> Problems:
    """Problem `indices[i]` of the profile and seed, in the language of automaton i."""
    lengths_key, symbols_key = (language_key(profile, seed, purpose) for purpose in ("lengths", "symbols"))
    limits = np.array([*profile.length, *profile.strings])
    totals = np.empty(len(automata), dtype=np.int64)
    problem_lengths(lengths_key, indices, limits, totals)
    offsets = offsets_of(totals)
    flat = np.empty(offsets[-1], dtype=np.uint8)
    separator = REGBENCH.separator_id
    draw_problems(lengths_key, symbols_key, indices, limits, automata.rows, automata.offsets, separator, flat, offsets)
    return Problems(flat, offsets, automata, origin)
