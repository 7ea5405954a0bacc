"""The Bayes-optimal predictor of section 4.3, by sequential Monte Carlo over automata.

The prior is the one the data is drawn from (a `Profile`). A hypothesis is a lazily discovered automaton: the edges taken so far and
where they lead. Everything else about it is summed out exactly:

* the out-degree m of a state, from the v symbols it emitted and the d distinct ones among them:
  P(emissions | m) = m (m-1) ... (m-d+1) / m^v, up to the factor for *which* symbols, 1 / (c (c-1) ... (c-d+1));
* the alphabet's size c, from those factors and the k symbols seen in the whole problem;
* the number of states n, from the targets: each is uniform over the n - 1 - r states that the source does not lead to yet;
* the target of the edge just taken: all targets are tried, and only those that explain the next symbol well are kept.

What is not summed out is which target every edge has; the posterior over those is represented by weighted hypotheses, no two of
them alike. When there are more than `particles`, they are thinned by the optimal rule of Fearnhead and Clifford (2003): the heavy ones
are kept with their weights, the light ones stand for each other by chance, and no expectation is biased.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch

from ..errors import IcllError
from ..jit import kernel
from ..languages.profile import Profile, get_profile
from ..languages.random import random_key, uniform
from ..predictors import Predictor, check_tokens, predictor
from ..tasks.problems import Problems
from ..tokens import N_SYMBOLS, PAD, SEP, VOCAB_SIZE

MAX_STATES = 100
_NEGLIGIBLE = 1e-12  # hypotheses with less of the posterior are dropped
_GRAIN = 1e-6
_PENDING = -1  # the target of an edge that was taken but has not been decided on


class BayesFilter:
    """Posterior-mean predictions under the prior of `profile`, from at most `particles` hypotheses."""

    def __init__(self, particles: int = 2000, *, profile: str | Profile = "paper", seed: int = 0, threads: int | None = None):
        if particles < 1:
            raise IcllError(f"the filter needs at least 1 particle, not {particles}")
        self.profile = get_profile(profile)
        if self.profile.states[1] > MAX_STATES:
            raise IcllError(f"the filter takes profiles of at most {MAX_STATES} states, not {self.profile.states[1]}")
        self.particles, self.seed, self.threads = particles, seed, threads or os.cpu_count() or 1
        self.name = f"bayes:{particles}"

    def predict(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token ids [B, L] to distributions [B, L, V] in float64; problems are spread over threads."""
        check_tokens(tokens, VOCAB_SIZE)
        rows = tokens.numpy(force=True).astype(np.int64)
        probs = np.zeros((*rows.shape, VOCAB_SIZE))
        prior = make_prior(self.profile, rows.shape[1])

        def run(b: int) -> None:
            length = int((rows[b] != PAD).sum())
            random = np.array([random_key("bayes", self.seed)], dtype=np.uint64)
            stuck = _filter(rows[b, :length], make_cloud(self.particles, prior), prior, SEP, random, probs[b])
            if stuck >= 0:
                raise IcllError(
                    f"token {stuck} of problem {b} of the batch is impossible for all {self.particles} hypotheses: "
                    "give BayesFilter the profile the data was made with, or more particles"
                )

        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(run, range(len(rows))))
        return torch.from_numpy(probs).to(tokens.device)


@predictor("bayes")
def _bayes(option: str | None, problems: Problems) -> Predictor:
    try:
        particles = int(option or 2000)
    except ValueError:
        raise IcllError(f"bayes:{option}: the number of particles must be a number, as in bayes:2000") from None
    profile = Profile(**problems.origin.profile) if problems.origin.profile else "paper"
    return BayesFilter(particles, profile=profile)


class Prior(NamedTuple):
    """A profile as the kernels want it.

    The out-degree of a state is uniform over least_m..min(most_m, n - 1, c). `least_class` is the least value that upper end can
    have; index j of a "class" axis stands for the upper end least_class + j. For both standard profiles with n >= 5 there is one.
    """

    n: np.ndarray  # [Rn] numbers of states
    c: np.ndarray  # [Rc] alphabet sizes
    most_m: int
    least_class: int
    again: np.ndarray  # [most_m + 1, V, classes]: P(the next symbol is a certain one of the d seen at a state | d, v)
    fresh: np.ndarray  # [most_m + 1, V, classes]: P(it is one not seen there yet)


