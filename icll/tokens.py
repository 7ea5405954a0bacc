"""Token ids, and how they are shown. Id 0 pads, symbols start at 1, the separator (if any) is the last id."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from .errors import IcllError

PAD = 0


@dataclass(frozen=True)
class Vocabulary:
    """`symbols` are the texts shown for ids 1, 2, ...; `separator` is shown for the id after them, if there is one."""

    symbols: tuple[str, ...]
    separator: str | None = None

    @property
    def size(self) -> int:
        """Number of ids, padding included."""
        return 1 + len(self.symbols) + (self.separator is not None)

    @property
    def separator_id(self) -> int:
        """Id of the separator; -1, an id no token has, where the task has none."""
        return -1 if self.separator is None else 1 + len(self.symbols)

    @property
    def _texts(self) -> tuple[str, ...]:
        return ("", *self.symbols, *([] if self.separator is None else [self.separator]))

    def decode(self, ids: Iterable[int]) -> str:
        """Ids as text; padding is shown as nothing. Symbols of several letters are put apart by blanks."""
        ids = self.check(ids)
        joint = "" if max(map(len, self.symbols)) == 1 else " "
        return joint.join(self._texts[i] for i in ids if i != PAD)

    def encode(self, text: str) -> np.ndarray:
        """Text as an int64 array of ids: the inverse of `decode`."""
        parts = list(text) if max(map(len, self.symbols)) == 1 else text.split()
        ids = {shown: i for i, shown in enumerate(self._texts) if i != PAD}
        for part in parts:
            if part not in ids:
                raise IcllError(f"{part!r} in {shorten(text)!r} is not in the vocabulary: use {' '.join(ids)}")
        return np.array([ids[part] for part in parts], dtype=np.int64)

    def check(self, ids: Iterable[int]) -> np.ndarray:
        """The ids as an array, or an error if one of them is outside the vocabulary."""
        array = np.asarray(ids if hasattr(ids, "__array__") else list(ids))
        if array.size and (array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= self.size):
            bad = array if array.dtype.kind not in "iu" else array[(array < 0) | (array >= self.size)]
            raise IcllError(f"token {bad.flat[0]} is outside the vocabulary: ids are whole numbers 0..{self.size - 1}")
        return array.astype(np.int64, copy=False)


def shorten(text: str, width: int = 40) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


REGBENCH = Vocabulary(symbols=tuple("abcdefghijklmnopqr"), separator="|")
RECALL = Vocabulary(symbols=tuple([f"k{i}" for i in range(20)] + [f"v{i}" for i in range(20)]))


def symbol_names(n_symbols: int) -> tuple[str, ...]:
    """What the symbols of an automaton over n symbols are shown as."""
    known = {len(v.symbols): v.symbols for v in (REGBENCH, RECALL)}
    return known.get(n_symbols, tuple(str(i + 1) for i in range(n_symbols)))


SEP = REGBENCH.separator_id
VOCAB_SIZE = REGBENCH.size
N_SYMBOLS = len(REGBENCH.symbols)
encode = REGBENCH.encode
decode = REGBENCH.decode
