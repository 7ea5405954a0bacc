"""Writing in an unseen language, and asking the language about it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from icll import IcllError, Oracle, build_model, encode
from icll.cli import main
from icll.generation import _write_together, accepted, score_writing, write_strings
from icll.languages import Automaton
from icll.learners import BayesFilter, NGram
from icll.tasks import regbench

SETTINGS = ["--profile", "repo", "--train", "40", "--epochs", "1", "--d-model", "16"]


def test_accepted_counts_until_the_first_illegal_symbol():
    automaton = Automaton.from_table("   a  b\n0  1  .\n1  .  0\n")  # (ab)*
    assert accepted(automaton, list(encode("abab"))) == 4
    assert accepted(automaton, list(encode("abba"))) == 2
    assert accepted(automaton, list(encode("ba"))) == 0


def test_the_language_itself_writes_what_it_accepts():
    problems = regbench(1, "repo").test[:5]

    class Knows:  # the oracle needs a prefix it knows; beyond it, only the automaton can tell
        def __init__(self, automaton: Automaton):
            self.automaton = automaton

        def predict(self, tokens):
            import torch

            text = tokens[0].numpy()
            last = text[np.flatnonzero(text == 19)[-1] + 1 :]
            state = 0
            for token in last:
                state = self.automaton.transitions[state, token - 1]
            probs = torch.zeros(1, len(text), 20)
            probs[0, -1, 1:19] = torch.from_numpy(self.automaton.next_probs(state))
            return probs

    for i in range(5):
        problem = problems[i : i + 1]
        scores = score_writing(Knows(problem.automata[0]), problem, "truth", strings=3, length=10)
        assert scores.strings[0] == scores.symbols[0] == 1.0


def test_learners_write_better_than_chance():
    problems = regbench(1, "repo").test[:4]
    learned = score_writing(NGram(3), problems, "3-gram", strings=4, length=5)
    fresh = score_writing(build_model("retnet", d_model=8, seed=0), problems, "fresh", strings=4, length=5)
    assert learned.symbols[0] > 0.4 > fresh.symbols[0]
    assert learned.strings[1] <= learned.strings[0] <= learned.strings[2]


@pytest.mark.parametrize("predictor", [NGram(2), build_model("gla", d_model=8, ngram_heads=(1,), seed=0)])
def test_writing(predictor):
    prompt = encode("abcab|abc")
    one = list(write_strings(predictor, prompt, [5, 3], seed=1))
    assert one == list(write_strings(predictor, prompt, [5, 3], seed=1)) and len(one) == 10
    assert one[0] == one[6] == 19 and all(1 <= t <= 18 for t in one[1:6] + one[7:])
    greedy = [list(write_strings(predictor, prompt, [6], temperature=0, seed=s)) for s in (0, 1)]
    assert greedy[0] == greedy[1]
    with pytest.raises(IcllError, match="temperature"):
        list(write_strings(predictor, prompt, [5], temperature=-1))


def test_a_model_writes_what_its_whole_text_form_would():
    model = build_model("mamba", d_model=16, seed=0)

    class Whole:
        predict = staticmethod(model.predict)

    prompt = encode("abcab|abc|acb")
    assert list(write_strings(model, prompt, [8, 8], seed=2)) == list(write_strings(Whole(), prompt, [8, 8], seed=2))


@pytest.mark.parametrize("name", ["transformer", "mamba"])
def test_texts_written_together_are_those_written_alone(name):
    problems = regbench(1, "repo").test[:5]
    model = build_model(name, d_model=16, ngram_heads=(1, 2), seed=0)
    prompts = [problems.flat[problems.offsets[i] : problems.offsets[i + 1]] for i in range(5)]
    together = _write_together(model, prompts, strings=3, length=6, temperature=1.0, seeds=[4, 5, 6, 7, 8])
    alone = [list(write_strings(model, prompt, [6] * 3, seed=4 + i)) for i, prompt in enumerate(prompts)]
    assert together == alone


def test_the_bayes_filter_goes_on_from_where_it_is():
    problems = regbench(1, "repo").test[:1].cut(60)
    tokens = [int(t) for t in problems.flat]
    whole = BayesFilter(50, profile="repo", seed=3).predict(problems.tokens)[0].numpy()
    read = BayesFilter(50, profile="repo", seed=3).reader(len(tokens))
    np.testing.assert_array_equal(read(tokens[:40]), whole[39])
    for t in range(40, 60):
        np.testing.assert_array_equal(read([tokens[t]]), whole[t])
    scores = score_writing(BayesFilter(50, profile="repo"), problems, "bayes", strings=2, length=5)
    assert scores.symbols[0] > 0.4


def test_from_the_command_line(tmp_path, capsys, monkeypatch, small_validation):
    monkeypatch.chdir(tmp_path)
    main(["train", "gla", *SETTINGS, "--out", "run"])
    capsys.readouterr()
    main(["generate", "run", "--prompt", "abcab|abab", "--strings", "3", "--length", "7"])
    lines = capsys.readouterr().out.split()
    assert [len(line) for line in lines] == [7, 7, 7]
    main(["generate", "run", "--prompt", "abcab|abab", "--strings", "3", "--length", "7", "--json"])
    assert json.loads(capsys.readouterr().out) == {"prompt": "abcab|abab", "strings": lines}
    main(["generate", "run", "ngram:3", "--score", "--profile", "repo", "--problems", "2", "--length", "5", "--json"])
    scores = json.loads(capsys.readouterr().out)
    assert [s["name"] for s in scores] == ["run", "ngram:3"] and scores[1]["symbols"]["mean"] > 0.2
    for arguments, message in (
        (["run"], "give strings of the language"),
        (["run", "ngram:3", "--prompt", "ab"], "is for --score"),
        (["run", "--prompt", "ab?"], "?"),
        (["nowhere", "--prompt", "ab"], "is not a run"),
        (["run", "--prompt", "ab", "--seed", "-1"], "seed must be at least 0"),
        (["run", "--score", "--length", "0"], "the length of a string must be at least 1"),
        (["run", "--score", "--temperature", "-1"], "temperature must be 0 or more"),
    ):
        with pytest.raises(SystemExit):
            main(["generate", *arguments])
        text = capsys.readouterr().err
        assert message in text and text.count("\n") == 1


def test_oracle_cannot_go_beyond_its_problems():
    problems = regbench(1, "repo").test[:1]
    with pytest.raises(IcllError, match="does not know this problem"):
        score_writing(Oracle(problems), problems, "oracle", strings=1, length=3)