def make_prior(profile: Profile, longest: int) -> Prior:
    n = np.arange(profile.states[0], profile.states[1] + 1)
    c = np.arange(profile.alphabet[0], profile.alphabet[1] + 1)
    most = min(profile.edges[1], int(n[-1]) - 1, int(c[-1]))
    least_class = min(most, int(n[0]) - 1, int(c[0]))
    # A grain of prior mass on more edges than there can be: a hypothesis that merged two states pays for it, but lives on to be mended.
    slack = min(int(n[-1]) - 1, int(c[-1]))
    visits = np.arange(longest + 1)
    again = np.zeros((slack + 1, longest + 1, most - least_class + 1))
    fresh = np.zeros_like(again)
    for j in range(again.shape[2]):
        m = np.arange(profile.edges[0], slack + 1, dtype=np.float64)
        log_prior = np.where(m <= least_class + j, 0.0, np.log(_GRAIN))
        for d in range(slack + 1):
            with np.errstate(divide="ignore"):  # log m (m-1) ... (m-d+1), -inf if m < d
                ways = np.log(np.clip(m[:, None] - np.arange(d), 0, None)).sum(axis=1) if d else np.zeros(len(m))
            log = (log_prior + ways)[:, None] - visits * np.log(m)[:, None]
            posterior = np.exp(log - log.max(axis=0))
            posterior /= posterior.sum(axis=0)
            again[d, :, j] = (posterior / m[:, None]).sum(axis=0)
            fresh[d, :, j] = (posterior * ((m - d) / m)[:, None]).sum(axis=0)
    return Prior(n, c, slack, least_class, again, fresh)


class Cloud(NamedTuple):
    """Hypotheses. Each has `states` discovered states; state s has `degree` known edges, of which `resolved` have a target."""

    weight: np.ndarray  # [P]
    states: np.ndarray  # [P]
    position: np.ndarray  # [P] the state it is in or, if an edge waits for its target, the state that edge leaves
    waiting: np.ndarray  # [P] that edge's slot, or -1
    symbol: np.ndarray  # int8 [P, S, M] of each edge
    target: np.ndarray  # int8 [P, S, M]; _PENDING if not decided
    degree: np.ndarray  # int8 [P, S]
    resolved: np.ndarray  # int8 [P, S]
    visits: np.ndarray  # int32 [P, S] symbols emitted
    by_n: np.ndarray  # [P, Rn] posterior weights, each up to a factor
    by_c: np.ndarray  # [P, Rc]
    by_class: np.ndarray  # [P, classes]
    tail_n: np.ndarray  # [P, classes] sums of by_n over n - 1 >= least_class + j
    tail_c: np.ndarray  # [P, classes, 1 + 2 M] sums over c >= least_class + j of by_c times 1, 1/(c-d), (c-k)/(18-k)/(c-d)


def make_cloud(particles: int, prior: Prior) -> Cloud:
    classes, m, s = prior.again.shape[2], prior.most_m, int(prior.n[-1])
    p = particles
    return Cloud(
        np.zeros(p), np.zeros(p, np.int64), np.zeros(p, np.int64), np.zeros(p, np.int64),
        np.zeros((p, s, m), np.int8), np.zeros((p, s, m), np.int8), np.zeros((p, s), np.int8), np.zeros((p, s), np.int8),
        np.zeros((p, s), np.int32), np.zeros((p, len(prior.n))), np.zeros((p, len(prior.c))), np.zeros((p, classes)),
        np.zeros((p, classes)), np.zeros((p, classes, 1 + 2 * m)),
    )  # fmt: skip


@kernel
def _start(cloud, i, prior, symbols):
    """Make hypothesis i the empty one: the start state, nothing known of it."""
    cloud.weight[i] = 1.0
    cloud.states[i] = 1
    cloud.position[i] = 0
    cloud.waiting[i] = -1
    cloud.degree[i] = 0
    cloud.resolved[i] = 0
    cloud.visits[i] = 0
    cloud.by_n[i] = 1.0
    cloud.by_c[i] = 1.0
    cloud.by_class[i] = 1.0
    _sum_n(cloud, i, prior)
    _sum_c(cloud, i, prior, 0, symbols)


