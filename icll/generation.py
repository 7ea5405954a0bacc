"""Writing in an unseen language: given some of its strings, new ones, and how many of them the language accepts.

Models are not trained to end a string (separators are not in the loss), so the length of a new one is given, not generated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from .errors import IcllError, whole
from .languages import Automaton
from .metrics import pooled
from .model import Model, evaluating
from .predictors import Predictor
from .tasks.problems import Problems
from .tokens import PAD, REGBENCH, SEP

TOGETHER = 64  # texts that a model writes at once


def write_strings(
    predictor: Predictor, prompt: np.ndarray, lengths: list[int], temperature: float = 1.0, seed: int = 0
) -> Iterator[int]:
    """Tokens of new strings, one after the other, with a separator before each. temperature 0 takes the likeliest symbol.

    A model goes on from its recurrent state, the Bayes filter from its hypotheses; any other predictor is asked again for
    every token.
    """
    _check(lengths, temperature, seed)
    rng = np.random.default_rng(seed)
    following = _following(predictor, prompt, len(prompt) + sum(lengths) + len(lengths))
    for length in lengths:
        probs = following(SEP)
        yield SEP
        for _ in range(length):
            token = _choose(probs, temperature, rng)
            yield token
            probs = following(token)


def _check(lengths: list[int], temperature: float, seed: int) -> None:
    whole("the number of strings", len(lengths), 1)
    for length in lengths:
        whole("the length of a string", length, 1)
    if temperature < 0:
        raise IcllError(f"temperature must be 0 or more, not {temperature}")
    whole("seed", seed, 0)


def _following(predictor: Predictor, prompt: np.ndarray, longest: int) -> Callable[[int], np.ndarray]:
    """A function that reads a token and gives the distribution of the next."""
    if isinstance(predictor, Model):
        read = _stepping(predictor, 1)
        for token in prompt:
            read([int(token)])
        return lambda token: read([token])[0]
    if hasattr(predictor, "reader"):
        go_on = predictor.reader(longest)
        if len(prompt):
            go_on(prompt)
        return lambda token: go_on([token])
    text = [int(t) for t in prompt]

    def ask(token: int) -> np.ndarray:
        text.append(token)
        return predictor.predict(torch.tensor([text]))[0, -1].double().numpy()

    return ask


def _stepping(model: Model, size: int) -> Callable[[list[int]], np.ndarray]:
    """A function that reads a token of each of `size` texts and gives the distributions [size, V] of the next ones."""
    state = model.initial_state(size)

    def read(tokens: list[int]) -> np.ndarray:
        nonlocal state
        with evaluating(model):
            logits, state = model.step(torch.tensor(tokens, device=model.device), state)
        return logits.double().softmax(-1).cpu().numpy()

    return read


def _write_together(
    model: Model, prompts: list[np.ndarray], strings: int, length: int, temperature: float, seeds: list[int]
) -> list[list[int]]:
    """What `write_strings` writes after each prompt, by one step of the model for all of them: a text that has come to its end
    waits for the others."""
    read = _stepping(model, len(prompts))
    texts = [[int(t) for t in prompt] for prompt in prompts]
    rngs = [np.random.default_rng(seed) for seed in seeds]
    new = strings * (length + 1)
    for t in range(max(map(len, prompts)) + new - 1):
        probs = read([text[t] if t < len(text) else PAD for text in texts])
        for text, prompt, row, rng in zip(texts, prompts, probs, rngs, strict=True):
            place = t + 1 - len(prompt)  # of the next token, among the new ones
            if 0 <= place < new:
                text.append(_choose(row, temperature, rng) if place % (length + 1) else SEP)
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]


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
    _check([length] * strings, temperature, seed)
    counts = np.zeros((len(problems), 2))
    order = np.argsort(-np.diff(problems.offsets), kind="stable")  # texts of about the same length are written together
    size = TOGETHER if isinstance(predictor, Model) else os.cpu_count() or 1

    def write(i: int) -> list[int]:
        return list(write_strings(predictor, prompts[i], [length] * strings, temperature, seed + i))

    prompts = [problems.flat[problems.offsets[i] : problems.offsets[i + 1]] for i in range(len(problems))]
    with ThreadPoolExecutor(size) as pool:
        for at in range(0, len(problems), size):
            some = [int(i) for i in order[at : at + size]]
            if isinstance(predictor, Model):
                seeds = [seed + i for i in some]
                written = _write_together(predictor, [prompts[i] for i in some], strings, length, temperature, seeds)
            else:
                written = list(pool.map(write, some))
            for i, text in zip(some, written, strict=True):
                for s in range(strings):
                    legal = accepted(problems.automata[i], text[s * (length + 1) + 1 : (s + 1) * (length + 1)])
                    counts[i] += legal == length, legal
            progress(at + len(some), len(problems))
    totals = np.tile([strings, strings * length], (len(problems), 1))
    mean, low, high = pooled(counts, totals)
    shares = [(float(mean[j]), float(low[j]), float(high[j])) for j in (0, 1)]
    return Acceptance(name, len(problems), shares[0], shares[1])
