"""What did the model learn: matrices, heads, probes, distances (section 5, appendices D and E)."""

from .attention import AttentionMap, AttentionMaps, attention_maps
from .circuits import ngram_circuit
from .distance import Distances, distances, pairwise, predicted
from .heads import HeadScores, HeadTable, make_rules, score_heads
from .mixing import Head, find_heads, knocked_out, layer_mixing
from .probes import ProbeConfig, ProbeResult, RunProbes, probe, probe_run

__all__ = [
    "AttentionMap",
    "AttentionMaps",
    "Distances",
    "Head",
    "HeadScores",
    "HeadTable",
    "ProbeConfig",
    "ProbeResult",
    "RunProbes",
    "attention_maps",
    "distances",
    "find_heads",
    "knocked_out",
    "layer_mixing",
    "make_rules",
    "ngram_circuit",
    "pairwise",
    "predicted",
    "probe",
    "probe_run",
    "score_heads",
]
