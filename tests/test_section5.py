"""The script that makes section 5's tables from run folders."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from icll.analysis import Distances
from icll.model import ModelConfig
from icll.training import DataConfig, Recipe, RunConfig, train

SCRIPT = Path(__file__).parent.parent / "examples" / "section5.py"


def test_statements_follow_the_numbers():
    statements = runpy.run_path(str(SCRIPT))["distance_statements"]

    def judged(**to_transformer: float) -> list[bool]:
        names = ["TF", *to_transformer]
        mean = np.zeros((len(names), len(names)))
        mean[0, 1:] = mean[1:, 0] = list(to_transformer.values())
        return [holds for _, holds, _ in statements(Distances(names, mean, mean, mean, 1))]

    published = {"LNWr": 0.16, "3gram": 0.21, "2gram": 0.25, "BW": 0.31, "truth": 0.36}
    assert judged(**published) == [True, True, True]
    assert judged(**{**published, "LNWr": 0.3}) == [False, True, True]
    assert judged(**{**published, "2gram": 0.2}) == [True, False, True]
    assert judged(**{**published, "truth": 0.3}) == [True, True, False]
    assert judged(truth=0.3) == []


@pytest.mark.usefixtures("small_validation")
def test_tables_from_tiny_runs(tmp_path, monkeypatch, capsys):
    runs = []
    for name, model in (("TF", "transformer"), ("LSTM", "lstm"), ("LNWr", "lnw_r")):
        config = ModelConfig(model, d_model=8, n_layers=1, n_heads=1, options={"width": 8} if name == "LNWr" else {})
        train(RunConfig(config, DataConfig("regbench", "repo", 24), Recipe("t", epochs=1, batch_size=8)), tmp_path / name)
        runs.append(f"{name}={tmp_path / name}")
    paper = tmp_path / "paper.json"
    paper.write_text(json.dumps({"pairwise_tvd_first100": {"TF-3gram": [0.21, 0.24]}}))
    options = ["--out", str(tmp_path / "out"), "--paper", str(paper), "--problems", "8", "--epochs", "1"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *runs, "--learners", "3gram,truth", *options])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    text = (tmp_path / "out" / "section5.md").read_text()
    assert "(0.21)" in text and "| state |" in text and "LNWr) is nearest to the large Transformer" in text
    plain = json.loads((tmp_path / "out" / "section5.json").read_text())
    assert set(plain["probes"]) == {"TF", "LSTM", "LNWr"} and set(plain["heads"]) == {"TF"}
    assert {p.name for p in (tmp_path / "out").glob("*.png")} == {"distances.png", "probes.png", "heads-TF.png"}
