"""Experiments of the paper as data: plans, results, verdicts, statistics, and the commands on top of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from icll import IcllError, evaluate
from icll.cli import main
from icll.conformance import check_mixer
from icll.experiments import bench, catalogue, claims, reproduce, settings
from icll.experiments.board import differences, leaderboard
from icll.experiments.catalogue import EXPERIMENTS, Experiment, Plan, find
from icll.experiments.collect import collect, packed_text
from icll.experiments.fidelity import DIFFERS, NOT_RUN, REPRODUCED, fidelity, number_row
from icll.experiments.figures import order
from icll.experiments.paper import Number, load_paper
from icll.experiments.results import (
    LABELS,
    WIRING,
    Entry,
    Known,
    by_problem,
    known,
    label_of,
    learner_label,
    packed,
    read_folder,
    text_table,
)
from icll.experiments.settings import BUDGETS, MODELS, run
from icll.experiments.statistics import over_seeds, paired_means, rank_correlation
from icll.learners import NGram
from icll.metrics import METRICS
from icll.model import ModelConfig
from icll.training import RECIPES, DataConfig, RunConfig, RunSummary, change, load_run, read_config, train

ROOT = Path(__file__).parent.parent
NAMES = {label: model for model, label in LABELS.items()}


def entry(
    label: str, train_size: int | None, tvd: float, accuracy: float, task: str = "regbench", seed: int = 0, **more
) -> Entry:
    """An entry with these scores."""
    scores = dict.fromkeys(METRICS, (0.0, 0.0, 0.0))
    scores |= {
        name: (v, v - 0.01, v + 0.01) for name, v in (("tvd", tvd), ("accuracy", accuracy), ("cross_entropy", 0.7 + tvd))
    }
    if train_size is None:
        spec = {"2-gram": "ngram:2", "3-gram": "ngram:3", "Baum-Welch": "baum-welch", "Bayes filter": "bayes"}[label]
        return Entry(label, "made up", scores, "f", 500, learner=spec, seconds=1.0, **more)
    base, _, heads = label.removesuffix(WIRING).partition("+NGH")
    orders = tuple(json.loads(f"[{heads[1:-1]}]")) if heads else ()
    config = run(NAMES[base], "cpu", train_size, heads=orders, task=task, seed=seed, authors_bug=label.endswith(WIRING))
    return Entry(label, "made up", scores, "f", 500, config, valid={"log_loss": tvd, "tvd": tvd}, **more)


def of_the_paper() -> Known:
    """Entries that say just what the paper says."""
    paper, entries = load_paper(), []
    for number in paper.numbers:
        wired = (number.label, number.label + WIRING) if number.label in ("LSTM", "Mamba") else (number.label,)
        for label in wired:
            if number.metric == "recall":
                entries.append(entry(label, number.train, 1 - number.value, number.value, "recall"))
            if number.metric == "tvd" and number.source != "rerun":
                other = paper.find(number.label, "accuracy", number.train)
                entries.append(entry(label, number.train, number.value, other.value))
    names = sorted({n for number in paper.numbers if number.metric == "distance" for n in (number.label, number.other)})
    matrix = np.full((len(names), len(names)), np.nan)
    for number in paper.numbers:
        if number.metric == "distance" and number.train == 2500:
            i, j = names.index(number.label), names.index(number.other)
            matrix[i, j] = matrix[j, i] = number.value
    text = [
        {"label": n.label, "perplexity": n.value, "by_seed": {"0": n.value}, "parameters": 3.4e8}
        for n in paper.numbers if n.metric == "perplexity"
    ]  # fmt: skip
    tables = {"distances-2500": {"names": names, "matrix": matrix.tolist()}, "text": {"rows": text, "steps": 14_000}}
    tables["text"]["setting"] = [{"corpus": "SlimPajama-627B"}]
    return Known(tuple(entries), tables)


# --- the paper ---


def test_two_processes_take_as_long_as_the_longest_run(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce, "_measure", lambda model, config: (0.8, 0.0))  # seconds of a step on 8 problems
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    long, short = (
        RunConfig(
            ModelConfig("gla", 8, 1, 1), DataConfig(profile="repo", train=n), replace(RECIPES["fast"], epochs=1, short=0.0)
        )
        for n in (900, 100)
    )
    plan = Plan((short, long))
    assert reproduce.estimate(plan, tmp_path).training == pytest.approx(90)
    assert reproduce.estimate(plan, tmp_path, jobs=1).training == pytest.approx(100)


def test_what_the_paper_says_holds_on_its_own_numbers():
    found = of_the_paper()
    answers = {claim.name: claims.answer(claim, found) for claim in load_paper().claims}
    assert [name for name, answer in answers.items() if answer.holds is False] == []
    assert sum(answer.holds is True for answer in answers.values()) >= 22


def test_every_number_of_the_paper_reproduces_itself():
    rows = [number_row(n, of_the_paper()) for n in load_paper().numbers if n.source != "rerun" and n.train != 40_000]
    assert {row.verdict for row in rows} == {REPRODUCED}


def test_without_results_nothing_is_claimed():
    rows = fidelity(Known(()))
    about_runs = [row for row in rows if row.where not in ("section 3.3", "section 6")]
    assert {row.verdict for row in about_runs} == {NOT_RUN}
    assert len(rows) == len(load_paper().numbers) + len(load_paper().claims)


@pytest.mark.parametrize(("tvd", "verdict", "better"), [(0.40, REPRODUCED, None), (0.2, DIFFERS, True), (0.6, DIFFERS, False)])
def test_a_difference_is_named_and_explained(tvd, verdict, better):
    row = number_row(Number("Figure 3(c)", "figure", "Hyena", "tvd", 2500, 0.392), Known((entry("Hyena", 2500, tvd, 0.8),)))
    assert (row.verdict, row.better) == (verdict, better)
    assert row.difference == pytest.approx(tvd - 0.392)
    assert "64 x 4, fast, 20 epochs" in row.why and "128 x 4" in row.why


def test_a_claim_fails_when_results_say_otherwise():
    found = of_the_paper() + Known((entry("S4", 2500, 0.1, 0.99),))
    (claim,) = (c for c in load_paper().claims if c.name == "transformer-best")
    assert claims.answer(claim, found).holds is False


def test_the_published_lstm_is_compared_with_the_authors_wiring():
    found = Known((entry("LSTM", 2500, 0.2, 0.9), entry("LSTM" + WIRING, 2500, 0.56, 0.6)))
    row = number_row(Number("Figure 3(c)", "figure", "LSTM", "tvd", 2500, 0.562), found)
    assert row.ours == 0.56 and "wired as the authors did" in row.why
    row = number_row(Number("Figure 3(c)", "figure", "LSTM", "tvd", 2500, 0.562), Known((entry("LSTM", 2500, 0.2, 0.9),)))
    assert row.verdict == NOT_RUN and row.ours is None and "0.200" in row.why  # another model, but not hidden


# --- plans ---


def test_every_experiment_has_a_plan_for_every_budget():
    assert list(EXPERIMENTS) == [f"figure{x}" for x in ("1", "2", "3a", "3bc", "3d", "4", "5", "6", "7")] + [
        "table1a",
        "heads",
        "table1b",
    ]
    for experiment in EXPERIMENTS.values():
        assert tuple(experiment.plans) == BUDGETS


def test_the_plan_of_the_paper_is_the_published_setting():
    plan = EXPERIMENTS["table1a"].plans["paper"]
    assert [label_of(c) for c in plan.runs] == [n.label for n in load_paper().numbers if n.where == "Table 1(a)"][::2]
    assert {c.recipe for c in plan.runs} == {RECIPES["authors"]}
    transformer = plan.runs[-1].model
    assert (transformer.d_model, transformer.n_layers, transformer.n_heads) == (128, 8, 1)
    assert {c.data.profile for e in EXPERIMENTS.values() for c in e.plans["paper"].runs if c.data.task == "regbench"} == {
        "repo"
    }


def test_all_ten_models_and_both_wirings_are_in_the_curves():
    labels = {label_of(c) for c in EXPERIMENTS["figure3bc"].plans["cpu"].runs}
    assert labels == {LABELS[m] for m in MODELS} | {"LSTM" + WIRING, "Mamba" + WIRING}


def test_plans_add_up_without_doing_anything_twice():
    both = EXPERIMENTS["figure1"].plans["cpu"] + EXPERIMENTS["figure3bc"].plans["cpu"]
    assert len({c.hash for c in both.runs}) == len(both.runs) == len(EXPERIMENTS["figure3bc"].plans["cpu"].runs)


def test_every_run_is_made_with_each_seed_and_the_first_is_looked_into(tiny, tmp_path, capsys):
    plan = EXPERIMENTS["figure4"].plans["demo"].with_seeds((4, 2))
    assert [c.seed for c in plan.runs] == [4, 2]
    assert [c.seed for _, c in plan.analyses[0].runs] == [4]
    main(["reproduce", "table1a", "--out", str(tmp_path), "--seeds", "0,3", "--dry-run", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert [r["config"]["seed"] for r in said["runs"]] == [0, 0, 3, 3] and said["estimate"]["runs"] == 4
    with pytest.raises(SystemExit):
        main(["reproduce", "table1a", "--seeds", "one"])
    assert "--seeds one: write numbers with commas" in capsys.readouterr().err


def test_an_unknown_experiment_is_named():
    with pytest.raises(IcllError, match="did you mean 'figure3"):
        find("figure3")


# --- results ---


def test_of_several_settings_the_one_best_on_validation_is_taken():
    good, bad = entry("RetNet", 2500, 0.3, 0.9), entry("RetNet", 2500, 0.2, 0.95)
    deeper = replace(bad.config, model=replace(bad.config.model, n_layers=8))
    bad = replace(bad, config=deeper, valid={"log_loss": 9.0})  # better on test, which must not count
    assert Known((good, bad)).runs("RetNet", 2500) == [good]


def test_depths_differ_in_nothing_else():
    made = entry("RetNet", 2500, 0.3, 0.9)

    def other(layers, **recipe):
        model = replace(made.config.model, n_layers=layers)
        config = replace(made.config, model=model, recipe=replace(made.config.recipe, **recipe))
        return replace(made, config=config)

    two, eight, brief = other(2), other(8), other(1, epochs=1)
    known = Known((two, eight, brief, replace(eight, config=replace(eight.config, seed=1))))
    assert {k: [e.seed for e in v] for k, v in known.by_depth("RetNet", 2500).items()} == {2: [0], 8: [0, 1]}
    assert known.by_depth("GLA", 2500) == {}


def test_other_data_never_stands_beside_published_numbers():
    one = entry("RetNet", 2500, 0.3, 0.9)
    for data in (
        replace(one.config.data, profile="paper"),
        replace(one.config.data, relabel=True),
        replace(one.config.data, seed=1),
    ):
        assert Known((replace(one, config=replace(one.config, data=data)),)).runs("RetNet", 2500) == []


def test_brief_runs_stand_beside_nothing():
    made = entry("RetNet", 1000, 0.665, 0.503)
    brief = replace(made, config=replace(made.config, recipe=replace(made.config.recipe, epochs=4)))
    number = Number("Figure 3(c)", "figure", "RetNet", "tvd", 1000, 0.665)
    assert number_row(number, Known((made,)).lasting).verdict == REPRODUCED
    assert number_row(number, Known((brief,)).lasting).verdict == NOT_RUN
    assert Known((brief,)).runs("RetNet", 1000) == [brief]  # for a table of quick runs


def test_brief_language_models_do_not_replace_long_ones():
    def table(rows, steps, parameters):
        return Known((), {"text": {"steps": steps, "rows": [{"label": str(i), "parameters": parameters} for i in range(rows)]}})

    long, brief = table(3, 1230, 5_000_000), table(7, 98, 270_000)
    assert (long + brief).tables == (brief + long).tables == long.tables
    assert brief.lasting.tables == {} and brief.tables
    larger = table(3, 14_000, 340_000_000)
    assert (long + larger).tables == (larger + long).tables == larger.tables


def test_three_language_models_are_not_judged_by_one():
    rows = [
        {"label": label, "perplexity": value, "by_seed": {"0": value}, "parameters": 5_150_000}
        for label, value in (("Llama", 26.5), ("Llama+NGH_1(1,2,3)+NGH_-2(1,2,3)", 24.5))
    ]
    found = Known((), {"text": {"steps": 1230, "rows": rows, "setting": [{"corpus": "wikitext-2"}]}})
    said = {c.name: claims.answer(c, found) for c in load_paper().claims if c.name.startswith("text-")}
    assert {a.holds for a in said.values()} == {None}
    assert "Llama 7.5%, at 5M parameters" in said["text-help"].detail


def test_perplexities_stand_beside_the_papers_on_its_text_alone():
    number = next(n for n in load_paper().numbers if n.metric == "perplexity")
    found = of_the_paper()
    assert number_row(number, found).verdict == REPRODUCED
    found.tables["text"]["setting"] = [{"corpus": "sotu"}]
    row = number_row(number, found)
    assert row.verdict == NOT_RUN and "340M parameters, on sotu" in row.why


def at_depths(label: str, scores: dict[int, float]) -> list[Entry]:
    made = entry(label, 2500, 0.3, 0.9)
    return [
        replace(
            made, scores=made.scores | {"accuracy": (v, v, v)},
            config=replace(made.config, model=replace(made.config.model, n_layers=k)),
        )
        for k, v in scores.items()
    ]  # fmt: skip


def test_depth_of_others_is_judged_by_the_published_wiring():
    flat, rising = dict.fromkeys((1, 2, 4), 0.7), {1: 0.6, 2: 0.7, 4: 0.8}
    runs = [*at_depths("RetNet", flat), *at_depths("GLA", flat), *at_depths("Mamba", rising)]
    (claim,) = (c for c in load_paper().claims if c.test == "depth_others")
    assert claims.answer(claim, Known(tuple(runs))).holds is False
    said = claims.answer(claim, Known((*runs, *at_depths("Mamba" + WIRING, flat))))
    assert said.holds is True and "once layers are stacked: Mamba 0.100" in said.detail


def test_models_are_compared_at_sizes_that_all_have():
    (claim,) = (c for c in load_paper().claims if c.test == "data_efficient")
    labels = [LABELS[m] for m in MODELS]
    everyone = [entry(label, n, tvd, 0.9) for label in labels for n, tvd in ((2500, 0.2), (5000, 0.1))]
    level = entry("3-gram", None, 0.25, 0.9)
    assert claims.answer(claim, Known((level, *everyone))).holds is False
    alone = entry("Transformer", 2000, 0.2, 0.9)
    assert claims.answer(claim, Known((level, alone, *everyone))).holds is False


def test_ones_own_mixer_does_not_decide_what_the_paper_says():
    (claim,) = (c for c in load_paper().claims if c.test == "heads_help")
    pairs = [
        entry(f"{m}{h}", 2500, v, 0.9) for m in ("Transformer", "RetNet", "H3") for h, v in (("", 0.3), ("+NGH(1,2,3)", 0.2))
    ]
    mine = [replace(pairs[0], label="my:Mixer"), replace(pairs[1], label="my:Mixer+NGH(1,2,3)")]
    mine = [
        replace(e, scores=e.scores | {"tvd": (v, v, v)}, config=replace(e.config, seed=9))
        for e, v in zip(mine, (0.2, 0.3), strict=True)
    ]
    assert claims.answer(claim, Known((*pairs, *mine))).holds is True


def test_learners_on_other_data_are_left_out(tmp_path):
    plain = json.loads((ROOT / "results/learners/ngram-3-500.json").read_text())
    (tmp_path / "learners").mkdir()
    (tmp_path / "learners/a.json").write_text(json.dumps(plain))
    assert read_folder(tmp_path).learners() == ["3-gram"]
    (tmp_path / "learners/a.json").write_text(json.dumps(plain | {"data": "regbench paper test, seed 0"}))
    assert read_folder(tmp_path).learners() == []


def test_an_improvement_must_be_more_than_chance():
    (claim,) = (c for c in load_paper().claims if c.name == "ngh123-gla")
    noise = np.random.default_rng(0).normal(0, 0.02, 50)

    def of(gain):
        pairs = (("GLA+NGH(1,2)", 0.2 + noise), ("GLA+NGH(1,2,3)", 0.2 - gain - noise + noise.mean()))
        rows = [{"tokens": (300,) * 50, "tvd": tuple(tvd), "accuracy": (0.9,) * 50} for _, tvd in pairs]
        named = [
            entry(pair[0], 2500, float(pair[1].mean()), 0.9, by_problem=row) for pair, row in zip(pairs, rows, strict=True)
        ]
        return claims.answer(claim, Known(tuple(named)))

    assert of(0.05).holds and not of(0.0).holds and "problem by problem, seed 0" in of(0.05).detail


def test_ones_own_runs_have_lines_of_their_own():
    """Also beside better runs of the same model."""
    mine, better = entry("GLA", 2500, 0.5, 0.6, seed=1), entry("GLA", 2500, 0.3, 0.8)
    better = replace(better, config=replace(better.config, model=replace(better.config.model, n_layers=3)))
    places = leaderboard(Known((mine, better)), mine=[mine.config.hash])
    assert [(place.label, place.tvd, place.mine) for place in places] == [("GLA", 0.3, False), ("GLA", 0.5, True)]


def test_distances_of_a_rewired_lstm_do_not_stand_beside_the_papers():
    lstm = entry("LSTM", 2500, 0.6, 0.6)
    table = {"names": ["LSTM", "truth"], "matrix": [[0, 0.58], [0.58, 0]]}
    number = Number("Figure 6", "figure", "LSTM", "distance", 2500, 0.58, "truth")
    assert number_row(number, Known((lstm,), {"distances-2500": table})).verdict == REPRODUCED  # wired who knows how
    table["key"] = json.dumps(["distances", [["LSTM", lstm.config.hash]], []])
    row = number_row(number, Known((lstm,), {"distances-2500": table}))
    assert row.verdict == NOT_RUN and "with stacked layers of LSTM, which the paper's had not: 0.580" in row.why


def test_labels():
    assert label_of(run("retnet", "cpu", heads=(1, 2))) == "RetNet+NGH(1,2)"
    moved = ModelConfig("retnet", ngram_heads=(1, 2), ngram_after=(1, -1))
    assert label_of(RunConfig(moved)) == "RetNet+NGH_1(1,2)+NGH_-1(1,2)"  # not the paper's
    assert label_of(RunConfig(replace(moved, ngram_after=1, ngram_mlp=True))) == "RetNet+NGH(1,2 mlp)"
    assert label_of(run("lstm", "cpu", authors_bug=True)) == "LSTM" + WIRING
    assert label_of(RunConfig(ModelConfig("my_package.mixers:Mine", options={"width": 2}))) == "my_package.mixers:Mine width=2"
    assert label_of(RunConfig(ModelConfig("gla", options={"value_gate": True}))) == "GLA value_gate=true"  # not the paper's
    assert label_of(RunConfig(ModelConfig("my_package.mixers:Mamba"))) == "my_package.mixers:Mamba"  # not the paper's
    inner = ModelConfig("transformer", options={"inner_ngram_heads": [1, 2]})
    assert label_of(RunConfig(inner)) == "Transformer+inner NGH(1,2)"
    assert [learner_label(s) for s in ("ngram:3", "bayes:300", "oracle")] == ["3-gram", "Bayes filter", "truth"]


def test_the_packed_results_are_those_of_the_results_folder():
    """After a change in results/: python -m icll.experiments.collect"""
    assert (ROOT / "icll/experiments/results.json").read_text() == packed_text(ROOT / "results")


@pytest.mark.parametrize(
    "folder", sorted(p.parent for p in ROOT.glob("results/training/*/model.safetensors")), ids=lambda p: p.name
)
def test_kept_weights_give_the_scores_that_stand_beside_them(folder):
    details = json.loads((folder / "details.json").read_text())["by_problem"]
    again = by_problem(evaluate(load_run(folder), read_config(folder).data.load().test[:5]))
    for metric in ("tvd", "cross_entropy"):
        assert again[metric] == pytest.approx(details[metric][:5], abs=1e-3)


def test_packing_keeps_what_is_known():
    again, original = packed(), read_folder(ROOT / "results")
    assert [e.label for e in again.entries] == [e.label for e in original.entries]
    for a, b in zip(again.entries, original.entries, strict=True):
        assert a.config == b.config and a.tvd == pytest.approx(b.tvd, abs=1e-6)


@dataclass(frozen=True)
class SomeText:
    """Stands for data that is not problems."""

    tokens: int


def test_runs_on_text_make_a_table_of_their_own():
    runs = []
    for model, heads, seeds in (("gla", (), (40.0, 42.0)), ("gla", (1, 2, 3), (38.0,)), ("llama", (), (41.0,))):
        for seed, perplexity in enumerate(seeds):
            shape = ModelConfig(model, 64, 4, ngram_heads=heads, ngram_after=(1, -2), ngram_mode="replace")
            result = {"test": {"perplexity": {"mean": perplexity}}, "parameters": 5_000_000, "steps": 1230}
            runs.append(RunSummary(Path("x"), RunConfig(shape, SomeText(10), seed=seed), [], result))
    runs.append(replace(runs[-1], config=replace(runs[-1].config, data=SomeText(99))))  # another setting, with fewer rows
    table = text_table(runs)
    assert [row["label"] for row in table["rows"]] == ["GLA", "GLA+NGH_1(1,2,3)+NGH_-2(1,2,3)", "Llama"]
    assert table["rows"][0]["perplexity"] == pytest.approx(np.sqrt(40 * 42))
    found = Known((), {"text": table})
    row = number_row(Number("Table 1(b)", "table", "GLA", "perplexity", None, 15.65), found)
    assert row.verdict == NOT_RUN and "at 5M parameters, on another text: 40.99" in row.why
    chart = EXPERIMENTS["table1b"].chart(found)  # over seed 0 alone, which both have
    assert chart.notes == ("GLA+NGH_1(1,2,3)+NGH_-2(1,2,3): -5.0% (the paper's: -2.6%), seed 0.",)


# --- statistics ---


def test_rank_correlation_is_scipys():
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = rng.integers(0, 6, 9), rng.normal(size=9)
        assert rank_correlation(a, b) == pytest.approx(scipy.stats.spearmanr(a, b).statistic)


def test_a_paired_test_finds_a_small_constant_difference_and_none_in_noise():
    rng = np.random.default_rng(0)
    tokens, noise = rng.integers(200, 500, 500).astype(float), rng.normal(0, 0.05, 500)
    found = paired_means(tokens * (0.01 + noise), tokens)
    expected = scipy.stats.wilcoxon(0.01 + noise).pvalue
    assert found.low < 0.01 < found.high and found.p < 0.01 and expected < 0.01
    assert paired_means(tokens * (noise - noise.mean()), tokens).p > 0.2


def test_few_seeds_say_little():
    assert over_seeds([0.20, 0.21, 0.22], [0.30, 0.31, 0.32]).p == pytest.approx(0.1)
    assert over_seeds([0.2], [0.3, 0.4]) is None


def test_scores_of_each_problem_add_up_to_the_pooled_ones(repo):
    scores = evaluate(NGram(3), repo.test[:30])
    table = by_problem(scores)
    assert np.average(table["tvd"], weights=table["tokens"]) == pytest.approx(scores.tvd, abs=1e-5)
    assert np.average(table["accuracy"], weights=table["tokens"]) == pytest.approx(scores.accuracy, abs=1e-5)


def test_the_order_of_models_is_compared_with_the_papers():
    rows, correlation = order(of_the_paper())
    assert correlation == 1 and [r[1] for r in rows] == sorted(r[1] for r in rows)


def test_the_leaderboard_is_sorted_and_measured_from_the_floor():
    found = of_the_paper() + Known((entry("Bayes filter", None, 0.08, 0.96),))
    places = leaderboard(found)
    assert places[0].label == "Bayes filter" and [p.tvd for p in places] == sorted(p.tvd for p in places)
    assert all(p.above_floor == pytest.approx(p.tvd - 0.08) for p in places)


def test_differences_of_rows_are_tested_over_problems_and_seeds():
    rng = np.random.default_rng(0)
    rows = []
    for label, tvd in (("RetNet", 0.39), ("RetNet+NGH(1)", 0.31)):
        for seed in (0, 1, 2):
            scores = {"tokens": (300,) * 50, "tvd": tuple(tvd + rng.normal(0, 0.02, 50)), "accuracy": (0.8,) * 50}
            rows.append(entry(label, 2500, tvd + 0.001 * seed, 0.8, seed=seed, by_problem=scores))
    found = differences(Known(tuple(rows)))
    assert [(d.a, d.b) for d in found] == [("RetNet+NGH(1)", "RetNet")] * 2
    assert found[0].difference.mean == pytest.approx(-0.08, abs=0.01) and found[0].difference.p < 0.001
    assert "3 + 3 seeds" in str(found[1].difference)


# --- doing it ---


@pytest.fixture
def tiny(monkeypatch):
    """An experiment that takes seconds, in the place of table1a."""
    recipe = change(RECIPES["fast"], epochs=1)
    runs = tuple(
        RunConfig(ModelConfig("retnet", 16, 1, 1, ngram_heads=h), DataConfig(profile="repo", train=20), recipe)
        for h in ((), (1, 2, 3))
    )
    plans = {budget: Plan(runs, ("ngram:2",), 20) for budget in BUDGETS}
    experiment = Experiment("table1a", "two runs", plans, EXPERIMENTS["table1a"].chart)
    monkeypatch.setitem(catalogue.EXPERIMENTS, "table1a", experiment)
    return experiment


def test_reproduce_trains_what_is_missing_and_draws(tiny, tmp_path, monkeypatch, capsys):
    out = tmp_path / "runs"
    main(["reproduce", "table1a", "--budget", "demo", "--out", str(out), "--dry-run"])
    said = capsys.readouterr().out
    assert "2 runs to train, 0 finished before; about" in said and not out.exists()
    train(tiny.plans["demo"].runs[0], out / tiny.plans["demo"].runs[0].name)  # one was finished before
    main(["reproduce", "table1a", "--budget", "demo", "--out", str(out), "--jobs", "2"])
    said = capsys.readouterr()
    assert "1 runs to train, 1 finished before" in said.err
    assert re.search(r"^RetNet\+NGH\(1,2,3\) +0\.\d{3} +-$", said.out, re.MULTILINE)
    assert {p.name for p in (out / "figures").iterdir()} == {"table1a.png", "table1a.pdf"}
    assert json.loads((out / "learners/ngram-2-20.json").read_text())["scores"][0]["problems"] == 20
    found = read_folder(out)
    assert [e.label for e in found.entries] == ["RetNet", "RetNet+NGH(1,2,3)", "2-gram"]
    assert all(len(e.by_problem["tvd"]) == e.n_problems for e in found.entries) and found.entries[0].flops

    monkeypatch.setattr(reproduce, "run_all", None)  # nothing is left to train
    main(["reproduce", "table1a", "--budget", "demo", "--out", str(out), "--json"])
    assert json.loads(capsys.readouterr().out)[0]["name"] == "table1a"

    assert collect(out, tmp_path / "results") == 2
    kept = read_folder(tmp_path / "results")
    assert {e.label: e.tvd for e in kept.entries} == {e.label: e.tvd for e in found.entries}
    assert not list((tmp_path / "results").rglob("*.safetensors"))


def test_a_failing_run_is_reported_and_the_others_are_kept(tiny, tmp_path, monkeypatch, capsys):
    good, bad = tiny.plans["demo"].runs

    def run_one(configs, root, **options):
        assert list(configs) == [good, bad]
        result = train(good, root / good.name)
        return [
            reproduce.Outcome(good, root / good.name, result, None),
            reproduce.Outcome(bad, root / bad.name, None, "it broke"),
        ]

    monkeypatch.setattr(reproduce, "run_all", run_one)
    with pytest.raises(SystemExit) as exit_:
        main(["reproduce", "table1a", "--out", str(tmp_path)])
    said = capsys.readouterr()
    assert exit_.value.code == 2 and "1 runs failed" in said.err and "it broke" in said.err
    assert "RetNet" in said.out


def test_stopping_says_how_to_go_on(tiny, tmp_path, monkeypatch, capsys):
    def stop(configs, root, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduce, "run_all", stop)
    with pytest.raises(SystemExit) as exit_:
        main(["reproduce", "table1a", "--out", str(tmp_path)])
    assert exit_.value.code == 130 and "the same command goes on" in capsys.readouterr().err


MIXER = """
import torch
from torch import nn


