"""What the operators' Numba kernels share: an exponential that compiles to vector instructions, and threads over the batch."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import types
from numba.extending import overload

# Sums may be reordered and products fused: what a vector instruction needs. Infinities and NaN keep their meaning.
FAST = {"reassoc", "contract", "nsz", "arcp"}
CHUNK = 32  # tokens between two stored states; the backward pass recomputes those in between
BLOCK = 64  # channels whose recomputed states of one chunk stay in the cache

_LOG2_E = 1 / math.log(2)
# ln 2 in two parts: the first is exact in few bits, so that n * ln 2 loses nothing.
_LN2_HIGH32, _LN2_HIGH64 = 0.693359375, 0.6931471803691238
_LN2_LOW32, _LN2_LOW64 = math.log(2) - _LN2_HIGH32, 1.9082149292705877e-10


def exp(x: float) -> float:
    """e**x inside kernels: 2**n times a Taylor polynomial of the rest, without a branch, so that loops over it are vectorised.

    The library's function is not, and is the larger part of Mamba's scan if called there. Arguments are clipped to what is
    finite; the relative error is below 2e-7 in float32 and 4e-16 in float64.
    """
    return math.exp(x)


@overload(exp)
def _exp(x):
    if x == types.float32:
        return _exp32
    if x == types.float64:
        return _exp64
    return None


def _exp32(x):
    f = np.float32
    x = min(max(x, f(-87.0)), f(88.0))
    n = np.floor(x * f(_LOG2_E) + f(0.5))
    r = x - n * f(_LN2_HIGH32) - n * f(_LN2_LOW32)
    p = f(1 / 5040)
    p = p * r + f(1 / 720)
    p = p * r + f(1 / 120)
    p = p * r + f(1 / 24)
    p = p * r + f(1 / 6)
    p = p * r + f(0.5)
    p = p * r * r + r + f(1.0)
    return p * np.int32((np.int32(n) + 127) << 23).view(np.float32)


def _exp64(x):
    x = min(max(x, -708.0), 709.0)
    n = np.floor(x * _LOG2_E + 0.5)
    r = x - n * _LN2_HIGH64 - n * _LN2_LOW64
    p = 1 / 6227020800
    p = p * r + 1 / 479001600
    p = p * r + 1 / 39916800
    p = p * r + 1 / 3628800
    p = p * r + 1 / 362880
    p = p * r + 1 / 40320
    p = p * r + 1 / 5040
    p = p * r + 1 / 720
    p = p * r + 1 / 120
    p = p * r + 1 / 24
    p = p * r + 1 / 6
    p = p * r + 0.5
    p = p * r * r + r + 1.0
    return p * np.int64((np.int64(n) + 1023) << 52).view(np.float64)


@cache
def _pool(pid: int, workers: int) -> ThreadPoolExecutor:
    """One pool for each size; `pid` makes a forked process build its own, since threads do not survive a fork."""
    return ThreadPoolExecutor(workers, thread_name_prefix="icll")


def over_batch(work: Callable[[int, int], Any], size: int) -> None:
    """Call work(start, stop) on parts of range(size), in as many threads as torch uses; kernels hold no lock."""
    threads = min(torch.get_num_threads(), size)
    if threads <= 1:
        work(0, size)
        return
    edges = [size * i // threads for i in range(threads + 1)]
    pool = _pool(os.getpid(), threads - 1)
    others = [pool.submit(work, *edges[i : i + 2]) for i in range(1, threads)]
    work(*edges[:2])
    for other in others:
        other.result()


def arrays(*tensors: torch.Tensor) -> tuple[np.ndarray, ...]:
    """The tensors' memory as arrays, laid out row after row."""
    return tuple(t.detach().contiguous().numpy() for t in tensors)


def on_cpu(*tensors: torch.Tensor) -> bool:
    """Whether the kernels can do it: real numbers of 32 or 64 bits (or fewer, computed in 32) in main memory."""
    return all(t.device.type == "cpu" and t.is_floating_point() for t in tensors)


def exact_on_cpu(*tensors: torch.Tensor) -> bool:
    """Whether a kernel can do it as they are: all of 32 or all of 64 bits, in main memory."""
    return on_cpu(*tensors) and len(kinds := {t.dtype for t in tensors}) == 1 and kinds <= {torch.float32, torch.float64}


def same_dtype(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """All in float64 if any is, else in float32: half precision is for storage and matrix products, not for recurrences."""
    dtype = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    return tuple(t.to(dtype) for t in tensors)
