"""Training: configs, the loop, checkpoints and runs."""

from .config import RECIPES, DataConfig, Recipe, RunConfig, as_plain, change, from_plain
from .grid import GRIDS, SWEEPS, Grid, Sweep, make_sweep
from .loop import Machine, Progress, Trainer
from .runs import RunSummary, find_runs, load_run, read_config, read_result, train
from .search import Asha, Outcome, run_all, search

__all__ = [
    "GRIDS",
    "RECIPES",
    "SWEEPS",
    "Asha",
    "DataConfig",
    "Grid",
    "Machine",
    "Outcome",
    "Progress",
    "Recipe",
    "RunConfig",
    "RunSummary",
    "Sweep",
    "Trainer",
    "as_plain",
    "change",
    "find_runs",
    "from_plain",
    "load_run",
    "make_sweep",
    "read_config",
    "read_result",
    "run_all",
    "search",
    "train",
]
