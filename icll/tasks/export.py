"""Problems for people who bring their own trainer: JSON lines, and Hugging Face datasets."""

from __future__ import annotations

import errno
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import IcllError
from ..files import replacing
from .problems import Problems

if TYPE_CHECKING:
    import datasets


def records(problems: Problems, truth: bool = True) -> Iterator[dict[str, Any]]:
    """One plain record for each problem.

    `tokens` [L], `strings`, `states` [L] (after each token), `transitions` [states, symbols] (target or -1) and, if asked
    for, `truth` [L]: the probability of each token that may come next, by id.
    """
    states = problems.ragged_states
    for i, automaton in enumerate(problems.automata):
        part = slice(problems.offsets[i], problems.offsets[i + 1])
        record: dict[str, Any] = {
            "tokens": problems.flat[part].tolist(),
            "strings": problems.strings(i),
            "states": states[part].tolist(),
            "transitions": automaton.transitions.tolist(),
        }
        if truth:
            probs = [automaton.next_probs(s) for s in range(automaton.n_states)]
            by_state = [{str(a + 1): p[a] for a in np.flatnonzero(p)} for p in probs]
            record["truth"] = [by_state[s] for s in record["states"]]
        yield record


def to_jsonl(
    problems: Problems, path: str | Path, *, truth: bool = True, progress: Callable[[int], object] = lambda done: None
) -> None:
    """Write one JSON object a line."""
    with replacing(Path(path)) as (temporary,), temporary.open("wb") as file:
        for done, record in enumerate(records(problems, truth), start=1):
            file.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")
            progress(done)


def import_datasets() -> Any:
    try:
        import datasets
    except ImportError:
        raise IcllError("the export needs the package datasets: pip install datasets") from None
    return datasets


def to_datasets(problems: Problems, *, truth: bool = True, cache_dir: str | None = None) -> datasets.Dataset:
    """A Hugging Face `Dataset` with the same columns; `truth` is dense there: float32 [L, V]. It keeps a copy in its cache."""
    datasets = import_datasets()
    features = {
        "tokens": datasets.List(datasets.Value("uint8")),
        "strings": datasets.List(datasets.Value("string")),
        "states": datasets.List(datasets.Value("int16")),
        "transitions": datasets.List(datasets.List(datasets.Value("int16"))),
    }
    if truth:
        features["truth"] = datasets.List(datasets.List(datasets.Value("float32"), length=problems.vocab_size))

    def generate() -> Iterator[dict[str, Any]]:
        for i, record in enumerate(records(problems, truth=False)):
            yield {**record, "truth": problems[i].truth[0].numpy()} if truth else record

    return datasets.Dataset.from_generator(
        generate,
        features=datasets.Features(features),
        split=datasets.Split(problems.origin.split),
        fingerprint=problems.fingerprint[:16] + ("t" if truth else "p"),  # else it would hash the whole generator
        cache_dir=cache_dir,
    )


def save_datasets(problems: Problems, folder: str | Path, *, truth: bool = True) -> None:
    """Write the Hugging Face dataset into a new folder: whole, or not at all, and with nothing left in a cache."""
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as temporary:
        import_datasets().disable_progress_bars()
        try:
            made = to_datasets(problems, truth=truth, cache_dir=f"{temporary}/cache")
            made.save_to_disk(f"{temporary}/data")
        except Exception as error:  # the library wraps a full disk in errors of its own
            cause = error.__cause__ or error
            raise OSError(getattr(cause, "errno", None) or errno.EIO, str(cause), str(folder)) from error
        Path(f"{temporary}/data").rename(folder)
