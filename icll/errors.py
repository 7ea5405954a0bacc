"""The one error a user of icll causes and can mend: its text is one line that names the cause and the fix."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable


class IcllError(ValueError):
    """Bad input. The command line prints the text and exits with code 2."""


def unknown(kind: str, name: str, options: Iterable[str]) -> IcllError:
    """The error for a name that is not among `options`, with the nearest one suggested."""
    options = sorted(options)
    near = difflib.get_close_matches(name, options, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return IcllError(f"unknown {kind} {name!r}: choose from {', '.join(options)}{hint}")


def first_line(error: BaseException) -> str:
    """Of what an error says; some say nothing."""
    return (str(error).splitlines() or [""])[0]


def whole(name: str, value: object, least: int, most: int = 10**9) -> int:
    """`value` as an int within least..most, or an error that names it."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise IcllError(f"{name} must be a whole number, not {value!r}")
    if not least <= number <= most:
        bounds = f"at least {least}" if number < least else f"at most {most:,}"
        raise IcllError(f"{name} must be {bounds}, not {number}")
    return number
