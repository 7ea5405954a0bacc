"""In-context learners: predictors that learn from the prefix of one problem, and from nothing else."""

from ..predictors import make_predictor  # with all learners of this folder registered
from .baum_welch import BaumWelch
from .bayes import BayesFilter
from .ngram import NGram
from .state_merging import StateMerging

__all__ = ["BaumWelch", "BayesFilter", "NGram", "StateMerging", "make_predictor"]
