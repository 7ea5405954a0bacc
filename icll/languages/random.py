"""A counter-based random generator for kernels: one independent stream for each (key, index).

Item `index` of anything random depends on the key and the index alone, never on the items made before it, on the batch it
was made in, or on a library's version: the benchmark's files are the same bytes everywhere, always. The generator is
SplitMix64; its state is a one-element uint64 array.
"""

from __future__ import annotations

import hashlib

import numpy as np

from ..jit import kernel

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_LOW32 = np.uint64(0xFFFFFFFF)


def random_key(*parts: object) -> np.uint64:
    """A 64-bit key from whatever identifies a random experiment (numbers, texts)."""
    text = "\x1f".join(map(str, parts)).encode()
    return np.uint64(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little"))


@kernel(inline="always")
def mix(z):
    z = (z ^ (z >> np.uint64(30))) * _MIX1
    z = (z ^ (z >> np.uint64(27))) * _MIX2
    return z ^ (z >> np.uint64(31))


@kernel(inline="always")
def seek(state, key, index):
    """Put `state` at the start of stream `index` of `key`."""
    state[0] = mix(mix(key) ^ mix((np.uint64(index) + np.uint64(1)) * _GOLDEN))


@kernel(inline="always")
def below(state, n):
    """A uniform integer in 0..n-1, unbiased: Lemire's multiply-and-shift, with rejection."""
    bound = np.uint64(n)
    while True:
        state[0] += _GOLDEN
        product = (mix(state[0]) >> np.uint64(32)) * bound
        low = product & _LOW32
        if low >= bound or low >= (np.uint64(0x100000000) - bound) % bound:
            return np.int64(product >> np.uint64(32))


@kernel(inline="always")
def between(state, low, high):
    """A uniform integer in low..high, both ends included."""
    return low + below(state, high - low + 1)


@kernel(inline="always")
def uniform(state):
    """A uniform float in [0, 1)."""
    state[0] += _GOLDEN
    return (mix(state[0]) >> np.uint64(11)) * (1.0 / 9007199254740992.0)
