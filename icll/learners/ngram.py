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
        lengths = (rows != PAD).sum(axis=1)
        uniform = self.spread == "uniform"
        _predict_all(rows, lengths, self.n, symbols, separator, backoff, add_one, uniform, self.normalize, probs)
        return torch.from_numpy(probs).to(tokens.device)


@predictor("ngram")
def _ngram(option: str | None, problems: Problems) -> Predictor:
    """`ngram`, `ngram:3`, `ngram:3:add-one`, `ngram:3:none`, `ngram:3:uniform`."""
    order, _, variant = ("3" if option is None else option).partition(":")
    if not order.isdecimal():
        raise IcllError(f"ngram:{option}: the order must be a number, as in ngram:3")
    if variant not in ("", "add-one", "none", "uniform"):
        raise IcllError(f"ngram:{option}: write ngram:{order}:add-one, ngram:{order}:none or ngram:{order}:uniform")
    smoothing = variant if variant in ("add-one", "none") else "backoff"
    spread = "uniform" if variant == "uniform" else "counts"
    return NGram(int(order), smoothing=smoothing, spread=spread, vocabulary=problems.vocabulary)


@kernel
def _predict(tokens, order, symbols, separator, backoff, add_one, uniform, normalize, probs):  # type: ignore[no-untyped-def]
    """One pass over a problem into probs [L, V], which holds zeros.

    The n-grams are a trie: a node is a run of items, `count` how often it occurred; its children, one for each item that
    followed, are a list through `child` and `sibling` (item 0 is the start mark). `last[k]` is the node of the last k items, -1
    if the string is shorter: reading an item turns the node of the last k items into that of the last k + 1 in one look-up.
    """
    items = tokens.size + (order - 1) * (1 + (tokens == separator).sum())
    size = 1 + order * items
    item, count = np.empty(size, np.int32), np.empty(size, np.int32)
    child, sibling = np.empty(size, np.int32), np.empty(size, np.int32)
    item[0], child[0], sibling[0], count[0] = -1, -1, -1, 0
    nodes = 1
    single = np.full(symbols + 1, -1)  # the root's children by item: they can be many
    last = np.full(order + 1, -1)
    last[0] = 0
    seen = np.empty(symbols, np.int64)
    n_seen = read = 0
    given = np.full(symbols + 1, -1)  # the last row in which a symbol got its probability
    for t in range(-1, tokens.size):
        new_string = t < 0 or tokens[t] == separator
        w = 0 if new_string else tokens[t]
        if new_string:
            last[1:] = -1
        else:
            read += 1
            if single[w] < 0:
                seen[n_seen] = w
                n_seen += 1
        for _ in range(order - 1 if new_string else 1):
            count[0] += 1
            for k in range(order - 1, -1, -1):
                node = last[k]
                if node < 0:
                    continue
                c = np.int64(single[w] if k == 0 else child[node])
                while c >= 0 and item[c] != w:
                    c = sibling[c]
                if c < 0:
                    c = nodes
                    item[c], count[c], child[c], sibling[c] = w, 0, -1, child[node]
                    child[node] = c
                    if k == 0:
                        single[w] = c
                    nodes += 1
                count[c] += 1
                last[k + 1] = c
        if t < 0:
            continue
        row = probs[t]
        if n_seen == 0:
            row[1 : symbols + 1] = 1.0 / symbols
            continue
        # From the highest order down: whoever was seen after the context gets c(h w) / c(h) times `scale`; the others wait for
        # the next lower order. Whoever was seen after the longer context was seen after the shorter one, too.
        scale = beta = 1.0
        for n in range(order, 0, -1):
            node = last[n - 1]
            total = np.float64(count[node])
            mass = followers = 0
            higher = served = 0  # those among them that were served at a higher order
            if n == 1:
                mass, followers = read, n_seen
                for q in range(n_seen):
                    if given[seen[q]] == t:
                        higher += count[single[seen[q]]]
                        served += 1
            else:
                c = np.int64(child[node])
                while c >= 0:
                    if item[c] > 0:
                        mass += count[c]
                        followers += 1
                        if given[item[c]] == t:
                            higher += count[c]
                            served += 1
                    c = sibling[c]
            each = mass / followers if uniform and followers else 0.0
            if n < order:
                everyone = mass / total if followers == n_seen else 1.0
                scale *= beta / (everyone - (served * each if uniform else higher) / total)
            elif add_one:  # every symbol seen has one more count, here and at no lower order
                share = 1.0 / ((mass if normalize else total) + n_seen)
                for q in range(n_seen):
                    row[seen[q]] = share
                scale = share * total
            elif normalize and followers and (followers == n_seen or not backoff):
                scale = total / mass  # nothing is left for a lower order
            share = scale / total
            if n == 1:
                for q in range(n_seen):
                    if given[seen[q]] != t:
                        row[seen[q]] += share * (each if uniform else count[single[seen[q]]])
                break
            c = np.int64(child[node])
            while c >= 0:
                if item[c] > 0 and given[item[c]] != t:
                    given[item[c]] = t
                    row[item[c]] += share * (each if uniform else count[c])
                c = sibling[c]
            beta = 1.0 - mass / total
            if not backoff and not add_one and followers == 0:
                for q in range(n_seen):
                    row[seen[q]] = 1.0 / n_seen
            if not backoff or followers == n_seen:
                break


@kernel
def _predict_all(rows, lengths, order, symbols, separator, backoff, add_one, uniform, normalize, probs):  # type: ignore[no-untyped-def]
    for b in range(lengths.size):
        _predict(rows[b, : lengths[b]], order, symbols, separator, backoff, add_one, uniform, normalize, probs[b])
