"""Numba kernels over transition tables.

A table is an int16 array [states, symbols]: the target state, or -1 where the symbol is illegal. State 0 is the start. Every
state accepts; the illegal symbols lead to a reject sink, which is only made explicit while minimising. Many tables are kept as
one array of rows with offsets (`rows[offsets[i]:offsets[i + 1]]` is table i).
"""

from __future__ import annotations

import numpy as np

from ..jit import kernel
from .random import below, between, mix, seek


@kernel
def _shuffle_front(state, items, count):
    """Make items[:count] a uniform sample without replacement of all items (partial Fisher-Yates)."""
    for i in range(count):
        j = i + below(state, items.size - i)
        items[i], items[j] = items[j], items[i]


@kernel
def draw_table(state, limits, table):
    """Steps 1 to 3 of section 3.1 into `table` [most states, symbols]; returns the number of states.

    limits: least and most of states, alphabet, edges.
    """
    n = between(state, limits[0], limits[1])
    table[:n] = -1
    alphabet_size = between(state, limits[2], limits[3])
    alphabet = np.arange(table.shape[1])
    _shuffle_front(state, alphabet, alphabet_size)
    alphabet = alphabet[:alphabet_size]
    others = np.arange(n - 1)
    for s in range(n):
        edges = between(state, limits[4], min(limits[5], n - 1, alphabet_size))
        _shuffle_front(state, alphabet, edges)
        _shuffle_front(state, others, edges)
        for e in range(edges):
            table[s, alphabet[e]] = others[e] + (others[e] >= s)  # any state but s: no self-loops
    return n


@kernel
def _reachable(table, n, order, number):
    """Breadth-first search from the start: order[k] is the k-th state met, number[order[k]] == k. Returns how many are met."""
    number[:] = -1
    number[0] = 0
    order[0] = 0
    met = 1
    k = 0
    while k < met:
        for a in range(table.shape[1]):
            t = table[order[k], a]
            if t >= 0 and number[t] < 0:
                number[t] = met
                order[met] = t
                met += 1
        k += 1
    return met


@kernel
def _hopcroft(delta, block_of):
    """Coarsest partition of a complete automaton whose last state is the reject sink and all others accept.

    delta: [n, symbols]. Fills block_of [n] and returns the number of blocks. Blocks are runs of `elements`; a split moves
    the marked states to the front of their block, where they become a block of their own.
    """
    n, symbols = delta.shape
    sink = n - 1
    # inverse[a, inverse_at[a, q] : inverse_at[a, q + 1]] are the states that symbol a takes to q
    inverse_at = np.zeros((symbols, n + 1), np.int64)
    inverse = np.empty((symbols, n), np.int64)
    for a in range(symbols):
        for q in range(n):
            inverse_at[a, delta[q, a]] += 1
        for q in range(n):
            inverse_at[a, q + 1] += inverse_at[a, q]
        for q in range(n):
            t = delta[q, a]
            inverse_at[a, t] -= 1
            inverse[a, inverse_at[a, t]] = q

    elements, place, first, size, marked, source, touched = np.zeros((7, n), np.int64)
    elements[:] = np.arange(n)
    place[:] = elements  # elements[place[q]] == q
    first[0], size[0] = 0, n - 1
    first[1], size[1] = sink, 1
    block_of[:] = 0
    block_of[sink] = 1
    blocks = 2

    waiting = np.zeros((n, symbols), np.bool_)
    stack = np.empty((n * symbols, 2), np.int64)
    height = 0
    for a in range(symbols):  # the smaller of the two blocks: the sink
        waiting[1, a] = True
        stack[height, 0], stack[height, 1] = 1, a
        height += 1
    while height > 0:
        height -= 1
        splitter, a = stack[height, 0], stack[height, 1]
        waiting[splitter, a] = False
        sources = 0
        for k in range(first[splitter], first[splitter] + size[splitter]):
            q = elements[k]
            for i in range(inverse_at[a, q], inverse_at[a, q + 1]):
                source[sources] = inverse[a, i]
                sources += 1
        n_touched = 0
        for i in range(sources):
            q = source[i]
            b = block_of[q]
            if marked[b] == 0:
                touched[n_touched] = b
                n_touched += 1
            front = first[b] + marked[b]
            other = elements[front]
            elements[place[q]] = other
            place[other] = place[q]
            elements[front] = q
            place[q] = front
            marked[b] += 1
        for i in range(n_touched):
            b = touched[i]
            if marked[b] < size[b]:
                first[blocks], size[blocks] = first[b], marked[b]
                first[b] += marked[b]
                size[b] -= marked[b]
                for k in range(first[blocks], first[blocks] + size[blocks]):
                    block_of[elements[k]] = blocks
                for s in range(symbols):
                    # if b waits already, both halves must; otherwise the smaller half will do
                    add = blocks if waiting[b, s] or size[blocks] <= size[b] else b
                    waiting[add, s] = True
                    stack[height, 0], stack[height, 1] = add, s
                    height += 1
                blocks += 1
            marked[b] = 0
    return blocks


