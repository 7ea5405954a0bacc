"""Hypotheses of the Bayes filter: lazily discovered automata, with everything else about the language summed out.

A hypothesis is a record: the states met so far, their edges, and posterior weights of what is not decided, up to factors:

    n     number of states          by_n      from the targets: uniform over the n - 1 - r states not led to yet
    c     size of the alphabet      by_c      from the symbols: uniform over the c - d of the alphabet not seen there yet
    m     out-degree of a state     by_bound  through the bound of its prior, which n and c can lower

A state with d distinct symbols among v emissions has the evidence sum over m of P(m) m (m-1) ... (m-d+1) / m^v; ratios of it
are tables in `Prior`. The out-degree is uniform over least..min(most, n - 1, c); "bound j" means that this minimum is
least_bound + j. Both standard profiles have one bound, but for n = 4 of `paper`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..jit import kernel
from ..languages.profile import Profile
from ..languages.random import mix

PENDING = -1  # the target of an edge that was taken, but from whose end nothing was emitted yet
# Prior mass of each out-degree above what can be: a hypothesis that took two states for one is not ruled out at once.
GRAIN = 1e-6


class Prior(NamedTuple):
    """A profile as the kernels want it. Tables are over d, v and bounds."""

    n: np.ndarray  # [Rn] numbers of states
    c: np.ndarray  # [Rc] alphabet sizes
    symbols: int  # in the shared set
    most: int  # edges a state can have, slack included
    least_bound: int
    again: np.ndarray  # [most + 1, V, bounds]: P(next symbol is a certain one of the d seen at the state)
    fresh: np.ndarray  # [most + 1, V, bounds]: P(next symbol is one not seen there yet)


def make_prior(profile: Profile, symbols: int, longest: int) -> Prior:
    """The prior for problems of up to `longest` tokens."""
    n = np.arange(profile.states[0], profile.states[1] + 1)
    c = np.arange(profile.alphabet[0], profile.alphabet[1] + 1)
    most = min(int(n[-1]) - 1, int(c[-1]))
    bound = min(profile.edges[1], most)
    least_bound = min(bound, int(n[0]) - 1, int(c[0]))
    visits = np.arange(longest + 1)
    again = np.zeros((most + 1, longest + 1, bound - least_bound + 1))
    fresh = np.zeros_like(again)
    m = np.arange(profile.edges[0], most + 1, dtype=np.float64)
    for j in range(again.shape[2]):
        log_prior = np.where(m <= least_bound + j, 0.0, np.log(GRAIN))
        for d in range(most + 1):
            with np.errstate(divide="ignore"):  # log of m (m-1) ... (m-d+1): -inf if m < d
                ways = np.log(np.clip(m[:, None] - np.arange(d), 0, None)).sum(axis=1)
            log = (log_prior + ways)[:, None] - visits * np.log(m)[:, None]
            posterior = np.exp(log - log.max(axis=0))
            posterior /= posterior.sum(axis=0)
            again[d, :, j] = (posterior / m[:, None]).sum(axis=0)
            fresh[d, :, j] = (posterior * ((m - d) / m)[:, None]).sum(axis=0)
    return Prior(n, c, symbols, most, least_bound, again, fresh)


def make_cloud(size: int, prior: Prior) -> np.ndarray:
    """Room for `size` hypotheses."""
    states, most, bounds = int(prior.n[-1]), prior.most, prior.again.shape[2]
    fields = [
        ("weight", "f8"),  # in the posterior
        ("log_joint", "f8"),  # log P(targets decided, symbols so far)
        ("norm", "f8"),  # sum of the weights of n, c and bounds
        ("states", "i8"),  # how many are known
        ("position", "i8"),  # the state it is in; if an edge waits for its target, the state that edge leaves
        ("waiting", "i8"),  # that edge, or -1
        ("by_n", "f8", (len(prior.n),)),
        ("by_c", "f8", (len(prior.c),)),
        ("by_bound", "f8", (bounds,)),
        ("tail_n", "f8", (bounds,)),  # sums of by_n over n - 1 >= least_bound + j
        # sums over c >= least_bound + j of by_c times: 1; 1 / (c - d); (c - k) / (symbols - k) / (c - d)
        ("tail_c", "f8", (bounds, 1 + 2 * most)),
        ("visits", "i4", (states,)),  # symbols emitted
        ("degree", "i1", (states,)),  # known edges
        ("resolved", "i1", (states,)),  # those among them that have a target
        ("symbol", "i1", (states, most)),
        ("target", "i1", (states, most)),
    ]
    return np.zeros(size, dtype=np.dtype(fields, align=True))


@kernel
def start(h, prior):
    """Make h the hypothesis that knows nothing: the start state, no edge."""
    h.weight = 1.0
    h.log_joint = 0.0
    h.states = 1
    h.position = 0
    h.waiting = -1
    for s in range(h.degree.size):
        h.degree[s] = 0
        h.resolved[s] = 0
        h.visits[s] = 0
    for q in range(prior.n.size):
        h.by_n[q] = 1.0
    for q in range(prior.c.size):
        h.by_c[q] = 1.0
    for j in range(h.by_bound.size):
        h.by_bound[j] = 1.0
    _sum_n(h, prior)
    _sum_c(h, prior, 0)
    _normalise(h)


@kernel
def _sum_n(h, prior):
    """Bring tail_n in line with by_n."""
    most = 0.0
    for q in range(prior.n.size):
        most = max(most, h.by_n[q])
    for j in range(h.tail_n.size):
        h.tail_n[j] = 0.0
    for q in range(prior.n.size):
        if most > 0.0:
            h.by_n[q] /= most
        for j in range(min(h.tail_n.size, prior.n[q] - prior.least_bound)):
            h.tail_n[j] += h.by_n[q]


@kernel
def _sum_c(h, prior, k):
    """Bring tail_c in line with by_c, when k of all symbols have been seen somewhere."""
    most = 0.0
    for q in range(prior.c.size):
        most = max(most, h.by_c[q])
    bounds = h.tail_n.size
    for j in range(bounds):
        for g in range(1 + 2 * prior.most):
            h.tail_c[j, g] = 0.0
    for q in range(prior.c.size):
        c = prior.c[q]
        if most > 0.0:
            h.by_c[q] /= most
        unseen = max(c - k, 0) / (prior.symbols - k) if prior.symbols > k else 0.0
        for j in range(min(bounds, c - prior.least_bound + 1)):
            h.tail_c[j, 0] += h.by_c[q]
            for d in range(min(prior.most, c)):
                each = h.by_c[q] / (c - d)
                h.tail_c[j, 1 + d] += each
                h.tail_c[j, 1 + prior.most + d] += each * unseen


@kernel
def _normalise(h):
    """Bring norm in line with the weights."""
    bounds = h.tail_n.size
    h.norm = 0.0
    for j in range(bounds):
        share = h.tail_n[j] * h.tail_c[j, 0]
        if j + 1 < bounds:
            share -= h.tail_n[j + 1] * h.tail_c[j + 1, 0]
        h.norm += h.by_bound[j] * share


@kernel
def _joint(h, tail_n, g, table, d, v):
    """Sum over n, c and bounds of their weights times what tail_n, column g of tail_c and table[d, v] add."""
    bounds = table.shape[2]
    if bounds == 1:
        return h.by_bound[0] * table[d, v, 0] * tail_n[0] * h.tail_c[0, g]
    total = 0.0
    for j in range(bounds):
        share = tail_n[j] * h.tail_c[j, g]
        if j + 1 < bounds:  # a bound of exactly least_bound + j: at least that, but not more
            share -= tail_n[j + 1] * h.tail_c[j + 1, g]
        total += h.by_bound[j] * table[d, v, j] * share
    return total


@kernel
def find_edge(h, s, x):
    """The edge of state s with symbol x, or -1."""
    for e in range(h.degree[s]):
        if h.symbol[s, e] == x:
            return e
    return -1


@kernel
def may_lead_to(h, t):
    """Whether the waiting edge may lead to the known state t: no self-loops, no two edges with one target."""
    s = h.position
    if t == s:
        return False
    for e in range(h.degree[s]):  # noqa: SIM110
        if h.target[s, e] == t:
            return False
    return True


@kernel
def next_weight(h, s, x, seen, tail_n, prior):
    """P(symbol x after state s) times norm; s may be a new state, numbered h.states."""
    d, v = 0, 0
    if s < h.states:
        d, v = np.int64(h.degree[s]), np.int64(h.visits[s])
        if find_edge(h, s, x) >= 0:
            return _joint(h, tail_n, 0, prior.again, d, v)
    if d >= prior.most:
        return 0.0
    return _joint(h, tail_n, 1 + d if seen[x] else 1 + prior.most + d, prior.fresh, d, v)


@kernel
def add_next(h, s, scale, tail_n, prior, probs, base):
    """Add scale times the distribution after state s: base[0] is for every symbol seen somewhere, base[1] for every other
    one, and probs [symbol] for what the known edges of s have beyond that."""
    d, v = 0, 0
    if s < h.states:
        d, v = np.int64(h.degree[s]), np.int64(h.visits[s])
    other = 0.0
    if d < prior.most:
        other = scale * _joint(h, tail_n, 1 + d, prior.fresh, d, v)
        base[0] += other
        base[1] += scale * _joint(h, tail_n, 1 + prior.most + d, prior.fresh, d, v)
    if d > 0:
        known = scale * _joint(h, tail_n, 0, prior.again, d, v)
        for e in range(d):
            probs[h.symbol[s, e]] += known - other


@kernel
def target_tails(h, prior, old, new):
    """tail_n as it is if the waiting edge leads to a certain known state (old), or to one not met before (new)."""
    r = h.resolved[h.position]
    old[:] = 0.0
    new[:] = 0.0
    for q in range(prior.n.size):
        n = prior.n[q]
        if n >= h.states and n - 1 - r > 0:
            each = h.by_n[q] / (n - 1 - r)
            for j in range(min(old.size, n - prior.least_bound)):
                old[j] += each
                new[j] += each * (n - h.states)


@kernel
def take(h, option, x, k, seen, prior):
    """Take symbol x; `option` is the target the waiting edge gets first (h.states: a new state), or -1 if none waits."""
    s = h.position
    if option >= 0:
        r, known = h.resolved[s], h.states
        h.target[s, h.waiting] = option
        h.resolved[s] += 1
        for q in range(prior.n.size):
            n = prior.n[q]
            if n >= known and n - 1 - r > 0:
                h.by_n[q] *= (1.0 if option < known else n - known) / (n - 1 - r)
            else:
                h.by_n[q] = 0.0
        _sum_n(h, prior)
        if option == known:
            h.states += 1
            h.degree[option] = 0
            h.resolved[option] = 0
            h.visits[option] = 0
        s = option
    d, v = np.int64(h.degree[s]), np.int64(h.visits[s])
    e = find_edge(h, s, x)
    is_fresh = e < 0
    if is_fresh:
        e = d
        h.symbol[s, e] = x
        h.target[s, e] = PENDING
        h.degree[s] += 1
        for q in range(prior.c.size):
            c = prior.c[q]
            factor = 1.0 / (c - d) if c > d else 0.0
            if not seen[x]:
                factor *= max(c - k, 0)
            h.by_c[q] *= factor
        _sum_c(h, prior, k if seen[x] else k + 1)
    if h.by_bound.size > 1:
        most = 0.0
        for j in range(h.by_bound.size):
            h.by_bound[j] *= prior.fresh[d, v, j] if is_fresh else prior.again[d, v, j]
            most = max(most, h.by_bound[j])
        for j in range(h.by_bound.size):
            h.by_bound[j] /= most
    if option >= 0 or is_fresh or h.by_bound.size > 1:
        _normalise(h)
    h.visits[s] += 1
    if h.target[s, e] == PENDING:
        h.position = s
        h.waiting = e
    else:
        h.position = h.target[s, e]
        h.waiting = -1


@kernel
def fingerprint(h):
    """A number that is the same for hypotheses that are the same."""
    code = np.uint64(h.states)
    for s in range(h.states):
        for e in range(h.degree[s]):
            code = (code ^ np.uint64(1 + h.symbol[s, e] + 32 * (2 + h.target[s, e]))) * np.uint64(0x100000001B3)
        code = (code ^ np.uint64(h.degree[s])) * np.uint64(0x100000001B3)
    return mix(code)


@kernel
def same(h, other):
    """Whether two hypotheses are one. States and edges are numbered as they are met, so equal ones look alike."""
    if h.states != other.states:
        return False
    for s in range(h.states):
        if h.degree[s] != other.degree[s]:
            return False
        for e in range(h.degree[s]):
            if h.symbol[s, e] != other.symbol[s, e] or h.target[s, e] != other.target[s, e]:
                return False
    return True
