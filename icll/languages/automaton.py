"""`Automaton`: a probabilistic regular language. `Automata`: many of them in one array."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from ..errors import IcllError, whole
from ..tokens import N_SYMBOLS, REGBENCH, symbol_names
from .kernels import canonical_table, trace

Symbols = str | Sequence[int] | np.ndarray  # "abc", or ids 1, 2, 3


class Automaton:
    """A deterministic automaton that emits each legal symbol of its state with equal probability.

    `transitions` [states, symbols] holds the target state or -1; column j stands for token j + 1 and state 0 is the start.
    There are no final states: a string may stop anywhere. Two automata are equal, and hash alike, if they have the same
    language; the table itself may differ.
    """

    def __init__(self, transitions: np.ndarray | Sequence[Sequence[int]]):
        table = np.asarray(transitions)
        if table.ndim != 2 or table.dtype.kind not in "iu" or not table.size:
            raise IcllError("an automaton's table must be whole numbers of shape [states, symbols], at least one of each")
        if table.min() < -1 or table.max() >= table.shape[0]:
            bad = table[(table < -1) | (table >= table.shape[0])][0]
            raise IcllError(f"the table names state {bad}; states are 0..{table.shape[0] - 1}, and -1 means illegal")
        if table.shape[0] > np.iinfo(np.int16).max:
            raise IcllError(f"an automaton may have at most {np.iinfo(np.int16).max} states, not {table.shape[0]}")
        self.transitions = np.array(table, dtype=np.int16)
        self.transitions.flags.writeable = False

    # --- writing an automaton down, and reading it back ---

    @classmethod
    def from_table(cls, table: str | Sequence[Mapping[str, int]] | Mapping[int, Mapping[str, int]]) -> Automaton:
        """From edges, one mapping a state: `[{"a": 1, "b": 2}, {"c": 0}, {"a": 0}]`, or from the text `table()` gives."""
        if isinstance(table, str):
            return cls._from_text(table)
        if isinstance(table, Mapping):
            if sorted(table) != list(range(len(table))):
                raise IcllError(f"the table's states must be 0..{len(table) - 1}, not {sorted(table)}")
            table = [table[s] for s in range(len(table))]
        rows = np.full((len(table), N_SYMBOLS), -1)
        for s, edges in enumerate(table):
            for shown, target in edges.items():
                if shown not in REGBENCH.symbols:
                    raise IcllError(f"state {s}: {shown!r} is not a symbol; symbols are {' '.join(REGBENCH.symbols)}")
                rows[s, REGBENCH.symbols.index(shown)] = whole(
                    f"the target of {shown!r} in state {s}", target, 0, len(table) - 1
                )
        return cls(rows)

    @classmethod
    def _from_text(cls, text: str) -> Automaton:
        lines = [line.split() for line in text.splitlines() if line.strip()]
        if not lines:
            raise IcllError("the table is empty: write a line of symbols, then a line for each state")
        header = lines[0][1:] if lines[0][0] == "state" else lines[0]
        if len(set(header)) < len(header):
            raise IcllError(f"the table's first line {' '.join(header)!r} names a symbol twice")
        if len(lines) == 1:
            raise IcllError("the table has no states: write a line for each under the line of symbols")
        edges: dict[int, dict[str, int]] = {}
        for line in lines[1:]:
            if len(line) != len(header) + 1:
                raise IcllError(f"table line {' '.join(line)!r} must have a state and {len(header)} targets ('.' for none)")
            if not all(item.isdecimal() or (item == "." and i) for i, item in enumerate(line)):
                raise IcllError(f"table line {' '.join(line)!r}: write the state's number, then for each symbol a state or '.'")
            state = int(line[0])
            if state in edges:
                raise IcllError(f"the table has two lines for state {state}")
            edges[state] = {shown: int(t) for shown, t in zip(header, line[1:], strict=True) if t != "."}
        return cls.from_table(edges)

    def table(self) -> str:
        """The automaton as text: a row for each state, a column for each symbol in use, '.' where it is illegal."""
        used = np.flatnonzero((self.transitions >= 0).any(axis=0))
        width = max(2, len(str(self.n_states - 1)))
        names = [symbol_names(self.n_symbols)[a] for a in used]
        width = max(width, *map(len, names), 0)
        lines = ["state " + " ".join(f"{name:>{width}}" for name in names)]
        for s, row in enumerate(self.transitions):
            cells = ["." if row[a] < 0 else str(row[a]) for a in used]
            lines.append(f"{s:>5} " + " ".join(f"{cell:>{width}}" for cell in cells))
        return "\n".join(lines)

    # --- what it is ---

    @property
    def n_states(self) -> int:
        return self.transitions.shape[0]

    @property
    def n_symbols(self) -> int:
        """Size of the shared symbol set (18 in RegBench)."""
        return self.transitions.shape[1]

    @property
    def alphabet(self) -> np.ndarray:
        """Ids of the symbols some state emits."""
        return np.flatnonzero((self.transitions >= 0).any(axis=0)) + 1

    @property
    def out_degrees(self) -> np.ndarray:
        return (self.transitions >= 0).sum(axis=1)

    def minimal(self) -> Automaton:
        """The smallest automaton of the same language, states numbered breadth-first from the start."""
        return Automaton(self._canonical)

    @cached_property
    def _canonical(self) -> np.ndarray:
        out = np.empty_like(self.transitions)
        return out[: canonical_table(self.transitions, self.n_states, out)].copy()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Automaton) and np.array_equal(self._canonical, other._canonical)

    def __hash__(self) -> int:
        return hash((self._canonical.shape, self._canonical.tobytes()))

    def __repr__(self) -> str:
        return f"Automaton({self.n_states} states, {len(self.alphabet)} symbols, {self.out_degrees.sum()} edges)"

    # --- what it does ---

    def next_probs(self, state: int) -> np.ndarray:
        """Distribution [symbols] of the next symbol in `state`: uniform over the legal ones."""
        if not 0 <= state < self.n_states:
            raise IcllError(f"state {state} does not exist: the automaton has states 0..{self.n_states - 1}")
        legal = self.transitions[state] >= 0
        if not legal.any():
            raise IcllError(f"state {state} has no outgoing edge, so nothing can follow it: give it one")
        return legal / legal.sum()

    def sample(self, length: int, rng: np.random.Generator | int | None = None) -> np.ndarray:
        """A random string of `length` symbols, as ids."""
        whole("the length of a string", length, 0)
        rng = np.random.default_rng(rng)
        symbols = np.empty(length, dtype=np.int64)
        state = 0
        for i in range(length):
            a = rng.choice(self.n_symbols, p=self.next_probs(state))
            symbols[i] = a + 1
            state = int(self.transitions[state, a])
        return symbols

    def trace(self, symbols: Symbols) -> np.ndarray:
        """State after each symbol; -1 from the first illegal symbol on."""
        ids = REGBENCH.encode(symbols) if isinstance(symbols, str) else np.asarray(symbols).reshape(-1)
        if ids.size and (ids.dtype.kind not in "iu" or ids.min() < 1 or ids.max() > self.n_symbols):
            bad = ids[0] if ids.dtype.kind not in "iu" else ids[(ids < 1) | (ids > self.n_symbols)][0]
            raise IcllError(f"token {bad} is not a symbol: symbols are the ids 1..{self.n_symbols}")
        states = np.empty(ids.size, dtype=np.int64)
        trace(ids.astype(np.int64), self.transitions, -1, states)
        return states

    def accepts(self, symbols: Symbols) -> bool:
        states = self.trace(symbols)
        return not states.size or bool(states[-1] >= 0)


class Automata(Sequence[Automaton]):
    """A list of automata, stored as one array: `rows[offsets[i]:offsets[i + 1]]` is the table of automaton i."""

    def __init__(self, rows: np.ndarray, offsets: np.ndarray):
        self.rows = rows  # int16 [all states, symbols]
        self.offsets = offsets  # int64 [automata + 1]

    @classmethod
    def pack(cls, automata: Iterable[Automaton]) -> Automata:
        tables = [a.transitions for a in automata]
        if not tables:
            raise IcllError("no automaton given")
        if len({t.shape[1] for t in tables}) > 1:
            raise IcllError("the automata have tables of different widths: all must be over the same symbols")
        return cls(np.concatenate(tables), offsets_of([len(t) for t in tables]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i):  # type: ignore[no-untyped-def]
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        i = range(len(self))[i]
        return Automaton(self.rows[self.offsets[i] : self.offsets[i + 1]].copy())

    def __iter__(self) -> Iterator[Automaton]:
        return (self[i] for i in range(len(self)))

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.offsets)

    def take(self, indices: np.ndarray) -> Automata:
        rows, offsets = take_ragged(self.rows, self.offsets, indices)
        return Automata(rows, offsets)


def offsets_of(sizes: Sequence[int] | np.ndarray) -> np.ndarray:
    """[0, s0, s0 + s1, ...]"""
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def take_ragged(values: np.ndarray, offsets: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The runs `indices` of a ragged array, with their offsets. A contiguous range is a view, not a copy."""
    if len(indices) and np.array_equal(indices, np.arange(indices[0], indices[0] + len(indices))):
        first, last = indices[0], indices[-1] + 1
        return values[offsets[first] : offsets[last]], offsets[first : last + 1] - offsets[first]
    sizes = np.diff(offsets)[indices]
    taken = offsets_of(sizes)
    source = np.repeat(offsets[indices] - taken[:-1], sizes) + np.arange(taken[-1])
    return values[source], taken
