"""The report's page: what is in it, and how it behaves in a real browser."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from icll import Oracle, Uniform
from icll.cli import main
from icll.experiments.catalogue import EXPERIMENTS
from icll.experiments.fidelity import fidelity, summary
from icll.experiments.results import packed, read_folder
from icll.languages import sample_automata
from icll.learners import NGram
from icll.metrics import METRICS, tvd
from icll.model import ModelConfig, model_of
from icll.report import draw_chart
from icll.report.automaton import plan_automaton
from icll.report.charts import look_of
from icll.report.explorer import SCALE, best_models, drawing, explorer_data
from icll.report.page import page_text
from icll.tasks import regbench
from icll.training import RECIPES, DataConfig, RunConfig, change
from icll.training.runs import prepare, save_model

MOST_BYTES = 5_000_000
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = 150_000  # ms: a machine that is busy with other tests may stand still for a while


@pytest.fixture(scope="module")
def problems():
    return regbench(train=1, profile="repo", seed=0, test=3, valid=1).test


@pytest.fixture(scope="module")
def predictors(problems):
    return {"truth": Oracle(problems), "3-gram": NGram(3), "uniform": Uniform()}


@pytest.fixture(scope="module")
def page_file(problems, predictors, tmp_path_factory) -> Path:
    known = packed()
    charts = [chart for e in EXPERIMENTS.values() if not (chart := e.chart(known)).empty]
    path = tmp_path_factory.mktemp("report") / "index.html"
    path.write_text(page_text(known, charts, fidelity(known), explorer_data(problems, predictors)), encoding="utf-8")
    return path


# --- without a browser ---


def test_the_page_is_one_small_file_that_asks_nobody_for_anything(page_file):
    text = page_file.read_text()
    assert len(text.encode()) < MOST_BYTES
    markup = re.sub(r"<script type=.application/json.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!#|data:)|url\(\s*[\"']?(?!#|\$)|@import|fetch\(|XMLHttpRequest", markup)
    assert set(re.findall(r"https?://[^\"'\s<]+", markup)) == {"http://www.w3.org/2000/svg"}


def test_data_cannot_end_the_script_it_stands_in(problems):
    data = explorer_data(problems, {"</script><b>": Uniform()})
    text = page_text(packed(), [], [], data)
    assert "</script><b>" not in text and text.count("</script>") == 2


def test_predictions_are_kept_to_five_digits(problems):
    data = explorer_data(problems[:1], {"3-gram": NGram(3)})
    whole = np.frombuffer(base64.b64decode(data["problems"][0]["probs"][0]), "<u2").reshape(-1, 20)
    assert np.abs(whole / SCALE - NGram(3).predict(problems[:1].tokens)[0].numpy()).max() < 1e-5


def test_the_drawing_of_an_automaton_has_all_of_it():
    for automaton in sample_automata(10, "paper"):
        plain, plan = drawing(automaton), plan_automaton(automaton)
        edges = {(s, int(t)) for s, row in enumerate(automaton.transitions) for t in row[row >= 0]}
        assert {(a["from"], a["to"]) for a in plain["arrows"]} == edges and len(plain["places"]) == automaton.n_states
        left, top, width, height = plain["box"]
        for x, y in [*plain["places"], *(a["label"] for a in plain["arrows"])]:
            assert left <= x <= left + width and top <= y <= top + height
        assert len(plan.arrows) == len(edges)


def test_every_chart_can_be_printed():
    for experiment in EXPERIMENTS.values():
        chart = experiment.chart(packed())
        if not chart.empty:
            assert draw_chart(chart).axes


def test_icll_report_writes_page_figures_and_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["report", "--problems", "1", "--learners", "oracle,ngram:3"])
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == "report: report/index.html" and summary(fidelity(packed())) in said
    assert len(json.loads(Path("report/fidelity.json").read_text())) == len(fidelity(packed()))
    assert Path("report/fidelity.md").read_text().count("\n| ") > 200
    kinds = {p.suffix for p in Path("report/figures").iterdir()}
    assert kinds == {".png", ".pdf"} and Path("report/index.html").stat().st_size < MOST_BYTES


def pretend_run(root, model, train=8, loss=0.5):
    """A finished run of an untrained model."""
    scores = {metric: {"mean": 0.5, "low": 0.4, "high": 0.6} for metric in METRICS} | {"problems": 500, "seconds": 1.0}
    config = RunConfig(model, DataConfig(profile="repo", train=train), change(RECIPES["fast"], epochs=1))
    prepare(config, root / config.name)
    save_model(model_of(model, 0), root / config.name / "model.safetensors")
    valid = scores | {"log_loss": {"mean": loss, "low": loss, "high": loss}}
    result = {"test": scores, "valid": valid, "fingerprints": {"test": "f"}, "parameters": 1, "seconds": 1.0}
    (root / config.name / "result.json").write_text(json.dumps(result | {"threads": 1, "commit": None}))


def test_the_explorer_has_the_runs_that_fit_ones_own_first(tmp_path):
    for model in (
        ModelConfig("retnet", 8, 1, 1), ModelConfig("retnet", 8, 1, 1, ngram_heads=(1,)),
        ModelConfig("icll.mixers.gla:GatedLinearAttention", 8, 1, 1), ModelConfig("gla", 8, 1, 1, ngram_heads=(1, 2, 3)),
    ):  # fmt: skip
        pretend_run(tmp_path, model)
    assert set(best_models([tmp_path], most=9)) == {
        "RetNet",
        "RetNet+NGH(1)",
        "icll.mixers.gla:GatedLinearAttention",
        "GLA+NGH(1,2,3)",
    }
    assert set(best_models([tmp_path], most=1)) == {"icll.mixers.gla:GatedLinearAttention"}


def test_a_run_that_cannot_be_loaded_is_left_out_of_the_explorer(tmp_path):
    pretend_run(tmp_path, ModelConfig("retnet", 8, 1, 1))
    pretend_run(tmp_path, ModelConfig("icll.mixers.gla:GatedLinearAttention", 8, 1, 1))
    (config,) = tmp_path.glob("icll*/config.yaml")
    config.write_text(config.read_text().replace("icll.mixers.gla:", "moved_away:"))
    with pytest.warns(UserWarning, match="not in the explorer: .*cannot import 'moved_away'"):
        assert set(best_models([tmp_path], most=9)) == {"RetNet"}


def test_a_mixer_that_no_longer_runs_is_left_out(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "breaking.py").write_text(
        "from torch import nn\n\nclass Mix(nn.Linear):\n    def __init__(self, d_model): super().__init__(d_model, d_model)\n"
    )
    pretend_run(tmp_path, ModelConfig("breaking:Mix", 8, 1, 1))
    monkeypatch.setattr("breaking.Mix.forward", lambda self, x: 1 / 0)
    with pytest.warns(UserWarning, match="not in the explorer: .*division"):
        assert best_models([tmp_path], most=9) == {}
    assert [e.flops for e in read_folder(tmp_path).entries] == [None]


def test_the_explorer_takes_the_best_run_that_has_weights(tmp_path):
    pretend_run(tmp_path / "a", ModelConfig("retnet", 8, 1, 1), loss=0.2)
    pretend_run(tmp_path / "a", ModelConfig("retnet", 8, 2, 1), loss=0.1)
    pretend_run(tmp_path / "b", ModelConfig("retnet", 8, 3, 1), loss=0.3)

    def layers():
        return [model.config.n_layers for model in best_models([tmp_path / "a", tmp_path / "b"], most=9).values()]

    assert layers() == [2]
    for config in (tmp_path / "a").glob("*/config.yaml"):
        if "n_layers: 2" in config.read_text():
            (config.parent / "model.safetensors").unlink()
    assert layers() == [1]


def test_the_explorer_names_the_problems_of_a_model_it_has_twice(tmp_path):
    pretend_run(tmp_path / "mine", ModelConfig("retnet", 8, 1, 1), train=8)
    pretend_run(tmp_path / "theirs", ModelConfig("retnet", 8, 1, 1), train=5000)
    pretend_run(tmp_path / "theirs", ModelConfig("gla", 8, 1, 1), train=5000)
    names = set(best_models([tmp_path / "mine", tmp_path / "theirs"], most=9))
    assert names == {"RetNet · 8 problems", "RetNet · 5,000 problems", "GLA"}
    assert len({look_of(name) for name in names | {"RetNet"}}) == 2  # as in the figures


def test_icll_report_names_a_folder_that_is_not_there(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_:
        main(["report", "--runs", "nowhere"])
    assert exit_.value.code == 2 and "nowhere is not a folder" in capsys.readouterr().err


# --- in Chromium ---


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="the page is not opened in a browser: pip install playwright")
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("the page is not opened in a browser: no Chromium here (apt-get install chromium)")
    args = ["--disable-smooth-scrolling"]  # a key pressed while the page still moves is lost
    args += [] if os.geteuid() else ["--no-sandbox"]  # root has to go without
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=args, timeout=PATIENCE)
        yield opened
        opened.close()


@pytest.fixture(params=["desktop", "phone"])
def page(browser, page_file, request):
    size = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}[request.param]
    touch = request.param == "phone"
    context = browser.new_context(
        viewport=size, color_scheme="light", offline=True, has_touch=touch, is_mobile=touch, reduced_motion="reduce"
    )
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda r: complaints.append(r.url) if not r.url.startswith(("file:", "data:")) else None)
    page.goto(page_file.as_uri())
    yield page
    context.close()
    assert complaints == []


def shown(page) -> dict[str, dict[str, float]]:
    """Symbol to probability on every card."""
    return page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll('.card')].map((card) => [card.dataset.predictor,
        Object.fromEntries([...card.querySelectorAll('rect[data-p]')].map((r) => [r.dataset.symbol, Number(r.dataset.p)]))]))"""
    )


