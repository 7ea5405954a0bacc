"""Runs: folders with config.yaml, metrics.jsonl, model.safetensors, last/ and result.json."""

from __future__ import annotations

import json
import platform
import subprocess
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import icll

from ..errors import IcllError, first_line
from ..files import read_json, replacing
from ..mixers import source_of
from ..model import Model, model_of
from .config import DataConfig, RunConfig, as_plain, from_plain
from .loop import Machine, Trainer, Watch, load_weights, peak_memory_mb, weights

CONFIG, RESULT, WEIGHTS, METRICS = "config.yaml", "result.json", "model.safetensors", "metrics.jsonl"
MIXER = "mixer.py"  # the file that defines a mixer of one's own, as it was when the run began
AGAIN = "to train it again, copy its config.yaml alone into a new folder and icll resume that"


def train(
    config: RunConfig,
    folder: Path | None = None,
    *,
    machine: Machine | None = None,
    force: bool = False,
    loggers: list[Any] | None = None,
    watch: Watch = lambda progress, row: None,
    until: int | None = None,
) -> dict[str, Any]:
    """Train a run, or go on with it, or give its result if it is finished already. `force` begins anew.

    `until` an epoch before the last it stops there, without a result: the next call goes on.
    """
    folder = Path("runs") / config.name if folder is None else folder
    check_folder(config, folder, force)
    finished = None if force else read_result(folder)
    if finished is not None:
        return finished
    if ":" in config.model.model:
        check_causal(config)
    code = commit()  # of the code that is loaded: it may be another when the run ends
    trainer = Trainer(config, folder, machine, loggers)  # what is wrong with the config is said before anything is written
    first = trainer.fabric.global_rank == 0
    with _alone(folder) if first else nullcontext():
        if first:
            prepare(config, folder, force)
            for name, content in trainer.source.files.items():
                with replacing(folder / name) as (path,):
                    path.write_text(content, "utf-8")
        trainer.fabric.barrier()
        trainer.restore()
        trainer.fit(watch, until)
        result = finish(trainer, code) if trainer.finished and first else {}
        trainer.fabric.barrier()
    return result


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two that train in one folder would write over each other's weights."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise IcllError(f"another process is training {folder}: wait until it ends, or choose another --out") from None
    try:
        yield
    finally:
        lock.release()


def check_folder(config: RunConfig, folder: Path, force: bool = False) -> None:
    """See that a folder is new, or of this run."""
    begun = [p for p in folder.iterdir() if p.name != MIXER and not p.name.startswith(".")] if folder.is_dir() else []
    if begun or folder.is_file():
        if not (folder / CONFIG).exists():
            raise IcllError(f"{folder} is not empty and not a run: choose another --out")
        other = read_config(folder)
        if other.hash != config.hash and not force:
            raise IcllError(
                f"{folder} is a run of another config ({_difference(config, other)}): choose another --out, or --force"
            )
        if not force and _mixer_changed(config, folder):
            raise IcllError(
                f"the file of {config.model.model} has changed since {folder} was begun ({MIXER} there is what it was): "
                "--force trains it anew, another --out keeps both"
            )


def _mixer_changed(config: RunConfig, folder: Path) -> bool:
    return (folder / MIXER).exists() and (folder / MIXER).read_text("utf-8") != source_of(config.model.model)


def prepare(config: RunConfig, folder: Path, force: bool = False) -> None:
    """Write the config down; with `force`, clear what was trained before."""
    if force:
        made = [RESULT, WEIGHTS, METRICS, "details.json", "curves.png"]
        for path in (*(folder / name for name in made), *(folder / "last").glob("step-*")):
            path.unlink(missing_ok=True)
    if (source := source_of(config.model.model)) is not None:
        with replacing(folder / MIXER) as (path,):
            path.write_text(source, "utf-8")
    with replacing(folder / CONFIG) as (path,):
        path.write_text(yaml.safe_dump(as_plain(config), sort_keys=False), "utf-8")


def check_causal(config: RunConfig) -> None:
    """Refuse a mixer of one's own that looks ahead: its scores would mean nothing."""
    model = model_of(replace(config.model, ngram_heads=(), dropout=0.0), 0).eval()
    tokens = torch.randint(1, config.model.vocab_size, (2, 24), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 12:] = tokens[:, 12:].flip(1).roll(1, 0)
    with torch.no_grad():
        one, two = model(tokens)[:, :12], model(changed)[:, :12]
    if (one - two).abs().max() > 1e-3 * one.abs().max():
        name = config.model.model
        raise IcllError(f"{name} looks ahead: later tokens change its outputs before them; `icll check {name}` says more")


