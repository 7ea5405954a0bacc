"""icll: in-context language learning. Data, learners, models and measurements, on any machine.

Names are imported when they are first used, so that `import icll` stays quick and `icll --help` never loads torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import IcllError
from .tokens import PAD, SEP, VOCAB_SIZE, decode, encode

if TYPE_CHECKING:
    from .huggingface import add_ngram_heads, load_with_ngram_heads, remove_ngram_heads
    from .learners import make_predictor
    from .model import Model, build_model
    from .predictors import Oracle, Predictor, Uniform, compare, evaluate
    from .training import load_run

__version__ = "0.1.0"

__all__ = [
    "PAD",
    "SEP",
    "VOCAB_SIZE",
    "IcllError",
    "Model",
    "Oracle",
    "Predictor",
    "Uniform",
    "add_ngram_heads",
    "build_model",
    "compare",
    "decode",
    "encode",
    "evaluate",
    "load_run",
    "load_with_ngram_heads",
    "make_predictor",
    "remove_ngram_heads",
]
_HOME = dict.fromkeys(["Oracle", "Predictor", "Uniform", "compare", "evaluate"], "predictors")
_HOME |= dict.fromkeys(["Model", "build_model"], "model") | {"make_predictor": "learners", "load_run": "training"}
_HOME |= dict.fromkeys(["add_ngram_heads", "load_with_ngram_heads", "remove_ngram_heads"], "huggingface")
_ROOMS = {
    "analysis",
    "experiments",
    "languages",
    "learners",
    "metrics",
    "mixers",
    "model",
    "ops",
    "predictors",
    "report",
    "tasks",
    "text",
    "training",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    if name in _ROOMS:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module 'icll' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_ROOMS})
