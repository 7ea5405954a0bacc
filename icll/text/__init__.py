"""Real text: corpora, tokens on disk, models with and without n-gram heads, perplexities."""

from .corpus import open_corpus
from .data import TextData, TextSource
from .presets import SIZES, text_model
from .scores import TextScores, score_text
from .shards import Tokens, find_tokens, tokenise

__all__ = [
    "SIZES",
    "TextData",
    "TextScores",
    "TextSource",
    "Tokens",
    "find_tokens",
    "open_corpus",
    "score_text",
    "text_model",
    "tokenise",
]