def place(page) -> int:
    return int(page.text_content("#where").split()[0]) - 1


def test_the_explorer_shows_what_python_computes(page, problems, predictors):
    names = ("", *problems.vocabulary.symbols, "|")
    for number in (0, 2):
        page.select_option("#problem", str(number))
        one = problems[number : number + 1]
        probs = {name: p.predict(one.tokens)[0].double() for name, p in predictors.items()}
        for t in (0, 1, 37, int(one.lengths[0]) - 2):
            page.click(f"#tokens span[data-i='{t}']")
            assert place(page) == t
            assert page.get_attribute("#automaton circle.lit", "data-state") == str(int(one.states[0, t]))
            for name, bars in shown(page).items():
                for symbol, value in bars.items():
                    assert value == pytest.approx(float(probs[name][t, names.index(symbol)]), abs=2e-4)
            scored = one.scored[0, : t + 1]
            for name in ("3-gram", "uniform"):
                gaps = tvd(probs[name], probs["truth"])
                card = page.locator(f".card[data-predictor='{name}']")
                assert float(card.get_attribute("data-tvd")) == pytest.approx(float(gaps[t]), abs=2e-4)
                if scored.any():
                    mean = float(gaps[: t + 1][scored].mean())
                    assert float(card.get_attribute("data-so-far")) == pytest.approx(mean, abs=2e-4)


