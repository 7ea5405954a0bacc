"""The Bayes-optimal predictor of section 4.3, by sequential Monte Carlo over automata.

The prior is the one the data is drawn from (a `Profile`). A hypothesis is a lazily discovered automaton: the edges taken so far
and where they lead. Summed out exactly are the out-degrees, the alphabet, the number of states (`hypotheses.py`), and the
target of the edge just taken: a hypothesis has a child for every target, weighted by how well it explains the next symbol.

What is left is which targets the edges have. The posterior over those is a set of weighted hypotheses, no two of them alike.

* If there are more than `particles`, they are thinned by the optimal rule of Fearnhead and Clifford (2003): heavy ones stay as
  they are, light ones stand for each other by chance.
* After each string, `moves` times, a hypothesis is taken by weight, one of its edges is redirected, and all tokens are read
  again; what the changed path meets anew is drawn from its conditional distribution. A hypothesis found in this way enters
  with its exact weight, P(hypothesis, tokens) over the running evidence: good explanations that were thinned out come back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch

from ..errors import IcllError, whole
from ..jit import kernel
from ..languages.profile import Profile, get_profile
from ..languages.random import random_key, uniform
from ..predictors import Predictor, check_tokens, predictor
from ..tasks.problems import Problems
from ..tokens import N_SYMBOLS, PAD, SEP, VOCAB_SIZE
from .hypotheses import (
    PENDING,
    Prior,
    add_next,
    find_edge,
    fingerprint,
    make_cloud,
    make_prior,
    may_lead_to,
    next_weight,
    same,
    start,
    take,
    target_tails,
)

MAX_STATES = 100
NEGLIGIBLE = 1e-12  # hypotheses with less of the posterior are dropped; much more would drop some that come back


class BayesFilter:
    """Posterior-mean predictions under the prior of `profile`, from at most `particles` hypotheses.

    More `particles`, and more `moves` after each string (default: one and a half for each particle), come closer to the exact
    posterior.
    """

    def __init__(
        self,
        particles: int = 1000,
        *,
        moves: int | None = None,
        profile: str | Profile = "paper",
        seed: int = 0,
        threads: int | None = None,
    ):
        self.particles = whole("the number of particles", particles, 1, 100_000_000)
        self.moves = whole("the number of moves", particles + particles // 2 if moves is None else moves, 0, 100_000_000)
        self.profile = get_profile(profile)
        if self.profile.states[1] > MAX_STATES:
            raise IcllError(f"the filter takes profiles of at most {MAX_STATES} states, not {self.profile.states[1]}")
        self.seed = whole("the seed", seed, 0)
        self.threads = whole("the number of threads", threads or os.cpu_count() or 1, 1)
        self.name = f"bayes:{particles}"

    def predict(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token ids [B, L] to distributions [B, L, V] in float64; problems are spread over threads."""
        check_tokens(tokens, VOCAB_SIZE)
        rows = tokens.numpy(force=True).astype(np.int64)
        probs = np.zeros((*rows.shape, VOCAB_SIZE))
        prior = make_prior(self.profile, N_SYMBOLS, rows.shape[1])

        def run(b: int) -> None:
            length = int((rows[b] != PAD).sum())
            self._read(rows[b, :length], 0, self._begin(prior), prior, probs[b], f" of problem {b} of the batch")

        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(run, range(len(rows))))
        return torch.from_numpy(probs).to(tokens.device)

    def reader(self, longest: int) -> Callable[[Sequence[int]], np.ndarray]:
        """A function that reads more tokens of one problem, of at most `longest` tokens, and gives the distribution [V] of the
        next: the rows of `predict`, without reading again what came before."""
        prior = make_prior(self.profile, N_SYMBOLS, longest)
        cloud, tokens, length = self._begin(prior), np.zeros(longest, np.int64), 0

        def read(more: Sequence[int]) -> np.ndarray:
            nonlocal length
            begin, length = length, length + len(more)
            tokens[begin:length] = more
            probs = np.zeros((length, VOCAB_SIZE))
            self._read(tokens[:length], begin, cloud, prior, probs)
            return probs[-1]

        return read

    def _begin(self, prior: Prior) -> Cloud:
        random = np.array([random_key("bayes", self.seed)], dtype=np.uint64)
        return begin(make_cloud(self.particles + self.moves + 1, prior), self.particles, prior, random)

    def _read(self, tokens: np.ndarray, begin: int, cloud: Cloud, prior: Prior, probs: np.ndarray, where: str = "") -> None:
        stuck = _filter(tokens, begin, cloud, prior, SEP, self.moves, probs)
        if stuck >= 0:
            raise IcllError(
                f"token {stuck}{where} cannot occur under the filter's profile: "
                "give BayesFilter the profile the data was made with"
            )


