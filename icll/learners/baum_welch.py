"""The in-context Baum-Welch model (appendix C.2): a hidden Markov model fitted to the prefix, anew at every token.

Glossary, for automaton states i, j, k = 0..N-1 (0 is the start):

    H(i, j)             hidden state "the automaton goes from i to j", i != j
    start[k]            pi of H(0, k); all other H start with probability 0 (the start mask)
    move[j, i, k]       A from H(i, j) to H(j, k); all other transitions are 0 (the transition mask): N^3 entries, not N^4
    emit[x, j, k]       B of symbol x in H(j, k)

EM never turns a 0 into something else, so masks are kept by starting with them. Forward and backward variables are scaled at
each step. The memory layout puts the last index innermost in every loop that carries the work.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch

from ..errors import IcllError, whole
from ..jit import kernel
from ..languages.automaton import Automaton
from ..languages.random import random_key, uniform
from ..predictors import Predictor, check_tokens, predictor
from ..tasks.problems import Problems
from ..tokens import PAD, SEP, VOCAB_SIZE

_KEEP = 0.95  # of the last fit, in a warm start
_STEP = 5  # the time mask: with each symbol at most this many new states can be reached


class HMM(NamedTuple):
    """Parameters of the pair-state model; see the glossary."""

    start: np.ndarray  # [N]
    move: np.ndarray  # [N, N, N] (j, i, k)
    emit: np.ndarray  # [symbols, N, N]


def hmm_of(automaton: Automaton) -> HMM:
    """The hidden Markov model with the same string probabilities as an automaton (appendix C.2).

    H(i, j) stands for the edges from i to j. It is entered with the probability of going to j *next*, so that its transitions
    depend on the edges that leave j: A(H(i, j), H(j, k)) is the probability of the edges from j to k (the paper prints those
    from i to j). Given H(j, k), each symbol on an edge from j to k is equally likely.
    """
    n = automaton.n_states
    edges = np.zeros((automaton.n_symbols, n, n))
    for s in range(n):
        probs = automaton.next_probs(s)
        for a in np.flatnonzero(probs):
            edges[a, s, automaton.transitions[s, a]] = probs[a]
    go = edges.sum(axis=0)  # [j, k]
    emit = np.divide(edges, go, out=np.zeros_like(edges), where=go > 0)
    return HMM(go[0].copy(), np.repeat(go[:, None, :], n, axis=1), emit)


def log_likelihood(hmm: HMM, symbols: np.ndarray) -> float:
    """log P(string) of symbols 1, 2, ...; -inf if it is impossible."""
    alphas, scales = np.empty((len(symbols), *hmm.move.shape[:2])), np.empty(len(symbols))
    _forward(np.asarray(symbols, dtype=np.int64), hmm.start, hmm.move, hmm.emit, False, alphas, scales)
    with np.errstate(divide="ignore"):
        return float(np.log(scales).sum())


class BaumWelch:
    """Next-token predictions of a pair-state HMM, fitted to the prefix by `iterations` of EM at every token.

    states: of the automaton (144 hidden states for 12). restart: `fresh` draws new parameters at every token, as the authors
    do; `warm` goes on from the last fit. restarts: how many random starts are tried at every token; the likeliest is kept.
    time_mask: at most 5 new states with each symbol of a string, as the authors had. masks: False leaves out the start and
    transition masks (a dense HMM of states^2 hidden states: slow, for comparison).
    """

    def __init__(
        self,
        states: int = 12,
        iterations: int = 10,
        *,
        restart: str = "fresh",
        restarts: int = 1,
        time_mask: bool = False,
        masks: bool = True,
        seed: int = 0,
        threads: int | None = None,
    ):
        self.states = whole("the number of states", states, 2, 100)
        self.iterations = whole("the number of iterations", iterations, 1, 100_000)
        self.restarts = whole("the number of restarts", restarts, 1, 10_000)
        self.seed = whole("the seed", seed, 0)
        self.threads = whole("the number of threads", threads or os.cpu_count() or 1, 1)
        if restart not in ("fresh", "warm"):
            raise IcllError(f"unknown restart {restart!r}: choose fresh or warm")
        if time_mask and not masks:
            raise IcllError("the time mask needs the other masks: leave out masks=False")
        self.restart, self.time_mask, self.masks = restart, time_mask, masks
        self.name = "baum-welch" + (" warm" if restart == "warm" else "") + ("" if masks else " unmasked")

    def predict(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token ids [B, L] to distributions [B, L, V] in float64; problems are spread over threads."""
        check_tokens(tokens, VOCAB_SIZE)
        rows = tokens.numpy(force=True).astype(np.int64)
        probs = np.zeros((*rows.shape, VOCAB_SIZE))

        def run(b: int) -> None:
            row = rows[b, : int((rows[b] != PAD).sum())]
            random = np.array([random_key("baum-welch", self.seed)], dtype=np.uint64)
            warm = self.restart == "warm"
            if self.masks:
                _predict(row, self.states, self.iterations, self.restarts, warm, self.time_mask, SEP, random, probs[b])
            else:
                _predict_dense(row, self.states**2, self.iterations, self.restarts, warm, SEP, random, probs[b])

        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(run, range(len(rows))))
        return torch.from_numpy(probs).to(tokens.device)