def test_keys_and_buttons_step_forward_and_back(page, problems):
    before = place(page)
    page.keyboard.press("End")  # not in the explorer: it scrolls the page
    page.wait_for_function("scrollY + innerHeight > document.documentElement.scrollHeight - 2")
    page.keyboard.press("Home")
    assert place(page) == before
    page.wait_for_function("scrollY == 0")
    page.locator("#tokens").focus()
    page.keyboard.press("Home")
    assert place(page) == 0
    first = shown(page)
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    page.click("#forward")
    assert place(page) == 6
    for _ in range(5):
        page.keyboard.press("ArrowLeft")
    page.click("#back")
    assert place(page) == 0 and shown(page) == first
    page.keyboard.press("ArrowLeft")  # there is nothing before the first token
    assert place(page) == 0
    page.keyboard.press("ArrowDown")  # to the end of the string
    assert int(problems.tokens[0, place(page)]) == problems.vocabulary.separator_id
    page.keyboard.press("End")
    assert place(page) == int(problems.lengths[0]) - 1
    page.keyboard.press("]")
    assert page.input_value("#problem") == "1" and place(page) == 0
    page.locator(".card[data-predictor='3-gram'] svg").focus()  # what is drawn anew keeps the focus
    page.keyboard.press("End")
    page.keyboard.press("Home")
    assert place(page) == 0
    assert page.evaluate("document.activeElement.closest('.card').dataset.predictor") == "3-gram"


def test_earlier_occurrences_of_the_context_are_marked(page, problems):
    tokens = problems.tokens[0].tolist()
    for n, t in ((1, 60), (2, 120), (3, 200)):
        page.select_option("#context", str(n))
        page.click(f"#tokens span[data-i='{t}']")
        followers = {k + 1 for k in range(n - 1, t) if tokens[k - n + 1 : k + 1] == tokens[t - n + 1 : t + 1]} - {t}
        marked = page.evaluate("[...document.querySelectorAll('#tokens .follow')].map((s) => Number(s.dataset.i))")
        assert set(marked) == followers


def test_models_can_be_switched_off_and_on(page):
    page.click("#predictors button[data-name='3-gram']")
    assert set(shown(page)) == {"truth", "uniform"}
    page.click("#predictors button[data-name='3-gram']")
    assert set(shown(page)) == {"truth", "3-gram", "uniform"}
    bars = page.locator("#figure1 rect[data-bar='3-gram']")
    before = bars.count()
    page.click("#figure1 .chips button[data-name='3-gram']")
    assert before > 0 and bars.count() == 0
    page.click("#figure1 .chips button[data-name='3-gram']")
    assert bars.count() == before


