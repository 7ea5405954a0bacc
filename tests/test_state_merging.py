from __future__ import annotations

import pytest
import torch

import icll
from icll import IcllError, evaluate
from icll.learners import NGram, StateMerging
from icll.tasks import regbench


def rows(text: str) -> torch.Tensor:
    return StateMerging().predict(torch.from_numpy(icll.encode(text))[None])[0]


def test_it_learns_from_whole_strings():
    text = "|".join(["abcabcabc"] * 8) + "|abcab"
    probs = rows(text)
    assert probs[-1, 3] > 0.9 and probs[-2, 2] > 0.9  # c after ab, b after a
    assert probs[text.rindex("|"), 1] > 0.8  # strings start with a


def test_a_string_that_leaves_the_chain_is_picked_up_again():
    probs = rows("|".join(["abcabcabc"] * 8) + "|ca")  # no string started with c
    assert probs[-1, 2] > 0.8  # but b follows a
    probs = rows("ab|ab|q")
    assert torch.allclose(probs[-1, [1, 2, 17]], torch.full((3,), 1 / 3, dtype=torch.float64))


def test_it_beats_a_unigram_model():
    problems = regbench(1, "repo").test[:15]
    assert evaluate(StateMerging(), problems).tvd < 0.75 * evaluate(NGram(1), problems).tvd


@pytest.mark.parametrize("text", ["a", "|||", "a|a|a", "|a", "aaaa|"])
def test_odd_problems(text):
    assert torch.allclose(rows(text).sum(-1), torch.ones(len(text), dtype=torch.float64))


def test_bad_options_are_refused():
    for eps in (0, 2, "auto"):
        with pytest.raises(IcllError, match="eps"):
            StateMerging(eps)
