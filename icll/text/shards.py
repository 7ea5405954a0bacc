"""A corpus as token ids on disk: one file for each set, read through memory maps, so that billions of tokens need no memory.

Tokenising goes on where it was interrupted: files only grow, and progress.json, which is replaced after every piece, says how
much of them counts. A finished folder is named after its content, and is never changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from ..errors import IcllError, whole
from ..files import replacing
from .corpus import SPLITS, Corpus
from .tokenizer import TextTokenizer, find_tokenizer, read_tokenizer, train_bpe

PIECE = 1 << 20  # characters tokenised between two commits
SAMPLE = 1 << 26  # characters the tokenizer is trained on, at most
Report = Callable[[int, int], object]  # bytes read, bytes in all (0: not known)


def cache_folder() -> Path:
    """`icll/text` in the user's cache folder (XDG_CACHE_HOME)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "icll" / "text"


@dataclass
class Progress:
    """How far tokenising has come."""

    after: tuple[int, int] = (0, 0)  # the place in the corpus
    documents: int = 0  # of training that were read to their ends, those held out among them
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))  # of text, in UTF-8
    digest: str = ""  # of all pieces so far
    done: bool = False


class Tokens:
    """A tokenised corpus."""

    def __init__(self, folder: Path):
        self.folder = folder
        try:
            about = json.loads((folder / "about.json").read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise IcllError(f"{folder} is no tokenised corpus: {error}") from None
        self.name, self.fingerprint, self.dtype = about["name"], about["fingerprint"], np.dtype(about["dtype"])
        self.vocab_size, self.separator = about["vocab_size"], about["separator"]
        self.counts: dict[str, int] = about["tokens"]
        self.bytes: dict[str, int] = about["bytes"]
        for split, count in self.counts.items():
            path = folder / f"{split}.bin"
            if not path.exists() or path.stat().st_size != count * self.dtype.itemsize:
                raise IcllError(f"{path} is damaged: delete {folder} and run the command again")

    def ids(self, split: str) -> np.ndarray:
        """All ids of a set, as a memory map: what is not asked for is not read."""
        count = self.counts[split]
        return np.memmap(self.folder / f"{split}.bin", self.dtype, "r") if count else np.zeros(0, self.dtype)

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        path = self.folder / "tokenizer.json"
        return read_tokenizer(path.read_text("utf-8"), path)


def tokenise(
    corpus: Corpus, tokenizer: str = "bpe:4096", *, limit: int | None = None, report: Report = lambda done, total: None
) -> Tokens:  # fmt: skip
    """The corpus as ids: from the cache, or made now. `tokenizer`: `bpe:SIZE` to train one, else a file or a name. With a
    `limit` its beginning is enough: no more is read once there are so many training tokens."""
    folder = cache_folder()
    foreign = None if tokenizer.startswith("bpe:") else find_tokenizer(tokenizer)
    if foreign is None:
        size = tokenizer.removeprefix("bpe:")
        whole("the vocabulary size in --tokenizer bpe:SIZE", int(size) if size.isdecimal() else size, 257, 1 << 24)
        if not corpus.trains:
            raise IcllError(f"the corpus {corpus.name} has no training text: all of it is named valid or test")
    said = tokenizer if foreign is None else hashlib.sha256(foreign.to_json().encode()).hexdigest()
    key = hashlib.sha256(json.dumps([corpus.key, said, PIECE, SAMPLE, *([limit] if limit else [])]).encode()).hexdigest()[:16]
    pointer = folder / f"{key}.json"  # which folder holds the tokens of this corpus and tokenizer
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"{key}.lock"):  # one process at a time; the others wait, and find the work done
        if pointer.exists() and (made := folder / json.loads(pointer.read_text("utf-8"))["folder"]).is_dir():
            return Tokens(made)
        making = folder / f"making-{key}"
        making.mkdir(exist_ok=True)
        about = _make(corpus, making, tokenizer, foreign, limit, report)
        final = folder / f"{corpus.name}-{about['fingerprint']}"
        with replacing(pointer) as (path,):  # killed here, it finds its work done in `making`
            path.write_text(json.dumps({"folder": final.name}), "utf-8")
        try:
            making.rename(final)
        except OSError:
            if not final.is_dir():
                raise
            shutil.rmtree(making)  # the same text from another place
        (final / "progress.json").unlink(missing_ok=True)
    return Tokens(final)


def find_tokens(name: str, fingerprint: str) -> Tokens:
    """Tokens made before."""
    folder = cache_folder() / f"{name}-{fingerprint}"
    if not folder.is_dir():
        raise IcllError(
            f"the tokens of corpus {name} ({fingerprint}) are not in {cache_folder()}: make them again with the command "
            "that began the run, or with `icll text eval RUN --corpus ...`"
        )
    return Tokens(folder)


