"""Token mixers, one file for each architecture, and where they are found by name."""

from .attention import Attention
from .base import (
    ARCHITECTURES,
    Architecture,
    Mixer,
    Mixing,
    architecture,
    can_step,
    find_architecture,
    make_mixer,
    source_of,
    takes_heads,
)
from .gla import GatedLinearAttention
from .h3 import H3
from .hyena import Hyena
from .linear_transformer import LinearAttention
from .lstm import Lstm
from .mamba import Mamba
from .ngram import NGramBlock, NGramHead, NGramMemory, WholeText
from .retnet import Retention
from .rwkv import Rwkv
from .s4 import S4

__all__ = [
    "ARCHITECTURES",
    "H3",
    "S4",
    "Architecture",
    "Attention",
    "GatedLinearAttention",
    "Hyena",
    "LinearAttention",
    "Lstm",
    "Mamba",
    "Mixer",
    "Mixing",
    "NGramBlock",
    "NGramHead",
    "NGramMemory",
    "Retention",
    "Rwkv",
    "WholeText",
    "architecture",
    "can_step",
    "find_architecture",
    "make_mixer",
    "source_of",
    "takes_heads",
]
