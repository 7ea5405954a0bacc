"""The command line: parse, call, print. Whatever is slow to import is imported inside the command that needs it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from cyclopts import CycloptsError

from ..errors import IcllError
from . import (  # noqa: F401  (each adds its commands to the app)
    analysis,
    data,
    experiments,
    models,
    runs,
    scores,
    sweeps,
    text,
    writing,
)
from .common import app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Bad input is one line on standard error and exit code 2."""
    warnings.formatwarning = _warning_line
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except (CycloptsError, IcllError) as error:
        _fail(str(error))
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _fail(f"{place}{error.strerror or error}: check the path, its permissions and the space left")
    except MemoryError:
        _fail("there is not enough memory for this: ask for fewer or shorter problems")
    except KeyboardInterrupt:
        print("icll: stopped", file=sys.stderr)
        sys.exit(130)


def _warning_line(message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
    """Ours are for users, without the place in the code."""
    ours = category is UserWarning and Path(filename).is_relative_to(Path(__file__).parent.parent)
    return f"icll: {message}\n" if ours else f"{filename}:{lineno}: {category.__name__}: {message}\n"


def _fail(message: str) -> None:
    print("icll: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(2)