@kernel
def _copy(cloud, i, j):
    """Make hypothesis j a copy of hypothesis i."""
    cloud.states[j] = cloud.states[i]
    cloud.position[j] = cloud.position[i]
    cloud.waiting[j] = cloud.waiting[i]
    for s in range(cloud.states[i]):
        for e in range(cloud.degree[i, s]):
            cloud.symbol[j, s, e] = cloud.symbol[i, s, e]
            cloud.target[j, s, e] = cloud.target[i, s, e]
        cloud.degree[j, s] = cloud.degree[i, s]
        cloud.resolved[j, s] = cloud.resolved[i, s]
        cloud.visits[j, s] = cloud.visits[i, s]
    cloud.by_n[j] = cloud.by_n[i]
    cloud.by_c[j] = cloud.by_c[i]
    cloud.by_class[j] = cloud.by_class[i]
    cloud.tail_n[j] = cloud.tail_n[i]
    cloud.tail_c[j] = cloud.tail_c[i]


@kernel
def _sum_n(cloud, i, prior):
    """Bring tail_n in line with by_n."""
    by_n = cloud.by_n[i]
    by_n /= by_n.max()
    for j in range(cloud.tail_n.shape[1]):
        total = 0.0
        for q in range(prior.n.size):
            if prior.n[q] - 1 >= prior.least_class + j:
                total += by_n[q]
        cloud.tail_n[i, j] = total


@kernel
def _sum_c(cloud, i, prior, k, symbols):
    """Bring tail_c in line with by_c, when k of all `symbols` have been seen."""
    by_c = cloud.by_c[i]
    by_c /= by_c.max()
    tails = cloud.tail_c[i]
    tails[:] = 0.0
    for q in range(prior.c.size):
        c = prior.c[q]
        unseen = (c - k) / (symbols - k) if symbols > k else 0.0
        for j in range(min(tails.shape[0], c - prior.least_class + 1)):
            tails[j, 0] += by_c[q]
            for d in range(min(prior.most_m, c)):
                tails[j, 1 + d] += by_c[q] / (c - d)
                tails[j, 1 + prior.most_m + d] += by_c[q] * unseen / (c - d)


@kernel
def _joint(cloud, i, tail_n, g, rate):
    """Sum over n, c and out-degree classes of their posterior weight times what tail_n, column g of tail_c and rate [classes] add."""
    total = 0.0
    classes = rate.size
    for j in range(classes):
        share = tail_n[j] * cloud.tail_c[i, j, g]
        if j + 1 < classes:  # upper end of exactly least_class + j: at least it, but not more
            share -= tail_n[j + 1] * cloud.tail_c[i, j + 1, g]
        total += cloud.by_class[i, j] * rate[j] * share
    return total


@kernel
def _edge(cloud, i, s, x):
    """Slot of the edge of state s with symbol x, or -1."""
    for e in range(cloud.degree[i, s]):
        if cloud.symbol[i, s, e] == x:
            return e
    return -1


@kernel
def _spread(cloud, i, s, scale, tail_n, prior, probs, base):
    """Add the next-symbol distribution of state s: to probs [symbol] for known edges, to base for the others (see `_mixture`)."""
    m = prior.most_m
    if s < cloud.states[i]:
        d, v = np.int64(cloud.degree[i, s]), cloud.visits[i, s]
    else:
        d, v = np.int64(0), np.int32(0)
    other = unseen = 0.0
    if d < m:
        other = scale * _joint(cloud, i, tail_n, 1 + d, prior.fresh[d, v])
        unseen = scale * _joint(cloud, i, tail_n, 1 + m + d, prior.fresh[d, v])
    base[0] += other
    base[1] += unseen
    if d > 0:
        known = scale * _joint(cloud, i, tail_n, 0, prior.again[d, v])
        for e in range(d):
            probs[cloud.symbol[i, s, e]] += known - other  # it is among those seen somewhere, which all get `other`


@kernel
def _next(cloud, i, s, x, seen, tail_n, prior):
    """Weight of symbol x after state s (a new one if s is the number of states), as `_spread` gives it."""
    d, v = np.int64(0), np.int32(0)
    if s < cloud.states[i]:
        d, v = np.int64(cloud.degree[i, s]), cloud.visits[i, s]
        if _edge(cloud, i, s, x) >= 0:
            return _joint(cloud, i, tail_n, 0, prior.again[d, v])
    if d >= prior.most_m:
        return 0.0
    return _joint(cloud, i, tail_n, 1 + d + (0 if seen[x] else prior.most_m), prior.fresh[d, v])


