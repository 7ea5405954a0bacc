"""What each figure and table shows, as charts made from what is known; the paper's numbers beside ours."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .charts import Bars, Chart, Heat, Language, Lines, Panel, Series
from .paper import load_paper
from .results import LABELS, WIRING, Entry, Known
from .settings import MODELS, WIRED_WRONGLY
from .statistics import rank_correlation

N = 2500
METRIC_LABELS = {"tvd": "TVD to the language (lower is better)", "accuracy": "accuracy (higher is better)"}
NGH = "+NGH(1,2,3)"
BASELINES = ("2-gram", "3-gram", "Baum-Welch", "Bayes filter")
TABLE_1A = tuple(base + heads for base in ("RetNet", "GLA") for heads in ("", "+NGH(1)", "+NGH(1,2)", "+NGH(1,2,3)"))


def mean(entries: Sequence[Entry], metric: str = "tvd") -> float:
    """Over seeds."""
    return float(np.mean([e.scores[metric][0] for e in entries]))


def setting_of(entries: Sequence[Entry]) -> str:
    """Where a point comes from, in a line."""
    first = entries[0]
    if first.config is None:
        return f"{first.learner} on {first.n_problems} problems"
    model, recipe = first.config.model, first.config.recipe
    seeds = f"{len(entries)} seeds" if len(entries) > 1 else f"seed {first.seed}"
    return f"{model.d_model} x {model.n_layers}, {recipe.name}, {recipe.epochs} epochs, {seeds}"


def spread(entries: Sequence[Entry], metric: str) -> tuple[float, float]:
    """From lowest to highest seed, or the interval over problems where there is one seed."""
    if len(entries) == 1:
        return entries[0].scores[metric][1:]
    values = [e.scores[metric][0] for e in entries]
    return min(values), max(values)


def _line(known: Known, label: str, metric: str, at: Sequence[int], find: Callable[[int], list[Entry]]) -> Series | None:
    found = {x: entries for x in at if (entries := find(x))}
    if not found:
        return None
    ends = [spread(entries, metric) for entries in found.values()]
    return Series(
        label, tuple(mean(e, metric) for e in found.values()), tuple(found),
        tuple(a for a, _ in ends), tuple(b for _, b in ends),
        notes=tuple(setting_of(e) for e in found.values()),
    )  # fmt: skip


def _levels(known: Known, metric: str, labels: Sequence[str] = BASELINES) -> list[Series]:
    found = [(label, known.learner(label)) for label in labels]
    return [Series(label, (e.scores[metric][0],), role="learner", notes=(setting_of([e]),)) for label, e in found if e]


def _bars(known: Known, labels: Sequence[str], metric: str, train: int, title: str) -> Bars:
    """Ours beside the paper's for each of the labels that is known."""
    found = {label: entries for label in labels if (entries := known.any(label, train))}
    ends = [spread(entries, metric) for entries in found.values()]
    ours = Series(
        "ours", tuple(mean(e, metric) for e in found.values()), (), tuple(a for a, _ in ends), tuple(b for _, b in ends),
        notes=tuple(setting_of(e) for e in found.values()),
    )  # fmt: skip
    published = [None if entries[0].brief else _published(label, metric, train) for label, entries in found.items()]
    return Bars(title, METRIC_LABELS[metric], tuple(found), (ours, Series("paper", tuple(published), role="paper")))


def _published(label: str, metric: str, train: int | None) -> float | None:
    """The paper's number; its LSTM and Mamba are those wired as the authors wired them."""
    paper, name = load_paper(), label.removesuffix(WIRING)
    if label in ("LSTM", "Mamba"):
        return None
    number = paper.find(name, metric, train) or paper.find(name, metric, None)
    return number.value if number else None


def order(known: Known, train: int = N) -> tuple[list[tuple[str, float, float]], float | None]:
    """Models without heads and learners that we and the paper have at N: name, our TVD, the paper's, by ours; and the rank
    correlation."""
    rows = []
    for name in [*(LABELS[m] for m in MODELS), "2-gram", "3-gram"]:
        wired = name in (LABELS[m] for m in WIRED_WRONGLY)  # the paper's numbers are of the authors' wiring
        entries = known.runs(name + WIRING, train) if wired else known.any(name, train)
        number = load_paper().find(name, "tvd", train) or load_paper().find(name, "tvd", None)
        if entries and number:
            rows.append((name, mean(entries), number.value))
    rows.sort(key=lambda row: row[1])
    correlation = rank_correlation([r[1] for r in rows], [r[2] for r in rows]) if len(rows) > 2 else None
    return rows, correlation


