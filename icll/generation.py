"""Writing in an unseen language: given some of its strings, new ones, and how many of them the language accepts.

Models are not trained to end a string (separators are not in the loss), so the length of a new one is given, not generated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from .errors import IcllError, whole
from .languages import Automaton
from .metrics import pooled
from .model import Model, evaluating
from .predictors import Predictor
from .tasks.problems import Problems
from .tokens import REGBENCH, SEP


def write_strings(
    predictor: Predictor, prompt: np.ndarray, lengths: list[int], temperature: float = 1.0, seed: int = 0
) -> Iterator[int]:
    """Tokens of new strings, one after the other, with a separator before each. temperature 0 takes the likeliest symbol.

    A model goes on from its recurrent state; any other predictor is asked again for every token.
    """
    if temperature < 0:
        raise IcllError(f"temperature must be 0 or more, not {temperature}")
    rng = np.random.default_rng(seed)
    following = _following(predictor, prompt)
    for length in lengths:
        whole("the length of a string", length, 1)
        probs = following(SEP)
        yield SEP
        for _ in range(length):
            token = _choose(probs, temperature, rng)
            yield token
            probs = following(token)


def _following(predictor: Predictor, prompt: np.ndarray) -> Callable[[int], np.ndarray]:
    """A function that reads a token and gives the distribution of the next."""
    if isinstance(predictor, Model):
        model, state = predictor, predictor.initial_state(1)

        def read(token: int) -> np.ndarray:
            nonlocal state
            with evaluating(model):
                logits, state = model.step(torch.tensor([token], device=model.device), state)
            return logits[0].double().softmax(-1).cpu().numpy()

        for token in prompt:
            read(int(token))
        return read
    text = [int(t) for t in prompt]

    def ask(token: int) -> np.ndarray:
        text.append(token)
        return predictor.predict(torch.tensor([text]))[0, -1].double().numpy()

    return ask


def _choose(probs: np.ndarray, temperature: float, rng: np.random.Generator) -> int:
    symbols = probs[1 : len(REGBENCH.symbols) + 1].clip(min=0)
    if temperature == 0:
        return int(symbols.argmax()) + 1
    weights = (symbols / symbols.max()) ** (1 / temperature)
    return int(rng.choice(len(weights), p=weights / weights.sum())) + 1


@dataclass(frozen=True)
class Acceptance:
    """Shares with 95 % intervals over problems: (mean, low, high)."""

    name: str
    problems: int
    strings: tuple[float, float, float]  # accepted as a whole
    symbols: tuple[float, float, float]  # legal, up to the first one that is not

    def as_dict(self) -> dict[str, object]:
        names = ("mean", "low", "high")
        shares = {k: dict(zip(names, getattr(self, k), strict=True)) for k in ("strings", "symbols")}
        return {"name": self.name, "problems": self.problems, **shares}


def accepted(automaton: Automaton, symbols: list[int]) -> int:
    """How many symbols are legal before the first that is not; after that there is no state to be legal in."""
    state = 0
    for i, token in enumerate(symbols):
        state = int(automaton.transitions[state, token - 1])
        if state < 0:
            return i
    return len(symbols)


def score_writing(
    predictor: Predictor,
    problems: Problems,
    name: str,
    strings: int = 5,
    length: int = 20,
    temperature: float = 1.0,
    seed: int = 0,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Acceptance:
    """Read each problem, write new strings, and ask its language."""
    counts = np.zeros((len(problems), 2))
    for i in range(len(problems)):
        prompt = problems.flat[problems.offsets[i] : problems.offsets[i + 1]]
        written = list(write_strings(predictor, prompt, [length] * strings, temperature, seed=seed + i))
        for s in range(strings):
            legal = accepted(problems.automata[i], written[s * (length + 1) + 1 : (s + 1) * (length + 1)])
            counts[i] += legal == length, legal
        progress(i + 1, len(problems))
    totals = np.tile([strings, strings * length], (len(problems), 1))
    mean, low, high = pooled(counts, totals)
    shares = [(float(mean[j]), float(low[j]), float(high[j])) for j in (0, 1)]
    return Acceptance(name, len(problems), shares[0], shares[1])
