"""Random regular languages: automata as arrays, and kernels that sample, minimise and trace them."""

from .automaton import Automata, Automaton
from .profile import PROFILES, Profile, get_profile
from .sampling import sample_automata

__all__ = ["PROFILES", "Automata", "Automaton", "Profile", "get_profile", "sample_automata"]