def _make(
    corpus: Corpus, making: Path, spec: str, foreign: TextTokenizer | None, limit: int | None, report: Report
) -> dict[str, Any]:  # fmt: skip
    path = making / "tokenizer.json"
    if path.exists():
        tokenizer = read_tokenizer(path.read_text("utf-8"), path)
    else:
        # Training reads the text once more: its half of the bar.
        sample = _sample(corpus, limit is None, lambda done, total: report(done, 2 * total))
        tokenizer = foreign or train_bpe(sample, int(spec.removeprefix("bpe:")))
        with replacing(path) as (temporary,):
            temporary.write_text(tokenizer.to_json(), "utf-8")
    before = 0 if foreign else corpus.size
    progress = _tokenise(corpus, making, tokenizer, limit, lambda done, total: report(before + done, before + total))
    settings = [progress.digest, hashlib.sha256(tokenizer.to_json().encode()).hexdigest()]
    about = {
        "name": corpus.name, "fingerprint": hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:12],
        "dtype": np.dtype(tokenizer.dtype).name, "vocab_size": tokenizer.vocab_size, "separator": tokenizer.separator,
        "tokens": progress.tokens, "bytes": progress.bytes, "documents": progress.documents,
    }  # fmt: skip
    with replacing(making / "about.json") as (temporary,):
        temporary.write_text(json.dumps(about, indent=2) + "\n", "utf-8")
    return about


def _sample(corpus: Corpus, spread: bool, report: Report) -> Iterator[str]:
    """Training text for the tokenizer: from all over the corpus, if its size is known, or from its beginning."""
    share = min(1.0, SAMPLE / corpus.size) if corpus.size and spread else 1.0
    number, seen, taken = 0, 0, 0
    for passage in corpus.passages():
        for text in passage.texts:
            if corpus.split_of(passage, number) == "train":
                if taken <= share * seen:
                    yield text
                    taken += len(text)
                seen += len(text)
        number += passage.ends and passage.split == "train"
        report(passage.bytes_read, corpus.size)
        if taken >= SAMPLE:
            return


def _tokenise(corpus: Corpus, making: Path, tokenizer: TextTokenizer, limit: int | None, report: Report) -> Progress:
    state = making / "progress.json"
    progress = Progress(**json.loads(state.read_text("utf-8"))) if state.exists() else Progress()
    size = np.dtype(tokenizer.dtype).itemsize
    there = {split: path.stat().st_size if (path := making / f"{split}.bin").exists() else 0 for split in SPLITS}
    if any(there[split] < progress.tokens[split] * size for split in SPLITS):  # somebody cleared the cache, but not all of it
        progress = Progress()
    for split in SPLITS:  # whatever was written after the last commit does not count
        with (making / f"{split}.bin").open("ab") as file:
            file.truncate(progress.tokens[split] * size)
    waiting: list[tuple[str, str]] = []  # set and text
    held = 0

    def commit(done: bool = False) -> None:
        nonlocal held
        parts: dict[str, list[np.ndarray]] = {split: [] for split in SPLITS}
        for (split, text), ids in zip(waiting, tokenizer.encode_all([text for _, text in waiting]), strict=True):
            parts[split].append(ids)
            progress.tokens[split] += len(ids)
            progress.bytes[split] += len(text.encode())
        digest = hashlib.sha256(progress.digest.encode())
        for split, arrays in parts.items():
            if arrays:
                raw = np.concatenate(arrays).tobytes()
                digest.update(split.encode() + raw)
                with (making / f"{split}.bin").open("ab") as file:
                    file.write(raw)
                    os.fsync(file.fileno())
        progress.digest, progress.done = digest.hexdigest(), done
        with replacing(state) as (path,):
            path.write_text(json.dumps(asdict(progress)), "utf-8")
        waiting.clear()
        held = 0

    if progress.done:
        return progress

    def enough(split: str) -> bool:
        return limit is not None and split == "train" and progress.tokens["train"] >= limit

    for passage in corpus.passages(tuple(progress.after), enough):  # type: ignore[arg-type]
        for text in passage.texts:
            waiting.append((corpus.split_of(passage, progress.documents), text))
            held += len(text)
        progress.documents += passage.ends and passage.split == "train"
        progress.after = passage.after
        if held >= PIECE:
            commit()
            report(passage.bytes_read, corpus.size)
    commit(done=True)
    report(corpus.size, corpus.size)
    return progress