@predictor("bayes")
def _bayes(option: str | None, problems: Problems) -> Predictor:
    try:
        particles = int(option if option is not None else 1000)
    except ValueError:
        raise IcllError(f"bayes:{option}: the number of particles must be a number, as in bayes:1000") from None
    return BayesFilter(particles, profile=Profile(**problems.origin.profile) if problems.origin.profile else "paper")


class Cloud(NamedTuple):
    """The hypotheses about one problem, and what else is known when it has been read so far."""

    hypotheses: np.ndarray
    active: np.ndarray  # their places: the first `count` are in use
    seen: np.ndarray  # symbols, as a mask
    counts: np.ndarray  # [2]: hypotheses in use, different symbols seen
    log_evidence: np.ndarray  # [1]
    random: np.ndarray
    # room to work in
    parent: np.ndarray
    option: np.ndarray
    rate: np.ndarray
    weights: np.ndarray
    spare: np.ndarray


def begin(hypotheses: np.ndarray, particles: int, prior: Prior, random: np.ndarray) -> Cloud:
    size = hypotheses.size
    start(hypotheses[0], prior)
    room = max(particles * (prior.n[-1] + 1), size)
    parent, option = np.empty((2, room), np.int64)
    rate, weights = np.empty((2, room))
    return Cloud(
        hypotheses, np.arange(size), np.zeros(prior.symbols + 1, np.bool_), np.array([1, 0]), np.zeros(1), random,
        parent, option, rate, weights, np.empty(size, np.int64),
    )  # fmt: skip


@kernel
def _filter(tokens, begin, known, prior, separator, moves, probs):
    """Read tokens[begin:] of one problem: the posterior predictive into probs [L, V]. Returns -1, or the position of a token
    that cannot occur."""
    cloud, active, seen, counts, log_evidence, random, parent, option, rate, weights, spare = known
    particles = cloud.size - moves - 1
    count, k = counts
    for t in range(begin, tokens.size):
        x = tokens[t]
        if x == separator:
            for a in range(count):
                cloud[active[a]].position = 0
                cloud[active[a]].waiting = -1
            before = count
            count = _rejuvenate(cloud, active, count, moves, tokens[: t + 1], separator, prior, log_evidence[0], random)
            if count > before:
                for a in range(count):
                    weights[a] = cloud[active[a]].weight
                log_evidence[0] += _thin(weights, count, particles, random)
                for a in range(count):
                    cloud[active[a]].weight = weights[a]
                count = _gather(cloud, active, count)
        else:
            children = _children(cloud, active, count, x, seen, prior, parent, option, rate)
            total = 0.0
            for q in range(children):
                weights[q] = cloud[active[parent[q]]].weight * rate[q]
                total += weights[q]
            if total <= 0.0:
                return t
            log_evidence[0] += _thin(weights, children, particles, random)
            count = _advance(cloud, active, count, x, k, seen, prior, parent, option, rate, weights, children, spare)
            if not seen[x]:
                seen[x] = True
                k += 1
        _mixture(cloud, active, count, seen, prior, probs[t])
    counts[:] = count, k
    return -1


@kernel
def _mixture(cloud, active, count, seen, prior, probs):
    """The posterior predictive distribution of the next symbol into probs [V]."""
    base = np.zeros(2)
    old, new = np.empty((2, prior.again.shape[2]))
    for a in range(count):
        h = cloud[active[a]]
        scale = h.weight / h.norm
        if h.waiting < 0:
            add_next(h, h.position, scale, h.tail_n, prior, probs, base)
        else:
            target_tails(h, prior, old, new)
            for s in range(h.states):
                if may_lead_to(h, s):
                    add_next(h, s, scale, old, prior, probs, base)
            if h.states < prior.n[-1]:
                add_next(h, h.states, scale, new, prior, probs, base)
    total = 0.0
    for x in range(1, prior.symbols + 1):
        probs[x] += base[0] if seen[x] else base[1]
        total += probs[x]
    probs /= total


