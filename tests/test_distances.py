"""Distances between predictors: the matrix is what `compare` says of each pair, and each predictor is asked once."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import torch

from icll import IcllError, Oracle, compare
from icll.analysis import distances, pairwise, predicted
from icll.cli import main
from icll.learners import NGram
from icll.scoring import open_predictor


def test_the_matrix_has_the_distance_of_every_pair(repo):
    problems = repo.test[:30]
    found = distances({"2": "ngram:2", "3": "ngram:3", "truth": "oracle"}, problems, first=60)
    assert found.mean[0, 1] == pytest.approx(compare(NGram(2), NGram(3), problems, first=60), abs=1e-6)
    assert found.mean[1, 2] == pytest.approx(compare(NGram(3), Oracle(problems), problems, first=60), abs=1e-6)
    assert np.array_equal(found.mean, found.mean.T) and not found.mean.diagonal().any()
    inside = ~np.eye(3, dtype=bool)
    assert (found.low[inside] < found.mean[inside]).all() and (found.mean[inside] < found.high[inside]).all()
    assert found.nearest("2")[0][0] == "3" and found.tokens == int(problems.scored[:, :60].sum())


def test_each_predictor_is_asked_once_for_each_problem(repo):
    class Counting(NGram):
        asked = 0

        def predict(self, tokens):
            self.asked += len(tokens)
            assert tokens.shape[1] <= 50  # no more than the first tokens
            return super().predict(tokens)

    problems, one = repo.test[:20], Counting(1)
    rows = {"a": predicted(one, problems, 50), "b": predicted(NGram(2), problems, 50), "c": predicted(NGram(3), problems, 50)}
    pairwise(rows, problems, 50)
    assert one.asked == 20


@pytest.mark.slow
def test_pieces_over_processes_give_the_same(repo, monkeypatch):
    problems = repo.test[:6]
    specs = {"bw": "baum-welch", "3": "ngram:3"}
    monkeypatch.setattr("icll.analysis.distance.QUICK", 1e9)
    alone = distances(specs, problems, first=12)
    monkeypatch.setattr("icll.analysis.distance.QUICK", 0.0)
    spread = distances(specs, problems, first=12, jobs=2)
    np.testing.assert_allclose(alone.mean, spread.mean, atol=1e-6)


def test_slow_ones_go_on_where_they_were_stopped(repo, tmp_path, monkeypatch):
    problems, specs = repo.test[:10], {"2": "ngram:2", "3": "ngram:3"}
    whole = distances(specs, problems, first=12)
    monkeypatch.setattr("icll.analysis.distance.QUICK", 0.0)

    def stop(done: int, total: int) -> None:
        if done > 100:  # the second predictor has a piece
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distances(specs, problems, first=12, jobs=1, cache=tmp_path, progress=stop)
    assert sorted(len(list(folder.iterdir())) for folder in tmp_path.iterdir()) == [1, 3]
    asked = []
    monkeypatch.setattr("icll.analysis.distance._predict_piece", partial(_noted, asked))
    again = distances(specs, problems, first=12, jobs=1, cache=tmp_path)
    assert asked == ["ngram:3"] * 2 and not list(tmp_path.iterdir())
    np.testing.assert_allclose(again.mean, whole.mean, atol=1e-6)


def _noted(asked, spec, first, problems):
    asked.append(spec)
    return predicted(open_predictor(spec, problems), problems, first)


def test_the_papers_distances_of_learners(repo):
    """2-gram to 3-gram 0.12, to the truth 0.41 and 0.38 in Figure 6; ours on 150 problems within 0.03."""
    found = distances({"2": "ngram:2", "3": "ngram:3", "truth": "oracle"}, repo.test[:150])
    for (i, j), value in {(0, 1): 0.12, (0, 2): 0.41, (1, 2): 0.38}.items():
        assert abs(found.mean[i, j] - value) < 0.03


def test_compare_from_the_command_line(tmp_path, capsys):
    main(
        [
            "compare",
            "two=ngram:2",
            "ngram:3",
            "oracle",
            "--profile",
            "repo",
            "--problems",
            "20",
            "--picture",
            str(tmp_path / "h.png"),
        ]
    )
    out = capsys.readouterr().out.splitlines()
    assert out[1].split() == ["two", "ngram:3", "oracle"] and out[2].split()[:2] == ["two", "0.000"]
    assert (tmp_path / "h.png").read_bytes()[:4] == b"\x89PNG"
    main(["compare", "ngram:2", "ngram:3", "--profile", "repo", "--problems", "20", "--json", "--first", "30"])
    found = json.loads(capsys.readouterr().out)
    assert found["first"] == 30 and found["mean"][0][1] == found["mean"][1][0] > 0


@pytest.mark.parametrize(("arguments", "told"), [
    (["ngram:3"], "name at least two"),
    (["ngram:3", "ngram:3"], "two predictors are called ngram:3"),
    (["ngram:3", "nothing"], "unknown predictor 'nothing'"),
    (["ngram:2", "ngram:3", "--first", "0"], "first must be at least 1"),
    (["ngram:2", "ngram:3", "--problems", "9999"], "--problems must be 1..500"),
])  # fmt: skip
def test_bad_input_is_one_clear_line(capsys, arguments, told):
    with pytest.raises(SystemExit) as stop:
        main(["compare", *arguments])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and told in error and error.count("\n") == 1


def test_nothing_to_score_is_an_error(repo):
    with pytest.raises(IcllError, match="no token of these problems is scored"):
        one = repo.test[:1].cut(1)
        pairwise({"a": torch.zeros(0, 20), "b": torch.zeros(0, 20)}, one)
