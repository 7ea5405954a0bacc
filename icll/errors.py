"""The one error a user of icll causes and can mend: its text is one line that names the cause and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class IcllError(ValueError):
    """Bad input. The command line prints the text and exits with code 2."""


def unknown(kind: str, name: str, options: Iterable[str]) -> IcllError:
    """The error for a name that is not among `options`, with the nearest one suggested."""
    options = sorted(options)
    near = difflib.get_close_matches(name, options, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return IcllError(f"unknown {kind} {name!r}: choose from {', '.join(options)}{hint}")
