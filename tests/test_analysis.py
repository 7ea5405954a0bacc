"""Attention maps, heads and their knock-outs, on weights with a known answer."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch

from icll import IcllError, build_model, evaluate
from icll.analysis import attention_maps, find_heads, knocked_out, layer_mixing, make_rules, ngram_circuit, score_heads
from icll.analysis.mixing import rows_of
from icll.cli import main
from icll.mixers import ARCHITECTURES
from icll.model import ModelConfig
from icll.ops.ngram import ngram_weights
from icll.report import write_attention_page
from icll.tasks import Problems
from icll.training import DataConfig, Recipe, RunConfig, train

LENGTH = 90


@pytest.fixture(scope="module")
def problems(repo) -> Problems:
    return repo.test[:6].cut(LENGTH)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A function that trains a tiny run, once for each model."""
    root, patch = tmp_path_factory.mktemp("runs"), pytest.MonkeyPatch()
    whole = DataConfig.load
    patch.setattr(DataConfig, "load", lambda self: replace((d := whole(self)), valid=d.valid[:10], test=d.test[:10]))

    def make(model: str, **settings):
        folder = root / "-".join([model, *map(str, settings.values())])
        config = ModelConfig(model, d_model=16, n_layers=2, n_heads=2, **settings)
        train(RunConfig(config, DataConfig("regbench", "repo", 40), Recipe("test", epochs=1, batch_size=8)), folder)
        return folder

    yield make
    patch.undo()


# --- matrices ---


@pytest.mark.parametrize("name", [n for n in ARCHITECTURES if n != "lstm"])
def test_matrices_times_values_are_the_outputs_through_a_whole_model(name):
    """In every layer, n-gram heads included, to 1e-8 in float64."""
    model = build_model(name, d_model=16, n_layers=2, n_heads=2, ngram_heads=(1, 3), seed=0).double().eval()
    tokens = torch.randint(1, 20, (2, 40), generator=torch.Generator().manual_seed(0))
    outputs = []
    for block in model.blocks:
        mixer = getattr(block, "head", None) or block.mixer
        mixer.register_forward_hook(lambda module, args, output: outputs.append(output))
    with torch.no_grad():
        mixing = model(tokens, return_mixing=True).mixing
    made = list(layer_mixing(model, tokens))
    assert len(made) == len(mixing) == len(model.blocks) == 4
    for one, weights, output in zip(made, mixing, outputs[:4], strict=True):
        assert torch.equal(one.weights, weights)
        torch.testing.assert_close(one.output(), output, rtol=1e-8, atol=1e-8)


def test_heads_are_what_a_mixer_keeps_apart():
    def named(model: str, **options):
        return [
            (h.name, h.n_channels, h.label)
            for h in find_heads(build_model(model, d_model=16, n_layers=1, n_heads=2, **options))
        ]

    assert named("transformer") == [("1.1", 1, "Attention"), ("1.2", 1, "Attention")]
    assert named("transformer", inner_ngram_heads=(2,))[2] == ("1.3", 1, "n-gram head 2")
    assert named("gla") == [("1.1", 1, "GatedLinearAttention"), ("1.2", 1, "GatedLinearAttention")]
    assert named("gla", value_gate=True) == [("1.1", 8, "GatedLinearAttention"), ("1.2", 8, "GatedLinearAttention")]
    assert named("mamba") == [("1.1", 32, "Mamba")]
    assert named("lstm", ngram_heads=(1,)) == [("2.1", 1, "n-gram head 1")]
    with pytest.raises(IcllError, match="mixes tokens without matrices"):
        named("lstm")


def test_rows_of_any_mixer_become_distributions():
    softmax = torch.randn(3, 5, 5).masked_fill(torch.ones(5, 5).triu(1) > 0, -torch.inf).softmax(-1)
    assert all(torch.equal(rows, softmax) for rows in rows_of(softmax))
    signed = torch.tensor([[[-2.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, -3.0, 4.0]]])
    rows, past = rows_of(signed)
    assert rows[0, 2].tolist() == [0.125, 0.375, 0.5] and past[0, 2].tolist() == [0.25, 0.75, 0.0]
    assert rows[0, 1].tolist() == [0, 0, 0] and rows[0, 0].tolist() == [1, 0, 0]


