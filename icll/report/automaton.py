"""An automaton as a picture: states in circles, edges with the symbols that take them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch

from ..languages.automaton import Automaton
from ..tokens import symbol_names
from .style import COLOURS, INK

RADIUS = 0.22  # of a state's circle
LOOP_BEND = -1.6


@dataclass(frozen=True)
class Arrow:
    """A curved arrow from state to state, from rim to rim, with the symbols that take it."""

    source: int
    target: int
    start: np.ndarray
    end: np.ndarray
    bend: float  # as of matplotlib's arc3
    symbols: str
    label: np.ndarray  # where the symbols stand

    @property
    def control(self) -> np.ndarray:
        """The middle point of the quadratic curve from start to end."""
        along = self.end - self.start
        return (self.start + self.end) / 2 + self.bend * np.array([along[1], -along[0]])


@dataclass(frozen=True)
class Drawing:
    """Where everything stands in the picture of an automaton; y points up."""

    places: np.ndarray  # [states, 2]
    arrows: tuple[Arrow, ...]
    outward: np.ndarray  # unit vector from the start state to where its mark stands

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        return self.places.min(axis=0) - 0.9, self.places.max(axis=0) + 0.9


def plan_automaton(automaton: Automaton) -> Drawing:
    places = layout(automaton.transitions)
    symbols = symbol_names(automaton.n_symbols)
    labels: dict[tuple[int, int], list[str]] = defaultdict(list)
    for s, a in zip(*np.nonzero(automaton.transitions >= 0), strict=True):
        labels[int(s), int(automaton.transitions[s, a])].append(symbols[a])
    taken = list(places)  # labels keep away from these points; the start and the loops keep away from edges too
    edges = [(1 - at) * places[s] + at * places[t] for s, t in labels if s != t for at in (0.25, 0.5, 0.75)]
    outward = _free_direction(places[0], taken + edges, reach=0.8)
    taken += [places[0] + outward * 0.5, places[0] + outward * 0.9]
    arrows = []
    for s in sorted({s for s, t in labels if s == t}):
        arrows.append(_loop(s, places[s], labels[s, s], taken + edges))
        taken.append(arrows[-1].label)
    for (s, t), shown in labels.items():
        if s != t:
            others = np.delete(places, [s, t], axis=0)
            bends = (0.22, 0.32, 0.42) if (t, s) in labels else (0.08, -0.08, 0.2, -0.2, 0.32, -0.32, 0.45, -0.45)
            bend = next((b for b in bends if _clearance(places[s], places[t], b, others) > 1.4 * RADIUS), bends[0])
            arrows.append(_edge(s, t, places, shown, bend, taken))
            taken.append(arrows[-1].label)
    return Drawing(places, tuple(arrows), outward)


def draw_automaton(automaton: Automaton, axes: Axes | None = None, highlight: int | None = None) -> Figure:
    """Draw into `axes` or a new figure. `highlight` is a state to light up."""
    if axes is None:
        side = 2.4 + 1.3 * np.sqrt(automaton.n_states)
        axes = Figure(figsize=(side, side)).add_subplot()
    figure = axes.figure
    assert isinstance(figure, Figure)
    drawing = plan_automaton(automaton)
    axes.set_aspect("equal")
    axes.axis("off")
    _draw_start(axes, drawing.places[0], drawing.outward)
    for arrow in drawing.arrows:
        axes.add_patch(
            FancyArrowPatch(
                arrow.start, arrow.end, connectionstyle=f"arc3,rad={arrow.bend}", arrowstyle="-|>", mutation_scale=12,
                color="#666666", lw=1.1, shrinkA=0, shrinkB=0, zorder=1,
            )
        )  # fmt: skip
        box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.9}
        font = {"fontsize": 10, "color": COLOURS[0], "family": "monospace"}
        axes.text(*arrow.label, arrow.symbols, ha="center", va="center", bbox=box, zorder=2, **font)
    for s, place in enumerate(drawing.places):
        lit = s == highlight
        axes.add_patch(Circle(place, RADIUS, facecolor=COLOURS[4] if lit else "white", edgecolor=INK, lw=1.4, zorder=3))
        axes.text(*place, str(s), ha="center", va="center", fontsize=11, color=INK, zorder=4)
    low, high = drawing.bounds
    axes.set_xlim(low[0], high[0])
    axes.set_ylim(low[1], high[1])
    return figure


def _curve(start: np.ndarray, end: np.ndarray, bend: float, at: np.ndarray) -> np.ndarray:
    """Points [n, 2] of the quadratic curve that matplotlib's arc3 draws, at the fractions `at` [n] of the way."""
    along = end - start
    control = (start + end) / 2 + bend * np.array([along[1], -along[0]])
    at = at[:, None]
    return (1 - at) ** 2 * start + 2 * at * (1 - at) * control + at**2 * end


def _clearance(start: np.ndarray, end: np.ndarray, bend: float, others: np.ndarray) -> float:
    """How near an edge comes to a state it does not belong to."""
    points = _curve(start, end, bend, np.linspace(0, 1, 21))
    return float(np.linalg.norm(points[:, None] - others[None], axis=-1).min(initial=np.inf))


