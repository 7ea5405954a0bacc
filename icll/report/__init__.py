"""Pictures of languages, problems and scores."""

from .automaton import draw_automaton
from .charts import draw_chart
from .curves import draw_curves, draw_training
from .style import picture_format, save_figure

__all__ = ["draw_automaton", "draw_chart", "draw_curves", "draw_training", "picture_format", "save_figure"]
