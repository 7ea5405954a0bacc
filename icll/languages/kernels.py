"""Numba kernels over transition tables.

A table is an int16 array [states, symbols]: the target state, or -1 where the symbol is illegal. State 0 is the start. Every
state accepts; the illegal symbols lead to a reject sink, which is only made explicit while minimising. Many tables are kept as
one array of rows with offsets (`rows[offsets[i]:offsets[i + 1]]` is table i).
"""

from __future__ import annotations

import numpy as np

from ..jit import kernel
from .random import below, between, seek


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
    table[:] = -1
    n = between(state, limits[0], limits[1])
    alphabet_size = between(state, limits[2], limits[3])
    alphabet = np.arange(table.shape[1])
    _shuffle_front(state, alphabet, alphabet_size)
    alphabet = alphabet[:alphabet_size]
    others = np.empty(n - 1, np.int64)
    for s in range(n):
        edges = between(state, limits[4], min(limits[5], n - 1, alphabet_size))
        for j in range(n - 1):
            others[j] = j + (j >= s)  # every state but s: no self-loops
        _shuffle_front(state, alphabet, edges)
        _shuffle_front(state, others, edges)
        for e in range(edges):
            table[s, alphabet[e]] = others[e]
    return n


@kernel
def _reachable(table, n, order):
    """Breadth-first search from the start; order[k] is the k-th state met. Returns how many there are."""
    met = np.zeros(n, np.bool_)
    met[0] = True
    order[0] = 0
    found = 1
    k = 0
    while k < found:
        for a in range(table.shape[1]):
            t = table[order[k], a]
            if t >= 0 and not met[t]:
                met[t] = True
                order[found] = t
                found += 1
        k += 1
    return found


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
            inverse_at[a, delta[q, a] + 1] += 1
        for q in range(n):
            inverse_at[a, q + 1] += inverse_at[a, q]
        fill = inverse_at[a].copy()
        for q in range(n):
            t = delta[q, a]
            inverse[a, fill[t]] = q
            fill[t] += 1

    elements = np.arange(n)
    place = np.arange(n)  # elements[place[q]] == q
    first = np.zeros(n, np.int64)
    size = np.zeros(n, np.int64)
    marked = np.zeros(n, np.int64)
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
    source = np.empty(n, np.int64)
    touched = np.empty(n, np.int64)
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
def canonical_table(table, n, out):
    """The minimal automaton of the language of table[:n], states numbered breadth-first (symbols in order).

    Two tables have the same language exactly if this gives the same table. Fills `out` and returns its number of states.
    """
    order = np.empty(n, np.int64)
    reached = _reachable(table, n, order)
    number = np.full(n, -1)
    for k in range(reached):
        number[order[k]] = k

    # complete the reachable part with the sink, over the symbols that occur
    columns = np.empty(table.shape[1], np.int64)
    used = 0
    for a in range(table.shape[1]):
        for k in range(reached):
            if table[order[k], a] >= 0:
                columns[used] = a
                used += 1
                break
    delta = np.full((reached + 1, used), reached)
    for k in range(reached):
        for c in range(used):
            t = table[order[k], columns[c]]
            if t >= 0:
                delta[k, c] = number[t]
    block_of = np.empty(reached + 1, np.int64)
    blocks = _hopcroft(delta, block_of)

    # number the blocks breadth-first; a block is represented by one of its states
    label = np.full(blocks, -1)
    representative = np.empty(blocks, np.int64)
    label[block_of[0]] = 0
    representative[0] = 0
    states = 1
    out[:] = -1
    k = 0
    while k < states:
        for c in range(used):
            t = delta[representative[k], c]
            if t < reached:
                b = block_of[t]
                if label[b] < 0:
                    label[b] = states
                    representative[states] = t
                    states += 1
                out[k, columns[c]] = label[b]
        k += 1
    return states


@kernel
def draw_tables(key, first, limits, minimal, tables, sizes):
    """Languages first, first + 1, ... of the stream `key` into tables [count, most states, symbols] and sizes [count]."""
    state = np.empty(1, np.uint64)
    raw = np.empty(tables.shape[1:], np.int16)
    for i in range(sizes.size):
        seek(state, key, first + i)
        if minimal:
            n = draw_table(state, limits, raw)
            sizes[i] = canonical_table(raw, n, tables[i])
        else:
            sizes[i] = draw_table(state, limits, tables[i])


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
def draw_problems(lengths_key, symbols_key, indices, limits, rows, row_at, separator, tokens, token_at):
    """The strings of each problem, joined by separators, into tokens[token_at[i]:token_at[i + 1]] (section 3.2)."""
    state = np.empty(1, np.uint64)
    lengths = np.empty(limits[3], np.int64)
    for i in range(indices.size):
        table = rows[row_at[i] : row_at[i + 1]]
        degree = np.zeros(table.shape[0], np.int64)
        legal = np.empty(table.shape, np.int64)
        for s in range(table.shape[0]):
            for a in range(table.shape[1]):
                if table[s, a] >= 0:
                    legal[s, degree[s]] = a
                    degree[s] += 1
        count = string_lengths(lengths_key, indices[i], limits, lengths)
        seek(state, symbols_key, indices[i])
        at = token_at[i]
        for j in range(count):
            if j > 0:
                tokens[at] = separator
                at += 1
            s = 0
            for _ in range(lengths[j]):
                a = legal[s, below(state, degree[s])]
                tokens[at] = a + 1
                at += 1
                s = table[s, a]


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