# --- rules and scores ---


def test_rules_attend_where_their_definition_says(problems):
    rules, where = make_rules(problems)
    tokens, states = problems.tokens, problems.states
    checked = 0
    for b in range(len(problems)):
        for i in range(problems.lengths[b]):
            for n in (1, 2, 3):
                ends = [k for k in range(n - 1, i) if torch.equal(tokens[b, k - n + 1 : k + 1], tokens[b, i - n + 1 : i + 1])]
                attended = rules[f"n={n}"][b, i].nonzero()[:, 0].tolist() if i >= n - 1 else []
                assert attended == [k + 1 for k in ends if i >= n - 1]
            same = [j for j in range(i + 1) if (states[b, j - 1] if j else 0) == states[b, i]]
            assert rules["state"][b, i].nonzero()[:, 0].tolist() == same
            if where["n=2"][b, i]:
                sets = [set(rules[r][b, i].nonzero()[:, 0].tolist()) for r in ("n=1", "n=2", "n=3", "state")]
                assert all(sets) and sets[0] > sets[1] > sets[2] and sets[3] not in sets[:3] and i not in set.union(*sets)
                checked += 1
        assert rules["previous"][b, 5].nonzero()[:, 0].tolist() == [4]
    assert checked > 20


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_hand_built_circuit_is_named(problems, n):
    """Score 1 for its own n, clearly lower for the others; the heads that feed it, and that the loss needs it."""
    table = score_heads(ngram_circuit(n, LENGTH), problems)
    by_name = {one.head.name: one for one in table.heads}
    head = by_name["2.1"]
    assert head.named() == f"n={n}" and head.scores[f"n={n}"] > 0.999
    for rule in {"n=1", "n=2", "n=3", "state"} - {f"n={n}"}:
        assert head.scores[rule] < 0.75 and head.scores[rule] >= 0
    for k, rule in enumerate(["previous", "2 back", "3 back"][:n], 1):
        assert by_name[f"1.{k}"].named() == rule and by_name[f"1.{k}"].scores[rule] > 0.999
    assert table.circuit()[f"n={n}"] == ["2.1"]
    assert table.sentence().startswith(f"2.1 is a {n}-gram head fed by 1.1 (previous)")
    assert head.loss is not None and head.loss - table.loss > 0.5
    idle = [one for name, one in by_name.items() if name.startswith("2.") and name != "2.1"]
    for one in idle:  # they attend uniformly, and their values are 0
        assert one.named() is None and one.loss == pytest.approx(table.loss)
        assert one.scores[f"n={n}"] == pytest.approx(table.chance[f"n={n}"])
    json.dumps(table.as_dict())


def test_the_circuit_attends_exactly_to_the_followers(problems):
    model = ngram_circuit(2, LENGTH)
    weights = list(layer_mixing(model, problems.tokens))[1].weights[:, 0]
    rule = ngram_weights(problems.tokens, 2, "keep")
    some = rule.sum(-1) > 0
    torch.testing.assert_close(weights[some], rule[some], rtol=1e-8, atol=1e-8)


def test_ngram_heads_of_a_model_are_recognised(problems):
    model = build_model("lstm", d_model=16, n_layers=1, ngram_heads=(1, 2, 3), seed=0)
    table = score_heads(model, problems, ablate=False)
    assert [one.named() for one in table.heads] == ["n=1", "n=2", "n=3"]
    assert all(one.scores[f"n={n}"] == pytest.approx(1) for n, one in enumerate(table.heads, 1))
    assert table.sentence().startswith("2.1 is a 1-gram head built in") and table.heads[0].loss is None


