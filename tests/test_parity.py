"""Our models and operators against implementations nobody here wrote, weights copied over: outputs and gradients in float64."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from icll import build_model
from icll.mixers import Lstm, Mamba, Rwkv
from icll.ops import chunked_linear_attend, linear_attend, selective_scan, wkv

transformers = pytest.importorskip("transformers")
D, H, LAYERS, VOCAB, L = 32, 4, 2, 20, 37


@contextmanager
def double_throughout() -> Iterator[None]:
    """The peers cast to float32 in places; inside, such a cast of a float64 tensor does nothing."""
    plain_to, plain_float = torch.Tensor.to, torch.Tensor.float

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self.dtype == torch.float64 and (args[:1] == (torch.float32,) or kwargs.get("dtype") == torch.float32):
            return self
        return plain_to(self, *args, **kwargs)

    def to_float(self: torch.Tensor) -> torch.Tensor:
        return self if self.dtype == torch.float64 else plain_float(self)

    torch.Tensor.to, torch.Tensor.float = to, to_float  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        torch.Tensor.to, torch.Tensor.float = plain_to, plain_float  # type: ignore[method-assign]


def tokens() -> torch.Tensor:
    return torch.randint(0, VOCAB, (3, L), generator=torch.Generator().manual_seed(0))


def noise(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def shake(module: nn.Module) -> None:
    """Fresh modules have biases of zero and gains of one, which hide mistakes."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)


Pairs = list[tuple[torch.Tensor, torch.Tensor]]


def same(ours: torch.Tensor, theirs: torch.Tensor, pairs: Pairs, tolerance: float = 1e-8) -> None:
    """Outputs agree, and so do the gradients of corresponding tensors (theirs may be transposed or have sides of 1)."""
    scale = theirs.abs().max()
    assert (ours - theirs).abs().max() <= tolerance * scale
    weight = noise(*ours.shape).to(ours.dtype)
    left = torch.autograd.grad((ours * weight).sum(), [p[0] for p in pairs])
    right = torch.autograd.grad((theirs * weight.to(theirs.dtype)).sum(), [p[1] for p in pairs])
    for a, b in zip(left, right, strict=True):
        b = b if a.shape == b.shape else b.T if b.dim() == 2 and a.shape == b.T.shape else b.reshape(a.shape)
        assert (a - b).abs().max() <= tolerance * max(1.0, float(b.abs().max()))


def test_transformer_is_gpt2():
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=64, n_embd=D, n_layer=LAYERS, n_head=H, activation_function="gelu",
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, attn_implementation="eager",
    )  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(config).double()
    ours = build_model("transformer", d_model=D, n_layers=LAYERS, n_heads=H, max_length=64).double()
    shake(theirs)
    body = theirs.transformer
    pairs: list[tuple[Any, Any]] = [(ours.embedding, body.wte), (ours.positions, body.wpe), (ours.final_norm, body.ln_f)]
    for block, peer in zip(ours.blocks, body.h, strict=True):
        pairs += [(block.mixer_norm, peer.ln_1), (block.mixer.qkv, peer.attn.c_attn), (block.mixer.out, peer.attn.c_proj)]
        pairs += [(block.ff_norm, peer.ln_2), (block.feed_forward.up, peer.mlp.c_fc), (block.feed_forward.out, peer.mlp.c_proj)]
    weights = []
    for mine, peer in pairs:
        transposed = isinstance(mine, nn.Linear)  # GPT-2 keeps its linear maps the other way round
        mine.weight.data = (peer.weight.T if transposed else peer.weight).detach().clone()
        weights.append((mine.weight, peer.weight))
        if getattr(mine, "bias", None) is not None:
            mine.bias.data = peer.bias.detach().clone()
            weights.append((mine.bias, peer.bias))
    ours.output.weight = ours.embedding.weight
    weights[0] = (ours.embedding.weight, body.wte.weight)
    logits = ours(tokens())
    with double_throughout():
        same(logits, theirs(tokens()).logits, [(a, b) for a, b in weights if a.shape != (D, D)])
        # Square maps: transposed explicitly, since their shape does not tell.
        out, peer_out = ours(tokens()), theirs(tokens()).logits
    square = [(a, b) for a, b in weights if a.shape == (D, D)]
    g = noise(*out.shape)
    left = torch.autograd.grad((out * g).sum(), [a for a, _ in square])
    right = torch.autograd.grad((peer_out * g).sum(), [b for _, b in square])
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b.T, rtol=0, atol=1e-8)


