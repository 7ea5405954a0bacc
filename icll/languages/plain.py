"""Random languages in plain Python, straight from sections 3.1 and 3.2: slow, obvious, and sharing no code with the kernels.

Tests hold the kernels to it, and the benchmark measures against it. An automaton here is a list of dictionaries, one for each
state, from symbol (1..18) to target.
"""

from __future__ import annotations

from collections import deque
from random import Random

from ..tokens import N_SYMBOLS, SEP
from .profile import Profile

Edges = list[dict[int, int]]


def plain_draw(profile: Profile, rng: Random) -> Edges:
    """Steps 1 to 3 of section 3.1."""
    n = rng.randint(*profile.states)
    alphabet = rng.sample(range(1, N_SYMBOLS + 1), rng.randint(*profile.alphabet))
    edges: Edges = []
    for state in range(n):
        m = rng.randint(profile.edges[0], min(profile.edges[1], n - 1, len(alphabet)))
        symbols = rng.sample(alphabet, m)
        targets = rng.sample([s for s in range(n) if s != state], m)
        edges.append(dict(zip(symbols, targets, strict=True)))
    return edges


def plain_minimise(edges: Edges) -> Edges:
    """Hopcroft's partition refinement with an explicit sink; then the reachable blocks, numbered breadth-first."""
    n, sink = len(edges), len(edges)
    alphabet = sorted({symbol for out in edges for symbol in out})
    inverse: dict[int, dict[int, set[int]]] = {a: {} for a in alphabet}
    for state in range(n + 1):
        for a in alphabet:
            target = edges[state].get(a, sink) if state < n else sink
            inverse[a].setdefault(target, set()).add(state)
    partition = [frozenset(range(n)), frozenset([sink])]
    waiting = {frozenset([sink])}
    while waiting:
        splitter = waiting.pop()
        for a in alphabet:
            sources = set().union(*(inverse[a].get(q, set()) for q in splitter))
            refined = []
            for block in partition:
                inside, outside = block & sources, block - sources
                if inside and outside:
                    refined += [inside, outside]
                    if block in waiting:
                        waiting.remove(block)
                        waiting |= {inside, outside}
                    else:
                        waiting.add(min(inside, outside, key=len))
                else:
                    refined.append(block)
            partition = refined
    block_of = {state: block for block in partition for state in block}
    number = {block_of[0]: 0}
    queue = deque([block_of[0]])
    minimal: Edges = []
    while queue:
        block = queue.popleft()
        out = {}
        for a, target in sorted(edges[min(block)].items()):
            goal = block_of[target]
            if goal not in number:
                number[goal] = len(number)
                queue.append(goal)
            out[a] = number[goal]
        minimal.append(out)
    return minimal


def plain_problem(edges: Edges, profile: Profile, rng: Random) -> list[int]:
    """Section 3.2: strings joined by separators."""
    tokens: list[int] = []
    for j in range(rng.randint(*profile.strings)):
        if j:
            tokens.append(SEP)
        state = 0
        for _ in range(rng.randint(*profile.length)):
            symbol = rng.choice(list(edges[state]))
            tokens.append(symbol)
            state = edges[state][symbol]
    return tokens


def plain_regbench(count: int, profile: Profile, seed: int) -> list[tuple[Edges, list[int]]]:
    """`count` distinct languages, each with a problem's tokens."""
    rng = Random(seed)
    seen: set[tuple[tuple[tuple[int, int], ...], ...]] = set()
    problems: list[tuple[Edges, list[int]]] = []
    while len(problems) < count:
        edges = plain_minimise(plain_draw(profile, rng))
        form = tuple(tuple(sorted(out.items())) for out in edges)
        if form not in seen:
            seen.add(form)
            problems.append((edges, plain_problem(edges, profile, rng)))
    return problems
