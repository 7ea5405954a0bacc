"""Many runs: the paper's grid and protocol, budgeted search, failures, Ray."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from icll import IcllError
from icll.cli import main
from icll.model import ModelConfig
from icll.training import RECIPES, Asha, DataConfig, RunConfig, make_sweep, read_result, run_all, search
from icll.training import train as train_run
from icll.training.search import Workers, _next, _Trial


class Fragile(nn.Module):
    """A mixer whose process is killed the first time it trains, or each time if the file says so."""

    def __init__(self, d_model: int, mark: str = ""):
        super().__init__()
        self.linear, self.mark = nn.Linear(d_model, d_model), mark

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        path = Path(self.mark)
        if self.training and (not path.exists() or path.read_text() == "always"):
            path.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.linear(x)


class Broken(Fragile):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("there is a fault in this mixer")


def tiny(rate: float = 3e-3, epochs: int = 1, model: str = "linear_transformer", **options: str) -> RunConfig:
    recipe = replace(RECIPES["fast"], rate=rate, muon_rate=rate, epochs=epochs, batch_size=20)
    return RunConfig(ModelConfig(model, 8, 1, 1, options=options), DataConfig("regbench", "repo", 20), recipe)


def fragile(mark: Path) -> RunConfig:
    return tiny(model="test_search:Fragile", mark=str(mark))


def test_the_grid_is_the_papers():
    configs = make_sweep("icll-grid", "retnet").first()
    assert len(configs) == 3 * 5 * 3 * 2 * 2 * 2 and len({c.hash for c in configs}) == len(configs)
    assert Counter(c.model.d_model for c in configs) == {64: 120, 128: 120, 256: 120}
    for c in configs:
        assert c.recipe.batch_size == 32 and c.recipe.betas == (0.9, 0.99) and c.recipe.warmup == 25_000
        assert c.recipe.rate * c.recipe.floor == pytest.approx(2.5e-5) and c.recipe.warmup_from == 1e-7
    assert len(make_sweep("icll-grid", "lstm").first()) == 120  # it has no heads to vary
    assert {c.data.task for c in make_sweep("recall-grid", "gla").first()} == {"recall"}


def test_wider_models_follow_only_if_the_widest_is_best():
    sweep = make_sweep("icll-grid", "retnet")
    by_width = {c.model.d_model: c for c in sweep.first()}
    assert sweep.next(by_width[64]) == sweep.next(by_width[128]) == []
    wider = sweep.next(by_width[256])
    assert {c.model.d_model for c in wider} == {512} and len(wider) == 5 * 3 * 2
    assert {(c.recipe.rate, c.recipe.weight_decay) for c in wider} == {(2.5e-4, 0.1)}
    assert {c.model.d_model for c in sweep.next(wider[0])} == {1024}
    assert sweep.next(sweep.next(wider[0])[0]) == []
    recall = make_sweep("recall-grid", "retnet")
    assert recall.next(recall.first()[-1]) == []


def test_unknown_names_are_told():
    with pytest.raises(IcllError, match="did you mean 'icll-grid'"):
        make_sweep("icll-gird", "retnet")
    with pytest.raises(IcllError, match="unknown recipe"):
        make_sweep("icll-grid", "retnet", recipe="quick")
    with pytest.raises(IcllError, match="unknown engine"):
        Workers("slurm")
    with pytest.raises(IcllError, match="eta"):
        Asha(eta=1)


def test_cores_are_divided_among_trials(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert [Workers(jobs=n).threads for n in (1, 2, 3, 8, 100)] == [8, 4, 2, 1, 1]


def test_a_run_pauses_at_an_epoch_and_ends_with_the_same_weights(tmp_path, small_validation):
    config = tiny(epochs=3)
    train_run(config, tmp_path / "whole")
    assert train_run(config, tmp_path / "parts", until=1) == {} and read_result(tmp_path / "parts") is None
    assert train_run(config, tmp_path / "parts", until=1) == {}
    train_run(config, tmp_path / "parts")
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert one == two


def test_asha_promotes_the_best_third(tmp_path):
    asha = Asha(trials=9, first=1, eta=3)
    assert asha.rungs(9) == [1, 3, 9] and asha.rungs(1) == [1] and asha.rungs(10) == [1, 3, 9, 10]
    trials = [_Trial(tiny(rate=1e-3 * (i + 1), epochs=9), tmp_path / str(i)) for i in range(9)]
    for trial in trials[:3]:
        trial.epochs, trial.losses = 1, [float(trials.index(trial))]
    assert _next(trials, trials, asha, False) == (trials[0], 3)  # one of three, before a new one starts
    assert _next(trials, trials[1:], asha, False) == (trials[3], 1)  # then new ones
    for trial in trials:
        trial.epochs, trial.losses = 1, [float(trials.index(trial))]
    assert [_next(trials, [t], asha, True) is not None for t in trials] == [True] * 3 + [False] * 6
    assert _next(trials[:2], trials[:2], asha, False) == (trials[0], 9)  # somebody has to reach the end


def test_failures_are_retried_then_reported_and_others_go_on(tmp_path):
    (tmp_path / "always").write_text("always")
    broken = tiny(model="test_search:Broken")
    configs = [fragile(tmp_path / "once"), fragile(tmp_path / "always"), broken, tiny()]
    with pytest.warns(UserWarning, match="it is tried again"):
        once, always, wrong, fine = run_all(configs, tmp_path / "runs", jobs=2, tries=2)
    assert once.result and fine.result and not once.error and not fine.error
    assert always.result is None and always.error == "its process ended with code -9"
    assert wrong.result is None and wrong.error == "ValueError: there is a fault in this mixer"
    before = (fine.folder / "result.json").stat().st_mtime_ns
    (again,) = run_all([tiny()], tmp_path / "runs")
    assert again.result == fine.result and (fine.folder / "result.json").stat().st_mtime_ns == before


def test_trials_end_with_the_search_that_started_them(tmp_path):
    script = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from pathlib import Path\nfrom icll.training import run_all\nfrom test_search import tiny\n"
        "if __name__ == '__main__': run_all([tiny(epochs=100_000)], Path(sys.argv[1]))\n"
    )
    (tmp_path / "search.py").write_text(script)
    runs = tmp_path / "runs"
    job = subprocess.Popen([sys.executable, str(tmp_path / "search.py"), str(runs), str(Path(__file__).parent)])
    _wait(lambda: list(runs.glob("*/metrics.jsonl")))
    job.terminate()
    job.wait()
    time.sleep(1)
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*")}
    time.sleep(5)
    assert before == {path: path.stat().st_mtime_ns for path in runs.rglob("*")}


def _wait(done: Callable[[], object], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.2)


def test_search_from_the_command_line_chooses_on_validation(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ["--train", "20", "--profile", "repo", "--recipe", "fast", "--layers", "1", "--heads", "1", "--weight-decay", "0.1"]
    grid = ["sweep", "icll-grid", "--model", "linear_transformer", *small, "--d-model", "8", "--wider", "none", "--jobs", "2"]
    axes = ["--epochs", "2", "--rate", "0.000001,0.01", "--asha", "2", "--eta", "2", "--out", "s"]
    main([*grid, *axes, "--json"])
    report = json.loads(capsys.readouterr().out)
    assert json.loads(Path("s/sweep.json").read_text()) == report
    finished = [t for t in report["trials"] if t["status"] == "finished"]
    assert len(report["trials"]) == 2 and [t["run"] for t in finished] == [report["best"]["run"]]
    stopped = [t for t in report["trials"] if t["status"] == "stopped"]
    assert all(t["trained_epochs"] == 1 for t in stopped) and "test" not in report["trials"][0]
    main([*grid, *axes])  # finished: shown again, nothing trained
    out = capsys.readouterr().out
    assert f"best on validation: s/{report['best']['run']}" in out and "its test scores: TVD" in out
    main([*grid, "--dry-run", "--epochs", "1"])
    assert capsys.readouterr().out.startswith("2 trials")
    with pytest.raises(SystemExit):
        main([*grid, "--rate", "fast"])
    assert "write numbers with commas" in capsys.readouterr().err


def test_search_goes_on_where_it_was_stopped(tmp_path, small_validation):
    sweep = replace(make_sweep("icll-grid", "linear_transformer", profile="repo", train=20, recipe="fast"))
    grid = replace(sweep.grid, d_models=(8,), wider=(12,), layers=(1,), heads=(1,), epochs=(1,), rates=(3e-3,), decays=(0.1,))
    sweep = replace(sweep, grid=grid)
    train_run(sweep.first()[0], tmp_path / sweep.first()[0].name)  # what an earlier sitting had done
    found = search(sweep, tmp_path, jobs=1)
    assert sorted(o.config.model.d_model for o in found) == [8, 12] and all(o.result for o in found)
    assert found[0].loss == min(o.loss for o in found)


@pytest.mark.slow
def test_ray_tune_on_two_nodes_loses_nothing_when_a_worker_is_killed(tmp_path):
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        here = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}}  # where workers find this module
        ray.init(address=cluster.address, log_to_driver=False, runtime_env=here)
        assert len([node for node in ray.nodes() if node["Alive"]]) == 2
        seen: list[tuple[int, int]] = []
        configs = [fragile(tmp_path / "once"), tiny()]
        found = run_all(configs, tmp_path / "runs", engine="ray", progress=lambda *n: seen.append(n))
        assert (tmp_path / "once").exists() and all(o.result and not o.error for o in found)
        assert seen[0] == (0, 2) and seen[-1] == (2, 2)
        halves = [tiny(rate=1e-6, epochs=2), tiny(epochs=2)]
        found = run_all([tiny(), *halves], tmp_path / "runs", engine="ray", asha=Asha(2, 1, 2))
        assert found[0].result and any(o.result for o in found[1:]) and all(o.rows and not o.error for o in found)
    finally:
        ray.shutdown()
        cluster.shutdown()
