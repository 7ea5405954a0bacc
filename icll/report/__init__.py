"""Pictures of languages, problems, scores and what models have learned."""

from .attention import draw_attention, write_attention_page
from .automaton import draw_automaton
from .charts import draw_chart
from .curves import draw_curves, draw_training
from .heat import draw_distances, draw_heads, draw_heat
from .probes import draw_probe_layers, draw_probes
from .style import picture_format, save_figure

__all__ = [
    "draw_attention",
    "draw_automaton",
    "draw_chart",
    "draw_curves",
    "draw_distances",
    "draw_heads",
    "draw_heat",
    "draw_probe_layers",
    "draw_probes",
    "draw_training",
    "picture_format",
    "save_figure",
    "write_attention_page",
]
