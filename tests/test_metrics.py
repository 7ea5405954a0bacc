from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from icll import metrics
from icll.metrics import METRICS, Scores, token_metrics


def test_textbook_values():
    truth = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    probs = torch.tensor([[0.2, 0.5, 0.3], [0.0, 1.0, 0.0]], dtype=torch.float64)
    assert metrics.tvd(probs, truth).tolist() == pytest.approx([0.3, 1.0])
    assert metrics.accuracy(probs, truth).tolist() == [1.0, 0.0]
    assert metrics.entropy(truth).tolist() == pytest.approx([math.log(2), 0.0])
    ce = -(0.5 * math.log(0.2) + 0.5 * math.log(0.5))
    assert metrics.cross_entropy(probs, truth).tolist() == pytest.approx([ce, -math.log(metrics.FLOOR)])
    assert metrics.kl(probs, truth)[0].item() == pytest.approx(ce - math.log(2))
    assert metrics.log_loss(probs, torch.tensor([2, 1])).tolist() == pytest.approx([-math.log(0.3), 0.0])


def test_the_truth_scores_perfectly():
    truth = torch.softmax(torch.randn(50, 20, dtype=torch.float64), -1)
    values = dict(zip(METRICS, token_metrics(truth, truth, truth.argmax(-1)).T, strict=True))
    assert values["tvd"].abs().max() == 0 and values["kl"].abs().max() < 1e-12 and values["ruled_out"].max() == 0
    assert torch.allclose(values["cross_entropy"], metrics.entropy(truth))


def make(values: np.ndarray, problem: np.ndarray, position: np.ndarray, strings: np.ndarray) -> Scores:
    return Scores("test", int(problem.max()) + 1, np.repeat(values[:, None], len(METRICS), 1), problem, position, strings)


def test_means_are_pooled_over_tokens_not_over_problems():
    scores = make(np.array([1.0, 0, 0, 0]), np.array([0, 1, 1, 1]), np.array([0, 0, 1, 2]), np.array([0, 0, 0, 1]))
    assert scores.tvd == 0.25
    curve = scores.by_position["tvd"]
    assert curve.mean.tolist() == [0.5, 0.0, 0.0] and curve.tokens.tolist() == [2, 1, 1]
    assert scores.by_strings["tvd"].mean.tolist() == [1 / 3, 0.0]
    assert np.asarray(curve).tolist() == [0.5, 0.0, 0.0] and len(curve) == 3


def test_positions_that_never_occur_are_nan():
    scores = make(np.array([1.0, 0.0]), np.array([0, 1]), np.array([0, 2]), np.array([0, 0]))
    mean = scores.by_position["accuracy"].mean
    assert mean[0] == 1.0 and np.isnan(mean[1]) and mean[2] == 0.0


def test_interval_has_the_width_theory_gives_it():
    """400 problems of 10 equal tokens each: the error is that of 400 independent values, not of 4,000."""
    rng = np.random.default_rng(1)
    values = np.repeat(rng.normal(size=400), 10)
    problem = np.repeat(np.arange(400), 10)
    scores = make(values, problem, np.tile(np.arange(10), 400), np.zeros(4000, int))
    low, high = scores.ci["tvd"]
    assert low < scores.tvd < high
    assert (high - low) / (2 * 1.96) == pytest.approx(values.std() / math.sqrt(400), rel=0.1)
    curve = scores.by_position["tvd"]
    assert curve.high[3] - curve.low[3] == pytest.approx(high - low, rel=0.05)


def test_interval_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(200):
        low, high = make(rng.exponential(size=80), np.arange(80), np.zeros(80, int), np.zeros(80, int)).ci["tvd"]
        hits += low < 1.0 < high
    assert 170 <= hits <= 199


def test_one_problem_has_a_mean_but_no_interval():
    scores = make(np.array([0.25, 0.5]), np.array([0, 0]), np.array([0, 1]), np.array([0, 0]))
    assert scores.tvd == 0.375 and np.isnan(scores.ci["tvd"]).all() and np.isnan(scores.by_position["tvd"].low).all()


def test_one_clear_line_and_json():
    scores = make(np.array([0.25, 0.5]), np.array([0, 1]), np.array([0, 0]), np.array([0, 0]))
    line = str(scores)
    assert "\n" not in line and "TVD 0.375" in line and "2 problems" in line
    assert scores.as_dict()["accuracy"]["mean"] == 0.375
    with pytest.raises(AttributeError):
        _ = scores.f1
