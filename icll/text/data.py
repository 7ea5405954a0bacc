"""Text as a source of batches: what `DataConfig` is for problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from ..errors import IcllError, whole
from ..model import Model
from ..tasks import Batch
from ..training import Recipe
from .scores import TextScores, score_text
from .shards import Tokens, find_tokens


@dataclass(frozen=True)
class TextData:
    """A tokenised corpus, by its name and the fingerprint of its tokens, and how much of it a run reads.

    A run's epochs are equal parts of `tokens`, with a validation after each. The corpus is read as often as they need.
    """

    kind: ClassVar[str] = "icll.text:TextData"

    corpus: str
    fingerprint: str
    context: int = 512
    tokens: int = 20_000_000  # to train on
    valid_tokens: int = 131_072  # of the validation set that are read after each epoch, at most
    score_tokens: int = 500_000  # of the validation and of the test set, for the final scores

    def __post_init__(self) -> None:
        whole("context", self.context, 2)
        whole("tokens", self.tokens, 1, 10**13)
        whole("valid_tokens", self.valid_tokens, 1, 10**13)
        whole("score_tokens", self.score_tokens, 1, 10**13)

    @property
    def label(self) -> str:
        millions = self.tokens / 1e6
        return f"{self.corpus}-{f'{millions / 1e3:g}b' if millions >= 1e3 else f'{millions:g}m'}"

    def load(self) -> Tokens:
        return find_tokens(self.corpus, self.fingerprint)

    def source(self, recipe: Recipe, seed: int) -> TextSource:
        return TextSource(self, self.load(), recipe, seed)


def steps_of_epoch(tokens: int, context: int, recipe: Recipe) -> int:
    """As many in each, so that a run reads `tokens` or, to the end of its last epoch, some more."""
    return -(-tokens // (recipe.batch_size * context * recipe.epochs))


class TextSource:
    """Contexts of a corpus. A pass takes each once, in an order of its own and cut at places of its own."""

    def __init__(self, data: TextData, tokens: Tokens, recipe: Recipe, seed: int):
        self.data, self.tokens, self.seed, self.rows = data, tokens, seed, recipe.batch_size
        self.ids = tokens.ids("train")
        if recipe.short:
            raise IcllError("short is for problems, whose beginnings are problems too: give text a shorter --context")
        if len(self.ids) < 2 * data.context:
            raise IcllError(
                f"the training text of {tokens.name} has {len(self.ids):,} tokens, too few for contexts of {data.context}: "
                "give more text or lower --context"
            )
        for split in ("valid", "test"):
            if tokens.counts[split] < 2:
                raise IcllError(
                    f"{tokens.name} has no text for {split}: it has fewer than 20 documents to hold some out; make it a folder "
                    f"with train.txt, valid.txt and test.txt, or say with --document-start which lines begin a document"
                )
        self.steps = steps_of_epoch(data.tokens, data.context, recipe)
        self.vocab_size = tokens.vocab_size
        self.fingerprints = {"tokens": tokens.fingerprint}
        self.files = {"tokenizer.json": tokens.tokenizer.to_json()}

    def __len__(self) -> int:
        return self.steps

    def batches(self, epoch: int, skip: int, rank: int, world: int) -> Iterator[tuple[Batch, int]]:
        if world > self.rows:
            raise IcllError(f"a batch of {self.rows} contexts cannot be shared by {world} processes: lower --devices")
        length = self.data.context
        first = (epoch * self.steps + skip) * self.rows
        starts = self._starts(first)
        for _ in range(skip, self.steps):
            rows = np.stack([self.ids[s : s + length + 1] for s in [next(starts) for _ in range(self.rows)][rank::world]])
            both = torch.from_numpy(rows.astype(np.int64))
            lengths = torch.full((len(both),), length)
            tokens, targets = both[:, :-1].contiguous(), both[:, 1:].contiguous()
            yield Batch(tokens, targets, torch.ones_like(tokens, dtype=torch.bool), lengths), self.rows * length

    def _starts(self, first: int) -> Iterator[int]:
        """Where contexts begin, from number `first` of the run on."""
        length, number = self.data.context, 0
        for reading in range(10**9):
            rng = np.random.default_rng([self.seed, reading])
            offset = int(rng.integers(length))
            count = (len(self.ids) - 1 - offset) // length
            if number + count > first:
                order = rng.permutation(count)
                yield from (offset + int(c) * length for c in order[max(0, first - number) :])
            number += count

    def evaluate(self, model: Model, split: str, most: int) -> TextScores:
        return score_text(model, self.tokens.ids(split), self.data.context, self.tokens.tokenizer.decode, most=most)

    def validate(self, model: Model) -> dict[str, float]:
        scores = self.evaluate(model, "valid", self.data.valid_tokens)
        return {"valid_loss": scores.loss, "valid_perplexity": scores.perplexity}

    def score(self, model: Model, name: str) -> dict[str, dict[str, Any]]:
        most = self.data.score_tokens
        return {split: {**self.evaluate(model, split, most).as_dict(), "name": name} for split in ("valid", "test")}
