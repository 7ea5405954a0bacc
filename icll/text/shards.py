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
            about = json.loads((folder / "about.json").read_text())
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
        return read_tokenizer(path.read_text(), path)


def tokenise(corpus: Corpus, tokenizer: str = "bpe:4096", *, report: Report = lambda done, total: None) -> Tokens:
    """The corpus as ids: from the cache, or made now. `tokenizer`: `bpe:SIZE` to train one, else a file or a name."""
    folder = cache_folder()
    foreign = None if tokenizer.startswith("bpe:") else find_tokenizer(tokenizer)
    if foreign is None:
        size = tokenizer.removeprefix("bpe:")
        whole("the vocabulary size in --tokenizer bpe:SIZE", int(size) if size.isdigit() else size, 257, 1 << 24)
        if not corpus.trains:
            raise IcllError(f"the corpus {corpus.name} has no training text: all of it is named valid or test")
    said = tokenizer if foreign is None else hashlib.sha256(foreign.to_json().encode()).hexdigest()
    key = hashlib.sha256(json.dumps([corpus.key, said, PIECE, SAMPLE]).encode()).hexdigest()[:16]
    pointer = folder / f"{key}.json"  # which folder holds the tokens of this corpus and tokenizer
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"{key}.lock"):  # one process at a time; the others wait, and find the work done
        if pointer.exists() and (made := folder / json.loads(pointer.read_text())["folder"]).is_dir():
            return Tokens(made)
        making = folder / f"making-{key}"
        making.mkdir(exist_ok=True)
        about = _make(corpus, making, tokenizer, foreign, report)
        final = folder / f"{corpus.name}-{about['fingerprint']}"
        with replacing(pointer) as (path,):  # killed here, it finds its work done in `making`
            path.write_text(json.dumps({"folder": final.name}))
        if final.is_dir():  # the same text from another place
            shutil.rmtree(making)
        else:
            making.rename(final)
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


def _make(corpus: Corpus, making: Path, spec: str, foreign: TextTokenizer | None, report: Report) -> dict[str, Any]:
    path = making / "tokenizer.json"
    if path.exists():
        tokenizer = read_tokenizer(path.read_text(), path)
    else:
        # Training reads the text once more: its half of the bar.
        tokenizer = foreign or train_bpe(_sample(corpus, lambda d, n: report(d, 2 * n)), int(spec.removeprefix("bpe:")))
        with replacing(path) as (temporary,):
            temporary.write_text(tokenizer.to_json())
    before = 0 if foreign else corpus.size
    progress = _tokenise(corpus, making, tokenizer, lambda done, total: report(before + done, before + total))
    settings = [progress.digest, hashlib.sha256(tokenizer.to_json().encode()).hexdigest()]
    about = {
        "name": corpus.name, "fingerprint": hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:12],
        "dtype": np.dtype(tokenizer.dtype).name, "vocab_size": tokenizer.vocab_size, "separator": tokenizer.separator,
        "tokens": progress.tokens, "bytes": progress.bytes, "documents": progress.documents,
    }  # fmt: skip
    with replacing(making / "about.json") as (temporary,):
        temporary.write_text(json.dumps(about, indent=2) + "\n")
    return about


def _sample(corpus: Corpus, report: Report) -> Iterator[str]:
    """Training text for the tokenizer, spread over the corpus where its size is known."""
    share = min(1.0, SAMPLE / corpus.size) if corpus.size else 1.0
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


def _tokenise(corpus: Corpus, making: Path, tokenizer: TextTokenizer, report: Report) -> Progress:
    state = making / "progress.json"
    progress = Progress(**json.loads(state.read_text())) if state.exists() else Progress()
    size = np.dtype(tokenizer.dtype).itemsize
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
            path.write_text(json.dumps(asdict(progress)))
        waiting.clear()
        held = 0

    if progress.done:
        return progress
    for passage in corpus.passages(tuple(progress.after)):  # type: ignore[arg-type]
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
