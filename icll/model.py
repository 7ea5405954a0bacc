"""The skeleton all models share: embed, blocks of mixer and feed-forward, project to the vocabulary."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from .errors import IcllError, unknown, whole
from .mixers import Architecture, Mixing, NGramBlock, NGramHead, NGramMemory, WholeText, can_step, find_architecture, make_mixer
from .mixers.attention import Attention
from .mixers.base import Stacked
from .mixers.ngram import Contexts, place_after
from .mixers.norm import RMSNorm
from .ops.cross_entropy import output_loss
from .ops.ngram import REPEATS
from .ops.swiglu import swiglu
from .predictors import check_tokens
from .tokens import VOCAB_SIZE

INITS = ("native", "authors")
NORMS: dict[str, type[nn.Module]] = {"layer": nn.LayerNorm, "rms": RMSNorm}
FEED_FORWARDS = ("gelu", "swiglu")
STACKED_WRONGLY = ("lstm", "mamba")  # the models whose published curves carry the authors' wiring bug


@dataclass(frozen=True)
class ModelConfig:
    """Everything that determines a model but its weights. `options` are those of the mixer, such as `value_gate` of gla."""

    model: str
    d_model: int = 64
    n_layers: int = 2
    n_heads: int = 2
    vocab_size: int = VOCAB_SIZE
    max_length: int = 1024  # of learned positions, and the unit of Hyena's filters
    dropout: float = 0.0  # of the embedding and of softmax attention
    ff_width: int | None = None  # default: 4 d, or 8/3 d for swiglu, which has three maps
    tie: bool = True  # one matrix for embedding and output
    init: str = "native"  # a mixer owns its initialisation; "authors" overwrites it as their wrapper did
    authors_bug: bool = False  # lstm and mamba: every layer reads the embedding, only the last one counts
    ngram_heads: tuple[int, ...] = ()  # orders of the heads of a bundle, such as (1, 2, 3)
    ngram_after: tuple[int, ...] = (1,)  # behind how many layers a bundle stands, negative from the end
    ngram_mode: str = "insert"  # or "replace": in place of the layer of that index
    ngram_repeat: str = "drop"  # see icll.ops.ngram
    ngram_reset: tuple[int, ...] = ()  # ids that n-grams may not span
    ngram_mlp: bool = False  # every head followed by an MLP, as for real text
    options: dict[str, Any] = field(default_factory=dict)
    # "later" settings came after the first runs: at their default they are not written down, so that older hashes stay.
    norm: str | None = field(default=None, metadata={"later": True})  # layer or rms; default: the architecture's
    feed_forward: str | None = field(default=None, metadata={"later": True})  # gelu or swiglu; default: the architecture's
    embedding_std: float = field(default=0.02, metadata={"later": True})  # of the first embeddings and positions

    def __post_init__(self) -> None:
        for name in ("d_model", "n_layers", "n_heads", "vocab_size", "max_length"):
            object.__setattr__(self, name, whole(name, getattr(self, name), 1))
        if self.ff_width is not None:
            whole("ff_width", self.ff_width, 1)
        for name in ("ngram_heads", "ngram_after", "ngram_reset"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, int) else tuple(value or ()))
        for n in self.ngram_heads:
            whole("the order n of an n-gram head", n, 1)
        if self.ngram_mode not in ("insert", "replace"):
            raise unknown("ngram_mode", self.ngram_mode, ("insert", "replace"))
        if self.ngram_repeat not in REPEATS:
            raise unknown("ngram_repeat", self.ngram_repeat, REPEATS)
        if self.ngram_heads and not self.ngram_after:
            raise IcllError("n-gram heads have no place: give ngram_after, such as 1")
        if self.ngram_heads and self.authors_bug:
            raise IcllError("authors_bug and n-gram heads exclude each other: heads stand between layers that it does not join")
        if not 0 <= self.dropout < 1:
            raise IcllError(f"dropout must be from 0 to below 1, not {self.dropout}")
        if self.init not in INITS:
            raise unknown("init", self.init, INITS)
        if not self.embedding_std > 0:
            raise IcllError(f"embedding_std must be above 0, not {self.embedding_std}")
        if self.norm not in (None, *NORMS):
            raise unknown("norm", str(self.norm), NORMS)
        if self.feed_forward not in (None, *FEED_FORWARDS):
            raise unknown("feed_forward", str(self.feed_forward), FEED_FORWARDS)
        if self.authors_bug and self.model not in STACKED_WRONGLY:
            raise IcllError(f"authors_bug is of {' and '.join(STACKED_WRONGLY)} alone, not of {self.model}: leave it out")


class Output(NamedTuple):
    """What a model returns on request: logits [B, L, V], the residual stream after every layer, and the mixing matrices."""

    logits: torch.Tensor
    hidden: list[torch.Tensor] | None  # [layers][B, L, D]
    mixing: list[torch.Tensor | None] | None  # [layers][B, heads or channels, L, L], None for a mixer that has none


class ModelState(NamedTuple):
    """What one token at a time needs of the past: how many tokens were read, and each layer's recurrent state."""

    position: int
    layers: tuple[Any, ...]
    memory: NGramMemory | None = None  # of n-gram heads; the only part that is changed in place


