"""Numba's compiler with the settings every kernel here uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile without the interpreter's lock, and keep the machine code on disk for the next process."""
    if function is None:
        return lambda f: kernel(f, **options)
    try:
        return numba.njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache folder can be written: compile each time
        return numba.njit(nogil=True, **options)(function)
