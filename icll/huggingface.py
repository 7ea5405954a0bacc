"""N-gram heads inside other people's models: Hugging Face causal language models, without a fork.

The heads become a submodule, `model.ngram_heads`, and act by hooks behind the layers they are asked for: so the model trains,
saves and generates as before, and its own weights are left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .errors import IcllError, unknown
from .mixers import NGramBlock, NGramMemory, WholeText
from .mixers.ngram import place_after
from .ops.ngram import REPEATS, Reset

# The inner model and its list of layers, by attribute. What is built alike works alike: Mistral, Qwen and many more as Llama.
LAYOUTS = (("model", "layers"), ("transformer", "h"), ("backbone", "layers"), ("gpt_neox", "layers"))
CACHES = ("past_key_values", "cache_params")
_KEY, _MEMORY = "icll_ngram_heads", "_icll_ngram_memory"


class NGramHeads(nn.Module):
    """The bundles of one model, and what they need of the current call: its tokens, or the memory beside its cache."""

    def __init__(self, bundles: dict[str, list[NGramBlock]], reset: Reset, max_contexts: int | None):
        super().__init__()
        self.bundles = nn.ModuleDict({place: nn.ModuleList(blocks) for place, blocks in bundles.items()})
        self.reset, self.max_contexts = reset, max_contexts
        self.orders = sorted({block.head.n for blocks in bundles.values() for block in blocks})
        self.contexts: Any = None
        self.unattached: NGramMemory | None = None  # for a cache the model makes itself
        self.hooks: list[Any] = []

    def begin(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Before the inner model: find its tokens and its cache."""
        tokens = named.get("input_ids", arguments[0] if arguments else None)
        if not isinstance(tokens, torch.Tensor) or tokens.is_floating_point():
            raise IcllError("n-gram heads match on token ids: call the model with input_ids, not inputs_embeds")
        cache = next((named[name] for name in CACHES if named.get(name) is not None), None)
        uses_cache = named.get("use_cache")
        if uses_cache is None:
            uses_cache = bool(getattr(module.config, "use_cache", False)) and not module.training
        self.unattached = None
        if cache is None and not uses_cache:
            self.contexts = WholeText(tokens, self.orders[-1], self.reset)
            return
        memory = getattr(cache, _MEMORY, None)
        if memory is None:
            if _filled(cache):
                raise IcllError("this cache was filled without the n-gram heads: begin with a new one")
            memory = NGramMemory(len(tokens), self.orders, self.reset, self.max_contexts)
            if cache is None:
                self.unattached = memory
            else:
                attach(memory, cache)
        memory.read(tokens)
        self.contexts = memory

    def end(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        """After the inner model: put the memory beside the cache it made."""
        if self.unattached is not None:
            cache = next((c for name in CACHES if (c := getattr(output, name, None)) is not None), None)
            if cache is not None:
                attach(self.unattached, cache)
            self.unattached = None

    def apply_to(self, place: str, hidden: torch.Tensor) -> torch.Tensor:
        bundle: Any = self.bundles[place]
        for block in bundle:
            hidden = block(hidden, self.contexts)
        return hidden


def _filled(cache: Any) -> bool:
    try:
        return cache is not None and cache.get_seq_length() > 0
    except (AttributeError, ValueError):  # caches of recurrent models do not count
        return False


def attach(memory: NGramMemory, cache: Any) -> None:
    """Keep the memory with the cache, also when beam search reorders it."""
    setattr(cache, _MEMORY, memory)
    if not hasattr(cache, "reorder_cache"):
        return
    reorder = cache.reorder_cache

    def reorder_both(rows: torch.Tensor) -> Any:
        memory.reorder(rows.tolist())
        return reorder(rows)

    cache.reorder_cache = reorder_both


def add_ngram_heads(
    model: Any,
    orders: Sequence[int] = (1, 2, 3),
    after: int | Sequence[int] = 1,
    *,
    repeat: str = "drop",
    reset: int | Sequence[int] | None = None,
    mlp: bool = True,
    start_at_zero: bool = False,
    max_contexts: int | None = None,
) -> Any:
    """Put a bundle of n-gram heads behind layers of a Hugging Face causal language model; returns the model itself.

    after: behind how many layers, one place or several, negative from the end (-1: behind the last). mlp: every head is
    followed by an MLP of the model's width, as in the paper's text models. start_at_zero: the new layers begin as the
    identity, so that a trained model starts out unchanged. reset: token ids n-grams may not span, such as that of the end of
    a document. max_contexts: see icll.mixers.NGramMemory, which decoding with a cache uses.
    """
    if hasattr(model, "ngram_heads"):
        raise IcllError("the model has n-gram heads already: remove_ngram_heads(model) first")
    if not orders:
        raise IcllError("orders is empty: give at least one, such as (1, 2, 3)")
    if repeat not in REPEATS:
        raise unknown("repeat", repeat, REPEATS)
    inner, layers = _layers(model)
    like = next(model.parameters())
    places = place_after(after, len(layers), "insert")
    bundles = {
        str(place): [NGramBlock(model.config.hidden_size, n, repeat, nn.RMSNorm, mlp) for n in orders] for place in places
    }  # fmt: skip
    for key, blocks in bundles.items():
        for i, block in enumerate(blocks):
            block.head.key = f"{key}.{i}.{block.head.n}"
            if start_at_zero:
                block.start_at_zero()
    heads = NGramHeads(bundles, reset, max_contexts).to(dtype=like.dtype, device=like.device)
    heads.train(model.training)
    model.ngram_heads = heads
    given = [after] if isinstance(after, int) else list(after)
    borders = None if reset is None else [reset] if isinstance(reset, int) else list(reset)
    settings = {
        "orders": list(orders), "after": given, "repeat": repeat, "reset": borders, "mlp": mlp, "max_contexts": max_contexts,
    }  # fmt: skip
    setattr(model.config, _KEY, settings)
    heads.hooks.append(inner.register_forward_pre_hook(heads.begin, with_kwargs=True))
    heads.hooks.append(inner.register_forward_hook(heads.end))
    for place in places:
        heads.hooks.append(_hook(heads, layers, place))
    return model


Call = tuple[tuple[Any, ...], dict[str, Any]]


def _hook(heads: NGramHeads, layers: nn.ModuleList, place: int) -> Any:
    if place == 0:  # before the first layer

        def before(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> Call:
            if arguments:
                return (heads.apply_to("0", arguments[0]), *arguments[1:]), named
            return arguments, {**named, "hidden_states": heads.apply_to("0", named["hidden_states"])}

        return layers[0].register_forward_pre_hook(before, with_kwargs=True)

    def behind(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
        if isinstance(output, tuple):
            return (heads.apply_to(str(place), output[0]), *output[1:])
        return heads.apply_to(str(place), output)

    return layers[place - 1].register_forward_hook(behind)


def remove_ngram_heads(model: Any) -> Any:
    """Take the heads out again; the model's own weights stay as they are."""
    heads: Any = getattr(model, "ngram_heads", None)
    if heads is None:
        raise IcllError("the model has no n-gram heads to remove")
    for hook in heads.hooks:
        hook.remove()
    del model.ngram_heads
    delattr(model.config, _KEY)
    return model


def load_with_ngram_heads(path: str, model_class: Any = None, **options: Any) -> Any:
    """What `save_pretrained` wrote of a model with n-gram heads. `model_class`: default, AutoModelForCausalLM; `options` go
    to it."""
    try:
        import transformers
    except ImportError:
        raise IcllError("this needs transformers: pip install transformers") from None
    from transformers.utils import logging

    config = transformers.AutoConfig.from_pretrained(path)
    settings = getattr(config, _KEY, None)
    if settings is None:
        raise IcllError(f"{path} has no n-gram heads: load it with transformers, then use icll.add_ngram_heads")
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # it would warn that it does not know the heads' weights, which we load ourselves
    try:
        model: Any = (model_class or transformers.AutoModelForCausalLM).from_pretrained(path, **options)
    finally:
        logging.set_verbosity(level)
    add_ngram_heads(model, **settings)
    weights = _head_weights(path)
    missing = set(model.ngram_heads.state_dict()) - set(weights)
    if missing:
        raise IcllError(f"{path} lacks {len(missing)} weights of its n-gram heads, such as {min(missing)}: save it again")
    model.ngram_heads.load_state_dict(weights)
    return model


def _head_weights(path: str) -> dict[str, torch.Tensor]:
    import json
    from pathlib import Path

    from safetensors import safe_open
    from transformers.utils import cached_file

    index = cached_file(path, "model.safetensors.index.json", _raise_exceptions_for_missing_entries=False)
    names = ["model.safetensors"]
    if index is not None:  # in several files
        names = sorted(set(json.loads(Path(index).read_text())["weight_map"].values()))
    weights = {}
    for name in names:
        with safe_open(cached_file(path, name), "pt") as file:
            for key in file.keys():  # noqa: SIM118  (the file is no dict)
                if key.startswith("ngram_heads."):
                    weights[key.removeprefix("ngram_heads.")] = file.get_tensor(key)
    return weights


def _layers(model: Any) -> tuple[nn.Module, nn.ModuleList]:
    for inner_name, layers_name in LAYOUTS:
        inner = getattr(model, inner_name, None)
        layers = getattr(inner, layers_name, None)
        if isinstance(inner, nn.Module) and isinstance(layers, nn.ModuleList) and hasattr(model, "config"):
            return inner, layers
    known = "LlamaForCausalLM, GPT2LMHeadModel, MambaForCausalLM, GPTNeoXForCausalLM and models built like them"
    raise IcllError(f"{type(model).__name__} is not a model that n-gram heads can be put into: supported are {known}")
