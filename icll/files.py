"""Writing files so that a reader sees the old file or the new one, never a half; reading what we wrote."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from .errors import IcllError


@contextmanager
def replacing(*paths: Path) -> Iterator[list[Path]]:
    """Temporary names to write to, one beside each path; at the end they take the paths' places, all of them or none.

    On an error the temporary files are removed, and so are the folders that had to be made for them.
    """
    missing = [folder for path in paths for folder in path.parents if not folder.exists()]
    temporaries: list[Path] = []
    current: Path | None = None
    try:
        for current in paths:
            if current.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            current.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=f".{current.name}.", dir=current.parent)
            os.close(handle)
            temporaries.append(Path(name))
        current = paths[0] if len(paths) == 1 else None  # with several, the writer must say which one failed
        yield temporaries
        umask = os.umask(0)
        os.umask(umask)
        for current, temporary in zip(paths, temporaries, strict=True):  # noqa: B007  (an error names it)
            temporary.chmod(0o666 & ~umask)  # mkstemp makes files that only their owner can read
            with temporary.open("r+b") as file:
                os.fsync(file.fileno())
        for current, temporary in zip(paths, temporaries, strict=True):
            temporary.replace(current)
    except BaseException as error:
        for temporary in temporaries:
            temporary.unlink(missing_ok=True)
        for folder in dict.fromkeys(missing):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        if isinstance(error, (OSError, SafetensorError)) and current is not None:
            # Name the file that was asked for, not the temporary one. The other is what safetensors makes of a full disk.
            number = error.errno if isinstance(error, OSError) else errno.EIO
            raise OSError(number, getattr(error, "strerror", None) or str(error), str(current)) from error
        raise


def read_json(path: Path) -> Any:
    """Of a file that we wrote; a damaged one is named."""
    try:
        return json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise IcllError(f"{path} is damaged ({error}): remove it, and what made it makes it again") from None
