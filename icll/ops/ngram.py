"""N-gram attention: every position averages what followed the earlier occurrences of the n tokens that end there.

    out_i = mean of values_(k+1) over all k < i whose n tokens x_(k-n+1) .. x_k equal those that end at i; no such k: 0

`repeat="drop"`, as in the paper's listing, leaves out k = i - 1, whose follower is the position itself; `repeat="keep"`
counts it, which gives the frequencies of an (n+1)-gram model. `reset`: ids no match may span, except as its first token.

Shapes: tokens [B, L], values and the result [B, L, D]. The work is O(L (n + D)): a context's tokens become one number, and a
table of running sums has a row for each context.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from ..errors import IcllError, unknown, whole
from ..jit import kernel
from .cpu import BLOCK, FAST, arrays, over_batch, same_dtype

REPEATS = ("drop", "keep")
Reset = int | Sequence[int] | None


def ngram_attend(
    tokens: torch.Tensor,
    values: torch.Tensor,
    n: int,
    repeat: str = "drop",
    reset: Reset = None,
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """The operator, differentiable in the values. `lengths` [B]: what stands behind them is padding and gets 0."""
    check_ngram(tokens, values, n, repeat, lengths)
    return attend_contexts(context_ids(tokens, n, reset, lengths)[n - 1], values, repeat)


def naive_ngram_attend(
    tokens: torch.Tensor,
    values: torch.Tensor,
    n: int,
    repeat: str = "drop",
    reset: Reset = None,
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """By the matrix of weights, O(L^2)."""
    check_ngram(tokens, values, n, repeat, lengths)
    return ngram_weights(tokens, n, repeat, reset, lengths).to(values.dtype) @ values


def ngram_weights(
    tokens: torch.Tensor, n: int, repeat: str = "drop", reset: Reset = None, lengths: torch.Tensor | None = None
) -> torch.Tensor:
    """The weights [B, L, L] in float64: row i is uniform over the positions averaged there, or 0."""
    L = tokens.shape[1]
    if n > L:
        return torch.zeros(*tokens.shape, L, dtype=torch.float64, device=tokens.device)
    at = torch.arange(L, device=tokens.device)
    match = tokens[:, :, None] == tokens[:, None, :]  # [B, i, k]: the last tokens are equal
    ends = match
    for back in range(1, n):
        ends = ends & torch.nn.functional.pad(match, (back, -back, back, -back))
    complete = (at >= n - 1).expand(tokens.shape)  # n tokens end there, and no border is among them
    if reset is not None:
        borders = torch.isin(tokens, _ids(reset, tokens.device))
        for back in range(n - 1):  # all but the first of the n tokens
            complete = complete & ~torch.nn.functional.pad(borders, (back, -back))
    ends = ends & complete[:, :, None] & complete[:, None, :] & (at[:, None] > at)
    follower = torch.nn.functional.pad(ends, (1, -1))  # from the end k to what followed, j = k + 1
    follower = follower & (at[:, None] > at if repeat == "drop" else at[:, None] >= at)
    if lengths is not None:
        follower = follower & (at < lengths.to(at.device)[:, None])[:, :, None]
    weights = follower.double()
    return weights / weights.sum(-1, keepdim=True).clamp(min=1)


def check_ngram(tokens: torch.Tensor, values: torch.Tensor, n: int, repeat: str, lengths: torch.Tensor | None) -> None:
    whole("the order n of an n-gram head", n, 1)
    if repeat not in REPEATS:
        raise unknown("repeat", repeat, REPEATS)
    if tokens.dim() != 2 or values.dim() != 3:
        raise IcllError(f"tokens must be [B, L] and values [B, L, D], not {list(tokens.shape)} and {list(values.shape)}")
    if tokens.shape != values.shape[:2]:
        raise IcllError(f"tokens {list(tokens.shape)} and values {list(values.shape)} differ in batch or length")
    if tokens.is_floating_point():
        raise IcllError(f"tokens must be whole numbers, not {tokens.dtype}")
    if lengths is not None and lengths.shape != tokens.shape[:1]:
        raise IcllError(f"lengths must be [B] = [{len(tokens)}], not {list(lengths.shape)}")


# --- contexts as numbers ---


def context_ids(
    tokens: torch.Tensor, n: int, reset: Reset = None, lengths: torch.Tensor | None = None
) -> torch.Tensor:  # fmt: skip
    """For each order m = 1..n and position the number of the m tokens that end there, [n, B, L]; -1 where there are fewer.

    Equal contexts have equal numbers, different ones different numbers (within a row): pairs of numbers are looked up
    exactly, a hash only says where to look. Heads of the same order share them.
    """
    if tokens.device.type != "cpu":
        return _context_ids_torch(tokens, n, reset, lengths)
    (rows,) = arrays(tokens.long())
    borders = np.zeros((0,), np.int64) if reset is None else np.unique(np.atleast_1d(np.asarray(reset, np.int64)))
    stops = np.full(len(rows), rows.shape[1]) if lengths is None else lengths.numpy(force=True).astype(np.int64)
    ids = np.full((n, *rows.shape), -1, np.int32)
    over_batch(lambda start, stop: _number_contexts(rows, stops, borders, start, stop, ids), len(rows))
    return torch.from_numpy(ids)


def _context_ids_torch(tokens: torch.Tensor, n: int, reset: Reset, lengths: torch.Tensor | None) -> torch.Tensor:
    """By sorting, for any device."""
    B, L = tokens.shape
    at = torch.arange(L, device=tokens.device)
    _, first = torch.unique(tokens, return_inverse=True)
    row = torch.arange(B, device=tokens.device)[:, None]
    single = row * (B * L + 1) + first  # a row's contexts are its own
    current, ids = single, []
    keep = torch.ones_like(tokens, dtype=torch.bool)
    inside = torch.ones_like(keep) if lengths is None else at < lengths.to(at.device)[:, None]
    borders = None if reset is None else torch.isin(tokens, _ids(reset, tokens.device))
    for m in range(1, n + 1):
        if m > L:
            ids.append(torch.full_like(tokens, -1))
            continue
        if m > 1:
            before = torch.nn.functional.pad(current, (1, -1))
            current = before * (B * L + 1) + first
            keep = keep & (at >= m - 1)
            if borders is not None:
                keep = keep & ~torch.nn.functional.pad(borders, (m - 2, 2 - m))
        _, current = torch.unique(current, return_inverse=True)
        ids.append(torch.where(keep & inside, current, -1))
    return torch.stack(ids).int()


def _ids(reset: Reset, device: torch.device) -> torch.Tensor:
    return torch.atleast_1d(torch.as_tensor(reset, device=device, dtype=torch.long))


@kernel
def _look_up(keys, numbers, key, new):
    """The number of a key in an open-addressed table, `new` if it was not there (it is now)."""
    mask = np.uint64(keys.size - 1)
    at = (np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)
    while True:
        at &= mask
        if numbers[at] < 0:
            keys[at] = key
            numbers[at] = new
            return new
        if keys[at] == key:
            return numbers[at]
        at += np.uint64(1)


@kernel
def _number_contexts(rows, stops, borders, start, stop, ids):
    n, _, L = ids.shape
    size = 4
    while size < 2 * L:
        size *= 2
    keys, numbers = np.empty(size, np.int64), np.empty(size, np.int32)
    free = np.empty(L, np.int64)  # how many tokens that are no border end at a position
    for b in range(start, stop):
        end = min(stops[b], L)
        for m in range(n):
            numbers[:] = -1
            new = 0
            for i in range(m, end):
                if m == 0:
                    border = False
                    for r in borders:
                        border |= rows[b, i] == r
                    free[i] = 0 if border else 1 + (free[i - 1] if i > 0 else 0)
                    key = np.int64(rows[b, i])
                else:
                    if free[i] < m:
                        continue
                    key = (np.int64(ids[m - 1, b, i - 1]) << 32) | np.int64(ids[0, b, i])
                found = _look_up(keys, numbers, key, new)
                new += found == new
                ids[m, b, i] = found


# --- averages ---


def attend_contexts(ids: torch.Tensor, values: torch.Tensor, repeat: str = "drop") -> torch.Tensor:
    """The operator for contexts that are already numbered, ids [B, L]."""
    if not values.numel():
        return torch.zeros_like(values)
    (exact,) = same_dtype(values)
    attend = _Attend if values.device.type == "cpu" else _AttendByJumps
    return attend.apply(ids, exact, repeat == "keep").to(values.dtype)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: torch.Tensor, values: torch.Tensor, keep: bool) -> torch.Tensor:
        ctx.save_for_backward(ids)
        ctx.keep = keep
        ids_, values_ = arrays(ids, values)
        out = np.empty_like(values_)
        blocks = _blocks(values_.shape[2])
        over_batch(lambda start, stop: _average(ids_, values_, keep, blocks, start, stop, out), len(ids_) * blocks)
        return torch.from_numpy(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor, None]:
        ids, gradient_ = arrays(*ctx.saved_tensors, gradient)
        out = np.empty_like(gradient_)
        blocks = _blocks(gradient_.shape[2])
        over_batch(lambda start, stop: _average_back(ids, gradient_, ctx.keep, blocks, start, stop, out), len(ids) * blocks)
        return None, torch.from_numpy(out), None


def _blocks(width: int) -> int:
    """Channels are independent: blocks of them share the work among threads, and a block's table of sums stays small."""
    return -(-width // BLOCK)


@kernel(fastmath=FAST, error_model="numpy")
def _add(row, other, first):
    """Into a row of the table; the first time it holds whatever was there before."""
    for d in range(other.size):
        row[d] = other[d] if first else row[d] + other[d]


@kernel(fastmath=FAST, error_model="numpy")
def _average(ids, values, keep, blocks, start, stop, out):
    L, D = values.shape[1:]
    contexts = ids.max() + 1
    sums, counts = np.empty((contexts, BLOCK), values.dtype), np.empty(contexts, values.dtype)
    for item in range(start, stop):
        b, d0 = item // blocks, item % blocks * BLOCK
        d1 = min(d0 + BLOCK, D)
        counts[:] = 0
        for i in range(L):
            now, before = ids[b, i], ids[b, i - 1] if i > 0 else -1
            if keep and before >= 0:
                _add(sums[before], values[b, i, d0:d1], counts[before] == 0)
                counts[before] += 1
            target = out[b, i, d0:d1]
            if now >= 0 and counts[now] > 0:
                row, scale = sums[now], 1 / counts[now]
                for d in range(d1 - d0):
                    target[d] = row[d] * scale
            else:
                target[:] = 0
            if not keep and before >= 0:  # the position itself is not its own past
                _add(sums[before], values[b, i, d0:d1], counts[before] == 0)
                counts[before] += 1


@kernel(fastmath=FAST, error_model="numpy")
def _average_back(ids, gradient, keep, blocks, start, stop, out):
    """The same from the end: a value receives what all later positions of the context before it give out."""
    L, D = gradient.shape[1:]
    contexts = ids.max() + 1
    sums, counts = np.empty((contexts, BLOCK), gradient.dtype), np.empty(contexts, gradient.dtype)
    given = np.empty(contexts, np.bool_)
    for item in range(start, stop):
        b, d0 = item // blocks, item % blocks * BLOCK
        d1 = min(d0 + BLOCK, D)
        counts[:] = 0
        given[:] = False
        for i in range(1, L):
            if ids[b, i - 1] >= 0:
                counts[ids[b, i - 1]] += 1
        for i in range(L - 1, -1, -1):
            now, before = ids[b, i], ids[b, i - 1] if i > 0 else -1
            if not keep:
                _take(sums, counts, given, before, out[b, i, d0:d1])
            if now >= 0 and counts[now] > 0:
                row, share, scale = sums[now], gradient[b, i, d0:d1], 1 / counts[now]
                first = not given[now]
                given[now] = True
                for d in range(d1 - d0):
                    row[d] = share[d] * scale if first else row[d] + share[d] * scale
            if keep:
                _take(sums, counts, given, before, out[b, i, d0:d1])


@kernel(fastmath=FAST, error_model="numpy")
def _take(sums, counts, given, before, target):
    if before >= 0:
        counts[before] -= 1
    if before >= 0 and given[before]:
        target[:] = sums[before, : target.size]
    else:
        target[:] = 0


class _AttendByJumps(torch.autograd.Function):
    """In torch alone: each position points to the one before it with the same context, and sums along these chains are made by
    pointers that jump twice as far each time. The gradient runs along the same chains the other way."""

    @staticmethod
    def forward(ctx: Any, ids: torch.Tensor, values: torch.Tensor, keep: bool) -> torch.Tensor:
        before, after, count = _chains(ids, keep)
        ctx.save_for_backward(before, after, count)
        ctx.keep = keep
        follower = torch.nn.functional.pad(values, (0, 0, 0, 1))[:, 1:]  # what followed each position
        total = _along(before, _gather(follower, before))
        if not keep:  # a match that ended one before: its follower is the position itself
            at = torch.arange(ids.shape[1], device=ids.device)
            total = total - torch.where((before == at - 1)[..., None] & (before >= 0)[..., None], values, 0)
        return torch.where(count[..., None] > 0, total / count.clamp(min=1)[..., None], 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor, None]:
        before, after, count = ctx.saved_tensors
        share = torch.where(count[..., None] > 0, gradient / count.clamp(min=1)[..., None], 0)
        received = _along(after, _gather(share, after))  # for the follower of each position
        out = torch.nn.functional.pad(received, (0, 0, 1, -1))
        if not ctx.keep:
            at = torch.arange(gradient.shape[1], device=gradient.device)
            out = out - torch.where((before == at - 1)[..., None] & (before >= 0)[..., None], share, 0)
        return None, out, None


def _chains(ids: torch.Tensor, keep: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The previous and the next position with the same context, -1 where there is none, and how many values are averaged."""
    L = ids.shape[1]
    order = torch.sort(ids, dim=1, stable=True).indices
    ordered = ids.gather(1, order)
    same = torch.nn.functional.pad((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0), (1, 0))
    left = torch.nn.functional.pad(order, (1, -1))
    before = torch.empty_like(order).scatter_(1, order, torch.where(same, left, -1))
    right = torch.nn.functional.pad(order, (-1, 1))
    after = torch.empty_like(order).scatter_(1, order, torch.where(torch.nn.functional.pad(same, (-1, 1)), right, -1))
    rank = torch.arange(L, device=ids.device) - torch.where(same, 0, torch.arange(L, device=ids.device)).cummax(1).values
    count = torch.empty_like(order).scatter_(1, order, rank)
    if not keep:
        count = count - ((before == torch.arange(L, device=ids.device) - 1) & (before >= 0)).long()
    return before, after, count


def _gather(rows: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """rows[b, at[b, i]], 0 where at is -1."""
    picked = rows.gather(1, at.clamp(min=0)[..., None].expand(-1, -1, rows.shape[2]))
    return torch.where(at[..., None] >= 0, picked, 0)


def _along(pointer: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """The sum of `total` over the whole chain of each position."""
    while bool((pointer >= 0).any()):
        total = total + _gather(total, pointer)
        pointer = torch.where(pointer >= 0, pointer.gather(1, pointer.clamp(min=0)), -1)
    return total