def test_a_figure_tells_its_numbers_and_can_be_enlarged(page):
    bar = page.locator("#table1a rect[data-bar='3-gram'][data-series='ours']").first
    bar.scroll_into_view_if_needed()
    width = float(bar.get_attribute("width"))
    bar.hover()
    assert re.search(r"3-gram, ours: 0\.258 \[", page.text_content("#tip"))
    panel = page.locator("#table1a .panel").first
    panel.get_by_label("Enlarge").click()
    assert float(bar.get_attribute("width")) != width
    panel.get_by_label("Show all").click()
    assert float(bar.get_attribute("width")) == width
    box = panel.locator("svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 90, steps=4)
    page.mouse.up()
    assert float(bar.get_attribute("width")) != width


def test_figures_can_be_enlarged_for_ever(page):
    """Up to a limit, where the axis still has numbers."""
    button = page.locator("#figure1 .panel button[aria-label='Enlarge']").first
    for _ in range(90):
        button.press("Enter")
    at = [line.get_attribute("x1") for line in page.locator("#figure1 .panel svg").first.locator("line.axis").all()]
    assert 2 <= len(set(at)) == len(at) < 12


def test_what_is_enlarged_can_be_moved_with_the_keyboard(page):
    page.locator("#figure1 .panel .zoom button[aria-label='Enlarge']").first.press("Enter")
    picture = page.locator("#figure1 .panel svg").first
    picture.focus()

    def axes():
        return [round(float(line.get_attribute("x1")), 3) for line in picture.locator("line.axis").all()]

    before = axes()
    page.keyboard.press("Shift+ArrowRight")
    assert axes() != before and picture.evaluate("node => node === document.activeElement")
    page.keyboard.press("Shift+ArrowLeft")
    assert axes() == before


def test_figures_can_be_read_without_a_mouse(page):
    """With the keyboard, and with a finger."""
    page.locator("#figure1 .panel svg").first.focus()
    page.keyboard.press("ArrowRight")
    first = page.text_content("#tip")
    page.keyboard.press("ArrowRight")
    assert page.locator("#tip").is_visible() and page.text_content("#tip") != first
    page.keyboard.press("ArrowLeft")
    assert page.text_content("#tip") == first
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()
    card = page.locator(".card[data-predictor='3-gram'] svg")
    card.focus()
    page.keyboard.press("ArrowRight")
    assert "3-gram" in page.text_content("#tip") and "truth" in page.text_content("#tip")
    assert re.search(r"Next token by 3-gram: \w \d\.\d\d", card.get_attribute("aria-label"))
    page.locator("#automaton svg").focus()
    page.keyboard.press("ArrowRight")
    assert page.text_content("#tip").startswith("state ")
    if page.evaluate("navigator.maxTouchPoints"):
        bar = page.locator("#figure1 rect[data-bar='3-gram'][data-series='ours']").first
        bar.scroll_into_view_if_needed()
        bar.tap()
        assert "3-gram, ours: 0.258" in page.text_content("#tip")


def test_the_automaton_and_the_maps_are_figures_too(page):
    automaton = page.locator("#figure2 svg").first
    box = automaton.get_attribute("viewBox")
    page.locator("#figure2").get_by_label("Enlarge").click()
    assert automaton.get_attribute("viewBox") != box
    page.locator("#figure2").get_by_label("Show all").click()
    assert automaton.get_attribute("viewBox") == box
    for name in ("#figure4", "#figure6"):  # all off, and on again
        buttons, before = page.locator(f"{name} .chips button"), page.locator(f"{name} rect[data-cell]:visible").count()
        assert before > 0 and buttons.count() > 1
        for _ in range(2):
            for i in range(buttons.count()):
                buttons.nth(i).click()
            assert page.locator(f"{name} rect[data-cell]:visible").count() in (0, before)
        assert page.locator(f"{name} rect[data-cell]:visible").count() == before


def test_the_fidelity_table_can_be_searched(page):
    rows = page.locator("#claims tbody tr")
    everything = rows.count()
    page.fill("#search", "3-gram tvd figure")
    assert 0 < rows.count() < everything
    assert any("0.265" in row and "reproduced" in row for row in rows.all_text_contents())
    page.fill("#search", "")
    page.click("#verdicts button:has-text('not run')")
    assert rows.count() > everything


def test_the_table_of_models_can_be_sorted(page):
    first = "#board tbody tr:first-child td"
    assert page.locator(first).first.text_content() == "Bayes filter"
    page.click("#board th:nth-child(2) button")  # by TVD, the other way round
    assert page.evaluate("document.activeElement.textContent") == "TVD"  # the next key press is still for it
    assert page.locator(first).first.text_content() == "uniform"
    assert page.locator("#board tr[data-label='RetNet+NGH(1,2,3)']").count() == 1


def test_nothing_is_wider_than_the_screen_in_light_or_dark(page):
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != paper
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_page_follows_the_systems_dark_mode(browser, page_file):
    context = browser.new_context(color_scheme="dark")
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.goto(page_file.as_uri())
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    context.close()