def _difference(a: RunConfig, b: RunConfig) -> str:
    """The first setting in which they differ."""

    def flat(plain: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
        for key, value in plain.items():
            if isinstance(value, dict) and value:
                yield from flat(value, f"{prefix}{key}.")
            else:
                yield prefix + key, value

    one, two = dict(flat(as_plain(a))), dict(flat(as_plain(b)))
    name = next((n for n in [*one, *two] if one.get(n) != two.get(n)), "nothing")
    return f"{name} is {two.get(name)} there, {one.get(name)} here"


def finish(trainer: Trainer, code: str | None) -> dict[str, Any]:
    """Score the best weights on validation and test, and write the result down."""
    folder, progress = trainer.folder, trainer.progress
    model = load_run(folder).to(trainer.fabric.device)
    result = {
        "run": trainer.config.name, "hash": trainer.config.hash, "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **trainer.source.score(model, trainer.config.name),
        "best_epoch": progress.best_epoch + 1, "epochs": progress.epoch, "steps": progress.step,
        "parameters": model.n_parameters(), "seconds": progress.seconds, "cpu_seconds": progress.cpu_seconds,
        "peak_memory_mb": peak_memory_mb(), "sittings": progress.sittings,
        "fingerprints": trainer.source.fingerprints,
        "threads": torch.get_num_threads(), "processes": trainer.fabric.world_size,
        "commit": code,
        "versions": {"icll": icll.__version__, "torch": torch.__version__, "python": platform.python_version()},
    }  # fmt: skip
    with replacing(folder / RESULT) as (path,):
        path.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    return result


def commit() -> str | None:
    """Of the code that runs, if it stands in a git checkout of its own."""
    root = Path(icll.__file__).parent.parent
    if not (root / ".git").exists():
        return None
    done = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or None


def read_config(folder: Path) -> RunConfig:
    """The config of a run folder."""
    path = folder / CONFIG
    if not path.exists():
        raise IcllError(f"{folder} is not a run: it has no {CONFIG}; `icll runs` lists those there are")
    try:
        plain = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise IcllError(f"{path} cannot be read: {first_line(error)}") from None
    return from_plain(RunConfig, plain)


def problem_data(config: RunConfig, folder: Path) -> DataConfig:
    """The data of a run that was trained on problems, for what is of use with them alone."""
    if not isinstance(config.data, DataConfig):
        raise IcllError(f"{folder} was trained on text, this is for runs on problems: there are `icll text eval` and generate")
    return config.data


def read_result(folder: Path) -> dict[str, Any] | None:
    path = folder / RESULT
    return read_json(path) if path.exists() else None


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """Of metrics.jsonl, one for each epoch."""
    path = folder / METRICS
    try:
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    except ValueError as error:
        raise IcllError(f"{path} is damaged ({error}): {AGAIN}") from None


def load_run(folder: str | Path) -> Model:
    """The trained model of a run, which is a predictor: its best weights."""
    folder = Path(folder)
    config = read_config(folder)
    if not (folder / WEIGHTS).exists():
        if read_result(folder) is None:
            raise IcllError(f"{folder} has no {WEIGHTS} yet: its first epoch is not over")
        raise IcllError(f"{folder} has results but no {WEIGHTS}, its weights were not kept: {AGAIN}")
    model = model_of(config.model)
    try:
        load_weights(model, load_file(folder / WEIGHTS))
    except SafetensorError as error:
        raise IcllError(f"{folder / WEIGHTS} is damaged ({error}): {AGAIN}") from None
    if _mixer_changed(config, folder):
        warnings.warn(
            f"the file of {config.model.model} is not what {folder} was trained with: see {MIXER} there", stacklevel=2
        )
    model.name = folder.name
    return model.eval()


def save_model(model: Model, path: Path) -> None:
    """Weights alone, as safetensors."""
    with replacing(path) as (temporary,):
        save_file(weights(model), temporary)


@dataclass(frozen=True)
class RunSummary:
    folder: Path
    config: RunConfig
    rows: list[dict[str, Any]]
    result: dict[str, Any] | None

    @property
    def status(self) -> str:
        return "finished" if self.result else "unfinished"


def find_runs(root: Path) -> list[RunSummary]:
    """All runs below a folder, by name. What cannot be read is left out, with a warning."""
    found = []
    for path in sorted(root.rglob(CONFIG)):
        try:
            config, rows, result = read_config(path.parent), read_rows(path.parent), read_result(path.parent)
        except IcllError as error:
            warnings.warn(f"{path.parent} is left out: {error}", stacklevel=2)
            continue
        found.append(RunSummary(path.parent, config, rows, result))
    return found
