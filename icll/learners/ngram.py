"""The in-context n-gram model with back-off (appendix C.1), as the authors ran it.

A string is its symbols after N - 1 start marks; the prefix read so far is a list of strings, the last of them unfinished.
With h the last n - 1 items, h' those without the first of them, and c a count over the whole prefix,

    p_n(w | h) = c(h w) / c(h)                               for w seen after h
    p_n(w | h) = beta * p_(n-1)(w | h') / sum of p_(n-1)     for the other symbols seen so far

where beta is what the seen ones leave of 1. It is never 0: c(h) counts h at the end of the prefix too, where nothing follows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch

from ..errors import IcllError, whole
from ..jit import kernel
from ..predictors import Predictor, check_tokens, predictor
from ..tasks.problems import Problems
from ..tokens import PAD, REGBENCH, Vocabulary

MAX_ORDER = 16
FEW = 4  # followers of a context: most have no more


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
        rows = tokens.numpy(force=True).astype(np.int64, copy=False)
        probs = np.empty((*rows.shape, self.vocabulary.size))
        _compiled(self.n, self.vocabulary, self.smoothing, self.spread == "uniform", self.normalize)(rows, probs)
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


@lru_cache
def _compiled(order: int, vocabulary: Vocabulary, smoothing: str, uniform: bool, normalize: bool) -> Callable[..., None]:
    """The learner as a kernel (token ids [B, L], room for distributions [B, L, V]), compiled for these settings: loops over so
    few items are quick only where their length is known."""
    size, symbols, separator = vocabulary.size, len(vocabulary.symbols), vocabulary.separator_id
    backoff, add_one = smoothing == "backoff", smoothing == "add-one"

    @kernel(error_model="numpy")
    def predict(rows, probs):  # type: ignore[no-untyped-def]
        """One pass over each problem.

        The contexts (runs of fewer than `order` items) are the nodes of a trie. For each of them `tally` has how often each
        item followed, as a row over all token ids and, last, the start mark, and `child` the longer context that makes; `total`
        is how often the context itself occurred, `mass` how often a symbol followed, and `who` lists the `followers` different
        ones. `last[k]` is the node of the last k items, -1 if the string is shorter: reading an item turns the node of the last
        k items into that of the last k + 1 in one look-up. `inverse[i]` is 1 / i.

        What costs time are branches that the processor cannot foresee. Contexts have few followers, but not always as many:
        so the first FEW places of `who` are always gone through, and hold PAD, whose tally is 0, until there is a follower.
        Indices are unsigned, which spares a test for "from the end" at every access.
        """
        longest = 0  # problem, in items
        for b in range(rows.shape[0]):
            items = order - 1
            for t in range(rows.shape[1]):
                items += order if rows[b, t] == separator else 1
            longest = max(longest, items)
        most = 1 + (order - 1) * longest
        tally, child = np.empty((most, size + 1), np.int32), np.empty((most, size + 1), np.int32)
        who = np.empty((most, max(size, FEW)), np.int16)
        total, mass, followers = np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most, np.int32)
        inverse = 1.0 / np.maximum(np.arange(longest + 1), 1)
        last = np.empty(order, np.int32)
        scale = np.empty(order)
        for b in range(rows.shape[0]):
            length = rows.shape[1]
            while length > 0 and rows[b, length - 1] == PAD:
                length -= 1
            probs[b, length:] = 0.0
            last[0] = 0
            n_nodes = 1
            tally[0], child[0], total[0], mass[0], followers[0], who[0, :FEW] = 0, -1, 0, 0, 0, PAD
            for t in range(-1, length):
                # Read an item: a symbol, or at the beginning of a string the start marks, which stand after the token ids.
                new_string = t < 0 or rows[b, t] == separator
                if new_string:
                    last[1:] = -1
                w = np.uintp(size if new_string else rows[b, t])
                for _ in range(order - 1 if new_string else 1):
                    total[0] += 1
                    for k in range(order - 1, -1, -1):
                        if last[k] < 0:
                            continue
                        node = np.uintp(last[k])
                        if not new_string:
                            mass[node] += 1
                            if tally[node, w] == 0:
                                who[node, np.uintp(followers[node])] = w
                                followers[node] += 1
                        tally[node, w] += 1
                        if k + 1 < order:
                            c = child[node, w]
                            if c < 0:
                                c = child[node, w] = n_nodes
                                n_nodes += 1
                                tally[c], child[c], total[c], mass[c], followers[c], who[c, :FEW] = 0, -1, 0, 0, 0, PAD
                            total[c] += 1
                            last[k + 1] = c
                if t < 0:
                    continue

                # Write the row of what may follow.
                row = probs[b, np.uintp(t)]
                n_seen = followers[0]
                node = np.uintp(last[order - 1])
                if n_seen == 0:
                    for v in range(size):
                        row[v] = 1.0 / symbols if 0 < v <= symbols else 0.0
                    continue
                if add_one:  # every symbol seen has one more count, here and at no lower order
                    share = 1.0 / ((mass[node] if normalize else total[node]) + n_seen)
                    for v in range(size):
                        row[v] = share * (tally[node, v] + 1) if tally[0, v] > 0 else 0.0
                    continue
                if not backoff and followers[node] == 0:
                    for v in range(size):
                        row[v] = 1.0 / n_seen if tally[0, v] > 0 else 0.0
                    continue
                # From the highest order down: whoever was seen after the context gets its count there times `scale`; the others
                # wait for the next lower order. Whoever was seen after the longer context was seen after the shorter one, too.
                n = order
                whole = followers[node] == n_seen or not backoff  # nothing is left for a lower order
                share = inverse[mass[node] if normalize and whole else total[node]]
                scale[n - 1] = share
                while not whole:
                    upper = node
                    n -= 1
                    node = np.uintp(last[n - 1])
                    whole = followers[node] == n_seen
                    rest = total[upper] - mass[upper]  # beta, in counts of the higher order
                    left = mass[node] if whole else total[node]  # counts here of those who wait
                    if uniform:
                        share *= rest / (left - followers[upper] * mass[node] / max(followers[node], 1))
                    else:
                        for q in range(FEW):
                            left -= tally[node, np.uintp(who[upper, np.uintp(q)])]
                        for q in range(FEW, followers[upper]):
                            left -= tally[node, np.uintp(who[upper, np.uintp(q)])]
                        share *= rest * inverse[left]
                    scale[n - 1] = share
                for v in range(size):
                    row[v] = 0.0 if uniform else share * tally[node, v]
                for k in range(n - 1 if uniform else n, order):
                    node = np.uintp(last[k])
                    share = scale[k]
                    if uniform:
                        share *= mass[node] / max(followers[node], 1)
                        for q in range(followers[node]):
                            row[who[node, q]] = share
                    else:
                        for q in range(FEW):
                            v = np.uintp(who[node, np.uintp(q)])
                            row[v] = share * tally[node, v]
                        for q in range(FEW, followers[node]):
                            v = np.uintp(who[node, np.uintp(q)])
                            row[v] = share * tally[node, v]

    return predict  # type: ignore[no-any-return]
