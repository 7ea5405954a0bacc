"""A figure as data: what to draw, for paper (icll.report.charts) and for the page alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Role = Literal["ours", "paper", "learner"]


@dataclass(frozen=True)
class Series:
    """A line, or the bars of one colour. The paper's are drawn hollow and dashed, learners as levels where x is empty."""

    name: str
    y: tuple[float | None, ...]
    x: tuple[float, ...] = ()  # of a line; empty: one value, a level across the panel
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    role: Role = "ours"
    notes: tuple[str, ...] = ()  # where each point comes from, shown beside it


@dataclass(frozen=True)
class Lines:
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_x: bool = False
    kind: str = "lines"


@dataclass(frozen=True)
class Bars:
    """For each category, a bar of each series."""

    title: str
    x_label: str
    categories: tuple[str, ...]
    series: tuple[Series, ...]
    kind: str = "bars"


@dataclass(frozen=True)
class Heat:
    """A matrix of numbers with names on both sides."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    row_label: str = ""
    column_label: str = ""
    show_values: bool = True
    kind: str = "heat"


@dataclass(frozen=True)
class Language:
    """A problem and the automaton it comes from."""

    title: str
    table: tuple[tuple[int, ...], ...]  # transitions [states, symbols], -1 where there is none
    text: str
    kind: str = "language"


Panel = Lines | Bars | Heat | Language


@dataclass(frozen=True)
class Chart:
    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    notes: tuple[str, ...] = field(default_factory=tuple)  # what the numbers say, line by line

    @property
    def empty(self) -> bool:
        return not self.panels
