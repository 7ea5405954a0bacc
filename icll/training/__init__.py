"""Training: configs, the loop, checkpoints and runs."""

from .config import RECIPES, Data, DataConfig, Recipe, RunConfig, as_plain, change, from_plain
from .loop import Machine, Progress, Trainer
from .runs import RunSummary, find_runs, load_run, read_config, read_result, train
from .source import Source

__all__ = [
    "RECIPES",
    "Data",
    "DataConfig",
    "Machine",
    "Progress",
    "Recipe",
    "RunConfig",
    "RunSummary",
    "Source",
    "Trainer",
    "as_plain",
    "change",
    "find_runs",
    "from_plain",
    "load_run",
    "read_config",
    "read_result",
    "train",
]
