"""Writing files so that a reader sees the old file or the new one, never a half."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, under a temporary name beside `path`; it takes that place at the end, or is gone on an error.

    Folders that had to be made are taken away again on an error.
    """
    missing = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary: Path | None = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp makes files that only their owner can read
        temporary.replace(path)
    except BaseException:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        for folder in missing:
            if not any(folder.iterdir()):
                folder.rmdir()
        raise


def write_files(contents: Mapping[Path, bytes]) -> None:
    """Write all files or none: each is on the disk under its temporary name before the first takes its place."""
    with ExitStack() as stack:
        for path, data in contents.items():
            file = stack.enter_context(replacing(path))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
