"""Operators: each with a slow, obvious form (`naive_*`) beside the fast one. Tensors are [B, L, ...] throughout."""

from .convolution import diagonal_filter, long_convolve, naive_diagonal_filter, naive_long_convolve, short_convolve, toeplitz
from .cross_entropy import naive_output_loss, output_loss
from .linear_attention import (
    attention_linear_attend,
    chunked_linear_attend,
    linear_attend,
    linear_weights,
    naive_linear_attend,
)
from .ngram import naive_ngram_attend, ngram_attend, ngram_weights
from .ngram_counts import follower_counts, naive_follower_counts
from .rms_norm import naive_rms_norm, rms_norm
from .selective_scan import chunked_selective_scan, naive_selective_scan, selective_scan
from .swiglu import naive_swiglu, swiglu
from .wkv import naive_wkv, parallel_wkv, wkv, wkv_weights

__all__ = [
    "attention_linear_attend",
    "chunked_linear_attend",
    "chunked_selective_scan",
    "diagonal_filter",
    "follower_counts",
    "linear_attend",
    "linear_weights",
    "long_convolve",
    "naive_diagonal_filter",
    "naive_follower_counts",
    "naive_linear_attend",
    "naive_long_convolve",
    "naive_ngram_attend",
    "naive_output_loss",
    "naive_rms_norm",
    "naive_selective_scan",
    "naive_swiglu",
    "naive_wkv",
    "ngram_attend",
    "ngram_weights",
    "output_loss",
    "parallel_wkv",
    "rms_norm",
    "selective_scan",
    "short_convolve",
    "swiglu",
    "toeplitz",
    "wkv",
    "wkv_weights",
]
