"""In-context learners: predictors that learn from the prefix of one problem, and from nothing else."""

from .ngram import NGram

__all__ = ["NGram"]
