"""Everything that predicts is a predictor; one `evaluate` scores any of them, one `compare` sets any two side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from .errors import IcllError, unknown, whole
from .metrics import Scores, token_metrics, tvd
from .tasks.problems import Problems
from .tokens import N_SYMBOLS, PAD, VOCAB_SIZE

BATCH = 32
_TOLERANCE = 1e-3

Progress = Callable[[int, int], object]


@runtime_checkable
class Predictor(Protocol):
    """Maps token ids [B, L] to next-token distributions [B, L, V]: row t is for token t + 1, given tokens 0..t.

    Rows must be distributions wherever there is a token; under padding they may be anything.
    """

    def predict(self, tokens: torch.Tensor) -> torch.Tensor: ...


class Oracle:
    """The languages themselves: knows which problem it is asked about, and returns its truth. Prefixes will do."""

    _HEAD = 16

    def __init__(self, problems: Problems):
        self.problems = problems
        self._by_head: dict[bytes, list[int]] = {}
        for i in range(len(problems)):
            self._by_head.setdefault(self._problem(i)[: self._HEAD].tobytes(), []).append(i)

    def _problem(self, i: int) -> np.ndarray:
        return self.problems.flat[self.problems.offsets[i] : self.problems.offsets[i + 1]]

    def _find(self, row: np.ndarray) -> int:
        head = row[: self._HEAD].tobytes()
        if len(row) >= self._HEAD:
            candidates = self._by_head.get(head, [])
        else:
            candidates = [i for start, indices in self._by_head.items() if start.startswith(head) for i in indices]
        found = [i for i in candidates if np.array_equal(self._problem(i)[: len(row)], row)]
        if not found:
            raise IcllError("the oracle does not know this problem: give Oracle the problems it is asked about")
        if len({self.problems.automata[i] for i in found}) > 1:
            raise IcllError(
                f"{len(found)} problems of different languages begin with these {len(row)} tokens, so the oracle cannot tell "
                "which is meant: give it longer prefixes, or Oracle(problems) fewer problems"
            )
        return found[0]

    def predict(self, tokens: torch.Tensor) -> torch.Tensor:
        check_tokens(tokens, self.problems.vocab_size)
        rows = tokens.numpy(force=True).astype(np.uint8)
        lengths = (rows != PAD).sum(axis=1)
        truth = torch.zeros(*tokens.shape, self.problems.vocab_size)
        for b, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            if length:
                found = self.problems[self._find(row[:length])]
                truth[b, :length] = found.truth[0, :length]
        return truth.to(tokens.device)


class Uniform:
    """Every symbol seen so far is equally likely; before the first one, every symbol there is."""

    def __init__(self, vocab_size: int = VOCAB_SIZE, n_symbols: int = N_SYMBOLS):
        self.vocab_size, self.n_symbols = vocab_size, n_symbols

    def predict(self, tokens: torch.Tensor) -> torch.Tensor:
        check_tokens(tokens, self.vocab_size)
        seen = torch.nn.functional.one_hot(tokens.long(), self.vocab_size).cummax(dim=1).values
        symbols = torch.zeros(self.vocab_size, dtype=torch.bool, device=tokens.device)
        symbols[1 : self.n_symbols + 1] = True
        seen = seen * symbols
        seen = torch.where(seen.any(-1, keepdim=True), seen, symbols.to(seen.dtype))
        return seen / seen.sum(-1, keepdim=True)


# A name on the command line to its maker, which gets what stands behind the colon (or None) and the problems to predict.
PREDICTORS: dict[str, Callable[[str | None, Problems], Predictor]] = {}
Maker = Callable[[str | None, Problems], Predictor]


def predictor(name: str) -> Callable[[Maker], Maker]:
    """Register a maker of predictors under a name."""

    def register(maker: Maker) -> Maker:
        PREDICTORS[name] = maker
        return maker

    return register


@predictor("oracle")
def _oracle(option: str | None, problems: Problems) -> Predictor:
    no_option("oracle", option)
    return Oracle(problems)


@predictor("uniform")
def _uniform(option: str | None, problems: Problems) -> Predictor:
    no_option("uniform", option)
    return Uniform(problems.vocab_size, len(problems.vocabulary.symbols))


def no_option(name: str, option: str | None) -> None:
    if option is not None:
        raise IcllError(f"{name} takes no option: write {name}, not {name}:{option}")


def make_predictor(spec: str, problems: Problems) -> Predictor:
    """A predictor from its name on the command line, such as `ngram:3` or `oracle`."""
    name, colon, option = spec.partition(":")
    if name not in PREDICTORS:
        raise unknown("predictor", name, [*PREDICTORS, "the folder of a run"])
    return PREDICTORS[name](option if colon else None, problems)


def evaluate(
    predictor: Predictor,
    problems: Problems,
    *,
    name: str | None = None,
    batch_size: int = BATCH,
    progress: Progress = lambda done, total: None,
) -> Scores:
    """Score a predictor. Distributions live for one batch only; problems of similar length share a batch."""
    title = name or name_of(predictor)
    parts: list[tuple[np.ndarray, ...]] = []
    seconds, done = 0.0, 0
    for indices, batch in batches(problems, batch_size):
        tokens = batch.tokens
        start = time.perf_counter()
        probs = predictions(predictor, title, tokens, batch, indices)
        seconds += time.perf_counter() - start
        row, at = batch.scored.nonzero(as_tuple=True)
        metrics = token_metrics(probs[row, at], batch.truth[row, at], tokens[row, at + 1])
        seen = batch.strings_seen[row, at]
        at, seen = at.to(torch.int32), seen.to(torch.int32)
        parts.append((metrics.float().numpy(), indices[row.numpy()].astype(np.int32), at.numpy(), seen.numpy()))
        done += len(indices)
        progress(done, len(problems))
    values, problem, position, strings = (np.concatenate(column) for column in zip(*parts, strict=True))
    if not len(values):
        raise IcllError("no token of these problems is scored: each has a single token")
    return Scores(title, len(problems), values, problem, position, strings, seconds)


def compare(
    a: Predictor,
    b: Predictor,
    problems: Problems,
    *,
    first: int | None = 100,
    batch_size: int = BATCH,
    progress: Progress = lambda done, total: None,
) -> float:
    """Mean TVD between two predictors, pooled over the scored tokens among the first `first` rows of each problem."""
    if first is not None:
        whole("first", first, 1)
    total, count, done = 0.0, 0, 0
    for indices, batch in batches(problems, batch_size):
        tokens = batch.tokens[:, :first]
        scored = batch.scored[:, :first]
        left, right = (predictions(p, name_of(p), tokens, batch, indices)[scored].double() for p in (a, b))
        total += tvd(left, right).sum().item()
        count += len(left)
        done += len(indices)
        progress(done, len(problems))
    if not count:
        raise IcllError("no token of these problems is scored: each has a single token")
    return total / count


def check_tokens(tokens: torch.Tensor, vocab_size: int) -> None:
    """Token ids [B, L] within the vocabulary, or an error."""
    if tokens.dim() != 2 or tokens.dtype.is_floating_point or tokens.dtype == torch.bool:
        raise IcllError(f"tokens must be whole numbers of shape [B, L], not {tokens.dtype} {list(tokens.shape)}")
    if tokens.numel():
        for extreme in tokens.aminmax():
            if not 0 <= extreme < vocab_size:
                raise IcllError(f"token {extreme.item()} is outside the vocabulary: ids are 0..{vocab_size - 1}")


def name_of(predictor: object) -> str:
    return str(getattr(predictor, "name", type(predictor).__name__))


def batches(problems: Problems, batch_size: int) -> Iterator[tuple[np.ndarray, Problems]]:
    """Problems of similar length together, with their indices."""
    whole("the batch size", batch_size, 1)
    if not len(problems):
        raise IcllError("there are no problems to predict: the set is empty")
    order = np.argsort(np.diff(problems.offsets), kind="stable")
    for first in range(0, len(order), batch_size):
        indices = order[first : first + batch_size]
        yield indices, problems[indices]


def predictions(predictor: Predictor, name: str, tokens: torch.Tensor, batch: Problems, indices: np.ndarray) -> torch.Tensor:
    """The predictor's distributions, on the CPU, or an error that says which rule they break and where."""
    if isinstance(predictor, Oracle):  # the batch itself says which problems these are
        return batch.truth[:, : tokens.shape[1]]
    if not isinstance(predictor, Predictor):
        raise IcllError(f"{name} is not a predictor: it has no method predict(tokens)")
    with torch.no_grad():
        probs = predictor.predict(tokens)
    want = [*tokens.shape, batch.vocab_size]
    if not isinstance(probs, torch.Tensor) or list(probs.shape) != want:
        got = list(probs.shape) if isinstance(probs, torch.Tensor) else f"a {type(probs).__name__}"
        raise IcllError(f"{name}.predict must return a tensor of shape [B, L, V] = {want}, not {got}")
    probs = probs.detach().cpu()
    inside = tokens != PAD
    lowest, highest = (0.0 if getattr(predictor, "partial", False) else 1.0), 1.0
    sums = probs.sum(-1, dtype=torch.float64)
    wrong = inside & ~((sums >= lowest - _TOLERANCE) & (sums <= highest + _TOLERANCE) & (probs >= -_TOLERANCE).all(-1))
    if wrong.any():
        b, t = wrong.nonzero()[0].tolist()
        row = f"problem {indices[b]}, position {t}"
        cause = (
            "has a negative entry (are these logits? take their softmax)"
            if (probs[b, t] < -_TOLERANCE).any()
            else f"sums to {sums[b, t]:.4g}"
        )
        raise IcllError(f"{name}.predict must return rows that are distributions; the one of {row} {cause}")
    return probs