@predictor("baum-welch")
def _baum_welch(option: str | None, problems: Problems) -> Predictor:
    if option not in (None, "warm", "time-mask", "unmasked"):
        raise IcllError(f"baum-welch:{option}: choose baum-welch:warm, baum-welch:time-mask or baum-welch:unmasked")
    return BaumWelch(
        restart="warm" if option == "warm" else "fresh", time_mask=option == "time-mask", masks=option != "unmasked"
    )


@kernel
def random_hmm(n, symbols, random, start, move, emit):
    """Random parameters under the masks: no H(i, i), strings start in H(0, k)."""
    start[:] = 0.0
    move[:] = 0.0
    emit[:] = 0.0
    for j in range(n):
        if j > 0:
            start[j] = 1e-3 + uniform(random)
        for k in range(n):
            if k != j:
                for x in range(symbols):
                    emit[x, j, k] = 1e-3 + uniform(random)
                for i in range(n):
                    if i != j:
                        move[j, i, k] = 1e-3 + uniform(random)
    start /= start.sum()
    for j in range(n):
        for k in range(n):
            if k != j:
                total = 0.0
                for x in range(symbols):
                    total += emit[x, j, k]
                for x in range(symbols):
                    emit[x, j, k] /= total
                move[j, k] /= move[j, k].sum()


@kernel
def _forward(string, start, move, emit, time_mask, alphas, scales):
    """Scaled forward variables: alphas[t, j, i] = P(H(i, j) at t | symbols 0..t), scales[t] = P(symbol t | those before)."""
    n = start.size
    inflow = np.empty(n)
    for t in range(string.size):
        x = string[t] - 1
        total = 0.0
        new = alphas[t]
        if t == 0:
            new[:] = 0.0
            for k in range(n):
                if not time_mask or k <= _STEP:
                    new[k, 0] = start[k] * emit[x, 0, k]
                    total += new[k, 0]
        else:
            for j in range(n):
                inflow[:] = 0.0
                for i in range(n):
                    a = alphas[t - 1, j, i]
                    for k in range(n):
                        inflow[k] += a * move[j, i, k]
                for k in range(n):
                    value = inflow[k] * emit[x, j, k]
                    if time_mask and (j > _STEP * t or k > _STEP * (t + 1)):
                        value = 0.0
                    new[k, j] = value
                    total += value
        scales[t] = total
        if total > 0.0:
            for j in range(n):
                for i in range(n):
                    new[j, i] /= total