@kernel
def _all_differ(table):
    """Whether strings of one or two symbols tell all states apart: a quick answer for most random tables.

    False only means that a closer look is needed.
    """
    n, symbols = table.shape
    allowed = np.zeros(n, np.int64)  # a bit for each symbol
    for q in range(n):
        for a in range(symbols):
            allowed[q] = 2 * allowed[q] + (table[q, a] >= 0)
    for q in range(n):
        for other in range(q):
            differ = allowed[q] != allowed[other]
            for a in range(symbols):
                if differ:
                    break
                if table[q, a] >= 0 and table[other, a] >= 0:
                    differ = allowed[table[q, a]] != allowed[table[other, a]]
            if not differ:
                return False
    return True


@kernel
def canonical_table(table, n, out):
    """The minimal automaton of the language of table[:n], states numbered breadth-first (symbols in order).

    Two tables have the same language exactly if this gives the same table. Fills `out` and returns its number of states.
    """
    symbols = table.shape[1]
    order, number = np.empty((2, n), np.int64)
    reached = _reachable(table, n, order, number)
    for k in range(reached):
        for a in range(symbols):
            t = table[order[k], a]
            out[k, a] = number[t] if t >= 0 else -1
    if _all_differ(out[:reached]):
        return reached

    # complete the table with the sink, over the symbols that occur
    columns = np.empty(symbols, np.int64)
    used = 0
    for a in range(symbols):
        if out[:reached, a].max() >= 0:
            columns[used] = a
            used += 1
    delta = np.full((reached + 1, used), reached)
    for k in range(reached):
        for c in range(used):
            if out[k, columns[c]] >= 0:
                delta[k, c] = out[k, columns[c]]
    block_of = np.empty(reached + 1, np.int64)
    blocks = _hopcroft(delta, block_of)

    # Number the blocks by their first states: since those are numbered breadth-first, so are the blocks. Row k is made
    # from the first state of block k, which is k or a later one, so nothing is overwritten before it is read.
    label = np.full(blocks, -1)
    states = 0
    for q in range(reached):
        if label[block_of[q]] < 0:
            label[block_of[q]] = states
            order[states] = q
            states += 1
    for k in range(states):
        for a in range(symbols):
            t = out[order[k], a]
            out[k, a] = label[block_of[t]] if t >= 0 else -1
    return states


@kernel
def draw_tables(key, first, limits, minimal, rows, row_at):
    """Languages first, first + 1, ... of the stream `key`: table i into rows[row_at[i]:row_at[i + 1]]."""
    state = np.empty(1, np.uint64)
    raw = np.empty((limits[1], rows.shape[1]), np.int16)
    row_at[0] = 0
    for i in range(row_at.size - 1):
        seek(state, key, first + i)
        n = draw_table(state, limits, raw)
        out = rows[row_at[i] : row_at[i] + n]
        if minimal:
            n = canonical_table(raw, n, out)
        else:
            out[:] = raw[:n]
        row_at[i + 1] = row_at[i] + n


@kernel
def keep_new(tables, table_at, first, slots, rows, row_at, indices, kept, wanted):
    """Append those tables to `rows` that are not there yet, up to `wanted` in all; returns how many there are then.

    tables[table_at[i]:table_at[i + 1]] is table first + i of a stream; indices[k] becomes the one table k came from. `slots` is
    an open-addressing hash table of numbers of kept tables (-1: free; its size is a power of two, at least twice `wanted`).
    Equal hashes are followed by a comparison.
    """
    for i in range(table_at.size - 1):
        if kept == wanted:
            break
        table = tables[table_at[i] : table_at[i + 1]]
        n = table.shape[0]
        code = np.uint64(n)
        for s in range(n):
            for a in range(table.shape[1]):
                code = (code ^ np.uint64(table[s, a] + 1)) * np.uint64(0x100000001B3)
        slot = np.int64(mix(code) & np.uint64(slots.size - 1))
        known = False
        while slots[slot] >= 0:
            other = rows[row_at[slots[slot]] : row_at[slots[slot] + 1]]
            known = other.shape[0] == n
            for s in range(n):
                if not known:
                    break
                for a in range(table.shape[1]):
                    known = known and other[s, a] == table[s, a]
            if known:
                break
            slot = (slot + 1) & (slots.size - 1)
        if not known:
            slots[slot] = kept
            rows[row_at[kept] : row_at[kept] + n] = table
            row_at[kept + 1] = row_at[kept] + n
            indices[kept] = first + i
            kept += 1
    return kept


