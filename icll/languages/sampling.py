"""Random languages of a profile: an endless reproducible sequence, from which equal ones are left out."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np

from ..errors import IcllError, whole
from ..tokens import N_SYMBOLS
from .automaton import Automata, Automaton
from .kernels import draw_tables, keep_new
from .profile import Profile, get_profile
from .random import random_key

_CHUNK = 4096
# Give up when this many draws in a row, or this many times the languages found so far, bring nothing new.
_PATIENCE = 20_000
_PATIENCE_FACTOR = 5
MAX_SEED = 2**63 - 1


def language_key(profile: Profile, seed: int, purpose: str) -> np.uint64:
    """Key of a random stream. The profile is part of it: two profiles with one seed are drawn independently."""
    return random_key(purpose, whole("the seed", seed, 0, MAX_SEED), json.dumps(profile.as_dict(), sort_keys=True))


def sample_automata(count: int, profile: str | Profile = "paper", seed: int = 0, *, minimal: bool = True) -> list[Automaton]:
    """`count` random automata: minimal, canonical and, as languages, distinct.

    With `minimal=False` they are as drawn: section 3.1 before step 4, where languages may repeat. The stream is another than
    that of a `regbench` data set with the same seed; a few languages may still occur in both by chance.
    """
    profile = get_profile(profile)
    key = language_key(profile, seed, "automata")
    if minimal:
        return list(distinct_automata(key, count, profile)[0])
    whole("the number of automata", count, 1)
    return list(_draw(key, 0, count, profile, minimal))


def distinct_automata(
    key: np.uint64, count: int, profile: Profile, progress: Callable[[int], object] = lambda done: None
) -> tuple[Automata, np.ndarray]:
    """The first `count` distinct languages of a stream, and the index each was drawn at.

    Asking for more gives the same ones first. Only the profile's finiteness can stop it: then it says how many there are.
    """
    whole("the number of automata", count, 1)
    slots = np.full(1 << (2 * count - 1).bit_length(), -1, dtype=np.int64)
    rows = np.empty((0, N_SYMBOLS), dtype=np.int16)
    offsets = np.zeros(count + 1, dtype=np.int64)
    indices = np.empty(count, dtype=np.int64)
    drawn = kept = 0
    while kept < count:
        chunk = _draw(key, drawn, _CHUNK, profile, minimal=True)
        used = offsets[kept]
        if used + len(chunk.rows) > len(rows):
            expected = len(chunk.rows) * (count - kept) // _CHUNK  # and two chunks to spare
            rows = np.concatenate([rows[:used], np.empty((expected + 2 * len(chunk.rows), N_SYMBOLS), dtype=np.int16)])
        kept = keep_new(chunk.rows, chunk.offsets, drawn, slots, rows, offsets, indices, kept, count)
        drawn += _CHUNK
        progress(kept)
        if kept < count and drawn - indices[kept - 1] > max(_PATIENCE, _PATIENCE_FACTOR * kept):
            raise IcllError(
                f"{count} distinct languages asked for, but only {kept} turned up in {drawn} draws: "
                "ask for fewer, or widen the profile's states, alphabet or edges"
            )
    return Automata(rows[: offsets[-1]], offsets), indices


def _draw(key: np.uint64, first: int, count: int, profile: Profile, minimal: bool) -> Automata:
    limits = np.array([*profile.states, *profile.alphabet, *profile.edges])
    rows = np.empty((count * profile.states[1], N_SYMBOLS), dtype=np.int16)
    offsets = np.empty(count + 1, dtype=np.int64)
    draw_tables(key, first, limits, minimal, rows, offsets)
    return Automata(rows[: offsets[-1]], offsets)