class RunningMean(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        count = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)[:, None]
        return self.out(x.cumsum(1) / count)
"""


def test_bench_places_a_strangers_mixer_in_the_table(tmp_path, monkeypatch, capsys):
    (tmp_path / "mean_of_a_stranger.py").write_text(MIXER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "QUICK_TRAIN", 16)
    monkeypatch.setattr(settings, "DEMO", change(RECIPES["fast"], epochs=1))
    main(["bench", "mean_of_a_stranger:RunningMean", "--quick", "--d-model", "8", "--layers", "1", "--jobs", "2"])
    lines = capsys.readouterr().out.splitlines()
    mine = [line for line in lines if line.startswith("* ")]
    labels = {"mean_of_a_stranger:RunningMean", "mean_of_a_stranger:RunningMean+NGH(1,2,3)"}
    assert {line.split()[1] for line in mine[:2]} == labels and len(mine) == 3  # the last explains the star
    assert any("Bayes filter" in line for line in lines)
    (test,) = [line for line in lines if line.startswith("TVD of mean_of_a_stranger:RunningMean+NGH(1,2,3) less that of")]
    assert "over 500 problems" in test
    assert {e.label for e in known(Path("runs")).entries if e.train == 16} == labels
    (tmp_path / "runs" / next(p.name for p in Path("runs").glob("mean*ngh*")) / "mixer.py").write_text("# something else")
    with pytest.raises(SystemExit):
        main(["bench", "mean_of_a_stranger:RunningMean", "--quick", "--d-model", "8", "--layers", "1"])
    assert "has changed since" in capsys.readouterr().err


def test_a_mixer_that_was_edited_is_not_taken_for_what_it_was(tmp_path, monkeypatch, capsys):
    """Each command in a process of its own, as one who edits a file runs them."""
    (tmp_path / "edited.py").write_text(MIXER)
    small = ["edited:RunningMean", "--d-model", "8", "--layers", "1"]

    def icll(*arguments):
        command = [sys.executable, "-c", "import sys; from icll.cli import main; main(sys.argv[1:])", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)

    trained = icll("train", *small, "--train", "16", "--epochs", "1", "--profile", "repo", "--out", "run", "--json")
    assert trained.returncode == 0, trained.stderr
    assert (tmp_path / "run/mixer.py").read_text() == MIXER
    before = icll("score", "run", "--problems", "5", "--json", "--cache", "cache")
    assert "repo" in json.loads(before.stdout)["data"]  # the data it was trained for
    (tmp_path / "edited.py").write_text(MIXER.replace("/ count", "* 0.5"))
    again = icll("train", *small, "--train", "16", "--epochs", "1", "--profile", "repo", "--out", "run")
    assert again.returncode == 2 and "edited:RunningMean has changed since run was begun" in again.stderr
    after = icll("score", "run", "--problems", "5", "--json", "--cache", "cache")
    assert "is not what run was trained with" in after.stderr
    first, second = (json.loads(done.stdout)["scores"][0]["tvd"] for done in (before, after))
    assert first != second  # not from the cache
    (tmp_path / "edited.py").write_text(MIXER.replace("x.cumsum(1)", "x.flip(1).cumsum(1).flip(1)"))
    ahead = icll("train", *small, "--train", "16", "--out", "ahead")
    assert ahead.returncode == 2 and "looks ahead" in ahead.stderr and not (tmp_path / "ahead").exists()


def test_bench_refuses_a_mixer_that_sees_the_future(tmp_path, monkeypatch, capsys):
    (tmp_path / "cheating_of_a_stranger.py").write_text(MIXER.replace("x.cumsum(1)", "x.flip(1).cumsum(1).flip(1)"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_:
        main(["bench", "cheating_of_a_stranger:RunningMean", "--quick"])
    assert exit_.value.code == 2 and "causal" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_the_mixer_of_the_docs_conforms_and_is_short(tmp_path, monkeypatch):
    block = re.findall(r"```python\n(.*?)```", (ROOT / "docs/first-mixer.md").read_text(), re.DOTALL)[0]
    assert len(block.splitlines()) <= 30
    (tmp_path / "overwrite_of_the_docs.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    assert not [
        str(c) for c in check_mixer("overwrite_of_the_docs:Overwrite") if c.passed is not True and c.name != "mixing matrices"
    ]