def test_llama_is_llama():
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=D, intermediate_size=88, num_hidden_layers=LAYERS, num_attention_heads=H,
        rms_norm_eps=1e-5, tie_word_embeddings=True, attn_implementation="sdpa",
    )  # fmt: skip
    theirs = transformers.LlamaForCausalLM(config).double()
    shake(theirs)
    theirs.model.rotary_emb.inv_freq = 10_000.0 ** -(torch.arange(D // H // 2, dtype=torch.float64) / (D // H // 2))
    ours = build_model("llama", d_model=D, n_layers=LAYERS, n_heads=H, ff_width=88).double()
    body = theirs.model
    ours.embedding.weight.data = body.embed_tokens.weight.detach().clone()
    ours.final_norm.weight.data = body.norm.weight.detach().clone()
    pairs = [(ours.embedding.weight, body.embed_tokens.weight), (ours.final_norm.weight, body.norm.weight)]
    for block, peer in zip(ours.blocks, body.layers, strict=True):
        attention, mlp = peer.self_attn, peer.mlp
        qkv = [p.weight for p in (attention.q_proj, attention.k_proj, attention.v_proj)]
        block.mixer.qkv.weight.data = torch.cat(qkv).detach()
        block.feed_forward.up.weight.data = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).detach()
        for mine, p in (
            (block.mixer.out, attention.o_proj), (block.feed_forward.out, mlp.down_proj),
            (block.mixer_norm, peer.input_layernorm), (block.ff_norm, peer.post_attention_layernorm),
        ):  # fmt: skip
            mine.weight.data = p.weight.detach().clone()
            pairs.append((mine.weight, p.weight))
    ours.output.weight = ours.embedding.weight
    pairs[0] = (ours.embedding.weight, body.embed_tokens.weight)
    with double_throughout():
        same(ours(tokens()), theirs(tokens()).logits, pairs)


def copy_mamba(mine: Mamba, peer: Any) -> Pairs:
    names = [
        (mine.maps.weight, peer.in_proj.weight), (mine.short_bias, peer.conv1d.bias), (mine.select.weight, peer.x_proj.weight),
        (mine.dt.weight, peer.dt_proj.weight), (mine.dt.bias, peer.dt_proj.bias), (mine.log_A, peer.A_log),
        (mine.skip, peer.D), (mine.out.weight, peer.out_proj.weight),
    ]  # fmt: skip
    for a, b in names:
        a.data = b.detach().clone()
    mine.short.data = peer.conv1d.weight.detach()[:, 0].flip(1).clone()
    return names


def test_mamba_layer_is_hugging_faces():
    config = transformers.MambaConfig(vocab_size=VOCAB, hidden_size=D, num_hidden_layers=1, state_size=16)
    peer = transformers.models.mamba.modeling_mamba.MambaMixer(config, 0).double()
    mine = Mamba(D).double()
    shake(peer)
    pairs = copy_mamba(mine, peer)
    x, x2 = noise(2, L, D).requires_grad_(), noise(2, L, D).requires_grad_()
    with double_throughout():
        same(mine(x), peer(x2), [*pairs, (x, x2)])


def test_mamba_model_is_hugging_faces():
    config = transformers.MambaConfig(
        vocab_size=VOCAB,
        hidden_size=D,
        num_hidden_layers=LAYERS,
        state_size=16,
        residual_in_fp32=False,
        tie_word_embeddings=True,
    )
    theirs = transformers.MambaForCausalLM(config).double()
    shake(theirs)
    ours = build_model("mamba", d_model=D, n_layers=LAYERS).double()
    body = theirs.backbone
    ours.embedding.weight.data = body.embeddings.weight.detach().clone()
    ours.output.weight = ours.embedding.weight
    pairs = [(ours.embedding.weight, body.embeddings.weight)]
    ours.final_norm.weight.data = body.norm_f.weight.detach().clone()
    for block, peer in zip(ours.blocks, body.layers, strict=True):
        pairs += copy_mamba(block.mixer, peer.mixer)
        block.mixer_norm.weight.data = peer.norm.weight.detach().clone()
        pairs.append((block.mixer_norm.weight, peer.norm.weight))
    with double_throughout():
        same(ours(tokens()), theirs(tokens()).logits, pairs)


def test_mamba_layer_is_mambapys():
    mambapy = pytest.importorskip("mambapy.mamba")
    peer = mambapy.MambaBlock(mambapy.MambaConfig(d_model=D, n_layers=1)).double()
    mine = Mamba(D).double()
    shake(peer)
    pairs = copy_mamba(mine, peer)
    x, x2 = noise(2, 32, D).requires_grad_(), noise(2, 32, D).requires_grad_()
    with double_throughout():
        same(mine(x), peer(x2), [*pairs, (x, x2)])


def test_selective_scan_is_mambapys_parallel_scan():
    pscan = pytest.importorskip("mambapy.pscan").pscan
    x, C, B = noise(2, 64, D), noise(2, 64, 8, seed=3), noise(2, 64, 8, seed=4)
    dt, A = nn.functional.softplus(noise(2, 64, D, seed=5)), -torch.exp(noise(D, 8, seed=6))
    ours, theirs = ([t.clone().requires_grad_() for t in (x, dt, A, B, C)] for _ in range(2))
    x, dt, A, B, C = theirs
    states = pscan(torch.exp(dt[..., None] * A), (dt * x)[..., None] * B[:, :, None])
    same(selective_scan(*ours), (states @ C[..., None])[..., 0], list(zip(ours, theirs, strict=True)))


def test_rwkv_layer_is_hugging_faces():
    modeling = transformers.models.rwkv.modeling_rwkv
    peer = modeling.RwkvSelfAttention(transformers.RwkvConfig(hidden_size=D, num_hidden_layers=2, context_length=64)).double()
    for i, parameter in enumerate(peer.parameters()):
        parameter.data = noise(*parameter.shape, seed=i)
    mine = Rwkv(D).double()
    pairs = [
        (mine.mix_k, peer.time_mix_key), (mine.mix_v, peer.time_mix_value), (mine.mix_r, peer.time_mix_receptance),
        (mine.time_decay, peer.time_decay), (mine.time_first, peer.time_first), (mine.k.weight, peer.key.weight),
        (mine.v.weight, peer.value.weight), (mine.r.weight, peer.receptance.weight), (mine.out.weight, peer.output.weight),
    ]  # fmt: skip
    for a, b in pairs:
        a.data = b.detach().reshape(a.shape).clone()
    x, x2 = noise(2, L, D).requires_grad_(), noise(2, L, D).requires_grad_()
    with double_throughout():
        same(mine(x), peer(x2)[0], [*pairs, (x, x2)])


def test_wkv_is_hugging_faces():
    decay, first, k, v = noise(D), noise(D, seed=2), 5 * noise(2, L, D, seed=3), noise(2, L, D, seed=4)
    ours, theirs = ([t.clone().requires_grad_() for t in (decay, first, k, v)] for _ in range(2))
    with double_throughout():
        peer = transformers.models.rwkv.modeling_rwkv.rwkv_linear_attention_cpu(*theirs)[0]
        same(wkv(torch.exp(ours[0]), *ours[1:]), peer, list(zip(ours, theirs, strict=True)))


def test_lstm_is_torchs():
    peer = nn.LSTM(D, D, num_layers=2, batch_first=True).double()
    model = build_model("lstm", d_model=D, n_layers=2).double()
    pairs = []
    for layer, block in enumerate(model.blocks):
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            a, b = getattr(block.mixer.lstm, f"{name}_l0"), getattr(peer, f"{name}_l{layer}")
            a.data = b.detach().clone()
            pairs.append((a, b))
    for form in Lstm.forms:
        for block in model.blocks:
            block.mixer.form = form
        x = model.embedding(tokens())
        same(model(tokens(), return_hidden=True).hidden[-1], peer(x.detach())[0], pairs)


def fla_naive(folder: str) -> Any:
    """A file of naive operators of fla-core, loaded by its path: its package needs Triton, the file does not."""
    package = importlib.util.find_spec("fla")
    if package is None or package.origin is None:
        pytest.skip("fla-core is not installed")
    spec = importlib.util.spec_from_file_location(f"fla_{folder}", Path(package.origin).parent / "ops" / folder / "naive.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("op", [linear_attend, chunked_linear_attend])
def test_gla_retention_and_linear_attention_are_flas(op):
    K, V = 8, 16
    shapes = [(2, 64, H, K), (2, 64, H, K), (2, 64, H, V), (2, 64, H, K)]
    parts = [noise(*shape, dtype=torch.float32, seed=i) for i, shape in enumerate(shapes)]
    parts[3] = nn.functional.logsigmoid(parts[3])
    decay = torch.log(1 - 2.0 ** (-5 - torch.arange(H)))

    def compare(n: int, ours: Any, theirs: Any) -> None:
        a, b = ([t.clone().requires_grad_() for t in parts[:n]] for _ in range(2))
        same(ours(*a), theirs(*b), list(zip(a, b, strict=True)), tolerance=1e-5)

    compare(4, lambda q, k, v, g: op(q * K**-0.5, k, v, g), lambda *x: fla_naive("gla").naive_recurrent_gla(*x)[0])
    compare(3, lambda q, k, v: op(q * K**-0.5, k, v), lambda *x: fla_naive("linear_attn").naive_recurrent_linear_attn(*x)[0])
    compare(3, lambda q, k, v: op(q * K**-0.5, k, v), lambda *x: fla_naive("linear_attn").naive_chunk_linear_attn(*x))
    compare(
        3,
        lambda q, k, v: op(q * K**-0.5, k, v, decay),
        lambda q, k, v: fla_naive("retention").naive_retention(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2),
    )
