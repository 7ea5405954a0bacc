"""Writing text: token after token from the recurrent state, so that the next one costs as much as the one before."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from ..errors import IcllError, whole
from ..model import Model, evaluating
from .tokenizer import TextTokenizer

MEMORY = 8192  # contexts that n-gram heads of each order remember


def write_text(
    model: Model,
    tokenizer: TextTokenizer,
    prompt: str,
    n: int = 200,
    *,
    temperature: float = 1.0,
    top: int | None = None,
    seed: int = 0,
    memory: int | None = MEMORY,
) -> Iterator[str]:
    """Pieces of text that continue the prompt by n tokens, or to the end of the document. temperature 0 takes the likeliest
    token; `top` chooses among so many. n-gram heads forget the contexts met least recently beyond `memory`."""
    from tokenizers.decoders import DecodeStream

    check_vocabulary(model, tokenizer)
    if not 0 <= temperature < math.inf:
        raise IcllError(f"temperature must be 0 or more, not {temperature}")
    whole("the number of tokens to write", n, 1)
    if top is not None:
        whole("top", top, 1)
    generator = torch.Generator().manual_seed(whole("the seed", seed, 0, 2**63 - 1))
    read = tokenizer.encode(prompt)
    decoder = DecodeStream(ids=read, skip_special_tokens=True)  # some decoders write the first token of a text differently
    state: Any = model.initial_state(1, memory)
    with evaluating(model):
        for token in [tokenizer.separator, *read]:
            logits, state = model.step(torch.tensor([token], device=model.embedding.weight.device), state)
    for i in range(n):
        token = _choose(logits[0].float().cpu(), temperature, top, generator)
        if token == tokenizer.separator:
            return
        if text := decoder.step(tokenizer.inner, token):
            yield text
        if i + 1 < n:
            with evaluating(model):
                logits, state = model.step(torch.tensor([token], device=model.embedding.weight.device), state)


def _choose(logits: torch.Tensor, temperature: float, top: int | None, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    if top is not None and top < len(logits):
        logits = logits.masked_fill(logits < logits.topk(top).values[-1], float("-inf"))
    # Taking the largest away first, nothing overflows at small temperatures.
    return int(torch.multinomial(((logits - logits.max()) / temperature).softmax(-1), 1, generator=generator))


def check_vocabulary(model: Model, tokenizer: TextTokenizer) -> None:
    if tokenizer.vocab_size != model.config.vocab_size:
        raise IcllError(
            f"the tokenizer has {tokenizer.vocab_size:,} tokens, the model {model.config.vocab_size:,}: "
            "use the one in the run's folder"
        )
