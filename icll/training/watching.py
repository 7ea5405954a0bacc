"""Watching a run: the line that tells how it goes, and the loggers one may add."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import IcllError, unknown
from .config import RunConfig
from .loop import Progress, Watch

LOGGERS = ("tensorboard", "wandb", "mlflow")


@contextmanager
def watching(config: RunConfig) -> Iterator[Watch]:
    """A progress line on standard error: epoch, loss, validation scores, tokens per second, time left.

    Without a terminal, a line for each epoch.
    """
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    bars = Bars(
        TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=console, disable=not console.is_terminal
    )
    scores = ""
    first: tuple[float, int] | None = None
    seen = 0

    def watch(progress: Progress, row: dict[str, Any]) -> None:
        nonlocal scores, first, seen
        if "valid_loss" in row:
            names = {"valid_tvd": "TVD", "valid_accuracy": "accuracy", "valid_perplexity": "perplexity"}
            scores = " ".join(["valid", *(f"{label} {row[name]:.3f}" for name, label in names.items() if name in row)])
            if not console.is_terminal:
                line = f"epoch {row['epoch']}/{config.recipe.epochs}  loss {row['train_loss']:.3f}  {scores}"
                print(f"{line}  {row['seconds']:.0f} s", file=console.file, flush=True)
            return
        seen += row["tokens"]
        if first is None:
            first = (time.monotonic(), seen)
        speed = (seen - first[1]) / max(1e-9, time.monotonic() - first[0])
        text = f"epoch {progress.epoch + 1}/{config.recipe.epochs}  loss {row['loss']:.3f}  {scores}  {speed:,.0f} tokens/s"
        bars.update(task, description=text, completed=progress.step, total=row["total"])

    with bars:
        task = bars.add_task(config.name, total=None)
        yield watch


def make_logger(name: str, folder: Path) -> list[Any]:
    """A Fabric logger by name. Nothing is sent anywhere unless one is asked for."""
    if name not in LOGGERS:
        raise unknown("logger", name, LOGGERS)
    try:
        if name == "tensorboard":
            from lightning_fabric.loggers import TensorBoardLogger

            return [TensorBoardLogger(folder, name="", version="tensorboard")]
        if name == "wandb":
            from pytorch_lightning.loggers import WandbLogger

            return [WandbLogger(save_dir=folder, name=folder.name)]
        from pytorch_lightning.loggers import MLFlowLogger

        return [MLFlowLogger(experiment_name="icll", run_name=folder.name, save_dir=str(folder / "mlflow"))]
    except ImportError as error:
        needed = {"tensorboard": "tensorboard", "wandb": "wandb pytorch-lightning", "mlflow": "mlflow pytorch-lightning"}[name]
        raise IcllError(f"--logger {name} needs another package ({error}): pip install {needed}") from None
