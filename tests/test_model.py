"""The skeleton: shapes, states, generation, initialisation, the authors' wiring, and input that makes no sense."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import icll
from icll import IcllError, build_model, evaluate
from icll.mixers import ARCHITECTURES
from icll.tasks import regbench

NAMES = list(ARCHITECTURES)


def tokens(batch: int = 2, length: int = 23, vocab: int = 20) -> torch.Tensor:
    return torch.randint(1, vocab, (batch, length), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", NAMES)
def test_whole_texts_and_single_tokens_agree(name):
    model = build_model(name, d_model=16, n_layers=2, n_heads=2, seed=1).double()
    x = tokens()
    out = model(x, return_hidden=True, return_mixing=True)
    assert out.logits.shape == (2, 23, 20) and torch.equal(model(x), out.logits)
    assert [h.shape for h in out.hidden] == [(2, 23, 16)] * 2
    assert len(out.mixing) == 2
    if name == "lstm":
        assert out.mixing == [None, None]
    else:
        assert all(m.dim() == 4 and m.shape[0] == 2 and m.shape[-2:] == (23, 23) for m in out.mixing)
    state = model.initial_state(2)
    for t in range(23):
        logits, state = model.step(x[:, t], state)
        torch.testing.assert_close(logits, out.logits[:, t], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_padding_does_not_change_what_stands_before_it(name):
    model = build_model(name, d_model=16, seed=0)
    x = tokens()
    padded = torch.cat([x, torch.zeros(2, 9, dtype=torch.long)], 1)
    torch.testing.assert_close(model.predict(padded)[:, :23], model.predict(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_few_steps_of_training_lower_the_loss(name):
    model = build_model(name, d_model=32, n_layers=2, n_heads=2, seed=0)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    x = (torch.arange(40) % 5 + 1).repeat(4, 1)
    losses = []
    for _ in range(30):
        loss = torch.nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert abs(losses[0] - math.log(20)) < 0.3 and losses[-1] < 0.8 * losses[0]


def test_a_model_is_a_predictor():
    problems = regbench(1, "repo").test[:5]
    scores = evaluate(build_model("retnet", d_model=16, seed=0), problems)
    assert 0.5 < scores.tvd < 1 and scores.name == "retnet"


def test_predicting_leaves_the_mode_and_gradients_alone():
    model = build_model("transformer", d_model=16, dropout=0.5).train()
    x = tokens()
    assert torch.equal(model.predict(x), model.predict(x)) and model.training
    assert not torch.equal(model(x), model(x))
    model.eval()
    model.predict(x)
    assert not model.training


def test_a_seed_decides_the_weights_and_nothing_else():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, two, other = (build_model("gla", d_model=16, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("name", ["retnet", "hyena", "transformer", "mamba"])
def test_generation(name):
    model = build_model(name, d_model=16, seed=0)
    prompt = tokens(3, 5)
    out = model.generate(prompt, 7, temperature=0)
    assert out.shape == (3, 12) and torch.equal(out[:, :5], prompt) and (out > 0).all()
    again = out
    for t in range(5, 12):  # greedy: each token is the likeliest after those before it
        logits = model(again[:, :t])[:, -1]
        logits[:, 0] = -torch.inf
        assert torch.equal(logits.argmax(-1), out[:, t])
    generator = torch.Generator().manual_seed(1)
    first = model.generate(prompt, 20, generator=generator)
    assert torch.equal(first, model.generate(prompt, 20, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(model.generate(prompt, 0), prompt)


@pytest.mark.parametrize("name", ["lstm", "mamba"])
def test_the_authors_wiring(name):
    """Every layer read the embeddings: the output is the last layer's alone, and other layers do not matter."""
    model = build_model(name, d_model=16, n_layers=3, authors_bug=True, seed=0)
    x = tokens()
    expected = model.output(model.blocks[-1].mixer(model.embedding(x)))
    torch.testing.assert_close(model(x), expected)
    for parameter in model.blocks[0].parameters():
        parameter.data.zero_()
    torch.testing.assert_close(model(x), expected)
    assert len(model(x, return_hidden=True).hidden) == 3
    state = model.initial_state(2)
    for t in range(x.shape[1]):
        logits, state = model.step(x[:, t], state)
    torch.testing.assert_close(logits, expected[:, -1], rtol=1e-4, atol=1e-5)
    right = build_model(name, d_model=16, n_layers=3, seed=0)
    before = right(x)
    for parameter in right.blocks[0].parameters():
        parameter.data.zero_()
    assert not torch.allclose(right(x), before)


def test_lstm_layers_are_stacked_plainly():
    model = build_model("lstm", d_model=16, n_layers=2, seed=0)
    h = model.embedding(tokens())
    for block in model.blocks:
        h = block.mixer.lstm(h)[0]
    torch.testing.assert_close(model(tokens()), model.output(h))


