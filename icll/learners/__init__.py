"""In-context learners: predictors that learn from the prefix of one problem, and from nothing else."""

from ..predictors import make_predictor  # with all learners of this folder registered
from .bayes import BayesFilter
from .ngram import NGram

__all__ = ["BayesFilter", "NGram", "make_predictor"]