@kernel
def _options(cloud, i, prior, old, new):
    """tail_n after the waiting edge got a target: `old` for a certain known state, `new` for one not met before."""
    r = cloud.resolved[i, cloud.position[i]]
    old[:] = 0.0
    new[:] = 0.0
    for q in range(prior.n.size):
        n = prior.n[q]
        if n >= cloud.states[i] and n - 1 - r > 0:
            each = cloud.by_n[i, q] / (n - 1 - r)
            for j in range(min(old.size, n - prior.least_class)):
                old[j] += each
                new[j] += each * (n - cloud.states[i])


@kernel
def _may_lead_to(cloud, i, t):
    """Whether the waiting edge may lead to the known state t: no self-loops, no two edges with one target."""
    s = cloud.position[i]
    if t == s:
        return False
    for e in range(cloud.degree[i, s]):
        if cloud.target[i, s, e] == t:
            return False
    return True


@kernel
def _mixture(cloud, active, count, seen, prior, probs):
    """The posterior predictive distribution of the next symbol into probs [symbols + 1] (by id)."""
    probs[:] = 0.0
    base = np.zeros(2)  # of every symbol seen somewhere, and of every other
    one = np.ones(cloud.by_class.shape[1])
    old, new = np.empty((2, one.size))
    for a in range(count):
        i = active[a]
        scale = cloud.weight[i] / _joint(cloud, i, cloud.tail_n[i], 0, one)
        if cloud.waiting[i] < 0:
            _spread(cloud, i, cloud.position[i], scale, cloud.tail_n[i], prior, probs, base)
        else:
            _options(cloud, i, prior, old, new)
            for t in range(cloud.states[i]):
                if _may_lead_to(cloud, i, t):
                    _spread(cloud, i, t, scale, old, prior, probs, base)
            if cloud.states[i] < prior.n[-1]:
                _spread(cloud, i, cloud.states[i], scale, new, prior, probs, base)
    total = 0.0
    for x in range(1, probs.size):
        probs[x] += base[0] if seen[x] else base[1]
        total += probs[x]
    probs /= total


@kernel
def _apply(cloud, i, option, x, k, seen, prior):
    """Hypothesis i takes symbol x; `option` is the target its waiting edge gets first, or -1 if none waits."""
    s = cloud.position[i]
    if option >= 0:
        e, r, known = cloud.waiting[i], cloud.resolved[i, s], cloud.states[i]
        cloud.target[i, s, e] = option
        cloud.resolved[i, s] += 1
        for q in range(prior.n.size):
            n = prior.n[q]
            factor = 0.0
            if n - 1 - r > 0 and n >= known:
                factor = (1.0 if option < known else n - known) / (n - 1 - r)
            cloud.by_n[i, q] *= factor
        _sum_n(cloud, i, prior)
        if option == known:
            cloud.states[i] += 1
            cloud.degree[i, option] = 0
            cloud.resolved[i, option] = 0
            cloud.visits[i, option] = 0
        s = option
    e = _edge(cloud, i, s, x)
    d, v = cloud.degree[i, s], cloud.visits[i, s]
    if e >= 0:
        rate = prior.again[d, v]
    else:
        rate = prior.fresh[d, v]
        e = np.int64(d)
        cloud.symbol[i, s, e] = x
        cloud.target[i, s, e] = _PENDING
        cloud.degree[i, s] += 1
        for q in range(prior.c.size):
            c = prior.c[q]
            factor = 1.0 / (c - d) if c > d else 0.0
            if not seen[x]:
                factor *= max(c - k, 0)
            cloud.by_c[i, q] *= factor
        _sum_c(cloud, i, prior, k + (not seen[x]), seen.size - 1)
    if rate.size > 1:
        cloud.by_class[i] *= rate
        cloud.by_class[i] /= cloud.by_class[i].max()
    cloud.visits[i, s] += 1
    if cloud.target[i, s, e] == _PENDING:
        cloud.position[i] = s
        cloud.waiting[i] = e
    else:
        cloud.position[i] = cloud.target[i, s, e]
        cloud.waiting[i] = -1