def _of_models(rows: Sequence[tuple[str, float, float]]) -> str:
    models = [row for row in rows if row[0] in LABELS.values()]
    if len(models) < 3:
        return ""
    return f", {rank_correlation([r[1] for r in models], [r[2] for r in models]):.2f} of the models alone"


def figure1(known: Known) -> Chart:
    train = _size(known)
    models = [label for label in known.labels() if "+" not in label]
    labels = [*models, *BASELINES, "uniform"]
    scored = {label: mean(entries) for label in labels if (entries := known.any(label, train))}
    labels = sorted(scored, key=lambda label: scored[label])
    panels = tuple(_bars(known, labels, metric, train, "") for metric in ("tvd", "accuracy")) if labels else ()
    rows, correlation = order(known, train)
    notes = []
    if correlation is not None:
        ours = " < ".join(name for name, _, _ in rows)
        theirs = " < ".join(name for name, _, _ in sorted(rows, key=lambda row: row[2]))
        notes = [
            f"Order by our TVD: {ours}.",
            f"Order by the paper's: {theirs}.",
            f"Rank correlation (Spearman): {correlation:.2f} with the learners{_of_models(rows)}.",
        ]
    return Chart(
        "figure1", "Which models learn languages in context?",
        f"Each architecture trained on {train:,} problems, and learners that see one problem alone, on the test problems. "
        "The Bayes filter is the floor.", panels, tuple(notes),
    )  # fmt: skip


def _size(known: Known, task: str = "regbench") -> int:
    """2,500 training problems where there are such runs; else the largest number there is."""
    sizes = {n for label in known.labels(task) for n in known.sizes(label, task)}
    return N if N in sizes or not sizes else max(sizes)


def figure2(known: Known) -> Chart:
    from ..tasks import regbench

    problems = regbench(train=1, profile="repo", seed=0, test=10).test
    i = int(np.argmin([abs(a.n_states - 6) + (a.transitions >= 0).sum() / 100 for a in problems.automata]))
    automaton = problems.automata[i]
    panel = Language(
        f"test problem {i} of the profile repo", tuple(tuple(map(int, row)) for row in automaton.transitions), problems.text(i)
    )
    return Chart(
        "figure2", "A problem, and the automaton it comes from",
        "Strings of one random language, joined by |. Every edge out of a state is equally likely. A model reads the strings "
        "and predicts each next symbol; no language of the test set is in the training set.", (panel,),
    )  # fmt: skip


def figure3a(known: Known) -> Chart:
    labels = known.labels("recall")
    sizes = sorted({n for label in labels for n in known.sizes(label, "recall")})
    paper = load_paper()
    series: list[Series] = []
    for label in labels:
        line = _line(known, label, "accuracy", sizes, lambda n, label=label: known.runs(label, n, "recall"))  # type: ignore[misc]
        published = [] if label in ("LSTM",) else paper.curve(label.removesuffix(WIRING), "recall", "Figure 3(a)")
        series += [line] if line else []
        if line and published:
            series.append(_published_line(label, published))
    panels: tuple[Panel, ...] = ()
    if series:
        panels = (Lines("", "training problems", "accuracy of the answer", tuple(series), log_x=True),)
    return Chart(
        "figure3a", "Associative recall",
        "20 keys and 20 values, 190 pairs and a query: is its value found? Dashed: the paper's.", panels,
    )  # fmt: skip


def _published_line(label: str, numbers: Sequence) -> Series:
    return Series(label, tuple(n.value for n in numbers), tuple(float(n.train) for n in numbers), role="paper")


def _trained(known: Known, table: dict[str, Any] | None) -> tuple[str, ...]:
    """The runs that an analysis looked into: as a note."""
    named = json.loads(table["key"])[1] if table and "key" in table else []
    found = [(name, entry) for name, hash_ in named if (entry := known.run(hash_)) and entry.config]
    parts = [f"{name} ({setting_of([e])}; TVD {e.tvd:.3f}, run {e.config.hash[:8]})" for name, e in found if e.config]
    return (f"Of these runs: {', '.join(parts)}.",) if parts else ()