@kernel
def _children(cloud, active, count, x, seen, prior, parent, option, rate):
    """Every way in which hypotheses can take symbol x; returns how many there are.

    parent: the number of the hypothesis in `active`; option: the target its waiting edge gets, -1 if none waits; rate:
    P(target and symbol).
    """
    found = 0
    old, new = np.empty((2, prior.again.shape[2]))
    for a in range(count):
        h = cloud[active[a]]
        if h.waiting < 0:
            parent[found], option[found] = a, -1
            rate[found] = next_weight(h, h.position, x, seen, h.tail_n, prior) / h.norm
            found += 1
            continue
        target_tails(h, prior, old, new)
        for s in range(min(h.states + 1, prior.n[-1])):
            if s == h.states or may_lead_to(h, s):
                parent[found], option[found] = a, s
                rate[found] = next_weight(h, s, x, seen, new if s == h.states else old, prior) / h.norm
                found += 1
    return found


@kernel
def _advance(cloud, active, count, x, k, seen, prior, parent, option, rate, weights, children, spare):
    """Replace the hypotheses by their children of weight above 0; returns how many there are.

    A hypothesis becomes its first such child; further ones take the places of those that have none, or unused places.
    """
    spares = 0
    q = 0
    for a in range(count):
        alive = False
        while q < children and parent[q] == a:
            alive = alive or weights[q] > 0.0
            q += 1
        if not alive:
            spare[spares] = active[a]
            spares += 1
    q = 0
    used = count
    for a in range(count):
        i = active[a]
        first = -1
        while q < children and parent[q] == a:
            if weights[q] > 0.0:
                if first < 0:
                    first = q
                else:
                    if spares > 0:
                        spares -= 1
                        j = spare[spares]
                    else:
                        j = active[used]
                        used += 1
                    cloud[j] = cloud[i]
                    _become(cloud[j], option[q], x, k, seen, prior, weights[q], rate[q])
            q += 1
        if first >= 0:
            _become(cloud[i], option[first], x, k, seen, prior, weights[first], rate[first])
    for b in range(spares):
        cloud[spare[b]].weight = 0.0
    return _gather(cloud, active, used)


@kernel
def _become(h, option, x, k, seen, prior, weight, rate):
    take(h, option, x, k, seen, prior)
    h.weight = weight
    h.log_joint += np.log(rate)


@kernel
def _gather(cloud, active, used):
    """Bring those of active[:used] that have a weight to the front; returns how many they are."""
    count = 0
    for b in range(used):
        if cloud[active[b]].weight > 0.0:
            active[b], active[count] = active[count], active[b]
            count += 1
    return count


@kernel
def _thin(weights, count, most, random):
    """Normalise weights[:count], and leave at most `most` above 0 (Fearnhead and Clifford). Returns the log of their sum.

    There is a level such that the weights, cut off at it, sum to `most` times it. Those above stay as they are; of those below,
    each stays with a probability of its share of the level, and then gets the level as its weight.
    """
    total = weights[:count].sum()
    level, above = 0.0, count
    for i in range(count):
        weights[i] /= total
    if count > most:
        level, above = 1.0 / most, -1
        while True:
            heavy, light = 0, 0.0
            for i in range(count):
                if weights[i] >= level:
                    heavy += 1
                else:
                    light += weights[i]
            if heavy == above or heavy >= most:
                above = heavy
                break
            above = heavy
            level = light / (most - heavy)
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
        if weights[i] < NEGLIGIBLE:
            weights[i] = 0.0
    return np.log(total)


