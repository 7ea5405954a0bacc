"""`Problems`: a set of problems of one split, in memory and in one file.

Tokens are kept ragged, a byte each; whatever is padded or derived (tokens as a matrix, states, truth) is made when asked for.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as parse_safetensors
from safetensors.numpy import save_file as write_safetensors

from ..errors import IcllError, whole
from ..files import replacing
from ..languages.automaton import Automata, Automaton, take_ragged
from ..languages.kernels import fill_truth, trace_problems
from ..tokens import RECALL, REGBENCH, Vocabulary

if TYPE_CHECKING:
    import torch

FORMAT = 1
MAX_PROBLEMS = 100_000_000
RECALL_LENGTH = 382  # of a whole problem of associative recall: 190 pairs, a key and its value
VOCABULARIES: dict[str, Vocabulary] = {"regbench": REGBENCH, "recall": RECALL}


@dataclass(frozen=True)
class Origin:
    """Where problems come from: enough to make them again."""

    task: str  # a key of VOCABULARIES
    split: str
    seed: int
    profile: dict[str, Any] = field(default_factory=dict)  # the ranges of a Profile
    version: int = FORMAT  # of the file's layout and of the generator behind it

    def __str__(self) -> str:
        from ..languages.profile import Profile, profile_name

        parts = [self.task, *([profile_name(Profile(**self.profile))] if self.profile else []), self.split]
        return f"{' '.join(parts)}, seed {self.seed}"


class Problems:
    """N problems of the lengths `lengths`, L being the longest. Index with a number, a slice or an array for a subset."""

    def __init__(self, flat: np.ndarray, offsets: np.ndarray, automata: Automata, origin: Origin):
        self.flat = flat  # uint8 [all tokens]: the problems one after another
        self.offsets = offsets  # int64 [N + 1]
        self.automata = automata
        self.origin = origin

    # --- sizes ---

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        return f"Problems({self.origin}: {len(self):,} problems, {len(self.flat):,} tokens)"

    @property
    def vocabulary(self) -> Vocabulary:
        return VOCABULARIES[self.origin.task]

    @property
    def vocab_size(self) -> int:
        return self.vocabulary.size

    @property
    def lengths(self) -> torch.Tensor:
        """int64 [N]"""
        import torch

        return torch.from_numpy(np.diff(self.offsets))

    # --- padded tensors, made when first asked for; the truth, twenty times as large, each time ---

    @cached_property
    def tokens(self) -> torch.Tensor:
        """int64 [N, L], padded with 0 on the right."""
        return self._pad(self.flat, np.int64, 0)

    @cached_property
    def states(self) -> torch.Tensor:
        """int64 [N, L]: the automaton's state after token t; -1 where there is padding."""
        return self._pad(self.ragged_states, np.int64, -1)

    @property
    def truth(self) -> torch.Tensor:
        """float32 [N, L, V]: row t is the language's distribution of token t + 1, whatever follows; zeros under padding."""
        import torch

        longest = int(np.diff(self.offsets).max(initial=0))
        truth = np.zeros((len(self), longest, self.vocab_size), dtype=np.float32)
        fill_truth(self.ragged_states, self.offsets, self.automata.rows, self.automata.offsets, truth)
        return torch.from_numpy(truth)

    @cached_property
    def scored(self) -> torch.Tensor:
        """bool [N, L]: token t + 1 is one that counts (RegBench: a symbol, not a separator; recall: the answer)."""
        import torch

        tokens = self.tokens
        counts = torch.zeros_like(tokens, dtype=torch.bool)
        if self.origin.task == "recall":
            if tokens.shape[1] == RECALL_LENGTH:  # else the question is cut off
                counts[:, -2] = True
        else:
            following = tokens[:, 1:]
            counts[:, :-1] = (following != 0) & (following != self.vocabulary.separator_id)
        return counts

    @cached_property
    def trained(self) -> torch.Tensor:
        """bool [N, L]: token t + 1 is in the loss, as the authors have it (RegBench: symbols; recall: every token)."""
        return self.scored if self.origin.task == "regbench" else self._has_next

    @property
    def _has_next(self) -> torch.Tensor:
        import torch

        following = self.tokens[:, 1:] != 0
        return torch.nn.functional.pad(following, (0, 1))

    @property
    def strings_seen(self) -> torch.Tensor:
        """int64 [N, L]: how many whole strings end at or before token t."""
        return (self.tokens == self.vocabulary.separator_id).cumsum(dim=1)

    @cached_property
    def ragged_states(self) -> np.ndarray:
        """int16 [all tokens]: the state after each token, laid out like `flat`."""
        states = np.empty(len(self.flat), dtype=np.int16)
        separator = self.vocabulary.separator_id
        trace_problems(self.flat, self.offsets, self.automata.rows, self.automata.offsets, separator, states)
        return states

    def _pad(self, ragged: np.ndarray, dtype: type, fill: int) -> torch.Tensor:
        import torch

        lengths = np.diff(self.offsets)
        inside = np.arange(lengths.max(initial=0)) < lengths[:, None]
        padded: np.ndarray = np.full(inside.shape, fill, dtype=dtype)
        padded[inside] = ragged
        return torch.from_numpy(padded)

    # --- parts ---

    def __getitem__(self, index: int | slice | np.ndarray | list[int] | torch.Tensor) -> Problems:
        everything = np.arange(len(self))
        try:
            indices = np.atleast_1d(everything[np.asarray(index) if not isinstance(index, (int, slice)) else index])
        except IndexError:
            raise IndexError(f"problem {index} does not exist: there are {len(self)}") from None
        flat, offsets = take_ragged(self.flat, self.offsets, indices)
        return Problems(flat, offsets, self.automata.take(indices), self.origin)

    def cut(self, first: int) -> Problems:
        """The first tokens of each problem."""
        whole("the number of tokens", first, 1)
        starts, lengths = self.offsets[:-1], np.minimum(np.diff(self.offsets), first)
        offsets = np.append(0, np.cumsum(lengths))
        kept = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return Problems(self.flat[kept], offsets, self.automata, self.origin)

    def __iter__(self) -> Iterator[Problems]:
        return (self[i] for i in range(len(self)))

    def strings(self, index: int) -> list[str]:
        """The strings of one problem as text."""
        text = self.text(index)
        return text.split(self.vocabulary.separator) if self.vocabulary.separator else [text]

    def text(self, index: int) -> str:
        index = range(len(self))[index]
        return self.vocabulary.decode(self.flat[self.offsets[index] : self.offsets[index + 1]])

    @classmethod
    def from_strings(cls, strings: list[list[str]], automata: list[Automaton]) -> Problems:
        """Problems of a user's own strings: one list of strings, and the automaton that accepts them, for each problem."""
        if len(strings) != len(automata):
            raise IcllError(f"{len(strings)} problems but {len(automata)} automata: give one automaton for each problem")
        for i, texts in enumerate(strings):
            if isinstance(texts, str) or not texts or not all(texts) or any("|" in text for text in texts):
                raise IcllError(f"problem {i} must be a list of strings of 1 symbol or more, without '|', not {texts!r}")
        packed = Automata.pack(automata)
        rows = [REGBENCH.encode("|".join(texts)) for texts in strings]
        flat = np.concatenate(rows).astype(np.uint8)
        offsets = np.cumsum([0, *map(len, rows)])
        problems = cls(flat, offsets, packed, Origin(task="regbench", split="own", seed=0))
        problems._check("these problems")
        return problems

    # --- files ---

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that matters: tokens, automata and origin."""
        digest = hashlib.sha256(json.dumps(asdict(self.origin), sort_keys=True).encode())
        for name, array in sorted(self._arrays().items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def _arrays(self) -> dict[str, np.ndarray]:
        rows = self.automata.rows
        return {
            "tokens": self.flat,
            "lengths": np.diff(self.offsets).astype(np.int32),
            "transitions": rows.astype(np.int8) if rows.max(initial=0) < 128 else rows,
            "states": self.automata.sizes.astype(np.int32),
        }

    def save(self, path: str | Path) -> None:
        save_all({Path(path): self})

    @classmethod
    def read(cls, path: Path) -> Problems:
        """Read what `save` wrote, and check it."""
        data = path.read_bytes()
        try:
            arrays = parse_safetensors(data)
            size = int.from_bytes(data[:8], "little")
            header = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["icll"])
            version, fingerprint = header["version"], header.pop("fingerprint")
            if version > FORMAT:
                raise IcllError(f"{path} has format {version}, this icll reads up to {FORMAT}: upgrade icll")
            automata = Automata(
                arrays["transitions"].astype(np.int16), np.cumsum(np.append(0, arrays["states"]), dtype=np.int64)
            )
            offsets = np.cumsum(np.append(0, arrays["lengths"]), dtype=np.int64)
            problems = cls(arrays["tokens"], offsets, automata, Origin(**header))
            genuine = fingerprint == problems.fingerprint
        except IcllError:
            raise
        except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise IcllError(
                f"{path} is not a data file of icll, or it is cut short: make it again (icll data make --force)"
            ) from error
        if not genuine:
            raise IcllError(f"{path} is damaged or was edited: make it again (icll data make --force)")
        problems._check(str(path))
        return problems

    def _check(self, name: str) -> None:
        """Whatever the kernels rely on: they do not check bounds."""
        if self.origin.task not in VOCABULARIES:
            raise IcllError(f"{name} holds the task {self.origin.task!r}; known are {', '.join(VOCABULARIES)}")
        rows, symbols = self.automata.rows, len(self.vocabulary.symbols)
        shapes = (
            self.flat.dtype == np.uint8
            and self.flat.ndim == 1
            and rows.ndim == 2
            and rows.shape[1] == symbols
            and len(self.automata) == len(self) > 0
            and (np.diff(self.offsets) > 0).all()
            and (self.automata.sizes > 0).all()
            and self.offsets[-1] == len(self.flat)
            and self.automata.offsets[-1] == len(rows)
        )
        if not shapes:
            raise IcllError(f"{name}: tokens, lengths, transitions and states do not fit together")
        if self.flat.min() < 1 or self.flat.max() >= self.vocab_size:
            bad = self.flat.min() if self.flat.min() < 1 else self.flat.max()
            raise IcllError(f"{name}: token {bad} is outside the vocabulary: inside a problem ids are 1..{self.vocab_size - 1}")
        limits = np.repeat(self.automata.sizes, self.automata.sizes)[:, None]
        if (rows < -1).any() or (rows >= limits).any():
            raise IcllError(f"{name}: an automaton's table names a state it does not have")
        if (rows < 0).all(axis=1).any():
            raise IcllError(f"{name}: an automaton has a state without outgoing edges: nothing can follow it")
        rejected = np.flatnonzero(self.ragged_states < 0)
        if rejected.size:
            problem = int(np.searchsorted(self.offsets, rejected[0], side="right")) - 1
            raise IcllError(f"{name}: problem {problem} has a string its automaton does not accept")


@dataclass(frozen=True)
class Splits:
    """The three splits of a data set; no language is in two of them."""

    train: Problems
    valid: Problems
    test: Problems

    @property
    def vocab_size(self) -> int:
        return self.test.vocab_size

    def items(self) -> Iterator[tuple[str, Problems]]:
        return ((f.name, getattr(self, f.name)) for f in fields(self))

    def save(self, folder: str | Path) -> None:
        """Write train, valid and test into `folder`: all three, or nothing."""
        save_all({split_path(folder, name): problems for name, problems in self.items()})


def save_all(sets: Mapping[Path, Problems]) -> None:
    """Write each set to its file: all of them, or none."""
    with replacing(*sets) as temporaries:
        for temporary, (path, problems) in zip(temporaries, sets.items(), strict=True):
            header = json.dumps({**asdict(problems.origin), "fingerprint": problems.fingerprint}, sort_keys=True)
            try:
                # One key only: safetensors writes several in an order that changes from process to process.
                write_safetensors(problems._arrays(), temporary, metadata={"icll": header})
            except SafetensorError as error:  # what it makes of a full disk
                raise OSError(errno.EIO, str(error), str(path)) from error


def split_path(folder: str | Path, split: str) -> Path:
    return Path(folder) / f"{split}.safetensors"


def load(path: str | Path) -> Any:
    """A file gives its `Problems`, a folder its `Splits`. The fingerprint in the header is checked."""
    path = Path(path)
    if path.is_dir():
        missing = [f.name for f in fields(Splits) if not split_path(path, f.name).is_file()]
        if missing:
            raise IcllError(
                f"{path} has no {' and no '.join(f'{m}.safetensors' for m in missing)}: make it with icll data make"
            )
        splits = Splits(**{f.name: load(split_path(path, f.name)) for f in fields(Splits)})
        for name, problems in splits.items():
            if problems.origin != replace(splits.test.origin, split=name):
                raise IcllError(
                    f"{path} mixes data sets: {name}.safetensors holds {problems.origin}, test {splits.test.origin}"
                )
        return splits
    if not path.is_file():
        others = [p.stem for p in sorted(path.parent.glob("*.safetensors"))]
        hint = f"{path.parent} has {', '.join(others)}" if others else "make it with icll data make --out FOLDER"
        raise IcllError(f"{path} does not exist: {hint}")
    return Problems.read(path)