@kernel
def string_lengths(key, index, limits, lengths):
    """Lengths of the strings of problem `index` into `lengths`; returns how many. limits: of length, of strings."""
    state = np.empty(1, np.uint64)
    seek(state, key, index)
    count = between(state, limits[2], limits[3])
    for i in range(count):
        lengths[i] = between(state, limits[0], limits[1])
    return count


@kernel
def problem_lengths(key, indices, limits, totals):
    """Number of tokens of each problem: its symbols and the separators between its strings."""
    lengths = np.empty(limits[3], np.int64)
    for i in range(indices.size):
        count = string_lengths(key, indices[i], limits, lengths)
        totals[i] = lengths[:count].sum() + count - 1


@kernel
def _pack_edges(table):
    """Steps of each state, symbol << 32 | target: edges[s, :degree[s]], repeated until `width` is reached.

    Width is the least common multiple of all degrees: with it, a step is drawn from `width` entries whatever the state, and the
    draw need not wait for the state. Where it would be large it is 0.
    """
    states, symbols = table.shape
    most = 60
    edges = np.empty((states, max(most, symbols)), np.uint64)
    degree = np.empty(states, np.int64)
    width = 1
    for s in range(states):
        d = 0
        for a in range(symbols):
            if table[s, a] >= 0:
                edges[s, d] = (a + 1) << 32 | table[s, a]
                d += 1
        degree[s] = d
        common, b = width, d
        while b:
            common, b = b, common % b
        width = width // common * d
        if width > most:
            width = 0
    for s in range(states):
        for k in range(degree[s], width):
            edges[s, k] = edges[s, k - degree[s]]
    return edges, degree, width


@kernel
def draw_problems(lengths_key, symbols_key, indices, limits, rows, row_at, separator, tokens, token_at):
    """The strings of each problem, joined by separators, into tokens[token_at[i]:token_at[i + 1]] (section 3.2)."""
    state = np.empty(1, np.uint64)
    lengths = np.empty(limits[3], np.int64)
    target = np.uint64(0xFFFFFFFF)
    for i in range(indices.size):
        edges, degree, width = _pack_edges(rows[row_at[i] : row_at[i + 1]])
        count = string_lengths(lengths_key, indices[i], limits, lengths)
        seek(state, symbols_key, indices[i])
        at = token_at[i]
        for j in range(count):
            if j > 0:
                tokens[at] = separator
                at += 1
            step = np.uint64(0)
            if width > 0:
                for k in range(at, at + lengths[j]):
                    step = edges[step & target, np.uint64(below(state, width))]
                    tokens[k] = step >> np.uint64(32)
            else:
                for k in range(at, at + lengths[j]):
                    s = step & target
                    step = edges[s, np.uint64(below(state, degree[s]))]
                    tokens[k] = step >> np.uint64(32)
            at += lengths[j]


@kernel
def trace(tokens, table, separator, states):
    """State after each token, from the start state; a separator goes back to it, an illegal symbol leads to -1 for good."""
    s = 0
    for t in range(tokens.size):
        if tokens[t] == separator:
            s = 0
        elif s >= 0:
            s = table[s, tokens[t] - 1]
        states[t] = s


@kernel
def trace_problems(tokens, token_at, rows, row_at, separator, states):
    """`trace` for every problem of a ragged set."""
    for i in range(token_at.size - 1):
        part = slice(token_at[i], token_at[i + 1])
        trace(tokens[part], rows[row_at[i] : row_at[i + 1]], separator, states[part])


@kernel
def fill_truth(states, token_at, rows, row_at, truth):
    """Next-token distribution for each token's state into truth [problems, longest, ids]; the rest stays as it is."""
    symbols = rows.shape[1]
    for i in range(token_at.size - 1):
        for t in range(token_at[i + 1] - token_at[i]):
            s = row_at[i] + states[token_at[i] + t]
            degree = 0
            for a in range(symbols):
                degree += rows[s, a] >= 0
            share = np.float32(1.0) / np.float32(degree)
            for a in range(symbols):
                if rows[s, a] >= 0:
                    truth[i, t, a + 1] = share
