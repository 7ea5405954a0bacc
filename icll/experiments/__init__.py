"""Each table and figure of the paper as data, what has been measured, and how the two compare."""

from .catalogue import EXPERIMENTS, Experiment, Plan
from .fidelity import fidelity
from .results import Entry, Known, known, packed

__all__ = ["EXPERIMENTS", "Entry", "Experiment", "Known", "Plan", "fidelity", "known", "packed"]