@kernel
def _thin(weights, count, most, random):
    """Fearnhead and Clifford's optimal resampling: change weights[:count] (of sum 1) so that at most `most` are not 0."""
    level, heavy = 1.0 / most, -1
    while True:  # the level at which sum of min(1, w / level) is `most`
        above, light = 0, 0.0
        for i in range(count):
            if weights[i] >= level:
                above += 1
            else:
                light += weights[i]
        if above == heavy or above >= most:
            break
        heavy = above
        level = light / (most - above)
    left = most - above
    mark = uniform(random) * level
    passed = 0.0
    for i in range(count):
        if weights[i] < level:
            passed += weights[i]
            if passed > mark and left > 0:
                weights[i] = level
                mark += level
                left -= 1
            else:
                weights[i] = 0.0


@kernel
def _filter(tokens, cloud, prior, separator, random, probs):
    """One problem: the posterior predictive into probs [L, V]. Returns -1, or the position of a token all hypotheses exclude."""
    particles = cloud.weight.size
    symbols = probs.shape[1] - 2
    seen = np.zeros(symbols + 1, np.bool_)
    k = 0
    active = np.arange(particles)  # the first `count` are in use
    count = 1
    _start(cloud, 0, prior, symbols)
    room = particles * (prior.n[-1] + 1)
    weights = np.empty(room)
    parent = np.empty(room, np.int64)
    option = np.empty(room, np.int64)
    mixture = np.empty(symbols + 1)
    one = np.ones(cloud.by_class.shape[1])
    old, new = np.empty((2, one.size))
    spare = np.empty(particles, np.int64)
    for t in range(tokens.size):
        x = tokens[t]
        if x == separator:
            for a in range(count):
                cloud.position[active[a]] = 0
                cloud.waiting[active[a]] = -1
        else:
            candidates = 0
            total = 0.0
            for a in range(count):
                i = active[a]
                scale = cloud.weight[i] / _joint(cloud, i, cloud.tail_n[i], 0, one)
                if cloud.waiting[i] < 0:
                    weights[candidates] = scale * _next(cloud, i, cloud.position[i], x, seen, cloud.tail_n[i], prior)
                    parent[candidates] = a
                    option[candidates] = -1
                    total += weights[candidates]
                    candidates += 1
                else:
                    _options(cloud, i, prior, old, new)
                    for s in range(cloud.states[i] + 1):
                        if s < cloud.states[i]:
                            if not _may_lead_to(cloud, i, s):
                                continue
                            w = scale * _next(cloud, i, s, x, seen, old, prior)
                        else:
                            w = scale * _next(cloud, i, s, x, seen, new, prior) if s < prior.n[-1] else 0.0
                        if w > 0.0:
                            weights[candidates] = w
                            parent[candidates] = a
                            option[candidates] = s
                            total += w
                            candidates += 1
            if total <= 0.0:
                return t
            for q in range(candidates):
                weights[q] /= total
            if candidates > particles:
                _thin(weights, candidates, particles, random)
            # A hypothesis becomes its first surviving child; further ones take places that others leave, or unused ones.
            spares = 0
            q = 0
            for a in range(count):
                alive = False
                while q < candidates and parent[q] == a:
                    alive = alive or weights[q] > _NEGLIGIBLE
                    q += 1
                if not alive:
                    spare[spares] = active[a]
                    spares += 1
            q = 0
            used = count
            for a in range(count):
                i = active[a]
                first = -1
                while q < candidates and parent[q] == a:
                    if weights[q] > _NEGLIGIBLE:
                        if first < 0:
                            first = q
                        else:
                            if spares > 0:
                                spares -= 1
                                j = spare[spares]
                            else:
                                j = active[used]
                                used += 1
                            _copy(cloud, i, j)
                            _apply(cloud, j, option[q], x, k, seen, prior)
                            cloud.weight[j] = weights[q]
                    q += 1
                if first >= 0:
                    _apply(cloud, i, option[first], x, k, seen, prior)
                    cloud.weight[i] = weights[first]
            for b in range(spares):
                cloud.weight[spare[b]] = 0.0
            count = 0
            for b in range(used):
                if cloud.weight[active[b]] > 0.0:
                    active[b], active[count] = active[count], active[b]
                    count += 1
            if not seen[x]:
                seen[x] = True
                k += 1
        _mixture(cloud, active, count, seen, prior, mixture)
        probs[t, 1 : symbols + 1] = mixture[1:]
    return -1
