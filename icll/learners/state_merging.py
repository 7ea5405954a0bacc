"""Grammatical inference as its field does it: ALERGIA (Carrasco and Oncina, 1994), from the library AALpy.

ALERGIA puts the strings into a prefix tree and merges states whose continuations are statistically alike. The result here is a
Markov chain whose states are labelled with the symbol that leads to them. It is learned anew after each whole string.

To predict at every token, a state's estimate is mixed with the uniform distribution over the symbols seen so far, which has
the weight of one observation. If the current string leaves the chain, the belief is spread over all states that are labelled
with its last symbol, by how often each was visited; if there is none, every symbol seen so far is equally likely.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..errors import IcllError
from ..predictors import Predictor, check_tokens, no_option, predictor
from ..tasks.problems import Problems
from ..tokens import N_SYMBOLS, PAD, SEP, VOCAB_SIZE

_START = 0  # label of the chain's first state


class StateMerging:
    """Next-token predictions of a chain learned by ALERGIA after each string.

    eps: confidence of the test whether two states are alike; small values merge more. AALpy's own default, 0.05, is for far
    more data than one problem has.
    """

    def __init__(self, eps: float = 1.0):
        if not (isinstance(eps, (int, float)) and 0 < eps < 2):
            raise IcllError(f"eps must be a number between 0 and 2, not {eps!r}")
        self.eps = eps
        self.name = "state-merging"
        _import_alergia()

    def predict(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token ids [B, L] to distributions [B, L, V] in float64."""
        check_tokens(tokens, VOCAB_SIZE)
        rows = tokens.numpy(force=True)
        probs = np.zeros((*rows.shape, VOCAB_SIZE))
        for row, out in zip(rows, probs, strict=True):
            self._predict(row[row != PAD].tolist(), out)
        return torch.from_numpy(probs).to(tokens.device)

    def _predict(self, tokens: list[int], probs: np.ndarray) -> None:
        chain = _Chain([], self.eps)
        strings: list[list[int]] = []
        string: list[int] = []
        seen = np.zeros(VOCAB_SIZE, dtype=bool)
        for t, x in enumerate(tokens):
            if x == SEP:
                if string:
                    strings.append(string)
                    chain = _Chain(strings, self.eps)
                string = []
                chain.restart()
            else:
                string.append(x)
                seen[x] = True
                chain.read(x)
            rest = seen / seen.sum() if seen.any() else np.r_[0.0, np.ones(N_SYMBOLS), 0.0] / N_SYMBOLS
            probs[t] = chain.next_distribution(rest)


class _Chain:
    """A learned chain, and the belief about the state it is in."""

    def __init__(self, strings: list[list[int]], eps: float):
        self.label, self.next = np.array([_START]), np.zeros((1, VOCAB_SIZE))  # [states], [states, V] probabilities
        self.target: list[dict[int, int]] = [{}]
        if strings:
            model = _import_alergia()([[_START, *s] for s in strings], automaton_type="mc", eps=eps, print_info=False)
            states = [model.initial_state, *(s for s in model.states if s is not model.initial_state)]
            number = {id(s): i for i, s in enumerate(states)}
            self.label = np.array([s.output for s in states])
            self.next = np.zeros((len(states), VOCAB_SIZE))
            self.target = [{} for _ in states]
            for i, s in enumerate(states):
                for other, probability in s.transitions:
                    self.next[i, other.output] = probability
                    self.target[i][other.output] = number[id(other)]
        self.visits = np.zeros(len(self.label))  # followed by a symbol
        for s in strings:
            i = 0
            for x in s:
                self.visits[i] += 1
                i = self.target[i][x]
        self.restart()

    def restart(self) -> None:
        self.belief = np.zeros(len(self.label))
        self.belief[0] = 1.0

    def read(self, x: int) -> None:
        belief = np.zeros_like(self.belief)
        for i in np.flatnonzero(self.belief):
            if x in self.target[i]:
                belief[self.target[i][x]] += self.belief[i] * self.next[i, x]
        if not belief.any():  # off the chain
            belief = np.where(self.label == x, self.visits + 1e-9, 0.0)
        total = belief.sum()
        self.belief = belief / total if total else belief

    def next_distribution(self, rest: np.ndarray) -> np.ndarray:
        if not self.belief.any():
            return rest
        trust = self.visits / (self.visits + 1)
        row = (self.belief * trust) @ self.next + (self.belief * (1 - trust)).sum() * rest
        return row / row.sum()


def _import_alergia() -> Any:
    try:
        from aalpy.learning_algs import run_Alergia
    except ImportError:
        raise IcllError("state merging needs the package aalpy: pip install aalpy") from None
    return run_Alergia


@predictor("state-merging")
def _state_merging(option: str | None, problems: Problems) -> Predictor:
    no_option("state-merging", option)
    return StateMerging()
