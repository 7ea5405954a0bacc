"""The in-context n-gram model with back-off (appendix C.1), as the authors ran it.

A string is its symbols after N - 1 start marks; the prefix read so far is a list of strings, the last of them unfinished.
With h the last n - 1 items, h' those without the first of them, and c a count over the whole prefix,

    p_n(w | h) = c(h w) / c(h)                               for w seen after h
    p_n(w | h) = beta * p_(n-1)(w | h') / sum of p_(n-1)     for the other symbols seen so far

where beta is what the seen ones leave of 1. It is never 0: c(h) counts h at the end of the prefix too, where nothing follows.
"""

from __future__ import annotations

import numpy as np
import torch

from ..errors import IcllError, whole
from ..jit import kernel
from ..predictors import Predictor, check_tokens, predictor
from ..tasks.problems import Problems
from ..tokens import PAD, REGBENCH, Vocabulary

MAX_ORDER = 16


class NGram:
    """An n-gram model fitted to the prefix alone, anew at every token.

    smoothing: `backoff` (the authors'), `add-one` (every symbol seen so far has one more count in every context) or `none`
    (only what was seen after the context; where nothing was, every symbol seen so far is equally likely). spread:
    `counts`, or `uniform`, which shares the mass of the symbols seen after a context equally among them, as the languages do.
    normalize: the authors' rows lack some mass where all symbols were seen after the context; False keeps them so.
    """

    def __init__(
        self,
        n: int = 3,
        *,
        smoothing: str = "backoff",
        spread: str = "counts",
        normalize: bool = True,
        vocabulary: Vocabulary = REGBENCH,
    ):
        n = whole("the order of an n-gram model", n, 1, MAX_ORDER)
        if smoothing not in ("backoff", "add-one", "none"):
            raise IcllError(f"unknown smoothing {smoothing!r}: choose backoff, add-one or none")
        if spread not in ("counts", "uniform"):
            raise IcllError(f"unknown spread {spread!r}: choose counts or uniform")
        self.n, self.smoothing, self.spread, self.normalize, self.vocabulary = n, smoothing, spread, normalize, vocabulary
        if smoothing == "add-one" and spread == "uniform":
            raise IcllError("add-one smoothing with uniform spread gives every symbol the same: choose one of the two")
        self.name = (
            f"{n}-gram" + (f" {smoothing}" if smoothing != "backoff" else "") + (" uniform" if spread != "counts" else "")
        )
        self.partial = not normalize  # rows may sum to less than 1

    def predict(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token ids [B, L] to distributions [B, L, V] in float64."""
        check_tokens(tokens, self.vocabulary.size)
        rows = tokens.numpy(force=True).astype(np.int64)
        probs = np.zeros((*rows.shape, self.vocabulary.size))
        symbols, separator = len(self.vocabulary.symbols), self.vocabulary.separator_id
        backoff, add_one = self.smoothing == "backoff", self.smoothing == "add-one"
        for row, out in zip(rows, probs, strict=True):
            length = int(np.argmax(row == PAD)) if (row == PAD).any() else len(row)
            _predict(row[:length], self.n, symbols, separator, backoff, add_one, self.spread == "uniform", out)
        if self.normalize:
            total = probs.sum(axis=-1, keepdims=True)
            probs /= np.where(total > 0, total, 1)
        return torch.from_numpy(probs).to(tokens.device)


@predictor("ngram")
def _ngram(option: str | None, problems: Problems) -> Predictor:
    try:
        n = int(option if option is not None else 3)
    except ValueError:
        raise IcllError(f"ngram:{option}: the order must be a number, as in ngram:3") from None
    return NGram(n, vocabulary=problems.vocabulary)


@kernel
def _predict(tokens, order, symbols, separator, backoff, add_one, uniform, probs):  # type: ignore[no-untyped-def]
    """One pass over a problem into probs [L, V].

    The n-grams are a trie: a node is a run of items, `count` how often it occurred, `child[node, w]` the run with w behind it
    (column 0 is the start mark). `last[k]` is the node of the last k items, -1 if the string is shorter: reading w turns
    the node of the last k items into that of the last k + 1 with one look-up.
    """
    most = 1 + order * (tokens.size * order + order)  # every item of every string (start marks too) may add `order` nodes
    child = np.full((min(most, 1024), symbols + 1), -1, np.int32)
    count = np.zeros(child.shape[0], np.int64)
    last = np.full(order + 1, -1)
    last[0] = 0
    nodes = 1
    seen = np.zeros(symbols + 1, np.bool_)
    n_seen = 0
    lower = np.empty(symbols + 1)
    current = np.empty(symbols + 1)
    for t in range(-1, tokens.size):
        if t >= 0 and tokens[t] != separator:
            first_item, items = tokens[t], 1
            if not seen[first_item]:
                seen[first_item] = True
                n_seen += 1
        else:  # a new string: its start marks
            first_item, items = 0, order - 1
            last[1:] = -1
        for _ in range(items):
            if nodes + order > child.shape[0]:
                more = child.shape[0]
                child = np.concatenate((child, np.full((more, symbols + 1), -1, np.int32)))
                count = np.concatenate((count, np.zeros(more, np.int64)))
            count[0] += 1
            for k in range(order - 1, -1, -1):
                node = last[k]
                if node >= 0:
                    if child[node, first_item] < 0:
                        child[node, first_item] = nodes
                        nodes += 1
                    last[k + 1] = child[node, first_item]
                    count[last[k + 1]] += 1
        if t < 0:
            continue
        if n_seen == 0:
            probs[t, 1 : symbols + 1] = 1.0 / symbols
            continue
        for n in range(1 if backoff else order, order + 1):
            node = last[n - 1]
            mass = 0.0  # of the symbols seen after this context
            followers = 0
            rest = 0.0  # what the next lower order gives the others
            for w in range(1, symbols + 1):
                c = 0
                if child[node, w] >= 0:
                    c = count[child[node, w]]
                if add_one and seen[w]:
                    c += 1
                current[w] = c
                if c > 0:
                    mass += c
                    followers += 1
                elif seen[w] and n > 1:
                    rest += lower[w]
            total = count[node] + (n_seen if add_one else 0)
            for w in range(1, symbols + 1):
                if current[w] > 0:
                    current[w] = (mass / followers if uniform else current[w]) / total
                elif not seen[w]:
                    current[w] = 0.0
                elif backoff:
                    current[w] = (1.0 - mass / total) * lower[w] / rest
                elif followers == 0:
                    current[w] = 1.0 / n_seen
            lower[:] = current
        for w in range(1, symbols + 1):
            probs[t, w] = current[w]