def test_channels_are_scored_together_and_alone(problems):
    model = build_model("rwkv", d_model=16, n_layers=1, seed=0)
    (one,) = score_heads(model, problems, ablate=False).heads
    weights = next(layer_mixing(model, problems.tokens)).weights
    best, score = one.channels["previous"]
    inside = (torch.arange(LENGTH) < problems.lengths[:, None]) & (torch.arange(LENGTH) >= 3)
    by_channel = weights.diagonal(-1, 2, 3)[:, :, 2:].transpose(1, 2)[inside[:, 3:]].mean(0)
    assert best == int(by_channel.argmax()) + 1 and score == pytest.approx(float(by_channel.max()), abs=1e-4)


@pytest.mark.parametrize("name", ["transformer", "retnet", "gla", "mamba", "s4"])
def test_a_knocked_out_head_adds_nothing(name, problems):
    """Zeroing the slice of the output map that reads a head does the same."""
    model = build_model(name, d_model=16, n_layers=2, n_heads=2, seed=0).double()
    tokens, heads = problems.tokens, find_heads(model)
    head = heads[-1]
    before = model.predict(tokens)
    with knocked_out(model, head):
        without = model.predict(tokens)
    assert torch.equal(model.predict(tokens), before) and not torch.allclose(without, before)
    out = model.blocks[-1].mixer.out
    share = out.weight.shape[1] // sum(h.layer == 2 for h in heads)
    with torch.no_grad():
        out.weight[:, -share:] = 0
    torch.testing.assert_close(without, model.predict(tokens), rtol=1e-6, atol=1e-7)


def test_rules_that_never_disagree_are_an_error(repo):
    with pytest.raises(IcllError, match="take more or longer problems"):
        score_heads(build_model("transformer", d_model=16), repo.test[:1].cut(5))


# --- maps ---


def test_maps_are_the_models_own_rows(problems):
    model = build_model("transformer", d_model=16, n_layers=3, n_heads=2, seed=0)
    maps = attention_maps(model, problems, 2, 50, 80, layers=[1, 3], heads=[2])
    whole = model(problems.tokens[2:3], return_mixing=True).mixing
    assert [m.head.name for m in maps.maps] == ["1.2", "3.2"]
    torch.testing.assert_close(maps.maps[1].mean, whole[2][0, 1, 50:80, 50:80].detach(), rtol=1e-4, atol=1e-5)
    rest = maps.maps[1].mean.sum(-1) + maps.maps[1].before[0]
    torch.testing.assert_close(rest, torch.ones(30), rtol=1e-4, atol=1e-4)
    assert "".join(maps.tokens) == problems.text(2)[:80] and maps.states == problems.states[2, :80].tolist()
    assert maps.labels[0] == f"{maps.tokens[50]} {maps.states[50]}" and len(maps.labels) == 30


def test_one_channel_on_request(repo):
    model = build_model("mamba", d_model=8, n_layers=1, seed=0)
    (one,) = attention_maps(model, repo.test, 0, 10, 30).maps
    assert one.channels.shape == (16, 20, 20) and torch.equal(one.channel(3), one.channels[2])
    assert torch.equal(one.channel(None), one.channels.mean(0))
    with pytest.raises(IcllError, match="has 16 channels, counted from 1: there is no 17"):
        one.channel(17)