class FeedForward(nn.Module):
    """gelu: W_2 gelu(W_1 x); swiglu: W_2 (silu(W_1 x) * W_3 x), without biases as in Llama."""

    def __init__(self, kind: str, d_model: int, width: int):
        super().__init__()
        self.gated = kind == "swiglu"
        self.up = Stacked(d_model, (width, width) if self.gated else (width,), bias=not self.gated)
        self.out = nn.Linear(width, d_model, bias=not self.gated)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.up(x)
        return self.out(swiglu(x) if self.gated else F.gelu(x))


class Block(nn.Module):
    """x + mixer(norm(x)), then x + feed_forward(norm(x)); a part the architecture lacks is left out."""

    def __init__(self, config: ModelConfig, architecture: Architecture, layer: int):
        super().__init__()
        d = self.d_model = config.d_model
        given = {
            "d_model": d, "n_heads": config.n_heads, "n_layers": config.n_layers, "layer": layer,
            "max_length": config.max_length, "dropout": config.dropout,
        }  # fmt: skip
        self.residual = architecture.residual and not config.authors_bug
        norm = None if config.authors_bug else architecture.norm
        self.mixer_norm = make_norm(norm, d)
        self.mixer: Any = make_mixer(architecture, given, config.options)
        self.feed_forward = None
        if architecture.feed_forward is not None:
            gated = architecture.feed_forward == "swiglu"
            width = config.ff_width or (-(-8 * d // 24) * 8 if gated else 4 * d)
            self.ff_norm = make_norm(norm, d)
            self.feed_forward = FeedForward(architecture.feed_forward, d, width)

    def forward(self, x: torch.Tensor, contexts: Contexts | None = None) -> torch.Tensor:
        return self._close(x, self.mixer(self.mixer_norm(x), *self._extra(contexts)))

    def _extra(self, contexts: Contexts | None) -> tuple[Contexts | None, ...]:
        """Only a mixer with n-gram heads inside takes the contexts."""
        return (contexts,) if orders_inside(self.mixer) else ()

    def _close(self, x: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        x = x + mixed if self.residual else mixed
        return x if self.feed_forward is None else x + self.feed_forward(self.ff_norm(x))

    def mixing(self, x: torch.Tensor, contexts: Contexts | None = None) -> Mixing | None:
        matrices = self.mixer.mixing(self.mixer_norm(x), *self._extra(contexts)) if hasattr(self.mixer, "mixing") else None
        return matrices if isinstance(matrices, Mixing) else None

    def initial_state(self, batch_size: int) -> Any:
        """The mixer's own; for a mixer that cannot step, the prefix of its inputs, [B, 0, D]."""
        if can_step(self.mixer):
            return self.mixer.initial_state(batch_size)
        like = next(self.parameters(), torch.empty(0))  # a mixer need not have parameters
        return torch.zeros(batch_size, 0, self.d_model, dtype=like.dtype, device=like.device)

    def step(self, x: torch.Tensor, recurrent_state: Any, contexts: Contexts | None = None) -> tuple[torch.Tensor, Any]:
        inner = self.mixer_norm(x)
        if can_step(self.mixer):
            mixed, recurrent_state = self.mixer.step(inner, recurrent_state, *self._extra(contexts))
        else:
            recurrent_state = torch.cat([recurrent_state, inner[:, None]], 1)
            mixed = self.mixer(recurrent_state)[:, -1]
        return self._close(x, mixed), recurrent_state


def waves(length: int, width: int) -> torch.Tensor:
    """Sines and cosines of the position, [L, D], wave lengths from 2 pi to 10,000 times that.

    Neighbours are alike and a step is the same rotation anywhere, so that a head finds the token before this one at all
    positions at once; from noise it has to learn each.
    """
    position = torch.arange(length)[:, None]
    angle = position * torch.exp(-math.log(10_000) * torch.arange(0, width, 2) / width)
    return torch.cat([angle.sin(), angle.cos()], 1)[:, :width]


class Model(nn.Module):
    """A sequence model of any architecture: token ids [B, L] to logits [B, L, V]. Also a predictor."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.name = config.model
        architecture = architecture_of(config)
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = nn.Embedding(config.max_length, config.d_model) if architecture.positions else None
        self.blocks: list[Any] = nn.ModuleList(_stack(config, architecture))  # type: ignore[assignment]
        self.orders = sorted({n for block in self.blocks for n in block_orders(block)})
        for i, block in enumerate(self.blocks):  # the names under which heads keep their sums
            for head in block.modules():
                if isinstance(head, NGramHead | Attention):
                    head.key = f"{i}.{head.key}"
        self.final_norm = make_norm(None if config.authors_bug else architecture.norm, config.d_model)
        self.output = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self._initialise()
        if config.tie:
            self.output.weight = self.embedding.weight

    def _initialise(self) -> None:
        """N(0, 0.02), maps back into the residual stream smaller by the number of them; embeddings N(0, embedding_std), and
        learned positions begin as waves of that size. The mixers are left as they made themselves, unless the authors' wrapper
        is asked for, which went over everything, positions too."""
        mixers = {id(m) for block in self.blocks if isinstance(block, Block) for m in block.mixer.modules()}
        overwrite = self.config.init == "authors"
        for name, module in self.named_modules():
            if not isinstance(module, nn.Linear | nn.Embedding) or (id(module) in mixers and not overwrite):
                continue
            into_stream = name.endswith((".mixer.out", ".feed_forward.out"))
            std = self.config.embedding_std if isinstance(module, nn.Embedding) else 0.02
            nn.init.normal_(module.weight, std=std / math.sqrt(2 * self.config.n_layers) if into_stream else std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        if self.positions is not None and not overwrite:
            with torch.no_grad():
                size = self.config.embedding_std * math.sqrt(2)
                self.positions.weight.copy_(size * waves(*self.positions.weight.shape))

    def forward(
        self,
        tokens: torch.Tensor,
        return_hidden: bool = False,
        return_mixing: bool = False,
        targets: torch.Tensor | None = None,
    ) -> Any:
        """Logits, or an Output if anything else is asked for; with targets [B, L] (-100 where there is none) their summed
        loss, for which a large vocabulary's logits are never held all at once."""
        x = self._embed(tokens, 0)
        contexts = WholeText(tokens, self.orders[-1], self.config.ngram_reset or None) if self.orders else None
        embedded, hidden = x, []
        mixing: list[torch.Tensor | None] = []
        blocks = self.blocks if return_hidden or return_mixing or not self.config.authors_bug else self.blocks[-1:]
        for block in blocks:
            source = embedded if self.config.authors_bug else x
            if return_mixing:
                matrices = block.mixing(source, contexts)
                mixing.append(None if matrices is None else matrices.weights)
            x = block(source, contexts)
            hidden.append(x)
        if targets is not None:
            return output_loss(self.final_norm(x).flatten(0, 1), self.output.weight, targets.flatten())
        logits = self.output(self.final_norm(x))
        if not (return_hidden or return_mixing):
            return logits
        return Output(logits, hidden if return_hidden else None, mixing if return_mixing else None)

    def _embed(self, tokens: torch.Tensor, start: int) -> torch.Tensor:
        x = self.embedding(tokens)
        if self.positions is not None:
            end = start + tokens.shape[1]
            if end > self.config.max_length:
                raise IcllError(
                    f"{end} tokens are more than the {self.config.max_length} positions of this model: "
                    f"build it with max_length={end} or more"
                )
            x = x + self.positions.weight[start:end]
        return F.dropout(x, self.config.dropout, self.training)

    def predict(self, tokens: torch.Tensor) -> torch.Tensor:
        """Distributions of the next token, [B, L, V], without dropout or gradients."""
        check_tokens(tokens, self.config.vocab_size)
        with evaluating(self):
            return self(tokens.to(self.device)).float().softmax(-1).to(tokens.device)

    def initial_state(self, batch_size: int, max_contexts: int | None = None) -> ModelState:
        """The state before the first token. `max_contexts` bounds the memory of n-gram heads: see NGramMemory."""
        layers = [None if isinstance(block, NGramBlock) else block.initial_state(batch_size) for block in self.blocks]
        memory = NGramMemory(batch_size, self.orders, self.config.ngram_reset, max_contexts) if self.orders else None
        return ModelState(0, tuple(layers), memory)

    def step(self, tokens: torch.Tensor, state: ModelState) -> tuple[torch.Tensor, ModelState]:
        """One token for each problem, [B], to the logits [B, V] of the next one.

        States are not changed in place, but for the memory of n-gram heads: copy.deepcopy it to go on from one point twice.
        """
        x = embedded = self._embed(tokens[:, None], state.position)[:, 0]
        if state.memory is not None:
            state.memory.read(tokens[:, None])
        layers = []
        for block, recurrent_state in zip(self.blocks, state.layers, strict=True):
            if isinstance(block, NGramBlock):
                x = block(x[:, None], state.memory)[:, 0]
            else:
                x, recurrent_state = block.step(embedded if self.config.authors_bug else x, recurrent_state, state.memory)
            layers.append(recurrent_state)
        return self.output(self.final_norm(x)), ModelState(state.position + 1, tuple(layers), state.memory)

    def generate(
        self,
        tokens: torch.Tensor,
        n: int,
        *,
        temperature: float = 1.0,
        forbid: tuple[int, ...] = (0,),
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """Continue the prompts [B, L] by n tokens: [B, L + n]. temperature 0 takes the likeliest; padding is never produced."""
        check_tokens(tokens, self.config.vocab_size)
        tokens = tokens.to(self.device)
        if tokens.shape[1] == 0:
            raise IcllError("the prompt is empty: give at least one token")
        if temperature < 0:
            raise IcllError(f"temperature must be 0 or more, not {temperature}")
        whole("the number of tokens to generate", n, 0)
        with evaluating(self):
            state = self.initial_state(len(tokens))
            for t in range(tokens.shape[1]):
                logits, state = self.step(tokens[:, t], state)
            out = [tokens]
            for i in range(n):
                logits = logits.float()
                logits[:, list(forbid)] = float("-inf")
                if temperature == 0:
                    new = logits.argmax(-1)
                else:
                    new = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)[:, 0]
                out.append(new[:, None])
                if i + 1 < n:
                    logits, state = self.step(new, state)
            return torch.cat(out, 1)

    @property
    def device(self) -> torch.device:
        return self.output.weight.device

    def n_parameters(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def state_bytes(self, length: int = 1) -> int:
        """Size of one problem's recurrent state after `length` tokens. It grows for attention and mixers without `step`.

        The memory of n-gram heads is not in it: a row of D numbers for each context that was met, at most `max_contexts`.
        """
        with evaluating(self):
            token = torch.zeros(1, dtype=torch.long, device=self.device)
            sizes, state = [], self.initial_state(1)
            for _ in range(min(length, 2)):
                _, state = self.step(token, state)
                sizes.append(_bytes(state.layers))
        return sizes[0] if length == 1 else sizes[1] + (length - 2) * (sizes[1] - sizes[0])

    def flops_per_token(self, length: int) -> float:
        """Of the forward pass, in the mean over `length` tokens: linear maps and mixing, without norms and activations."""
        total = 2.0 * self.output.weight.numel()
        for block in self.blocks:
            if isinstance(block, NGramBlock):
                total += _linear_flops(block) + 2 * self.config.d_model
                continue
            mixer = block.mixer
            if hasattr(mixer, "operator_flops"):
                total += mixer.operator_flops(length) + _linear_flops(mixer)  # type: ignore[operator,arg-type]
            else:
                total += _counted_flops(mixer, length, self.config.d_model)  # type: ignore[arg-type]
            if block.feed_forward is not None:
                total += _linear_flops(block.feed_forward)  # type: ignore[arg-type]
        return total


def build_model(
    name: str,
    *,
    d_model: int = 64,
    n_layers: int = 2,
    n_heads: int = 2,
    vocab_size: int = VOCAB_SIZE,
    max_length: int = 1024,
    dropout: float = 0.0,
    ff_width: int | None = None,
    tie: bool = True,
    init: str = "native",
    authors_bug: bool = False,
    ngram_heads: Sequence[int] = (),
    ngram_after: int | Sequence[int] = 1,
    ngram_mode: str = "insert",
    ngram_repeat: str = "drop",
    ngram_reset: int | Sequence[int] | None = None,
    ngram_mlp: bool = False,
    norm: str | None = None,
    feed_forward: str | None = None,
    embedding_std: float = 0.02,
    seed: int | None = None,
    **options: Any,
) -> Model:
    """A model by its architecture's name, or `package.module:Class` for a mixer of your own; `options` are the mixer's.

    ngram_heads=(1, 2, 3) puts a bundle of n-gram heads behind the first layer; ngram_after names other places, one or
    several, negative from the end, and ngram_mode="replace" puts the bundle in place of the layer there. With a seed the
    weights depend on it alone, and torch's generator is left as it was.
    """
    config = ModelConfig(
        name, d_model, n_layers, n_heads, vocab_size, max_length, dropout, ff_width, tie, init, authors_bug,
        ngram_heads, ngram_after, ngram_mode, ngram_repeat, ngram_reset, ngram_mlp, options, norm, feed_forward,  # type: ignore[arg-type]
        embedding_std,
    )  # fmt: skip
    return model_of(config, seed)


def model_of(config: ModelConfig, seed: int | None = None) -> Model:
    """The model of a config."""
    from .reweighting import REWEIGHTING, Reweighting  # it derives from Model, so that it cannot be imported above

    kind = Reweighting if config.model in REWEIGHTING else Model
    if seed is None:
        return kind(config)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return kind(config)


def architecture_of(config: ModelConfig) -> Architecture:
    """The named one, with the config's norm and feed-forward in place of its own."""
    found = find_architecture(config.model)
    return replace(found, norm=config.norm or found.norm, feed_forward=config.feed_forward or found.feed_forward)


def make_norm(kind: str | None, d_model: int) -> nn.Module:
    return nn.Identity() if kind is None else NORMS[kind](d_model, eps=1e-5)  # type: ignore[call-arg]


def _stack(config: ModelConfig, architecture: Architecture) -> list[nn.Module]:
    """The layers in order, bundles of n-gram heads in their places."""
    layers: list[list[nn.Module]] = [[Block(config, architecture, layer)] for layer in range(config.n_layers)]
    if not config.ngram_heads:
        return [block for place in layers for block in place]
    norm = NORMS[architecture.norm or "layer"]
    replace = config.ngram_mode == "replace"
    layers.append([])
    for place in place_after(config.ngram_after, config.n_layers, config.ngram_mode):
        bundle: list[nn.Module] = []
        for n in config.ngram_heads:
            bundle.append(NGramBlock(config.d_model, n, config.ngram_repeat, norm, config.ngram_mlp))
        layers[place] = bundle if replace else [*bundle, *layers[place]]
    return [block for place in layers for block in place]


def orders_inside(mixer: nn.Module) -> tuple[int, ...]:
    """Of the n-gram heads inside a mixer (attention can have some)."""
    return getattr(mixer, "ngram_orders", ())


def block_orders(block: nn.Module) -> tuple[int, ...]:
    return (block.head.n,) if isinstance(block, NGramBlock) else orders_inside(block.mixer)  # type: ignore[arg-type]


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards the module is as it was."""
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train(training)


def _bytes(state: Any) -> int:
    if isinstance(state, torch.Tensor):
        return state.numel() * state.element_size()
    return sum(map(_bytes, state)) if isinstance(state, tuple | list) else 0


def _linear_flops(module: nn.Module) -> float:
    return sum(2.0 * m.weight.numel() for m in module.modules() if isinstance(m, nn.Linear))


def _counted_flops(mixer: nn.Module, length: int, d_model: int) -> float:
    """What torch counts for a mixer that does not say."""
    like = next(mixer.parameters(), torch.empty(0))
    counter = FlopCounterMode(display=False)
    with evaluating(mixer), counter:
        mixer(torch.zeros(1, length, d_model, dtype=like.dtype, device=like.device))
    return counter.get_total_flops() / length
