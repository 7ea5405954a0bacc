"""Associative recall: a problem is a random map from 20 keys to 20 values, shown as key-value pairs, then asked once.

The map is itself a small language (a hub state, one state for each value), so that truth, metrics and files are those of every
other task.
"""

from __future__ import annotations

import numpy as np

from ..errors import whole
from ..jit import kernel
from ..languages.automaton import Automata, offsets_of
from ..languages.random import below, random_key, seek
from .problems import MAX_PROBLEMS, RECALL_LENGTH, Origin, Problems, Splits

KEYS = VALUES = 20
PAIRS = RECALL_LENGTH // 2 - 1
LENGTH = RECALL_LENGTH  # pairs, query, answer
HELD_OUT = 500
# Streams of the three sets: fixed places, so that test and validation do not depend on the training set's size.
_FIRST = {"test": 0, "valid": 1 << 32, "train": 1 << 33}


def associative_recall(train: int = 2500, seed: int = 0, *, valid: int = HELD_OUT, test: int = HELD_OUT) -> Splits:
    """Train, validation and test problems of L = 382 tokens over V = 40 symbols: keys are 1..20, values 21..40.

    The query is a key that occurred among the pairs. Only its answer is scored. A smaller training set is the beginning of a
    larger one.
    """
    seed = whole("the seed", seed, 0)
    sets = {}
    for name, size in (("train", train), ("valid", valid), ("test", test)):
        whole(f"the size of the {name} set", size, 1, MAX_PROBLEMS)
        flat = np.empty((size, LENGTH), dtype=np.uint8)
        rows = np.empty((size * (VALUES + 1), KEYS + VALUES), dtype=np.int16)
        states = np.empty(size, dtype=np.int64)
        used = _draw(random_key("recall", seed), _FIRST[name], flat, rows, states)
        automata = Automata(rows[:used].copy(), offsets_of(states))
        offsets = np.arange(size + 1) * LENGTH
        sets[name] = Problems(flat.reshape(-1), offsets, automata, Origin(task="recall", split=name, seed=seed))
    return Splits(**sets)


@kernel
def _draw(key, first, flat, rows, states):  # type: ignore[no-untyped-def]
    """Problems first, first + 1, ...: tokens into flat [count, LENGTH], tables into rows; returns the rows used."""
    state = np.empty(1, np.uint64)
    value_of = np.empty(KEYS, np.int64)
    state_of = np.empty(VALUES, np.int64)
    shown = np.empty(KEYS, np.bool_)
    at = 0
    for i in range(flat.shape[0]):
        seek(state, key, first + i)
        hub = at
        rows[hub] = -1
        at += 1
        state_of[:] = -1
        for k in range(KEYS):
            v = value_of[k] = below(state, VALUES)
            if state_of[v] < 0:
                state_of[v] = at - hub
                rows[at] = -1
                rows[at, KEYS + v] = 0
                at += 1
            rows[hub, k] = state_of[v]
        states[i] = at - hub
        shown[:] = False
        for p in range(PAIRS + 1):
            k = below(state, KEYS)
            while p == PAIRS and not shown[k]:
                k = below(state, KEYS)
            shown[k] = True
            flat[i, 2 * p] = 1 + k
            flat[i, 2 * p + 1] = 1 + KEYS + value_of[k]
    return at