@pytest.mark.parametrize(
    ("name", "settings"), [("transformer", {}), ("mamba", {}), ("lstm", {"ngram_heads": (1, 2)})], ids=lambda v: str(v)
)
def test_attention_and_heads_from_a_run_folder(run, capsys, name, settings):
    folder = run(name, **settings)
    main(["attention", str(folder), "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert len(shown["tokens"]) == 80 and len(shown["maps"][0]["weights"]) == 30
    page = (folder / "attention.html").read_text()
    assert (folder / "attention.png").read_bytes()[:4] == b"\x89PNG"
    assert "http:" not in page.replace("http://www.w3.org/2000/svg", "") and "https:" not in page and "src=" not in page
    data = json.loads(page.split('type="application/json">')[1].split("</script>")[0])
    assert data["tokens"] == shown["tokens"] and len(data["heads"]) == len(shown["maps"])
    main(["heads", str(folder), "--problems", "4", "--first", "100", "--picture", str(folder / "heads.png")])
    out = capsys.readouterr().out
    assert "circuit:" in out and "chance" in out and (folder / "heads.png").exists()
    main(["heads", str(folder), "--problems", "4", "--first", "100", "--json", "--no-ablation"])
    table = json.loads(capsys.readouterr().out)
    assert [h["head"] for h in table["heads"]] == [f"{m['layer']}.{m['head']}" for m in shown["maps"]]


@pytest.mark.parametrize(("arguments", "told"), [
    (["--positions", "390:4000"], "positions 390:4000 are outside problem 0, which has positions 0:"),
    (["--positions", "80:50"], "positions 80:50 are outside"),
    (["--positions", "middle"], "write two numbers, such as 50:80"),
    (["--layers", "9"], "has no layer 9 with a matrix: choose from 1, 2"),
    (["--heads", "0"], "has no head 0 with a matrix: choose from 1, 2"),
    (["--problem", "77"], "problem 77 does not exist: there are 0..9"),
    (["--channel", "2"], "has one matrix, not one for each channel"),
    (["--picture", "map.jpg"], "a picture's name must end with"),
])  # fmt: skip
def test_bad_input_is_one_clear_line(run, capsys, arguments, told):
    folder = run("transformer")
    with pytest.raises(SystemExit) as stop:
        main(["attention", str(folder), *arguments])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and told in error and error.count("\n") == 1


def test_runs_without_weights_or_matrices_are_told_so(run, capsys, tmp_path):
    (tmp_path / "early").mkdir()
    (tmp_path / "early" / "config.yaml").write_text((run("transformer") / "config.yaml").read_text())
    cases = (
        (tmp_path / "early", "has no model.safetensors yet"),
        (tmp_path, "is not a run"),
        (run("lstm"), "without matrices"),
    )
    for command in (["attention"], ["heads", "--problems", "4"]):
        for folder, told in cases:
            with pytest.raises(SystemExit):
                main([*command, str(folder)])
            assert told in capsys.readouterr().err


def test_cut_problems_are_prefixes(repo):
    short = repo.test[:5].cut(40)
    assert short.lengths.max() <= 40 and torch.equal(short.tokens, repo.test[:5].tokens[:, :40])
    assert torch.equal(short.states, repo.test[:5].states[:, :40])
    assert evaluate(build_model("lstm", d_model=8), short).n_problems == 5


def test_the_page_works_in_a_browser(tmp_path, problems):
    """Choose a head, mark a rule, point at a cell: the weight told is the model's, and the marks are where the weight is."""
    sync_api = pytest.importorskip("playwright.sync_api")
    model, browser_path = ngram_circuit(2, LENGTH), shutil.which("chromium") or shutil.which("google-chrome")
    if browser_path is None:
        pytest.skip("no browser here")
    maps = attention_maps(model, problems, 1, 50, 80)
    write_attention_page(maps, tmp_path / "page.html")
    weights = maps.maps[2].mean
    i, j = (int(k) for k in (weights.tril(-1) > 0.3).nonzero()[0])
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page, errors = browser.new_page(), []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: errors.append(request.url) if not request.url.startswith("file:") else None)
        page.goto((tmp_path / "page.html").as_uri())
        page.select_option("#layer", "2")
        page.select_option("#rule", "2")
        page.hover(f"rect[data-i='{i}'][data-j='{j}']")
        told = page.inner_text("#told")
        marks = page.locator("rect[stroke='#D55E00']").count()
        browser.close()
    assert not errors
    assert told.startswith(f"weight {weights[i, j]:.4g}"[:9]) and f"from position {50 + i}, token {maps.tokens[50 + i]}" in told
    assert "2-gram head" in told
    rule = ngram_weights(problems.tokens[1:2], 2, "keep")[0, 50:80, 50:80]
    assert marks == int((rule > 0).sum())
