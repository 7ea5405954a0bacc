"""Scores in pieces, kept and taken up again; killed workers."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_model

from icll import IcllError, evaluate, scoring
from icll.engine import Kept, run_pieces
from icll.languages import Automaton
from icll.learners import NGram
from icll.model import ModelConfig, model_of
from icll.scoring import read_scores, score, write_scores
from icll.tasks import Problems
from icll.training import DataConfig, RunConfig
from icll.training.runs import prepare


def square(x: int) -> int:
    return x * x


def die_once(job: tuple[str, int]) -> int:
    """Piece 3 kills its worker the first time it is tried."""
    folder, x = job
    mark = Path(folder) / "died"
    if x == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return x * x


def die_always(x: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return x


def fail(x: int) -> int:
    raise IcllError(f"piece {x} is bad")


def test_pieces_come_back_in_order():
    assert run_pieces(square, range(7), jobs=2) == [x * x for x in range(7)]
    assert run_pieces(square, range(7), jobs=1) == [x * x for x in range(7)]


def test_a_killed_worker_costs_a_retry_not_the_result(tmp_path):
    assert run_pieces(die_once, [(str(tmp_path), x) for x in range(6)], jobs=2) == [x * x for x in range(6)]
    assert (tmp_path / "died").exists()


def stop_once(job: tuple[str, int]) -> int:
    """Piece 3 fails the first time it is tried, as if the work were stopped there; each piece says how often it was done."""
    folder, x = job
    (Path(folder) / f"{x}.tries").open("a").write("x")
    if x == 3 and len((Path(folder) / "3.tries").read_text()) == 1:
        raise KeyboardInterrupt
    return x * x


def read_number(path: Path) -> int | None:
    return int(path.read_text()) if path.exists() else None


def write_number(number: int, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(str(number))


@pytest.mark.parametrize("jobs", (1, 2))
def test_work_that_was_stopped_goes_on(tmp_path, jobs):
    work = partial(run_pieces, stop_once, [(str(tmp_path), x) for x in range(6)], jobs=jobs)
    kept, told = Kept(tmp_path / "kept", read_number, write_number), []
    with pytest.raises(KeyboardInterrupt):
        work(kept=kept)
    finished = [path.stem for path in kept.folder.iterdir()]
    done = len(finished)
    assert 0 < done < 6
    assert work(kept=kept, progress=lambda n, total: told.append(n)) == [x * x for x in range(6)]
    assert told == list(range(done + 1, 7))  # counts what was done before
    assert {(tmp_path / f"{number}.tries").read_text() for number in finished} == {"x"}


def test_what_always_dies_or_fails_is_reported():
    with pytest.raises(IcllError, match="killed 3 times in a row"):
        run_pieces(die_always, range(2), jobs=2)
    with pytest.raises(IcllError, match="is bad"):
        run_pieces(fail, range(2), jobs=2)
    with pytest.raises(IcllError, match="unknown engine"):
        run_pieces(square, range(2), engine="dask")
    with pytest.raises(IcllError, match="--address is for --engine ray"):
        run_pieces(square, range(2), address="auto")


@pytest.mark.slow
def test_ray_gives_the_same_results_and_survives_a_killed_worker(tmp_path):
    ray = pytest.importorskip("ray")
    here = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}}  # where workers find this module
    # "local": a cluster that another test has up at the same time is not ours
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=here)
    try:
        jobs = [(str(tmp_path), x) for x in range(6)]
        assert run_pieces(die_once, jobs, engine="ray") == [x * x for x in range(6)]
        assert (tmp_path / "died").exists()
        assert run_pieces(partial(pow, 2), [3, 4], engine="ray") == [8, 16]  # as `icll score` calls it
    finally:
        ray.shutdown()


def test_pieces_make_the_whole(repo, monkeypatch):
    monkeypatch.setattr(scoring, "QUICK", -1.0)
    some = repo.test[:9]
    whole, pieces = evaluate(NGram(3), some), score("ngram:3", some, jobs=2)
    assert pieces.tvd == pytest.approx(whole.tvd, abs=1e-7) and pieces.ci["tvd"] == pytest.approx(whole.ci["tvd"], abs=1e-6)
    assert np.allclose(pieces.by_strings["kl"].mean, whole.by_strings["kl"].mean, atol=1e-6, equal_nan=True)


def test_problems_of_one_token_are_no_trouble(monkeypatch):
    a = Automaton.from_table([{"a": 1}, {"b": 0, "c": 1}])
    mixed = Problems.from_strings([["a"], ["abab", "acc"], ["a"], ["ab"]], [a] * 4)
    whole = evaluate(NGram(3), mixed)
    assert score("ngram:3", mixed).tvd == whole.tvd and score("oracle", mixed).tvd == 0
    monkeypatch.setattr(scoring, "QUICK", -1.0)
    pieces = score("ngram:3", mixed, jobs=2)
    assert pieces.tvd == pytest.approx(whole.tvd, abs=1e-7) and pieces.n_problems == 4


def test_scores_of_a_run_depend_on_its_settings(repo, tmp_path):
    for name, repeat in (("a", "drop"), ("b", "keep")):
        config = RunConfig(ModelConfig("retnet", 8, 1, 1, ngram_heads=(1,), ngram_repeat=repeat), DataConfig(profile="repo"))
        prepare(config, tmp_path / name)
        save_model(model_of(config.model, 0), tmp_path / name / "model.safetensors")
    one, two = (score(str(tmp_path / name), repo.test[:3], cache=tmp_path / "cache") for name in ("a", "b"))
    assert one.tvd != two.tvd


def test_scores_are_kept_and_found_again(repo, tmp_path, monkeypatch):
    some = repo.test[:5]
    first = score("ngram:3", some, cache=tmp_path)
    monkeypatch.setattr(scoring, "evaluate", None)  # a second evaluation would fail
    again = score("ngram:3", some, cache=tmp_path)
    assert (again.tvd, again.seconds, again.name) == (first.tvd, first.seconds, first.name)
    for other in (lambda: score("ngram:2", some, cache=tmp_path), lambda: score("ngram:3", repo.test[:6], cache=tmp_path)):
        with pytest.raises(TypeError):
            other()
    monkeypatch.setattr(scoring, "_code_version", lambda models: "another")
    with pytest.raises(TypeError):
        score("ngram:3", some, cache=tmp_path)


@pytest.mark.parametrize("jobs", (1, 2))
def test_slow_scores_go_on_where_they_were_stopped(repo, tmp_path, monkeypatch, jobs):
    monkeypatch.setattr(scoring, "QUICK", -1.0)
    some, asked = repo.test[:9], []

    def stop(done: int, total: int) -> None:
        asked.append(done)
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score("ngram:3", some, jobs=jobs, cache=tmp_path, progress=stop)
    (pieces,) = tmp_path.iterdir()
    assert len(list(pieces.iterdir())) == 4
    asked.clear()
    again = score("ngram:3", some, jobs=jobs, cache=tmp_path, progress=lambda done, total: asked.append(done))
    assert asked == [5, 6, 7, 8, 9]
    assert again.tvd == pytest.approx(evaluate(NGram(3), some).tvd, abs=1e-7)
    assert [path.suffix for path in tmp_path.iterdir()] == [".safetensors"]  # the whole, and no pieces


def test_a_damaged_cache_is_not_trusted(repo, tmp_path):
    path = tmp_path / "s.safetensors"
    scores = evaluate(NGram(2), repo.test[:3])
    write_scores(scores, path)
    assert read_scores(path).tvd == scores.tvd
    path.write_bytes(path.read_bytes()[:100])
    assert read_scores(path) is None and read_scores(tmp_path / "none") is None
