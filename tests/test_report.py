from __future__ import annotations

import numpy as np
import pytest

from icll import IcllError, Uniform, evaluate
from icll.languages import Automaton, sample_automata
from icll.learners import NGram
from icll.report import draw_automaton, draw_curves, save_figure
from icll.report.automaton import layout
from icll.tasks import associative_recall


def test_a_picture_shows_every_state_and_every_symbol():
    for automaton in [*sample_automata(10, "paper"), Automaton.from_table([{"a": 0, "b": 1, "c": 1}, {"d": 1}])]:
        texts = [text.get_text() for text in draw_automaton(automaton).axes[0].texts]
        assert [t for t in texts if t.isdigit()] == [str(s) for s in range(automaton.n_states)]
        edges = {(s, int(t)) for s, row in enumerate(automaton.transitions) for t in row[row >= 0]}
        labels = [t for t in texts if not t.isdigit() and t != "start"]
        assert len(labels) == len(edges)
        assert sorted("".join(labels).replace(",", "")) == sorted(
            "abcdefghijklmnopqr"[a] for row in automaton.transitions for a in np.flatnonzero(row >= 0)
        )


def test_states_are_drawn_apart():
    for automaton in sample_automata(40, "paper", seed=1):
        places = layout(automaton.transitions)
        gaps = np.linalg.norm(places[:, None] - places[None], axis=-1) + 9 * np.eye(len(places))
        assert gaps.min() > 0.5  # circles have a radius of 0.22


@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_the_same_figure_gives_the_same_bytes(kind, tmp_path):
    automaton = sample_automata(1)[0]
    for name in ("a", "b"):
        save_figure(draw_automaton(automaton, highlight=0), tmp_path / f"{name}.{kind}")
    assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


def test_recall_can_be_drawn(tmp_path):
    save_figure(draw_automaton(associative_recall(1, test=1, valid=1).test.automata[0]), tmp_path / "r.svg")


def test_curves(repo, tmp_path):
    scores = [evaluate(p, repo.test[:20]) for p in (NGram(2), Uniform())]
    figure = draw_curves(scores)
    assert [text.get_text() for text in figure.axes[1].get_legend().get_texts()] == ["2-gram", "Uniform"]
    save_figure(figure, tmp_path / "curves.png")


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(IcllError, match="must end with"):
        save_figure(draw_automaton(Automaton.from_table([{"a": 0}])), tmp_path / "a.gif")