def _edge(s: int, t: int, places: np.ndarray, shown: list[str], bend: float, taken: list) -> Arrow:
    """A curved arrow from rim to rim, its label where there is most room on it."""
    start, end = places[s], places[t]
    control = _curve(start, end, 2 * bend, np.array([0.5]))[0]  # the curve's middle, bent twice as far
    start = start + RADIUS * _unit(control - start)
    end = end + RADIUS * _unit(control - end)
    # candidates along the curve, the one nearer to the source first: fewer edges meet there
    candidates = _curve(start, end, bend, np.array([0.36, 0.45, 0.28, 0.54, 0.62]))
    room = [min(0.3, min(float(np.hypot(*(point - other))) for other in taken)) for point in candidates]
    return Arrow(s, t, start, end, bend, _shown(shown), candidates[int(np.argmax(room))])


def _loop(s: int, place: np.ndarray, shown: list[str], taken: list) -> Arrow:
    outward = _free_direction(place, taken, reach=0.5)
    side = np.array([-outward[1], outward[0]]) * 0.13
    start, end = place + outward * 0.17 + side, place + outward * 0.17 - side
    return Arrow(s, s, start, end, LOOP_BEND, _shown(shown), place + outward * 0.42)


def _shown(symbols: list[str]) -> str:
    return ",".join(symbols) if len(symbols) <= 6 else ",".join(symbols[:5]) + ",..."


def _draw_start(axes: Axes, place: np.ndarray, outward: np.ndarray) -> None:
    """The arrow into the start state, from the side with most room; the left if there is enough."""
    axes.add_patch(
        FancyArrowPatch(
            place + outward * 0.65, place + outward * RADIUS, arrowstyle="-|>", mutation_scale=13, color=INK, lw=1.4,
            shrinkA=0, shrinkB=0,
        )
    )  # fmt: skip
    sideways = abs(outward[0]) > 0.5
    align = {"ha": "center" if not sideways else "right" if outward[0] < 0 else "left", "va": "center"}
    axes.text(*(place + outward * (0.7 if sideways else 0.75)), "start", fontsize=9, color=INK, **align)


def _free_direction(place: np.ndarray, taken: list, reach: float) -> np.ndarray:
    """Unit vector from `place` to where the next taken point is farthest; towards the left among equals."""
    angles = np.pi + np.pi / 8 * np.array([0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6, -6, 7, -7, 8])
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    others = np.array([point for point in taken if np.hypot(*(point - place)) > 1e-6] or [place + 9])
    gaps = np.linalg.norm((place + reach * directions)[:, None] - others[None], axis=-1).min(axis=1)
    return directions[int(np.argmax(np.minimum(gaps, 0.7)))]


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / max(float(np.hypot(*vector)), 1e-9)


def layout(transitions: np.ndarray, rounds: int = 300) -> np.ndarray:
    """Places [states, 2] whose distances are near to the number of edges between states (stress majorisation)."""
    n = len(transitions)
    if n == 1:
        return np.zeros((1, 2))
    distance = np.full((n, n), np.inf)
    np.fill_diagonal(distance, 0)
    source, symbol = np.nonzero(transitions >= 0)
    target = transitions[source, symbol]
    for a, b in ((source, target), (target, source)):
        distance[a[a != b], b[a != b]] = 1
    for k in range(n):  # Floyd and Warshall
        distance = np.minimum(distance, distance[:, [k]] + distance[[k], :])
    distance[~np.isfinite(distance)] = n
    # Most states are one or two edges apart; a little more room for the rest avoids a hairball.
    distance = 1.9 * distance**0.75
    weight = np.where(distance > 0, 1 / np.maximum(distance, 1e-9) ** 2, 0)
    laplacian = np.diag(weight.sum(axis=1)) - weight
    inverse = np.linalg.pinv(laplacian)
    best, best_stress = np.zeros((n, 2)), np.inf
    rng = np.random.default_rng(0)
    for attempt in range(8):
        angle = 2 * np.pi * (np.arange(n) if attempt == 0 else rng.permutation(n)) / n
        places = np.stack([-np.cos(angle), np.sin(angle)], axis=1) * distance.max() / 2
        for _ in range(rounds):
            gap = np.linalg.norm(places[:, None] - places[None], axis=-1)
            ratio = weight * distance / np.maximum(gap, 1e-9)
            places = inverse @ (np.diag(ratio.sum(axis=1)) - ratio) @ places
        gap = np.linalg.norm(places[:, None] - places[None], axis=-1)
        stress = (weight * (gap - distance) ** 2).sum()
        if stress < best_stress:
            best, best_stress = places, stress
    # the start on the left
    away = best[0] - best.mean(axis=0)
    turn = np.pi - np.arctan2(away[1], away[0])
    cos, sin = np.cos(turn), np.sin(turn)
    return (best - best.mean(axis=0)) @ np.array([[cos, sin], [-sin, cos]])
