"""Probes: on hidden states whose content is known they find it, on noise they do not; what they are asked is true."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from icll import IcllError, build_model
from icll.analysis import ProbeConfig, probe, probe_run
from icll.analysis.probes import (
    EARLIEST,
    KINDS,
    ORDERS,
    STATE,
    TARGETS,
    Samples,
    Scales,
    Stack,
    ask,
    choose_steps,
    constant_scores,
    is_error,
    score_probes,
    take_samples,
    train_probes,
)
from icll.cli import main
from icll.model import ModelConfig
from icll.tasks import Splits, associative_recall
from icll.training import DataConfig, Recipe, RunConfig, train


def known(seed: int, N: int, K: int = 32, V: int = 8) -> Samples:
    """Two layers: noise, and the counts, frequencies, existence and state themselves."""
    g = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, 10, (N, K, 3, V), generator=g).float() * (torch.rand(N, K, 3, V, generator=g) < 0.6)
    counts[..., 0] = 0
    states, tokens = torch.randint(5, (N, K), generator=g), torch.randint(1, V, (N, K, 2), generator=g)
    shares = counts / counts.sum(-1, keepdim=True).clamp(min=1)
    told = [*(part.flatten(2) for part in (counts, shares, (counts > 0).float())), F.one_hot(states, 5).float()]
    h = torch.cat(told, -1)
    noise = torch.randn(h.shape, generator=g)
    return Samples(torch.stack([noise, h]), tokens, states, torch.arange(K).expand(N, K), counts, V - 1)


def trained(config: ProbeConfig, N: int, shuffle: bool = False):
    samples, test = known(0, N), known(1, 150)
    scales = Scales.of(samples, config)
    for part in (samples, test):
        part.hidden.sub_(scales.mean).div_(scales.deviation)
    stacks = train_probes(samples, scales, 8, config, shuffle=shuffle)
    scores = {name: s.nanmean(1).tolist() for name, s in score_probes(stacks, test, scales, config, 2).items()}
    return scores, constant_scores(test, scales, config)


def test_probes_find_what_hidden_states_contain_and_nothing_in_noise():
    config = ProbeConfig(epochs=80, rate=3e-3, lowest_rate=1e-4, width=64)
    scores, constant = trained(config, 600)
    assert set(scores) == set(TARGETS)
    for name, (noise, content) in scores.items():
        if is_error(name):
            assert content < 0.07 and constant[name] > 0.5 and noise > 0.9 * constant[name]
        else:
            assert content > 0.97 and noise < constant[name] + 0.06


def test_with_shuffled_targets_nothing_is_learned():
    scores, constant = trained(ProbeConfig(epochs=15, rate=3e-3, width=32), 300, shuffle=True)
    for name, (_, content) in scores.items():
        assert content > 0.8 * constant[name] if is_error(name) else content < constant[name] + 0.08


def test_probes_of_a_stack_are_what_each_would_be_alone():
    g = torch.Generator().manual_seed(0)
    stack = Stack(3, ["count 2", "existence 2"], 2, hidden=5, vocab=7, width=8, generator=g)
    h, query = torch.randn(3, 6, 5, generator=g), torch.randint(7, (2, 6, 2), generator=g)
    together = stack(h, query)
    assert together.shape == (3, 2, 6)
    for layer in range(3):
        for kind in range(2):
            p = 2 * layer + kind
            e_c, e_h = stack.embed[p][query[kind]].flatten(1), h[layer] @ stack.project[p]
            x = torch.cat([e_c, e_h, e_c * e_h], 1)
            y = F.gelu(x @ stack.W_1[p] + stack.b_1[p]) @ stack.W_2[p] + stack.b_2[p]
            torch.testing.assert_close(together[layer, kind], y[:, 0])
    together[1].sum().backward()
    assert not stack.W_1.grad[[0, 1, 4, 5]].any() and stack.W_1.grad[2:4].any()


def test_questions_are_true(repo):
    """Against counting by hand in the text itself."""
    problems, steps = choose_steps(repo.valid[:40], 12, seed=0)
    samples = take_samples(build_model("lstm", d_model=4, n_layers=1), problems, steps)
    asked = ask(samples, torch.Generator().manual_seed(0))
    equal = []
    for i in range(len(problems)):
        t = int(steps[i, asked.step[i]])
        text = problems.tokens[i, : t + 1].tolist()
        for kind in KINDS:
            for n in ORDERS:
                name = f"{kind} {n}"
                *context, c = asked.queries[name][i].tolist()
                assert context == text[len(text) - (n - 1) :] and 1 <= c <= 18
                grams = [text[k : k + n] for k in range(len(text) - n + 1)]
                count = grams.count([*context, c])
                after = sum(g[:-1] == context for g in grams)
                value = float(asked.values[name][i])
                if kind == "existence":
                    assert value == (count > 0)
                elif after == 0 or not any(g[:-1] == context and g[-1] < 19 for g in grams):
                    assert np.isnan(value)
                else:
                    assert count > 0 and value == pytest.approx(count if kind == "count" else count / after)
        other = int(steps[i, asked.other[i]])
        assert other != t
        assert float(asked.values[STATE][i]) == (problems.states[i, other] == problems.states[i, t])
        equal.append(float(asked.values[STATE][i]))
    assert 0.25 < np.mean(equal) < 0.75


def test_hidden_states_are_those_of_the_model(repo):
    model = build_model("transformer", d_model=16, n_layers=2, seed=0)
    problems, steps = choose_steps(repo.valid[:10], 5, seed=1)
    assert int(steps.min()) >= EARLIEST and (steps < problems.lengths[:, None]).all()
    assert all(len(set(row.tolist())) == 5 for row in steps)
    samples = take_samples(model, problems, steps)
    whole = model(problems.tokens[3:4], return_hidden=True).hidden
    torch.testing.assert_close(samples.hidden[1, 3], whole[1][0, steps[3]].detach(), rtol=1e-4, atol=1e-5)


def test_the_layer_is_chosen_on_validation_and_scored_on_test(repo):
    data = Splits(repo.train[:40], repo.valid[:30], repo.test[:30])
    result, constant = probe(build_model("retnet", d_model=16, n_layers=2, seed=0), data, ProbeConfig(epochs=2, width=8))
    for name in TARGETS:
        valid = result.valid[name]
        assert valid[result.layer[name] - 1] == (min if is_error(name) else max)(valid)
        mean, low, high = result.best[name]
        assert low <= mean <= high and mean == pytest.approx(result.test[name][result.layer[name] - 1], rel=1e-4)
    assert [row["epoch"] for row in result.curves] == [1, 2] and constant[STATE] == pytest.approx(0.5, abs=0.1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    patch, folder = pytest.MonkeyPatch(), tmp_path_factory.mktemp("runs") / "tiny"
    whole = DataConfig.load
    patch.setattr(DataConfig, "load", lambda self: replace((d := whole(self)), valid=d.valid[:10], test=d.test[:10]))
    model = ModelConfig("transformer", d_model=16, n_layers=2, n_heads=1)
    train(RunConfig(model, DataConfig("regbench", "repo", 24), Recipe("test", epochs=1, batch_size=8)), folder)
    yield folder
    patch.undo()


def test_probe_from_the_command_line(folder, capsys, tmp_path, monkeypatch):
    pictures = ["--picture", str(tmp_path / "bars.png"), "--layers-picture", str(tmp_path / "layers.png")]
    main(["probe", str(folder), "--epochs", "2", *pictures])
    out = capsys.readouterr().out
    assert all(name in out for name in TARGETS) and "shuffled" in out
    assert all((tmp_path / name).read_bytes()[:4] == b"\x89PNG" for name in ("bars.png", "layers.png"))
    monkeypatch.setattr("icll.analysis.probes.train_probes", None)  # asked again, it is taken from the run's folder
    main(["probe", str(folder), str(folder), "--epochs", "2", "--json", "--picture", str(tmp_path / "two.png")])
    first, second = json.loads(capsys.readouterr().out)
    assert first == second and set(first["controls"]) == {"untrained", "shuffled"} and first["config"]["epochs"] == 2
    with pytest.raises(TypeError):  # other settings are trained anew
        probe_run(folder, ProbeConfig(epochs=1))


def test_bad_input_is_one_clear_line(folder, capsys, tmp_path, repo):
    for arguments, told in (
        ([str(tmp_path)], "is not a run"),
        ([str(folder), "--epochs", "0"], "epochs must be at least 1"),
        ([str(folder), "--picture", "x.jpg"], "a picture's name must end with"),
    ):
        with pytest.raises(SystemExit):
            main(["probe", *arguments])
        assert told in capsys.readouterr().err
    with pytest.raises(IcllError, match="choose a run of the task regbench"):
        probe(build_model("lstm", vocab_size=41), associative_recall(10), ProbeConfig(epochs=1))
    with pytest.raises(IcllError, match="no problem has the 77 tokens that probes need"):
        choose_steps(repo.test[:3].cut(60), 4, 0)
    with pytest.raises(IcllError, match="width of probes must be even"):
        ProbeConfig(width=5)
