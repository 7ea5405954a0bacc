"""The fidelity table: every number and every statement of the paper, ours beside it, and a verdict. None is typed in."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .claims import answer, distance
from .figures import mean, setting_of
from .paper import Number, load_paper
from .results import LABELS, WIRING, Entry, Known, published_text
from .settings import WIRED_WRONGLY

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
    paper, known = load_paper(), known.lasting
    rows = []
    for claim in paper.claims:
        holds, detail = answer(claim, known)
        verdict = {True: REPRODUCED, False: DIFFERS, None: NOT_RUN}[holds]
        rows.append(Row(claim.where, claim.claim, None, None, verdict, detail))
    return rows + [number_row(number, known) for number in paper.numbers]


def number_row(number: Number, known: Known) -> Row:
    what = _what(number)
    if number.metric == "distance":
        train = number.train or 0
        names = [_as_published(known, name, train) for name in (number.label, number.other or "")]
        found = distance(known, names[0], names[1], train)
        if found is None:
            return Row(number.where, what, number.value, None, NOT_RUN, "")
        if other := [name for name in names if _rewired(known, name, train)]:
            why = f"with stacked layers of {' and '.join(other)}, which the paper's had not: {found:.3f}"
            return Row(number.where, what, number.value, None, NOT_RUN, why)
        verdict = REPRODUCED if abs(found - number.value) <= TOLERANCE else DIFFERS
        setting = distance_setting(known, names, train)
        side = "" if verdict == REPRODUCED else f"{'farther apart' if found > number.value else 'nearer'} than in the paper: "
        why = side + setting
        return Row(number.where, what, number.value, found, verdict, why)
    if number.metric == "perplexity":
        table = known.tables.get("text", {"rows": []})
        row = next((row for row in table["rows"] if row["label"] == number.label), None)
        if row is None or not published_text(table):
            why = ""
            if row is not None:
                corpus = table["setting"][0].get("corpus", "another text")
                why = f"at {row['parameters'] / 1e6:.0f}M parameters, on {corpus}: {row['perplexity']:.2f}"
            return Row(number.where, what, number.value, None, NOT_RUN, why)
        return _compare(number, what, row["perplexity"], "", 0.03 * number.value)
    entries = _ours(number, known)
    if not entries:
        stacked = known.runs(number.label, number.train or 0, _task(number))
        why = f"with stacked layers, which the paper's had not: {mean(stacked, _metric(number)):.3f}" if stacked else ""
        return Row(number.where, what, number.value, None, NOT_RUN, why)
    tolerance = TOLERANCE + (RERUN_ERROR if number.source == "rerun" else 0)
    return _compare(number, what, mean(entries, _metric(number)), reasons(number, entries), tolerance)


def _metric(number: Number) -> str:
    return "accuracy" if number.metric == "recall" else number.metric


def _task(number: Number) -> str:
    return "recall" if number.metric == "recall" else "regbench"


def _what(number: Number) -> str:
    at = f" at N = {number.train:,}" if number.train else ""
    if number.metric == "distance":
        return f"TVD between {number.label} and {number.other}{at}"
    names = {"tvd": "TVD", "recall": "accuracy of recall"}
    return f"{names.get(number.metric, number.metric)} of {number.label}{at}"


def _ours(number: Number, known: Known) -> list[Entry]:
    """For LSTM and Mamba those with the published wiring."""
    if number.train is None:
        entry = known.learner(number.label)
        return [entry] if entry else []
    wiring = WIRING if number.label in (LABELS[m] for m in WIRED_WRONGLY) else ""
    return known.runs(number.label + wiring, number.train, _task(number))


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
    # known of the paper's own search on RegBench
    size = paper.sizes.get(number.label, {}).get(number.train or 0) if number.metric in ("tvd", "accuracy") else None
    if size and number.source != "rerun" and (model.d_model, model.n_layers) != size[:2]:
        parts.append(f"the paper's best is {size[0]} x {size[1]}")
    if recipe.name != "authors":
        parts.append("the paper's recipe has 200 epochs of AdamW")
    if model.authors_bug:
        parts.append("wired as the authors did")
    return "; ".join(parts)


def _run_of_distance(known: Known, name: str, train: int) -> Entry | None:
    table = known.tables.get(f"distances-{train}", {})
    runs = dict(json.loads(table["key"])[1]) if "key" in table else {}
    return known.run(runs.get(name, ""))


def _as_published(known: Known, name: str, train: int) -> str:
    """The name of a model wired as the published one, where there are distances of it."""
    return name + WIRING if distance(known, name + WIRING, "truth", train) is not None else name


def _rewired(known: Known, name: str, train: int) -> bool:
    """An LSTM or Mamba that is not wired as the published one."""
    entry = _run_of_distance(known, name, train)
    return bool(entry and entry.config and entry.config.model.model in WIRED_WRONGLY and not entry.config.model.authors_bug)


def distance_setting(known: Known, names: Sequence[str], train: int) -> str:
    """The runs that a distance is between."""
    found = {name: entry for name in names if (entry := _run_of_distance(known, name, train))}
    return "; ".join(f"{name}: {setting_of([entry])}, TVD {entry.tvd:.3f}" for name, entry in found.items())


def summary(rows: Sequence[Row]) -> str:
    """One line: statements apart from numbers."""
    parts = []
    for name, some in (
        ("statements", [row for row in rows if row.paper is None]),
        ("numbers", [row for row in rows if row.paper is not None]),
    ):
        counts = Counter(row.verdict for row in some)
        better = sum(row.better is True for row in some)
        which = f" ({better} of them better)" if better else ""
        parts.append(
            f"of {len(some)} {name} {counts[REPRODUCED]} reproduced, {counts[DIFFERS]} differ{which}, {counts[NOT_RUN]} not run"
        )
    return "; ".join(parts).capitalize()