@kernel
def em_step(strings, string_at, start, move, emit, time_mask):
    """One iteration of EM in place, over strings[string_at[q]:string_at[q + 1]]. Returns the log-likelihood before it."""
    n, symbols = start.size, emit.shape[0]
    longest = 0
    for q in range(string_at.size - 1):
        longest = max(longest, string_at[q + 1] - string_at[q])
    alphas = np.empty((longest, n, n))
    scales = np.empty(longest)
    beta, later = np.empty((n, n)), np.empty((n, n))  # [j, i]: of H(i, j)
    pull = np.empty((n, n))  # [j, k]: P(symbol t + 1 and what follows | H(j, k) at t + 1), scaled
    turned = np.empty((n, n, n))  # move with the last two axes exchanged
    for j in range(n):
        for i in range(n):
            for k in range(n):
                turned[j, k, i] = move[j, i, k]
    new_start = np.zeros(n)
    flow = np.zeros((n, n, n))  # expected transitions, but for the factor `move`
    counts = np.zeros((symbols, n, n))  # expected emissions
    log_likelihood = 0.0
    for q in range(string_at.size - 1):
        string = strings[string_at[q] : string_at[q + 1]]
        _forward(string, start, move, emit, time_mask, alphas, scales)
        for t in range(string.size - 1, -1, -1):
            log_likelihood += np.log(scales[t])
            if t == string.size - 1:
                beta[:] = 1.0
            else:
                x = string[t + 1] - 1
                for j in range(n):
                    for k in range(n):
                        pull[j, k] = emit[x, j, k] * later[k, j] / scales[t + 1]
                        if time_mask and (j > _STEP * (t + 1) or k > _STEP * (t + 2)):
                            pull[j, k] = 0.0
                beta[:] = 0.0
                for j in range(n):
                    for k in range(n):
                        p = pull[j, k]
                        for i in range(n):
                            beta[j, i] += turned[j, k, i] * p
                    for i in range(n):
                        a = alphas[t, j, i]
                        for k in range(n):
                            flow[j, i, k] += a * pull[j, k]
            x = string[t] - 1
            for j in range(n):
                for i in range(n):
                    counts[x, i, j] += alphas[t, j, i] * beta[j, i]
                    later[j, i] = beta[j, i]
        for k in range(n):
            new_start[k] += alphas[0, k, 0] * beta[k, 0]
    total = new_start.sum()
    if total > 0.0:
        start[:] = new_start / total
    for j in range(n):
        for i in range(n):
            total = 0.0
            for k in range(n):
                flow[j, i, k] *= move[j, i, k]
                total += flow[j, i, k]
            if total > 0.0:  # a hidden state that is never left keeps its transitions
                for k in range(n):
                    move[j, i, k] = flow[j, i, k] / total
            total = 0.0
            for x in range(symbols):
                total += counts[x, i, j]
            if total > 0.0:
                for x in range(symbols):
                    emit[x, i, j] = counts[x, i, j] / total
    return log_likelihood


@kernel
def _predict(tokens, n, iterations, restarts, warm, time_mask, separator, random, probs):
    """One problem into probs [L, V]."""
    symbols = probs.shape[1] - 2
    # (not rows of one array: the compiler must see that they are contiguous)
    start, move, emit = np.empty(n), np.empty((n, n, n)), np.empty((symbols, n, n))
    best_start, best_move, best_emit = np.empty(n), np.empty((n, n, n)), np.empty((symbols, n, n))
    strings = np.empty(tokens.size, np.int64)
    string_at = np.zeros(tokens.size + 2, np.int64)
    count = 0  # whole strings; the one being read is the next
    read = 0
    fitted = False
    alphas, scales = np.empty((tokens.size, n, n)), np.empty(tokens.size)
    for t in range(tokens.size):
        if tokens[t] == separator:
            if read > string_at[count]:
                count += 1
                string_at[count] = read
        else:
            strings[read] = tokens[t]
            read += 1
            string_at[count + 1] = read
            best = -np.inf
            for r in range(restarts):
                random_hmm(n, symbols, random, start, move, emit)
                if warm and fitted and r == 0:  # a little of the random start: else a new symbol would stay impossible
                    start[:] = _KEEP * best_start + (1 - _KEEP) * start
                    move[:] = _KEEP * best_move + (1 - _KEEP) * move
                    emit[:] = _KEEP * best_emit + (1 - _KEEP) * emit
                likelihood = -np.inf
                for _ in range(iterations):
                    likelihood = em_step(strings[:read], string_at[: count + 2], start, move, emit, time_mask)
                if likelihood > best or r == 0:
                    best = likelihood
                    best_start[:], best_move[:], best_emit[:] = start, move, emit
            fitted = True
        last = strings[string_at[count] : read]
        row = probs[t]
        if not fitted:
            row[1 : symbols + 1] = 1.0 / symbols
            continue
        if last.size == 0:
            for x in range(symbols):
                for k in range(n):
                    row[x + 1] += best_start[k] * best_emit[x, 0, k]
        else:
            _forward(last, best_start, best_move, best_emit, time_mask, alphas, scales)
            for j in range(n):
                for k in range(n):
                    p = 0.0
                    for i in range(n):
                        p += alphas[last.size - 1, j, i] * best_move[j, i, k]
                    for x in range(symbols):
                        row[x + 1] += p * best_emit[x, j, k]
        total = row.sum()
        row /= total


