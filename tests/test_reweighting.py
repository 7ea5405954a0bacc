"""Learned reweighting of n-gram statistics: features, training, resume, and use as any other predictor."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from icll import IcllError, build_model, evaluate, load_run
from icll.cli import main
from icll.learners import NGram
from icll.model import ModelConfig
from icll.ops import follower_counts, naive_follower_counts
from icll.reweighting import REWEIGHTING
from icll.training import RECIPES, DataConfig, Recipe, RunConfig, change, loop, train
from icll.training.optimize import rate_at


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(1, 40), st.integers(2, 6), st.integers(1, 4), st.integers(0, 1000))
def test_counts_in_one_pass_are_the_counts_by_matches(batch, length, size, contexts, seed):
    tokens = torch.randint(0, size, (batch, length), generator=torch.Generator().manual_seed(seed))
    counts = follower_counts(tokens, contexts, size)
    assert counts.shape == (batch, length, contexts, size)
    assert torch.equal(counts, naive_follower_counts(tokens, contexts, size))


def test_counts_by_hand():
    """a b a b: after the last b, a followed b once; after `a b`, a once; each was seen twice."""
    counts = follower_counts(torch.tensor([[1, 2, 1, 2]]), 3, 3)[0]
    assert counts[3].tolist() == [[0, 2, 2], [0, 1, 0], [0, 1, 0]]
    assert counts[0].tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0]]


def test_features_of_the_three_variants():
    tokens = torch.tensor([[1, 2, 1, 2, 1, 3, 1]])
    counts = follower_counts(tokens, 3, 20)
    seen = {}
    for name in REWEIGHTING:
        model = build_model(name, width=8, seed=0)
        assert model.hidden.weight.shape == (8, 60) and model.output.weight.shape == (20, 8)
        model.hidden.register_forward_pre_hook(
            lambda module, args, name=name: seen.__setitem__(name, args[0].unflatten(-1, (3, 20)))
        )
        assert model(tokens).shape == (1, 7, 20)
    torch.testing.assert_close(seen["lnw"], counts / 100)
    assert torch.equal(seen["lnw_b"], (counts > 0).float())
    assert seen["lnw_r"][0, 6, 1, 2:4].tolist() == pytest.approx([2 / 3, 1 / 3])
    assert set(seen["lnw_r"].sum(-1).flatten().round(decimals=5).tolist()) == {0.0, 1.0}


def test_single_steps_agree_with_the_whole_text():
    model = build_model("lnw_r", width=16, seed=0)
    tokens = torch.randint(1, 20, (2, 30))
    state, whole = model.initial_state(2), model(tokens)
    for t in range(30):
        logits, state = model.step(tokens[:, t], state)
        torch.testing.assert_close(logits, whole[:, t])
    assert model.generate(tokens[:, :5], 4).shape == (2, 9)


def test_settings_it_does_not_have_are_refused(capsys):
    with pytest.raises(IcllError, match="unknown option of lnw 'depth'"):
        build_model("lnw", depth=3)
    with pytest.raises(IcllError, match="no layers for n-gram heads"):
        build_model("lnw", ngram_heads=(1,))
    with pytest.raises(SystemExit):
        main(["train", "lnw", "--d-model", "64"])
    assert "--d-model has no effect with lnw" in capsys.readouterr().err


def test_the_plateau_schedule_is_torchs():
    recipe = RECIPES["lnw"]
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([parameter], lr=recipe.rate)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=5, min_lr=1e-5)
    losses: list[float] = []
    rng = torch.Generator().manual_seed(0)
    for epoch in range(120):
        assert rate_at(recipe, epoch, 120, 0, losses) * recipe.rate == pytest.approx(optimizer.param_groups[0]["lr"])
        losses.append(float(2 * 0.9**epoch + 1 + 0.05 * torch.rand(1, generator=rng)))
        theirs.step(losses[-1])
    assert optimizer.param_groups[0]["lr"] < 1e-4  # the rate did fall


def test_older_runs_keep_their_hash():
    """A setting that came later is not in the hash of runs that do not use it."""
    config = RunConfig(ModelConfig("retnet"), DataConfig(train=10))
    assert config.hash == "9132ae310b60"
    assert replace(config, recipe=change(config.recipe, schedule="plateau")).hash != config.hash


@pytest.mark.usefixtures("small_validation")
def test_it_learns_to_beat_the_statistics_it_reads(tmp_path, repo):
    """After a few epochs on little data it is nearer to the truth than the raw 2-gram model."""
    recipe = Recipe("test", rate=3e-3, epochs=12, batch_size=8, schedule="plateau", warmup=0.0, weight_decay=0.0)
    train(
        RunConfig(ModelConfig("lnw_r", options={"width": 256}), DataConfig("regbench", "repo", 150), recipe), tmp_path / "run"
    )
    model, test = load_run(tmp_path / "run"), repo.test[:50]
    assert evaluate(model, test).tvd < evaluate(NGram(2), test).tvd + 0.05
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["valid_loss"] < rows[0]["valid_loss"] - 0.2


@pytest.mark.usefixtures("small_validation")
@pytest.mark.parametrize("name", sorted(REWEIGHTING))
def test_train_score_and_compare_from_the_command_line(name, tmp_path, capsys):
    folder = tmp_path / name
    main(["train", name, "--profile", "repo", "--train", "32", "--epochs", "1", "--option", "width=32", "--out", str(folder)])
    assert "recipe:\n  name: lnw\n" in (folder / "config.yaml").read_text()
    capsys.readouterr()
    main(["score", str(folder), "--profile", "repo", "--problems", "10", "--no-cache", "--json"])
    (scores,) = json.loads(capsys.readouterr().out)["scores"]
    assert 0 < scores["tvd"]["mean"] < 1
    main(["compare", f"L={folder}", "ngram:3", "oracle", "--profile", "repo", "--problems", "10", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["names"] == ["L", "ngram:3", "oracle"] and 0 < found["mean"][0][1] < 1


@pytest.mark.usefixtures("small_validation")
def test_a_broken_run_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    """The plateau's memory is the metrics, so that the rate goes on as it would have."""
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    recipe = Recipe("t", rate=3e-2, epochs=12, batch_size=16, schedule="plateau", warmup=0.0)
    config = RunConfig(ModelConfig("lnw_b", options={"width": 16}), DataConfig("regbench", "repo", 32), recipe)

    def break_at(progress, row):
        if progress.step == 17:
            raise RuntimeError("lights out")

    train(config, tmp_path / "whole")
    with pytest.raises(RuntimeError, match="lights out"):
        train(config, tmp_path / "broken", watch=break_at)
    assert train(config, tmp_path / "broken")["sittings"] == 2
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "broken")]
    assert files[0] == files[1]
    rates = [
        [json.loads(r)["rate"] for r in (tmp_path / n / "metrics.jsonl").read_text().splitlines()] for n in ("whole", "broken")
    ]
    assert rates[0] == rates[1]
