"""Tokenizers: a byte-level BPE trained on the corpus, or any of Hugging Face's, by file or by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import IcllError, first_line, whole

SEPARATOR = "<|endoftext|>"
SEPARATORS = (SEPARATOR, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[SEP]")
ENDING = re.compile(r"eos|end.?of.?(text|sentence|document|sequence)", re.IGNORECASE)  # names of others
LEAST = 257  # all bytes and the separator: with as many any text has tokens


class TextTokenizer:
    """Text to ids and back. `separator` is the id between documents; written out in a text, it is text."""

    def __init__(self, tokenizer: Any):
        self.inner = tokenizer
        tokenizer.encode_special_tokens = True
        tokenizer.no_truncation()  # tokenizer files of some models cut and fill texts to the model's length
        tokenizer.no_padding()
        added = tokenizer.get_added_tokens_decoder().values()
        names = [name for name in SEPARATORS if tokenizer.token_to_id(name) is not None]
        names += [token.content for token in added if token.special and ENDING.search(token.content)]
        if not names:
            raise IcllError(f"the tokenizer has no token to put between documents: add one of {', '.join(SEPARATORS)}")
        if not any(token.content == names[0] and token.special for token in added):
            # Else it would be found in texts that have it written out.
            tokenizer.add_special_tokens([_library().AddedToken(names[0], special=True, normalized=False)])
        self.separator: int = tokenizer.token_to_id(names[0])
        self.vocab_size: int = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each document, the separator before it."""
        encoded = self.inner.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array([self.separator, *e.ids], self.dtype) for e in encoded]

    def encode(self, text: str) -> list[int]:
        return self.inner.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        """Separators are not shown."""
        return self.inner.decode([int(i) for i in ids if i != self.separator], skip_special_tokens=False)

    @property
    def dtype(self) -> type[np.unsignedinteger[Any]]:
        return np.uint16 if self.vocab_size <= 1 << 16 else np.uint32

    def to_json(self) -> str:
        return self.inner.to_str()


def train_bpe(texts: Iterable[str], vocab_size: int) -> TextTokenizer:
    """Byte-level BPE as of GPT-2; the separator has id 0."""
    tokenizers = _library()
    whole("vocab_size", vocab_size, LEAST, 1 << 24)
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[SEPARATOR], initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    made.train_from_iterator(texts, trainer)
    return TextTokenizer(made)


def read_tokenizer(text: str, where: object) -> TextTokenizer:
    """From the content of a tokenizer.json."""
    try:
        return TextTokenizer(_library().Tokenizer.from_str(text))
    except IcllError:
        raise
    except Exception as error:  # the library raises plain exceptions
        raise IcllError(f"{where} is not a tokenizer file: {first_line(error)}") from None


def find_tokenizer(spec: str) -> TextTokenizer:
    """By file (tokenizer.json, or its folder) or by its name on the hub, for which the network is asked."""
    if not spec:
        raise IcllError("--tokenizer is empty: give bpe:SIZE, a tokenizer.json, or a name such as gpt2")
    path = Path(spec) / "tokenizer.json" if (Path(spec) / "tokenizer.json").is_file() else Path(spec)
    if path.is_file():
        try:
            return read_tokenizer(path.read_text("utf-8"), path)
        except UnicodeDecodeError:
            raise IcllError(f"{path} is not a tokenizer file: it is not text") from None
    if path.suffix == ".json":
        raise IcllError(f"the tokenizer {spec} does not exist: give a tokenizer.json, or a name such as gpt2")
    try:
        return TextTokenizer(_library().Tokenizer.from_pretrained(spec))
    except IcllError:
        raise
    except Exception as error:
        raise IcllError(f"the tokenizer {spec} cannot be fetched: {first_line(error)}") from None


def _library() -> Any:
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError:
        raise IcllError("text needs the package tokenizers: pip install tokenizers") from None
    return tokenizers