# --- the dense model without masks, for comparison only ---


@kernel
def _forward_dense(string, start, move, emit, alphas, scales):
    for t in range(string.size):
        if t == 0:
            alphas[0] = start
        else:
            _step_dense(alphas[t - 1], move, alphas[t])
        alphas[t] *= emit[string[t] - 1]
        scales[t] = alphas[t].sum()
        alphas[t] /= scales[t]


@kernel
def _step_dense(before, move, after):
    """after = before @ move, without a linear algebra library."""
    after[:] = 0.0
    for a in range(before.size):
        for b in range(after.size):
            after[b] += before[a] * move[a, b]


@kernel
def em_step_dense(strings, string_at, start, move, emit):
    """One iteration of EM for a plain HMM: start [H], move [H, H], emit [symbols, H]. Returns the log-likelihood before it."""
    h = start.size
    new_start = np.zeros(h)
    flow = np.zeros((h, h))
    counts = np.zeros(emit.shape)
    turned = np.ascontiguousarray(move.T)
    pull = np.empty(h)
    log_likelihood = 0.0
    for q in range(string_at.size - 1):
        string = strings[string_at[q] : string_at[q + 1]]
        alphas, scales = np.empty((string.size, h)), np.empty(string.size)
        _forward_dense(string, start, move, emit, alphas, scales)
        log_likelihood += np.log(scales).sum()
        beta = np.ones(h)
        for t in range(string.size - 1, -1, -1):
            counts[string[t] - 1] += alphas[t] * beta
            if t > 0:
                pull[:] = emit[string[t] - 1] * beta / scales[t]
                for a in range(h):
                    before = alphas[t - 1, a]
                    for b in range(h):
                        flow[a, b] += before * pull[b]
                _step_dense(pull, turned, beta)
        new_start += alphas[0] * beta
    start[:] = new_start / new_start.sum()
    flow *= move
    for a in range(h):
        total = flow[a].sum()
        if total > 0.0:
            move[a] = flow[a] / total
        total = counts[:, a].sum()
        if total > 0.0:
            emit[:, a] = counts[:, a] / total
    return log_likelihood


@kernel
def _predict_dense(tokens, h, iterations, restarts, warm, separator, random, probs):
    symbols = probs.shape[1] - 2
    start, move, emit = np.empty(h), np.empty((h, h)), np.empty((symbols, h))
    best_start, best_move, best_emit = np.empty(h), np.empty((h, h)), np.empty((symbols, h))
    strings = np.empty(tokens.size, np.int64)
    string_at = np.zeros(tokens.size + 2, np.int64)
    count = read = 0
    fitted = False
    for t in range(tokens.size):
        if tokens[t] == separator:
            if read > string_at[count]:
                count += 1
                string_at[count] = read
        else:
            strings[read] = tokens[t]
            read += 1
            string_at[count + 1] = read
            best = -np.inf
            for r in range(restarts):
                for a in range(h):
                    start[a] = 1e-3 + uniform(random)
                    for b in range(h):
                        move[a, b] = 1e-3 + uniform(random)
                    move[a] /= move[a].sum()
                    for x in range(symbols):
                        emit[x, a] = 1e-3 + uniform(random)
                    emit[:, a] /= emit[:, a].sum()
                start /= start.sum()
                if warm and fitted and r == 0:
                    start[:] = _KEEP * best_start + (1 - _KEEP) * start
                    move[:] = _KEEP * best_move + (1 - _KEEP) * move
                    emit[:] = _KEEP * best_emit + (1 - _KEEP) * emit
                likelihood = -np.inf
                for _ in range(iterations):
                    likelihood = em_step_dense(strings[:read], string_at[: count + 2], start, move, emit)
                if likelihood > best or r == 0:
                    best = likelihood
                    best_start[:], best_move[:], best_emit[:] = start, move, emit
            fitted = True
        last = strings[string_at[count] : read]
        row = probs[t]
        if not fitted:
            row[1 : symbols + 1] = 1.0 / symbols
            continue
        ahead = best_start.copy()
        if last.size > 0:
            alphas, scales = np.empty((last.size, h)), np.empty(last.size)
            _forward_dense(last, best_start, best_move, best_emit, alphas, scales)
            _step_dense(alphas[-1], best_move, ahead)
        for x in range(symbols):
            row[x + 1] = (best_emit[x] * ahead).sum()
        row /= row.sum()
