"""Training: configs, the loop, checkpoints and runs."""

from .config import RECIPES, Data, DataConfig, Recipe, RunConfig, as_plain, change, from_plain
from .grid import GRIDS, SWEEPS, Grid, Sweep, make_sweep
from .loop import Machine, Progress, Trainer
from .runs import RunSummary, find_runs, load_run, problem_data, read_config, read_result, train
from .search import Asha, Outcome, run_all, search
from .source import Source

__all__ = [
    "GRIDS",
    "RECIPES",
    "SWEEPS",
    "Asha",
    "Data",
    "DataConfig",
    "Grid",
    "Machine",
    "Outcome",
    "Progress",
    "Recipe",
    "RunConfig",
    "RunSummary",
    "Source",
    "Sweep",
    "Trainer",
    "as_plain",
    "change",
    "find_runs",
    "from_plain",
    "load_run",
    "make_sweep",
    "problem_data",
    "read_config",
    "read_result",
    "run_all",
    "search",
    "train",
]
