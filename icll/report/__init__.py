"""Pictures of languages, problems and scores."""

from .automaton import draw_automaton
from .curves import draw_curves
from .style import save_figure

__all__ = ["draw_automaton", "draw_curves", "save_figure"]