def figure3bc(known: Known) -> Chart:
    labels = [label for label in known.labels() if "+" not in label]
    sizes = sorted({n for label in labels for n in known.sizes(label)})
    paper, panels = load_paper(), []
    for metric, where in (("tvd", "Figure 3(c)"), ("accuracy", "Figure 3(b)")):
        series: list[Series] = []
        for label in labels:
            line = _line(known, label, metric, sizes, lambda n, label=label: known.runs(label, n))  # type: ignore[misc]
            published = [] if label in ("LSTM", "Mamba") else paper.curve(label.removesuffix(WIRING), metric, where)
            series += [line] if line else []
            if line and published:
                series.append(_published_line(label, published))
        if series:
            series += _levels(known, metric)
            panels.append(Lines("", "training problems", METRIC_LABELS[metric], tuple(series), log_x=True))
    return Chart(
        "figure3bc", "TVD and accuracy against training problems",
        "Each model at each size with the setting that is best on the validation set. Dashed: the paper's (its LSTM and Mamba "
        "are those of the authors' wiring). Levels: learners that see one problem alone.", tuple(panels),
    )  # fmt: skip


def figure3d(known: Known) -> Chart:
    train = _size(known)
    panels, notes = [], []
    for metric in ("tvd", "accuracy"):
        series = []
        for label in [label for label in known.labels() if "+" not in label]:
            by_depth = known.by_depth(label, train)
            line = _line(known, label, metric, list(by_depth), by_depth.__getitem__)
            if line and len(line.x) > 1:
                series.append(line)
                if metric == "tvd":
                    gain = (line.y[0] or 0) - min(y for y in line.y if y is not None)
                    notes.append(f"{label}: depth {line.x[0]:.0f} to {line.x[-1]:.0f} lowers TVD by up to {gain:.3f}.")
        if series:
            series += _levels(known, metric, ("3-gram", "Bayes filter"))
            panels.append(Lines("", "layers", METRIC_LABELS[metric], tuple(series)))
    return Chart(
        "figure3d", "Does depth help?",
        f"Models trained on {train:,} problems with more and more layers, all else the same. With the authors' wiring of LSTM "
        "and Mamba every layer reads the embedding, so that only the last one counts.", tuple(panels), tuple(notes),
    )  # fmt: skip


def table1a(known: Known) -> Chart:
    train = _size(known)
    labels = [*TABLE_1A, "Transformer", "3-gram", "Bayes filter"]
    panels = tuple(_bars(known, labels, metric, train, "") for metric in ("tvd", "accuracy"))
    if not panels[0].categories:
        panels = ()
    return Chart(
        "table1a", "Table 1(a): n-gram heads in RetNet and GLA",
        f"Trained on {train:,} problems; heads of the named orders behind the first layer.", panels,
        _costs(known, labels, train),
    )  # fmt: skip


def heads(known: Known) -> Chart:
    train = _size(known)
    models = [label for m in MODELS if known.runs((label := LABELS[m]) + NGH, train)]

    def series(name: str, suffix: str, metric: str) -> Series:
        found = [known.runs(model + suffix, train) for model in models]
        values = tuple(mean(runs, metric) if runs else None for runs in found)
        return Series(name, values, notes=tuple(setting_of(runs) if runs else "" for runs in found))

    panels = [
        Bars("", METRIC_LABELS[metric], tuple(models), (series("without", "", metric), series("with heads", NGH, metric)))
        for metric in ("tvd", "accuracy")
    ]
    return Chart(
        "heads", "N-gram heads in every architecture",
        f"Trained on {train:,} problems, without and with heads of orders 1, 2, 3 behind the first layer; each with the "
        "setting that is best on the validation set.", tuple(panels) if models else (),
        _costs(known, [model + NGH for model in models], train),
    )  # fmt: skip


def _costs(known: Known, labels: Sequence[str], train: int) -> tuple[str, ...]:
    """Size and operations of each model: as notes."""
    found = {label: runs[0] for label in labels if (runs := known.runs(label, train))}
    return tuple(
        f"{label}: {e.parameters:,} parameters, {e.flops:,.0f} operations per token; {setting_of(known.runs(label, train))}."
        for label, e in found.items() if e.parameters and e.flops
    )  # fmt: skip


def figure4(known: Known) -> Chart:
    table = known.tables.get("attention-2500") or known.tables.get("attention-demo")
    panels: tuple[Panel, ...] = ()
    notes: tuple[str, ...] = ()
    if table:
        names = tuple(table["tokens"])
        panels = tuple(
            Heat(one["name"], names, names, tuple(map(tuple, one["weights"])), "query", "key", show_values=False)
            for one in table["maps"]
        )
        notes = (*table.get("notes", ()), *_trained(known, table))
    return Chart(
        "figure4", "Attention of a Transformer",
        "Rows attend to columns; each token with the automaton's state after it. A head that finds what followed earlier "
        "occurrences of the last n tokens is an n-gram head. The darkest cell is the largest weight of its map.", panels, notes,
    )  # fmt: skip


