"""N-gram heads inside other people's models: Hugging Face causal language models, without a fork.

The heads become a submodule, `model.ngram_heads`, and act by hooks behind the layers they are asked for: so the model trains,
saves and generates as before, and its own weights are left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
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
_PADDING = 1 << 40  # above all token ids


class NGramHeads(nn.Module):
    """The bundles of one model, and what they need of the current call: its tokens, or the memory beside its cache."""

    def __init__(self, bundles: dict[str, list[NGramBlock]], reset: Reset, max_contexts: int | None):
        super().__init__()
        self.bundles = nn.ModuleDict({place: nn.ModuleList(blocks) for place, blocks in bundles.items()})
        self.reset, self.max_contexts = reset, max_contexts
        self.orders = sorted({block.head.n for blocks in bundles.values() for block in blocks})
        self.contexts: Any = None  # of the call that is under way
        self.unattached: NGramMemory | None = None  # for a cache the model makes itself
        self.hooks: list[Any] = []
        # Gradient checkpointing computes layers again in the backward pass: then the contexts of the last training call count.
        self.kept: Any = None
        self.calls = 0  # that a backward pass is to come for
        self.recomputed = False

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
            self.contexts = WholeText(_unpadded(tokens, named, 0), self.orders[-1], self.reset)
            if module.training and torch.is_grad_enabled() and _checkpoints(module):
                self.calls = 1 if self.recomputed else self.calls + 1
                self.kept, self.recomputed = self.contexts, False
            return
        memory = getattr(cache, _MEMORY, None)
        held = _held(cache)
        if memory is not None and held is not None and held < memory.length:
            if held:
                raise IcllError(
                    f"the cache holds {held} tokens of {memory.length} that the n-gram heads have read, which cannot be taken "
                    "back: generate without an assistant or prompt lookup, and begin a new text with a new cache"
                )
            memory = None  # it was emptied for another text
        if memory is None:
            if held:
                raise IcllError("this cache was filled without the n-gram heads: begin with a new one")
            memory = NGramMemory(len(tokens), self.orders, self.reset, self.max_contexts)
            if cache is None:
                self.unattached = memory
            else:
                attach(memory, cache)
        memory.read(_unpadded(tokens, named, memory.length))
        self.contexts = memory

    def end(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        """After the inner model: put the memory beside the cache it made."""
        if self.unattached is not None:
            cache = next((c for name in CACHES if (c := getattr(output, name, None)) is not None), None)
            if cache is not None:
                attach(self.unattached, cache)
            self.unattached = None
        self.contexts = None

    def apply_to(self, place: str, hidden: torch.Tensor) -> torch.Tensor:
        bundle: Any = self.bundles[place]
        contexts = self.contexts
        if contexts is None:  # no call is under way: a layer is computed again for its gradient
            if self.calls != 1:
                raise IcllError(
                    "with gradient checkpointing n-gram heads know the tokens of the last call only: call backward after each"
                )
            contexts, self.recomputed = self.kept, True
        for block in bundle:
            hidden = block(hidden, contexts)
        return hidden


def _checkpoints(module: nn.Module) -> bool:
    return any(getattr(m, "gradient_checkpointing", False) for m in module.modules())


def _unpadded(tokens: torch.Tensor, named: dict[str, Any], before: int) -> torch.Tensor:
    """Padding, where the attention mask is 0, becomes ids that occur once, so that nothing is matched with it."""
    mask = named.get("attention_mask")
    if not isinstance(mask, torch.Tensor) or mask.ndim != 2 or mask.shape[1] < tokens.shape[1]:
        return tokens
    mask = mask[:, mask.shape[1] - tokens.shape[1] :].to(tokens.device)
    places = torch.arange(before, before + tokens.shape[1], device=tokens.device)
    return torch.where(mask == 0, _PADDING + places, tokens)


def _held(cache: Any) -> int | None:
    """How many tokens a cache has; None for those of recurrent models, which do not count them."""
    try:
        return 0 if cache is None else int(cache.get_seq_length())
    except (AttributeError, ValueError):
        return None


def attach(memory: NGramMemory, cache: Any) -> None:
    """Keep the memory with the cache, also when beam search reorders, copies or picks texts, and when the cache is copied."""
    setattr(cache, _MEMORY, memory)
    for name, both in (
        ("reorder_cache", _reorder), ("batch_repeat_interleave", _interleave), ("batch_select_indices", _select),
    ):  # fmt: skip
        if hasattr(type(cache), name):
            setattr(cache, name, MethodType(both, cache))


def _reorder(cache: Any, rows: torch.Tensor) -> Any:
    getattr(cache, _MEMORY).reorder(rows.tolist())
    return type(cache).reorder_cache(cache, rows)


def _interleave(cache: Any, repeats: int) -> Any:
    memory = getattr(cache, _MEMORY)
    memory.reorder([row for row in range(len(memory.recent)) for _ in range(repeats)])
    return type(cache).batch_repeat_interleave(cache, repeats)


def _select(cache: Any, indices: torch.Tensor) -> Any:
    memory = getattr(cache, _MEMORY)
    memory.reorder(torch.arange(len(memory.recent))[indices.cpu()].tolist())
    return type(cache).batch_select_indices(cache, indices)


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
    if not isinstance(after, int) and not after:
        raise IcllError("after is empty: give at least one place, such as 1")
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


class _Before:
    """The hook before the first layer. Objects, not closures: a copy of the model has hooks to its own heads."""

    def __init__(self, heads: NGramHeads):
        self.heads = heads

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> Call:
        if arguments:
            return (self.heads.apply_to("0", arguments[0]), *arguments[1:]), named
        return arguments, {**named, "hidden_states": self.heads.apply_to("0", named["hidden_states"])}


class _Behind:
    """The hook behind a layer."""

    def __init__(self, heads: NGramHeads, place: str):
        self.heads, self.place = heads, place

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
        if isinstance(output, tuple):
            return (self.heads.apply_to(self.place, output[0]), *output[1:])
        return self.heads.apply_to(self.place, output)


def _hook(heads: NGramHeads, layers: nn.ModuleList, place: int) -> Any:
    if place == 0:
        return layers[0].register_forward_pre_hook(_Before(heads), with_kwargs=True)
    return layers[place - 1].register_forward_hook(_Behind(heads, str(place)))


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

    source = {name: options[name] for name in _SOURCE if name in options}
    config = transformers.AutoConfig.from_pretrained(path, **source)
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
    weights = _head_weights(path, source)
    missing = set(model.ngram_heads.state_dict()) - set(weights)
    if missing:
        raise IcllError(f"{path} lacks {len(missing)} weights of its n-gram heads, such as {min(missing)}: save it again")
    model.ngram_heads.load_state_dict(weights)
    return model


# Options that say which files of a repository are meant, and how to get them.
_SOURCE = ("revision", "subfolder", "cache_dir", "token", "local_files_only", "force_download", "proxies")


def _head_weights(path: str, source: dict[str, Any]) -> dict[str, torch.Tensor]:
    import json
    from pathlib import Path

    from safetensors import safe_open
    from transformers.utils import cached_file

    index = cached_file(path, "model.safetensors.index.json", _raise_exceptions_for_missing_entries=False, **source)
    names = ["model.safetensors"]
    if index is not None:  # in several files
        names = sorted(set(json.loads(Path(index).read_text("utf-8"))["weight_map"].values()))
    weights = {}
    for name in names:
        with safe_open(cached_file(path, name, **source), "pt") as file:
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