def test_initialisations():
    native, authors = (build_model("gla", d_model=64, n_layers=4, init=init, seed=0) for init in ("native", "authors"))
    assert abs(native.blocks[0].mixer.q.weight.std().item() - 0.02) > 0.005  # its own
    assert abs(authors.blocks[0].mixer.q.weight.std().item() - 0.02) < 0.002
    for model in (native, authors):
        assert abs(float(model.embedding.weight.detach().std()) - 0.02) < 0.002
        assert abs(float(model.blocks[0].feed_forward.out.weight.std()) - 0.02 / math.sqrt(8)) < 0.001
    assert abs(float(authors.blocks[0].mixer.out.weight.std()) - 0.02 / math.sqrt(8)) < 0.001


def test_large_embeddings():
    model = build_model("transformer", d_model=64, embedding_std=1.0, seed=0)
    assert abs(model.embedding.weight.std().item() - 1) < 0.05
    assert abs(model.positions.weight.std().item() - 1) < 0.3  # waves, of which the longest hardly turn
    with pytest.raises(IcllError, match="embedding_std must be above 0"):
        build_model("transformer", embedding_std=0.0)


def test_tying():
    tied, free = (build_model("retnet", d_model=16, tie=tie) for tie in (True, False))
    assert tied.output.weight is tied.embedding.weight
    assert free.n_parameters() - tied.n_parameters() == 20 * 16


def test_sizes():
    model = build_model("transformer", d_model=8, n_layers=1, n_heads=2, vocab_size=11, max_length=32)
    assert (
        model.n_parameters() == 11 * 8 + 32 * 8 + (2 * 8) + (8 * 24 + 24) + (8 * 8 + 8) + 16 + (8 * 32 + 32) + (32 * 8 + 8) + 16
    )
    assert model.state_bytes(10) == 10 * 2 * 8 * 4  # keys and values in float32
    assert build_model("rwkv", d_model=8, n_layers=3).state_bytes(500) == 3 * 4 * 8 * 4
    linear = 2 * (24 * 8 + 64 + 256 + 256 + 88)
    assert model.flops_per_token(9) == linear + 4 * 8 * 5


@pytest.mark.parametrize(("settings", "message"), [
    ({"d_model": 30, "n_heads": 4}, "d_model 30 is not divisible by n_heads 4"),
    ({"n_layers": -1}, "n_layers must be at least 1, not -1"),
    ({"n_layers": 0}, "n_layers must be at least 1"),
    ({"d_model": 0}, "d_model must be at least 1"),
    ({"d_model": 6, "n_heads": 2}, "even width"),
    ({"dropout": 1.5}, "dropout must be"),
    ({"vocab_size": "many"}, "vocab_size must be a whole number"),
    ({"init": "theirs"}, "unknown init 'theirs'"),
    ({"authors_bug": True}, "authors_bug is of lstm and mamba alone"),
    ({"form": "chunkd"}, "did you mean 'chunked'"),
    ({"value_gate": True}, "unknown option of Retention 'value_gate'"),
])  # fmt: skip
def test_settings_that_make_no_sense(settings, message):
    with pytest.raises(IcllError, match=message):
        build_model("retnet", **settings)


def test_an_unknown_model_is_told_the_nearest():
    with pytest.raises(IcllError, match="did you mean 'transformer'"):
        build_model("transfomer")


def test_tokens_that_make_no_sense():
    model = build_model("transformer", d_model=8, max_length=16)
    with pytest.raises(IcllError, match="17 tokens are more than the 16 positions"):
        model(tokens(1, 17))
    with pytest.raises(IcllError):
        model.predict(torch.full((1, 3), 20))
    with pytest.raises(IcllError, match="prompt is empty"):
        model.generate(tokens(1, 0), 3)
    with pytest.raises(IcllError, match="temperature"):
        model.generate(tokens(1, 2), 3, temperature=-1)


@pytest.mark.parametrize("name", NAMES)
def test_bf16_autocast_is_close(name):
    model = build_model(name, d_model=32, seed=0).eval()
    x = tokens(2, 40)
    with torch.no_grad():
        exact = model(x).softmax(-1)
        with torch.autocast("cpu", torch.bfloat16):
            rough = model(x).float().softmax(-1)
    assert (exact - rough).abs().max() < 0.01


def test_names_are_reached_from_the_package():
    assert icll.build_model is build_model and icll.mixers.ARCHITECTURES is ARCHITECTURES


class Keyed(nn.Module):
    """Its names are its own affair."""

    def __init__(self, d_model: int):
        super().__init__()
        self.key, self.value = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.value(self.key(x).cumsum(1))


def test_a_mixer_may_have_a_key():
    model = build_model(f"{__name__}:Keyed", d_model=8, ngram_heads=(1,), seed=0)
    assert isinstance(model.blocks[0].mixer.key, nn.Linear) and model(torch.ones(1, 5, dtype=torch.long)).isfinite().all()
    with pytest.raises(IcllError, match="n-gram heads have no place"):
        build_model("retnet", d_model=8, ngram_heads=(1,), ngram_after=())
    with pytest.raises(IcllError, match="unknown inner_repeat 'kep'"):
        build_model("transformer", d_model=8, inner_ngram_heads=(1,), inner_repeat="kep")