@kernel
def _rejuvenate(cloud, active, count, moves, tokens, separator, prior, log_evidence, random):
    """Add hypotheses that are like those here but for one edge; returns how many there are then."""
    if moves == 0:
        return count
    passed = np.empty(count + moves)  # running sums of weights, to draw by weight
    total = 0.0
    size = 2
    while size < 2 * (count + moves):
        size *= 2
    slots = np.full(size, -1)  # a hash table of the hypotheses here
    for a in range(count):
        total += cloud[active[a]].weight
        passed[a] = total
        slots[_slot(slots, cloud, cloud[active[a]])] = active[a]
    for _ in range(moves):
        i = active[min(np.searchsorted(passed[:count], uniform(random) * total, side="right"), count - 1)]
        h = cloud[i]
        edges = 0
        for s in range(h.states):
            edges += h.resolved[s]
        if edges == 0:
            continue
        pick = np.int64(uniform(random) * edges)
        state, edge = -1, -1
        for s in range(h.states):
            for e in range(h.degree[s]):
                if h.target[s, e] != PENDING:
                    if pick == 0:
                        state, edge = s, e
                    pick -= 1
        goal = np.int64(uniform(random) * (h.states + 1)) - 1  # a known state, or a new one
        if goal == state or goal == h.target[state, edge]:
            continue
        j = active[count]
        if not _replay(h, cloud[j], state, edge, goal, tokens, separator, prior, random):
            continue
        weight = np.exp(min(cloud[j].log_joint - log_evidence, 300.0))
        slot = _slot(slots, cloud, cloud[j])
        if weight > NEGLIGIBLE and slots[slot] < 0:
            slots[slot] = j
            cloud[j].weight = weight
            total += weight
            passed[count] = total
            count += 1
    return count


@kernel
def _slot(slots, cloud, h):
    """Where a hypothesis like h is in the hash table, or else where it belongs."""
    slot = np.int64(fingerprint(h) & np.uint64(slots.size - 1))
    while slots[slot] >= 0 and not same(cloud[slots[slot]], h):
        slot = (slot + 1) & (slots.size - 1)
    return slot


@kernel
def _replay(h, out, state, edge, goal, tokens, separator, prior, random):
    """Make `out` what h would be if one of its edges led to `goal` (-1: a new state). Returns whether that is possible.

    Edges that h knows keep their targets. Where the changed path takes an edge that h does not know, a target is drawn with
    its probability given the next symbol.
    """
    seen = np.zeros(prior.symbols + 1, np.bool_)
    k = 0
    old, new = np.empty((2, prior.again.shape[2]))
    most = prior.n[-1]
    name, origin = np.full((2, most), -1)  # of a state of h, in out; of a state of out, in h
    name[0] = 0
    origin[0] = 0
    chance = np.empty(most)
    start(out, prior)
    for t in range(tokens.size):
        x = tokens[t]
        if x == separator:
            out.position = 0
            out.waiting = -1
            continue
        option = -1
        if out.waiting < 0:
            rate = next_weight(out, out.position, x, seen, out.tail_n, prior)
        else:
            s = origin[out.position]
            e = find_edge(h, s, out.symbol[out.position, out.waiting]) if s >= 0 else -1
            target_tails(out, prior, old, new)
            if e >= 0 and (h.target[s, e] != PENDING or (s == state and e == edge)):
                there = goal if s == state and e == edge else np.int64(h.target[s, e])
                if there >= 0 and name[there] >= 0:
                    option = name[there]
                    if not may_lead_to(out, option):
                        return False
                elif out.states < most:
                    option = out.states
                    origin[option] = there
                    if there >= 0:
                        name[there] = option
                else:
                    return False
            else:
                total = 0.0
                options = min(out.states + 1, most)
                for q in range(options):
                    chance[q] = 0.0
                    if q == out.states:
                        chance[q] = next_weight(out, q, x, seen, new, prior)
                    elif may_lead_to(out, q):
                        chance[q] = next_weight(out, q, x, seen, old, prior)
                    total += chance[q]
                draw = uniform(random) * total
                for q in range(options):
                    if chance[q] > 0.0:
                        option = q
                        draw -= chance[q]
                        if draw < 0.0:
                            break
                if option < 0:
                    return False
            rate = next_weight(out, option, x, seen, new if option == out.states else old, prior)
        if rate <= 0.0:
            return False
        out.log_joint += np.log(rate / out.norm)
        take(out, option, x, k, seen, prior)
        if not seen[x]:
            seen[x] = True
            k += 1
    return True
