"""The fidelity table: every number and every statement of the paper, ours beside it, and a verdict. None is typed in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .claims import answer, distance
from .figures import mean, setting_of
from .paper import Number, load_paper
from .results import WIRING, Entry, Known

REPRODUCED, DIFFERS, NOT_RUN = "reproduced", "differs", "not run at this budget"
TOLERANCE = 0.03  # of TVD, accuracy and distances
RERUN_ERROR = 0.02  # numbers read by eye


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    where: str
    what: str
    paper: float | None  # None for a statement
    ours: float | None
    verdict: str
    why: str  # what was seen, or why it differs
    better: bool | None = None  # where it differs: is ours the better one?

    @property
    def difference(self) -> float | None:
        return None if self.paper is None or self.ours is None else self.ours - self.paper


def fidelity(known: Known) -> list[Row]:
    """Statements first, then numbers, as they stand in the paper."""
    paper = load_paper()
    rows = []
    for claim in paper.claims:
        holds, detail = answer(claim, known)
        verdict = {True: REPRODUCED, False: DIFFERS, None: NOT_RUN}[holds]
        rows.append(Row(claim.where, claim.claim, None, None, verdict, detail))
    return rows + [number_row(number, known) for number in paper.numbers]


def number_row(number: Number, known: Known) -> Row:
    what = _what(number)
    if number.metric == "distance":
        found = distance(known, number.label, number.other or "", number.train or 0)
        if found is None:
            return Row(number.where, what, number.value, None, NOT_RUN, "")
        verdict = REPRODUCED if abs(found - number.value) <= TOLERANCE else DIFFERS
        why = "" if verdict == REPRODUCED else f"{'farther apart' if found > number.value else 'nearer'} than in the paper"
        return Row(number.where, what, number.value, found, verdict, why)
    if number.metric == "perplexity":
        table = known.tables.get("text", {"rows": []})
        rows = [row for row in table["rows"] if row["label"] == number.label]
        if not rows or rows[0].get("parameters", 0) < 3e8:
            why = f"at {rows[0]['parameters'] / 1e6:.0f}M parameters: {rows[0]['perplexity']:.2f}" if rows else ""
            return Row(number.where, what, number.value, None, NOT_RUN, why)
        return _compare(number, what, rows[0]["perplexity"], "", 0.03 * number.value)
    entries = _ours(number, known)
    if not entries:
        return Row(number.where, what, number.value, None, NOT_RUN, "")
    metric = "accuracy" if number.metric == "recall" else number.metric
    tolerance = TOLERANCE + (RERUN_ERROR if number.source == "rerun" else 0)
    return _compare(number, what, mean(entries, metric), reasons(number, entries), tolerance)


def _what(number: Number) -> str:
    at = f" at N = {number.train:,}" if number.train else ""
    if number.metric == "distance":
        return f"TVD between {number.label} and {number.other}{at}"
    names = {"tvd": "TVD", "recall": "accuracy of recall"}
    return f"{names.get(number.metric, number.metric)} of {number.label}{at}"


def _ours(number: Number, known: Known) -> list[Entry]:
    """For LSTM and Mamba the published wiring, where we have it."""
    if number.train is None:
        entry = known.learner(number.label)
        return [entry] if entry else []
    task = "recall" if number.metric == "recall" else "regbench"
    return known.runs(number.label + WIRING, number.train, task) or known.runs(number.label, number.train, task)


def _compare(number: Number, what: str, ours: float, setting: str, tolerance: float) -> Row:
    lower_is_better = number.metric in ("tvd", "perplexity")
    gap = ours - number.value if lower_is_better else number.value - ours  # above 0: ours is worse
    if abs(gap) <= tolerance:
        return Row(number.where, what, number.value, ours, REPRODUCED, setting)
    better = gap < 0
    return Row(number.where, what, number.value, ours, DIFFERS, f"{'better' if better else 'worse'}: {setting}", better)


def reasons(number: Number, entries: Sequence[Entry]) -> str:
    """Our setting, and in what it is not the published one."""
    first, paper = entries[0], load_paper()
    if first.config is None:
        return setting_of(entries)
    model, recipe = first.config.model, first.config.recipe
    parts = [setting_of(entries)]
    size = paper.sizes.get(number.label.partition("+")[0], {}).get(number.train or 0)
    if size and (model.d_model, model.n_layers) != size[:2]:
        parts.append(f"the paper's best is {size[0]} x {size[1]}")
    if recipe.name != "authors":
        parts.append("the paper's recipe has 200 epochs of AdamW")
    if number.label in ("LSTM", "Mamba"):
        parts.append("wired as the authors did" if model.authors_bug else "layers are stacked here, and were not in the paper")
    return "; ".join(parts)


def summary(rows: Sequence[Row]) -> str:
    """One line."""
    counts = Counter(row.verdict for row in rows)
    better = sum(row.better is True for row in rows)
    worse = sum(row.better is False for row in rows)
    return (
        f"{counts[REPRODUCED]} reproduced, {counts[DIFFERS]} differ ({better} better than published, {worse} worse), "
        f"{counts[NOT_RUN]} not run at this budget"
    )
