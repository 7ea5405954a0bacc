"""Numba's compiler with the settings every kernel here uses."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import numba


def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile without the interpreter's lock, and keep the machine code on disk for the next process."""
    if function is None:
        return lambda f: kernel(f, **options)
    try:
        compiled = numba.njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache folder can be written: compile each time
        return numba.njit(nogil=True, **options)(function)
    # Numba numbers a kernel's files of machine code. Two processes that compile it at the same time, for different types or
    # settings, would take the same number, and one be given the other's code later: each process has names of its own here.
    files = compiled._cache._cache_file
    files._data_name_pattern = files._data_name_pattern.replace("{number", secrets.token_hex(6) + ".{number")
    return compiled