PROBES = {
    ("frequency", "relative error"): "frequency of the n-gram (relative error, lower is better)",
    ("count", "relative error"): "count of the n-gram (relative error, lower is better)",
    ("existence", "accuracy"): "whether the n-gram occurred (accuracy, higher is better)",
    ("equivalence", "accuracy"): "same automaton state (accuracy, higher is better)",
}


def _probes(known: Known, name: str, table_name: str, title: str) -> Chart:
    table = known.tables.get(table_name)
    panels = []
    for (task, _), label in PROBES.items() if table else ():
        rows = [row for row in table["rows"] if row["task"] == task]  # type: ignore[index]
        models = tuple(dict.fromkeys(row["model"] for row in rows))
        orders = sorted({row["n"] for row in rows})
        by_cell = {(row["model"], row["n"]): row for row in rows}
        series = tuple(_probe_series(n, [by_cell.get((m, n)) for m in models]) for n in orders)
        if models:
            panels.append(Bars("", label, models, series))
    caption = "What an MLP reads off the hidden states of the best layer (chosen on held-out data)."
    return Chart(name, title, caption, tuple(panels), _trained(known, table))


def _probe_series(n: int, rows: Sequence[dict[str, Any] | None]) -> Series:
    value, low, high = (tuple(row[part] if row else None for row in rows) for part in ("value", "low", "high"))
    layers = tuple(f"layer {row['layer']}" if row else "" for row in rows)
    return Series(f"n = {n}" if n else "state", value, (), low, high, notes=layers)


def figure5(known: Known) -> Chart:
    if "probes-2500" in known.tables or "probes-demo" not in known.tables:
        return _probes(known, "figure5", "probes-2500", "Probes of models trained on 2,500 problems")
    return _probes(known, "figure5", "probes-demo", "Probes of models trained briefly")


def figure7(known: Known) -> Chart:
    return _probes(known, "figure7", "probes-40000", "Probes of models trained on 40,000 problems")


def figure6(known: Known) -> Chart:
    table = known.tables.get("distances-2500") or known.tables.get("distances-demo")
    panels: tuple[Panel, ...] = ()
    if table:
        names = tuple(table["names"])
        panels = (Heat("", names, names, tuple(map(tuple, table["matrix"]))),)
    caption = "Mean TVD between the predictions of every two predictors, over the first 100 positions of each test problem."
    return Chart("figure6", "How far apart predictors are", caption, panels, _trained(known, table))


def table1b(known: Known) -> Chart:
    table = known.tables.get("text")
    panels: tuple[Panel, ...] = ()
    notes = []
    if table:
        labels = tuple(row["label"] for row in table["rows"])
        ours = Series("ours", tuple(row["perplexity"] for row in table["rows"]))
        paper = load_paper()
        published = [n.value if (n := paper.find(label, "perplexity")) else None for label in labels]
        panels = (Bars("", "perplexity (lower is better)", labels, (ours, Series("paper", tuple(published), role="paper"))),)
        rows = {row["label"]: row for row in table["rows"]}
        for label, row in rows.items():
            base, _, heads = label.partition("+")
            change = text_change(row, rows[base]) if heads and base in rows else None
            theirs = paper.find(label, "perplexity"), paper.find(base, "perplexity")
            if change is not None:
                shared = [seed for seed in row["by_seed"] if seed in rows[base]["by_seed"]]
                beside = f" (the paper's: {theirs[0].value / theirs[1].value - 1:+.1%})" if theirs[0] and theirs[1] else ""
                notes.append(f"{label}: {change:+.1%}{beside}, seed{'s' * (len(shared) > 1)} {', '.join(shared)}.")
    caption = "Llama, RetNet and GLA on real text, with n-gram heads in place of two layers. The paper's have 340M parameters."
    return Chart("table1b", "Table 1(b): n-gram heads on real text", caption, panels, tuple(notes))


def text_change(row: dict[str, Any], base: dict[str, Any]) -> float | None:
    """Of the perplexity against another model's, over the seeds that both have."""
    logs = [math.log(value / base["by_seed"][seed]) for seed, value in row["by_seed"].items() if seed in base["by_seed"]]
    return math.expm1(sum(logs) / len(logs)) if logs else None
