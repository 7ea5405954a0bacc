"""N-gram heads: the operator against its definition, the memory against the operator, heads in our models and in others'."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections import Counter, defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from icll import IcllError, add_ngram_heads, build_model, encode, load_with_ngram_heads, remove_ngram_heads
from icll.mixers import ARCHITECTURES, NGramBlock, NGramHead, NGramMemory, WholeText
from icll.ops import naive_ngram_attend, ngram_attend, ngram_weights
from icll.ops.ngram import _AttendByJumps, _context_ids_torch


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def by_jumps(tokens, values, n, repeat="drop", reset=None, lengths=None):
    """The form for other devices, here on the CPU."""
    return _AttendByJumps.apply(_context_ids_torch(tokens, n, reset, lengths)[n - 1], values, repeat == "keep")


def listing(x: torch.Tensor, hidden: torch.Tensor, n: int) -> torch.Tensor:
    """The definition in words: loop over positions, earlier ends of the same n tokens, and what followed."""
    out = torch.zeros_like(hidden)
    for b in range(len(x)):
        for i in range(x.shape[1]):
            followers = [
                k + 1
                for k in range(n - 1, i)
                if i >= n - 1 and torch.equal(x[b, k - n + 1 : k + 1], x[b, i - n + 1 : i + 1]) and k + 1 < i
            ]
            if followers:
                out[b, i] = hidden[b, followers].mean(0)
    return out


CASES = {
    "random": torch.randint(0, 5, (3, 60), generator=torch.Generator().manual_seed(1)),
    "two ids": torch.randint(0, 2, (3, 60), generator=torch.Generator().manual_seed(2)),
    "all equal": torch.full((2, 40), 7),
    "period 3": (torch.arange(50) % 3).repeat(2, 1),
    "period 7": (torch.arange(50) % 7).repeat(2, 1),
    "all different": torch.arange(40).repeat(2, 1),
    "one token": torch.tensor([[3], [4]]),
    "vocabulary of 50,000": torch.randint(0, 50_000, (2, 30), generator=torch.Generator().manual_seed(3)).repeat(1, 3),
    "huge ids": torch.randint(0, 3, (2, 40), generator=torch.Generator().manual_seed(4)) * 2**40,
}


@pytest.mark.parametrize("form", [ngram_attend, by_jumps])
@pytest.mark.parametrize("repeat", ["drop", "keep"])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 70])
@pytest.mark.parametrize("case", CASES)
def test_equals_the_naive_form(form, case, n, repeat):
    tokens = CASES[case]
    values = noise(*tokens.shape, 3)
    weight = noise(*values.shape, seed=1)
    lengths = torch.tensor([tokens.shape[1], *[max(1, tokens.shape[1] // 2)] * (len(tokens) - 1)])
    for reset in (None, 1, (0, 3)):
        for stop in (None, lengths):
            results = []
            for attend in (naive_ngram_attend, form):
                inputs = values.clone().requires_grad_()
                out = attend(tokens, inputs, n, repeat=repeat, reset=reset, lengths=stop)
                results.append((out, torch.autograd.grad((out * weight).sum(), inputs)[0]))
            for a, b in zip(*results, strict=True):
                torch.testing.assert_close(b, a, rtol=1e-10, atol=1e-10)
                if stop is not None:
                    assert not b[1, lengths[1] :].any()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_naive_form_is_the_definition(n):
    for tokens in (CASES["two ids"][:2, :25], CASES["period 3"][:1, :20]):
        values = noise(*tokens.shape, 2)
        torch.testing.assert_close(naive_ngram_attend(tokens, values, n), listing(tokens, values, n))


def test_abc_ab():
    tokens = torch.from_numpy(encode("abcdab")).long()[None]
    values = torch.eye(6)[None]
    assert ngram_attend(tokens, values, 2)[0, 5].tolist() == [0, 0, 1, 0, 0, 0]  # after `ab` came the c at 2
    assert ngram_attend(tokens, values, 1)[0, 4].tolist() == [0, 1, 0, 0, 0, 0]  # after `a` came the b at 1
    assert not ngram_attend(tokens, values, 3)[0].any()


def test_repeats_as_in_the_facts():
    """In `a b a a` position 3 sees {1} in the listing and {1, 3} if kept."""
    tokens, values = torch.tensor([[1, 2, 1, 1]]), torch.eye(4)[None]
    assert ngram_attend(tokens, values, 1, repeat="drop")[0, 3].tolist() == [0, 1, 0, 0]
    assert ngram_attend(tokens, values, 1, repeat="keep")[0, 3].tolist() == [0, 0.5, 0, 0.5]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 4))
def test_kept_repeats_are_the_frequencies_of_the_next_token(symbols, n):
    """With one-hot values: how often each token followed the current n tokens, by brute-force counting."""
    tokens = torch.tensor([symbols])
    out = ngram_attend(tokens, torch.eye(4, dtype=torch.float64)[tokens], n, repeat="keep")[0]
    followed: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for i in range(len(symbols)):
        if i >= n:
            followed[tuple(symbols[i - n : i])][symbols[i]] += 1
        counts = followed.get(tuple(symbols[i - n + 1 : i + 1]), Counter()) if i >= n - 1 else Counter()
        expected = [counts[s] / max(1, sum(counts.values())) for s in range(4)]
        assert out[i].tolist() == pytest.approx(expected, abs=1e-12)


def test_reset_at_separators():
    """A match may not span a separator except as its first token."""
    tokens = torch.from_numpy(encode("ab|ab|ac")).long()[None]
    values = torch.eye(8)[None]
    reset = {"reset": 19, "repeat": "keep"}
    at = {n: ngram_attend(tokens, values, n, **reset)[0] for n in (1, 2, 3)}
    assert at[1][5].nonzero().flatten().tolist() == [3]  # `|` was followed by the a at 3
    assert at[2][6].nonzero().flatten().tolist() == [4]  # `|a` by the b at 4
    assert not at[2][5].any()  # `b|` would span the separator
    assert not at[3][6].any() and not at[3][3].any()  # so would `b|a`
    free = ngram_attend(tokens, values, 2, repeat="keep")[0]
    assert free[5].nonzero().flatten().tolist() == [3]


def test_large_and_ragged():
    tokens = torch.randint(0, 30, (4, 3000), generator=torch.Generator().manual_seed(0))
    values = noise(4, 3000, 5)
    torch.testing.assert_close(ngram_attend(tokens, values, 2), by_jumps(tokens, values, 2), rtol=1e-10, atol=1e-10)


def test_half_precision_sums_in_single():
    tokens, values = CASES["two ids"], noise(3, 60, 8).bfloat16()
    out = ngram_attend(tokens, values, 1)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, ngram_attend(tokens, values.float(), 1).bfloat16())


@pytest.mark.parametrize(("change", "message"), [
    ({"n": 0}, "order n of an n-gram head must be at least 1, not 0"),
    ({"n": 1.5}, "whole number"),
    ({"repeat": "dropp"}, "did you mean 'drop'"),
    ({"values": torch.zeros(2, 5, 3)}, "differ in batch or length"),
    ({"values": torch.zeros(2, 4)}, "values \\[B, L, D\\]"),
    ({"tokens": torch.zeros(2, 4)}, "whole numbers"),
    ({"lengths": torch.zeros(3)}, "lengths must be \\[B\\]"),
])  # fmt: skip
def test_bad_input(change, message):
    arguments = {"tokens": torch.zeros(2, 4, dtype=torch.long), "values": torch.zeros(2, 4, 3), "n": 1, **change}
    with pytest.raises(IcllError, match=message):
        ngram_attend(**arguments)


# --- one token at a time ---


def stream(memory: NGramMemory, tokens: torch.Tensor, values: torch.Tensor, n: int, repeat: str) -> torch.Tensor:
    out = []
    for t in range(tokens.shape[1]):
        memory.read(tokens[:, t : t + 1])
        out.append(memory.average(f"x.{n}", n, repeat, values[:, t : t + 1]))
    return torch.cat(out, 1)


@pytest.mark.parametrize("repeat", ["drop", "keep"])
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("reset", [None, 3])
def test_memory_equals_the_operator(n, repeat, reset):
    tokens = torch.randint(0, 6, (3, 80), generator=torch.Generator().manual_seed(n))
    values = noise(3, 80, 4)
    expected = ngram_attend(tokens, values, n, repeat, reset)
    torch.testing.assert_close(stream(NGramMemory(3, [n], reset), tokens, values, n, repeat), expected, rtol=1e-10, atol=1e-10)
    at_once = NGramMemory(3, [n], reset)  # a prompt, then single tokens, then several
    parts = []
    for part in (slice(0, 50), slice(50, 51), slice(51, 80)):
        at_once.read(tokens[:, part])
        parts.append(at_once.average(f"x.{n}", n, repeat, values[:, part]))
    torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_memory_equals_the_operator_over_5000_tokens():
    tokens = torch.randint(0, 12, (1, 5000), generator=torch.Generator().manual_seed(0))
    values = noise(1, 5000, 4)
    out = stream(NGramMemory(1, [3]), tokens, values, 3, "drop")
    torch.testing.assert_close(out, ngram_attend(tokens, values, 3), rtol=1e-10, atol=1e-10)


def test_memory_is_paused_and_resumed(tmp_path):
    tokens, values = torch.randint(0, 4, (2, 60)), noise(2, 60, 4)
    whole = stream(NGramMemory(2, [2], reset=[3]), tokens, values, 2, "drop")
    memory = NGramMemory(2, [2], reset=[3])
    first = stream(memory, tokens[:, :30], values[:, :30], 2, "drop")
    save_file(memory.tensors(), tmp_path / "memory.safetensors")
    again = NGramMemory.from_tensors(load_file(tmp_path / "memory.safetensors"))
    torch.testing.assert_close(torch.cat([first, stream(again, tokens[:, 30:], values[:, 30:], 2, "drop")], 1), whole)


def test_memory_forgets_what_was_met_least_recently():
    """With room for two contexts: a c is met, so b (met before a) makes room for it."""
    tokens = torch.tensor([[1, 2, 1, 3, 2, 1]])  # a b a c b a
    values = torch.eye(6)[None]
    out = stream(NGramMemory(1, [1], max_contexts=2), tokens, values, 1, "drop")[0]
    assert out[2].nonzero().flatten().tolist() == [1]  # a was followed by the b at 1
    assert not out[4].any()  # b, forgotten when c came, begins anew
    assert not out[5].any()  # a, forgotten when b came back, too
    full = stream(NGramMemory(1, [1]), tokens, values, 1, "drop")[0]
    assert full[4].nonzero().flatten().tolist() == [2] and full[5].nonzero().flatten().tolist() == [1, 3]
    many = torch.randint(0, 50, (1, 500))
    memory = NGramMemory(1, [1, 2], max_contexts=10)
    for t in range(500):
        memory.read(many[:, t : t + 1])
        memory.average("x.2", 2, "keep", torch.zeros(1, 1, 4))
    assert [len(memory.slots[n][0]) for n in (1, 2)] == [10, 10] and len(memory.counts[2]) == 10


def test_memory_reordered_as_beams_are():
    tokens, values = torch.randint(0, 3, (3, 30)), noise(3, 30, 2)
    memory = NGramMemory(3, [1, 2])
    memory.read(tokens[:, :20])
    for n in (1, 2):
        memory.average(f"x.{n}", n, "drop", values[:, :20])
    rows = [2, 2, 0]
    memory.reorder(rows)
    memory.read(tokens[rows][:, 20:])
    for n in (1, 2):
        out = memory.average(f"x.{n}", n, "drop", values[rows][:, 20:])
        torch.testing.assert_close(out, ngram_attend(tokens, values, n)[rows][:, 20:])


def test_memory_refuses_another_batch():
    memory = NGramMemory(2, [1])
    with pytest.raises(IcllError, match="of 2 texts, not 3"):
        memory.read(torch.zeros(3, 1, dtype=torch.long))
    memory.read(torch.zeros(2, 1, dtype=torch.long))
    with pytest.raises(IcllError, match="read 1 tokens, but was given 2"):
        memory.average("x.1", 1, "drop", torch.zeros(2, 2, 4))


# --- in our models ---


def test_a_head_is_two_maps_of_the_average_and_the_token():
    head = NGramHead(8, 2).double()
    tokens, x = CASES["two ids"], noise(3, 60, 8)
    expected = head.followed(naive_ngram_attend(tokens, x, 2)) + head.own(x)
    torch.testing.assert_close(head(x, tokens), expected)
    torch.testing.assert_close(head(x, WholeText(tokens, 3)), expected)
    assert sum(p.numel() for p in head.parameters()) == 2 * 8 * 8 + 2 * 8


def test_block_sizes():
    d = 16
    linear = [p.numel() for p in NGramBlock(d, 1, mlp=True).parameters() if p.dim() == 2]
    assert sum(linear) == 4 * d * d
    block = NGramBlock(d, 2, mlp=True)
    block.start_at_zero()
    x = torch.randn(3, 60, d)
    assert torch.equal(block(x, CASES["two ids"]), x)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_takes_heads_and_still_steps(name):
    model = build_model(name, d_model=16, n_layers=2, ngram_heads=(1, 2, 3), ngram_after=1, seed=0).double()
    tokens = torch.randint(1, 5, (2, 40))
    out = model(tokens, return_hidden=True, return_mixing=True)
    assert len(out.hidden) == len(out.mixing) == 5
    torch.testing.assert_close(out.mixing[2][:, 0], ngram_weights(tokens, 2))
    state = model.initial_state(2)
    for t in range(40):
        logits, state = model.step(tokens[:, t], state)
        torch.testing.assert_close(logits, out.logits[:, t], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("settings", "kinds"), [
    ({}, "BNNB"),
    ({"ngram_after": 0}, "NNBB"),
    ({"ngram_after": -1}, "BBNN"),
    ({"ngram_after": 2}, "BBNN"),
    ({"ngram_after": -2, "n_layers": 3}, "BBNNB"),
    ({"ngram_after": (1, -1), "n_layers": 3}, "BNNBBNN"),
    ({"ngram_after": (1, -2), "n_layers": 4, "ngram_mode": "replace"}, "BNNNNB"),
    ({"ngram_after": 1, "ngram_mode": "replace"}, "BNN"),
])  # fmt: skip
def test_places(settings, kinds):
    model = build_model("gla", **{"d_model": 8, "n_layers": 2, "ngram_heads": (1, 2), **settings})
    assert "".join("N" if isinstance(block, NGramBlock) else "B" for block in model.blocks) == kinds


@pytest.mark.parametrize(("settings", "message"), [
    ({"ngram_after": 3}, "n-gram heads after layer 3: the model has 2 layers, so choose -2..2"),
    ({"ngram_after": -3}, "layer -3"),
    ({"ngram_after": 2, "ngram_mode": "replace"}, "choose -2..1"),
    ({"ngram_after": (1, 1)}, "twice in one place"),
    ({"ngram_heads": (0,)}, "must be at least 1"),
    ({"ngram_mode": "instead"}, "unknown ngram_mode"),
    ({"ngram_repeat": "both"}, "unknown ngram_repeat"),
])  # fmt: skip
def test_places_that_do_not_exist(settings, message):
    with pytest.raises(IcllError, match=message):
        build_model("gla", **{"d_model": 8, "n_layers": 2, "ngram_heads": (1, 2), **settings})


def test_heads_inside_attention():
    model = build_model("transformer", d_model=16, inner_ngram_heads=(1, 3), seed=0).double()
    tokens = torch.randint(1, 4, (2, 30))
    out = model(tokens, return_mixing=True)
    assert out.mixing[0].shape == (2, 4, 30, 30)
    torch.testing.assert_close(out.mixing[1][:, 3], ngram_weights(tokens, 3))
    mixer, x = model.blocks[0].mixer, noise(2, 30, 16)
    contexts = WholeText(tokens, 3)
    torch.testing.assert_close(mixer.mixing(x, contexts).output(), mixer(x, contexts))
    state = model.initial_state(2)
    for t in range(30):
        logits, state = model.step(tokens[:, t], state)
    torch.testing.assert_close(logits, out.logits[:, -1])
    with pytest.raises(IcllError, match="contexts"):
        mixer(x)


def test_a_state_can_be_branched_by_copying_it():
    model = build_model("retnet", d_model=16, ngram_heads=(1, 2), seed=0)
    tokens = torch.randint(1, 4, (1, 20))
    with torch.no_grad():
        state = model.initial_state(1)
        for t in range(10):
            _, state = model.step(tokens[:, t], state)
        kept = copy.deepcopy(state)
        one, _ = model.step(tokens[:, 10], state)
        two, _ = model.step(tokens[:, 10], kept)
    torch.testing.assert_close(one, two)


def test_generation_with_heads():
    model = build_model("gla", d_model=16, ngram_heads=(1, 2, 3), seed=0)
    prompt = torch.randint(1, 20, (2, 6))
    out = model.generate(prompt, 10, temperature=0)
    for t in range(6, 16):
        logits = model(out[:, :t])[:, -1]
        logits[:, 0] = -torch.inf
        assert torch.equal(logits.argmax(-1), out[:, t])


# --- in Hugging Face models ---


transformers = pytest.importorskip("transformers")
SIZES = {"vocab_size": 50}
PEERS = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **SIZES, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4)),
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
        **SIZES, n_embd=32, n_layer=3, n_head=4, n_positions=128, bos_token_id=1, eos_token_id=2)),
    "mamba": lambda: transformers.MambaForCausalLM(transformers.MambaConfig(**SIZES, hidden_size=32, num_hidden_layers=3)),
    "neox": lambda: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(
        **SIZES, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4)),
}  # fmt: skip

LOAD = """
import sys, torch
from icll import load_with_ngram_heads
model = load_with_ngram_heads(sys.argv[1]).eval()
torch.save(model(torch.load(sys.argv[2], weights_only=True)).logits.detach(), sys.argv[3])
"""


@pytest.fixture(params=PEERS)
def peer(request):
    torch.manual_seed(0)
    return PEERS[request.param]().eval()


def text() -> torch.Tensor:
    return torch.randint(3, 9, (2, 20), generator=torch.Generator().manual_seed(0))


def test_a_trained_model_starts_out_unchanged(peer):
    before = {name: weight.clone() for name, weight in peer.state_dict().items()}
    logits = peer(text()).logits
    add_ngram_heads(peer, orders=(1, 2, 3), after=[1, -2], start_at_zero=True)
    torch.testing.assert_close(peer(text()).logits, logits, rtol=0, atol=0)
    assert all(torch.equal(peer.state_dict()[name], weight) for name, weight in before.items())
    remove_ngram_heads(peer)
    assert set(peer.state_dict()) == set(before) and torch.equal(peer(text()).logits, logits)


def test_training_saving_and_loading_in_a_new_process(peer, tmp_path):
    x = text()
    add_ngram_heads(peer, after=[0, 1, -1], mlp=False)
    peer.train()
    optimiser = torch.optim.AdamW(peer.parameters(), lr=3e-3)
    losses = []
    for _ in range(20):
        loss = peer(x, labels=x).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] and all(p.grad is not None for p in peer.ngram_heads.parameters())
    peer.eval()
    peer.save_pretrained(tmp_path / "model")
    torch.save(x, tmp_path / "x.pt")
    command = [sys.executable, "-c", LOAD, str(tmp_path / "model"), str(tmp_path / "x.pt"), str(tmp_path / "y.pt")]
    subprocess.run(command, check=True, capture_output=True)
    torch.testing.assert_close(torch.load(tmp_path / "y.pt", weights_only=True), peer(x).logits, rtol=0, atol=1e-6)


@pytest.mark.parametrize("beams", [1, 3])
def test_generation_with_a_cache_equals_that_without(peer, beams):
    add_ngram_heads(peer, after=[1, -1], repeat="keep")
    for parameter in peer.ngram_heads.parameters():  # strong heads, so that a mistake would show
        torch.nn.init.normal_(parameter, std=0.2)
    options = {"max_new_tokens": 25, "do_sample": False, "pad_token_id": 0, "eos_token_id": None, "num_beams": beams}
    assert torch.equal(peer.generate(text(), use_cache=True, **options), peer.generate(text(), use_cache=False, **options))


def test_a_copy_has_heads_of_its_own(peer):
    """As one makes for a reference model, or a mean of weights."""
    add_ngram_heads(peer, orders=(1, 2), after=[0, 1])
    before = peer(text()).logits
    other = copy.deepcopy(peer)
    with torch.no_grad():
        for p in peer.ngram_heads.parameters():
            p.zero_()
    torch.testing.assert_close(other(text()).logits, before, rtol=0, atol=0)
    other(text().flip(1), labels=text(), use_cache=False).loss.backward()
    assert all(p.grad is not None for p in other.ngram_heads.parameters())
    assert all(p.grad is None for p in peer.ngram_heads.parameters())


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_padding_is_not_matched(name):
    peer = PEERS[name]().eval()
    add_ngram_heads(peer, orders=(1, 2), after=1)
    pad, alone = 5, torch.tensor([[5, 7, 5, 7, 8, 5]])  # the padding's id is one of the text's
    padded = torch.cat([torch.full((1, 4), pad), alone], 1)
    mask = (torch.arange(10) >= 4).long()[None]
    places = torch.cat([torch.zeros(1, 4), torch.arange(6)[None]], 1).long()
    given = {"attention_mask": mask, "position_ids": places}
    expected = peer(alone, use_cache=False).logits
    torch.testing.assert_close(peer(padded, use_cache=False, **given).logits[:, 4:], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(peer(padded, use_cache=True, **given).logits[:, 4:], expected, rtol=1e-4, atol=1e-5)


def test_a_cache_that_was_cut_is_refused_and_an_empty_one_begins_anew():
    peer = PEERS["llama"]().eval()
    add_ngram_heads(peer, orders=(1, 2), after=1)
    with torch.no_grad():
        cache = peer(text(), use_cache=True).past_key_values
        twin = copy.deepcopy(cache)
        twin.reorder_cache(torch.tensor([1, 0]))
        token = text()[:, :1]
        one, two = (peer(token, past_key_values=c, use_cache=True).logits for c in (cache, twin))
        swapped = peer(torch.cat([text().flip(0), token], 1), use_cache=False).logits[:, -1:]
        torch.testing.assert_close(two, swapped, rtol=1e-4, atol=1e-5)
        whole = peer(torch.cat([text(), token], 1), use_cache=False).logits[:, -1:]
        torch.testing.assert_close(one, whole, rtol=1e-4, atol=1e-5)
        cache.batch_select_indices(torch.tensor([1]))
        peer(token[1:], past_key_values=cache, use_cache=True)
        cache.crop(-12)
        with pytest.raises(IcllError, match="the cache holds 10 tokens of 22 that the n-gram heads have read"):
            peer(token[1:], past_key_values=cache, use_cache=True)
        with pytest.raises(IcllError, match="which cannot be taken back"):
            peer.generate(
                text()[:1].repeat(1, 3), prompt_lookup_num_tokens=3, max_new_tokens=20, do_sample=False, pad_token_id=0
            )


def test_gradient_checkpointing():
    peer = PEERS["llama"]().train()
    add_ngram_heads(peer, orders=(1, 2), after=[1, -1])
    a, b = text(), text().flip(1)

    def gradient() -> torch.Tensor:
        peer.zero_grad()
        peer(a, labels=a, use_cache=False).loss.backward()
        return torch.cat([p.grad.flatten() for p in peer.parameters()])

    plain = gradient()
    peer.gradient_checkpointing_enable({"use_reentrant": False})
    torch.testing.assert_close(gradient(), plain)
    loss = peer(a, labels=a, use_cache=False).loss
    with torch.no_grad():
        peer(b, use_cache=False)  # a look at other text in between
    peer.zero_grad()
    loss.backward()
    torch.testing.assert_close(torch.cat([p.grad.flatten() for p in peer.parameters()]), plain)
    both = peer(a, labels=a, use_cache=False).loss + peer(b, labels=b, use_cache=False).loss
    with pytest.raises(IcllError, match="call backward after each"):
        both.backward()


def test_what_cannot_be_wrapped_is_told_so(peer):
    for arguments, message in (
        ({"after": 4}, "the model has 3 layers"),
        ({"orders": ()}, "orders is empty"),
        ({"orders": (0,)}, "at least 1"),
        ({"repeat": "no"}, "unknown repeat"),
    ):
        with pytest.raises(IcllError, match=message):
            add_ngram_heads(peer, **arguments)
    with pytest.raises(IcllError, match="Linear is not a model that n-gram heads can be put into"):
        add_ngram_heads(torch.nn.Linear(2, 2))
    with pytest.raises(IcllError, match="no n-gram heads to remove"):
        remove_ngram_heads(peer)
    add_ngram_heads(peer)
    with pytest.raises(IcllError, match="already"):
        add_ngram_heads(peer)
    with pytest.raises(IcllError, match="input_ids, not inputs_embeds"):
        peer(inputs_embeds=torch.zeros(1, 3, 32))


def test_loading_a_model_without_heads(tmp_path):
    PEERS["gpt2"]().save_pretrained(tmp_path)
    with pytest.raises(IcllError, match="has no n-gram heads"):
        load_with_ngram_heads(str(tmp_path))
