"""Tasks: problems, their splits, files, loaders and exports."""

from typing import TYPE_CHECKING, Any

from .export import save_datasets, to_datasets, to_jsonl
from .problems import Problems, Splits, load
from .recall import associative_recall
from .regbench import SIZES, problems_of, regbench

if TYPE_CHECKING:
    from .loader import Batch, LengthBuckets, ProblemDataset, collate, make_loader

__all__ = [
    "SIZES",
    "Batch",
    "LengthBuckets",
    "ProblemDataset",
    "Problems",
    "Splits",
    "associative_recall",
    "collate",
    "load",
    "make_loader",
    "problems_of",
    "regbench",
    "save_datasets",
    "to_datasets",
    "to_jsonl",
]


def __getattr__(name: str) -> Any:
    if name in ("Batch", "LengthBuckets", "ProblemDataset", "collate", "make_loader"):  # these need torch
        from . import loader

        return getattr(loader, name)
    raise AttributeError(f"module 'icll.tasks' has no attribute {name!r}")
