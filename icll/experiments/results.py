"""What has been measured: runs and learners as entries, from this package, from `results/` and from folders of runs.

A finished run has result.json; `details.json` beside it adds what tables and tests need and the weights, most of which are
not kept with results, are needed for: scores of every problem, operations per token, size of the state.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from ..files import read_json, replacing
from ..metrics import METRICS, Scores
from ..training import DataConfig, RunConfig, RunSummary, as_plain, find_runs, from_plain, load_run
from ..training.runs import WEIGHTS

DETAILS = "details.json"
TEXT = "text"  # the table of language models
PACKED = "results.json"  # of this package: everything in `results/`, packed
BRIEF = 1000  # steps: runs of fewer show that everything works, no more, and do not stand beside the paper's
PUBLISHED = "regbench repo test, seed 0"  # the test set of the published numbers
LENGTH = 376  # tokens of a problem in the mean (profile repo): what costs are given for
LABELS = {
    "transformer": "Transformer", "llama": "Llama", "retnet": "RetNet", "gla": "GLA", "mamba": "Mamba",
    "linear_transformer": "Linear Transformer", "hyena": "Hyena", "h3": "H3", "lstm": "LSTM", "rwkv": "RWKV", "s4": "S4",
    "lnw": "LNW", "lnw_r": "LNW_r", "lnw_b": "LNW_b",
}  # fmt: skip
WIRING = " (authors' wiring)"


def label_of(config: RunConfig) -> str:
    """What a run's model is called in tables, as in the paper: `RetNet+NGH(1,2,3)`, or with the layers that heads replace.

    A mixer of one's own has its full name, and options that make another mixer of it are named.
    """
    model = config.model
    options = {k: v for k, v in model.options.items() if k not in ("attention_dropout", "inner_ngram_heads")}
    name = LABELS.get(model.model, model.model) + "".join(f" {k}={json.dumps(v)}" for k, v in sorted(options.items()))
    inserted = model.ngram_mode == "insert"
    places = [""] if inserted and model.ngram_after == (1,) else [f"_{place}" for place in model.ngram_after]
    orders = ",".join(map(str, model.ngram_heads))
    if orders and inserted:  # in place of layers, as for text, heads have a separator and an MLP
        changed = {"repeat": model.ngram_repeat != "drop", "reset": model.ngram_reset, "mlp": model.ngram_mlp}
        orders += "".join(f" {word}" for word, is_changed in changed.items() if is_changed)
    heads = "".join(f"+NGH{place}({orders})" for place in places) if orders else ""
    if inner := model.options.get("inner_ngram_heads"):
        heads += f"+inner NGH({str(inner).strip('[]()').replace(' ', '')})"
    return name + heads + (WIRING if model.authors_bug else "")


def published_text(table: dict[str, Any]) -> bool:
    """Whether language models are of the published size, and on the published text."""
    corpus = table["setting"][0].get("corpus", "")
    return min(row["parameters"] for row in table["rows"]) >= 3e8 and "slimpajama" in corpus.lower()


def on_text(config: RunConfig) -> bool:
    """Whether a run was trained on text, not on problems."""
    return not isinstance(config.data, DataConfig)


def learner_label(spec: str) -> str:
    """What a learner is called in tables: `ngram:3` is the 3-gram, as in the paper."""
    name, _, option = spec.partition(":")
    if name == "ngram" and option.isdigit():
        return f"{option}-gram"
    known = {"baum-welch": "Baum-Welch", "bayes": "Bayes filter", "oracle": "truth", "uniform": "uniform"}
    if name == "bayes" and option.isdigit():  # a number of particles
        return known[name]
    return known.get(name, name) + (f" ({option})" if option else "")


@dataclass(frozen=True)
class Entry:
    """One run, or one learner, scored on one set of problems."""

    label: str
    source: str  # where it was found
    scores: dict[str, tuple[float, float, float]] = field(repr=False)  # on test: mean and 95 % interval of each metric
    fingerprint: str = ""  # of the test set
    n_problems: int = 0
    config: RunConfig | None = None  # of a run
    learner: str | None = None  # its name on the command line
    valid: dict[str, float] = field(default_factory=dict, repr=False)  # means on the validation set, by which runs are picked
    parameters: int | None = None
    flops: float | None = None  # per token, forward, in the mean over LENGTH tokens
    state_bytes: int | None = None  # recurrent state of one problem after LENGTH tokens
    seconds: float | None = None  # of a processor: of training, or of a learner's predictions
    threads: int | None = None
    commit: str | None = None
    by_problem: dict[str, tuple[float, ...]] = field(default_factory=dict, repr=False)  # tvd, accuracy; and tokens

    @property
    def task(self) -> str:
        return self.config.data.task if self.config else "regbench"

    @property
    def train(self) -> int | None:
        return self.config.data.train if self.config else None

    @property
    def seed(self) -> int | None:
        return self.config.seed if self.config else None

    @property
    def tvd(self) -> float:
        return self.scores["tvd"][0]

    @property
    def accuracy(self) -> float:
        return self.scores["accuracy"][0]

    @property
    def cross_entropy(self) -> float:
        return self.scores["cross_entropy"][0]

    @property
    def published_setting(self) -> bool:
        """Whether it may stand beside the paper's numbers: its data, no added augmentation, and no set of another seed."""
        data = self.config.data if self.config else None
        return data is None or (data.seed == 0 and not data.relabel and (data.task == "recall" or data.profile == "repo"))

    @property
    def brief(self) -> bool:
        return (
            self.config is not None
            and self.config.recipe.epochs * self.config.data.train < BRIEF * self.config.recipe.batch_size
        )

    def as_plain(self) -> dict[str, Any]:
        """For JSON, scores to six digits."""
        plain = {f.name: as_plain(getattr(self, f.name)) for f in fields(self)}
        plain["scores"] = {metric: [round(x, 6) for x in values] for metric, values in self.scores.items()}
        return {name: value for name, value in plain.items() if value not in (None, {}, [])}

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> Entry:
        plain = dict(plain)
        plain["scores"] = {metric: tuple(values) for metric, values in plain["scores"].items()}
        plain["by_problem"] = {name: tuple(values) for name, values in plain.get("by_problem", {}).items()}
        if "config" in plain:
            plain["config"] = from_plain(RunConfig, plain["config"])
        return Entry(**plain)


def entry_of_run(run: RunSummary, source: str) -> Entry | None:
    """A run's entry; None while it is not finished, or if it is one of text."""
    result = run.result
    if result is None or on_text(run.config):
        return None
    details = read_details(run.folder)
    costs = {name: details.get(name) for name in ("flops", "state_bytes")} if details else model_costs(run.config)
    return Entry(
        label=label_of(run.config), source=source, scores=_means(result["test"]), fingerprint=result["fingerprints"]["test"],
        n_problems=result["test"]["problems"], config=run.config, parameters=result["parameters"],
        valid={metric: result["valid"][metric]["mean"] for metric in ("tvd", "log_loss")},
        seconds=result.get("cpu_seconds") or result["seconds"],
        threads=result["threads"], commit=result["commit"],
        by_problem={name: tuple(values) for name, values in details.get("by_problem", {}).items()}, **costs,
    )  # fmt: skip


def _means(scores: dict[str, Any]) -> dict[str, tuple[float, float, float]]:
    return {metric: tuple(scores[metric][part] for part in ("mean", "low", "high")) for metric in METRICS}  # type: ignore[misc]


def entries_of_learners(path: Path, source: str) -> list[Entry]:
    """From a file that `icll score --json` or `icll reproduce` wrote; none if it is another kind of file, or of other data than
    the published."""
    plain = read_json(path)
    if not isinstance(plain, dict) or "scores" not in plain or plain.get("data") != PUBLISHED or "fingerprint" not in plain:
        return []
    entries = []
    for scores in plain["scores"]:
        if {"name", "problems", *METRICS} <= set(scores):
            by_problem = {name: tuple(values) for name, values in scores.get("by_problem", {}).items()}
            entries.append(Entry(
                label=learner_label(scores["name"]), source=source, scores=_means(scores), fingerprint=plain["fingerprint"],
                n_problems=scores["problems"], learner=scores["name"], seconds=scores["seconds"], by_problem=by_problem,
            ))  # fmt: skip
    return entries


# --- details: what only the weights can tell ---


def by_problem(scores: Scores) -> dict[str, list[float]]:
    """Mean TVD and accuracy of every problem, to five digits, and its number of scored tokens."""
    tokens = np.bincount(scores.problem, minlength=scores.n_problems)
    table: dict[str, list[float]] = {"tokens": tokens.tolist()}
    for metric in ("tvd", "accuracy", "cross_entropy"):
        column = scores.tokens[:, METRICS.index(metric)].astype(np.float64)
        sums = np.bincount(scores.problem, column, scores.n_problems)
        table[metric] = np.round(sums / np.maximum(tokens, 1), 5).tolist()
    return table


def model_costs(config: RunConfig) -> dict[str, Any]:
    """Operations and state of a run's model, if its mixer can be imported and still runs here."""
    from ..model import model_of

    try:
        model = model_of(config.model)
        return {"flops": model.flops_per_token(LENGTH), "state_bytes": model.state_bytes(LENGTH)}
    except Exception:  # whatever a mixer of one's own may raise
        return {"flops": None, "state_bytes": None}


def read_details(folder: Path) -> dict[str, Any]:
    path = folder / DETAILS
    return read_json(path) if path.exists() else {}


def write_details(folder: Path, config: RunConfig) -> None:
    """Score every test problem with a finished run's weights, and write that and the model's costs down, once."""
    from ..predictors import evaluate

    if on_text(config) or (folder / DETAILS).exists() or not (folder / WEIGHTS).exists():
        return
    test = config.data.load().test
    details = {**model_costs(config), "by_problem": by_problem(evaluate(load_run(folder), test))}
    with replacing(folder / DETAILS) as (path,):
        path.write_text(json.dumps(details) + "\n", "utf-8")


# --- all of it ---


@dataclass(frozen=True)
class Known:
    """All entries there are, and what analyses found (`tables`, by name)."""

    entries: tuple[Entry, ...]
    tables: dict[str, Any] = field(default_factory=dict)

    def __add__(self, other: Known) -> Known:
        """Both; of two entries for the same run or learner the other's, unless it alone lacks the scores of each problem."""
        entries: dict[tuple[str, ...], Entry] = {}
        for entry in (*self.entries, *other.entries):
            before = entries.get(_identity(entry))
            if before is None or entry.by_problem or not before.by_problem:
                entries[_identity(entry)] = entry
        tables = {**self.tables, **other.tables}
        if TEXT in self.tables and TEXT in other.tables:
            tables[TEXT] = max(other.tables[TEXT], self.tables[TEXT], key=_weight)
        return Known(tuple(entries.values()), tables)

    @cached_property
    def lasting(self) -> Known:
        """Without runs that are brief: what figures show, and what stands beside the paper."""
        tables = {name: table for name, table in self.tables.items() if name != TEXT or _weight(table)[0]}
        return Known(tuple(e for e in self.entries if not e.brief), tables)

    def only(self, hashes: Iterable[str], learners: Iterable[str] = (), tables: Iterable[str] = ()) -> Known:
        """Just these runs, learners and tables."""
        wanted, specs = set(hashes), set(learners)
        keep = tuple(e for e in self.entries if (e.config.hash in wanted if e.config else e.learner in specs))
        return Known(keep, {name: self.tables[name] for name in tables if name in self.tables})

    @cached_property
    def _runs(self) -> dict[tuple[str, str, int], list[Entry]]:
        groups: dict[tuple[str, str, int], list[Entry]] = {}
        for entry in self.entries:
            if entry.config is not None and entry.published_setting:
                groups.setdefault((entry.label, entry.task, entry.config.data.train), []).append(entry)
        return groups

    def runs(self, label: str, train: int, task: str = "regbench") -> list[Entry]:
        """All seeds of the setting of a model that is best on the validation set, as the paper picked its own."""
        settings: dict[str, list[Entry]] = {}
        for entry in self._runs.get((label, task, train), []):
            assert entry.config is not None
            settings.setdefault(_without_seed(entry.config), []).append(entry)
        if not settings:
            return []
        best = min(settings.values(), key=lambda group: float(np.mean([e.valid["log_loss"] for e in group])))
        return sorted(best, key=lambda e: e.seed or 0)

    def by_depth(self, label: str, train: int, task: str = "regbench") -> dict[int, list[Entry]]:
        """All seeds of each depth of a model, from the one setting (everything but depth and seed) with most depths; of several
        the one that is best on the validation set."""
        settings: dict[str, dict[int, list[Entry]]] = {}
        for entry in self._runs.get((label, task, train), []):
            assert entry.config is not None
            depth = entry.config.model.n_layers
            same = replace(entry.config, model=replace(entry.config.model, n_layers=1))
            settings.setdefault(_without_seed(same), {}).setdefault(depth, []).append(entry)

        def quality(depths: dict[int, list[Entry]]) -> tuple[int, float]:
            return len(depths), -min(e.valid["log_loss"] for group in depths.values() for e in group)

        found = max(settings.values(), key=quality, default={})
        return {depth: sorted(found[depth], key=lambda e: e.seed or 0) for depth in sorted(found)}

    def run(self, hash_: str) -> Entry | None:
        return next((e for e in self.entries if e.config is not None and e.config.hash == hash_), None)

    def learner(self, label: str) -> Entry | None:
        """The learner's entry with most problems."""
        found = [e for e in self.entries if e.learner is not None and e.label == label]
        return max(found, key=lambda e: e.n_problems, default=None)

    def any(self, label: str, train: int) -> list[Entry]:
        """Runs of a model, or a learner."""
        runs = self.runs(label, train)
        learner = None if runs else self.learner(label)
        return runs or ([learner] if learner else [])

    def labels(self, task: str = "regbench") -> list[str]:
        """Models with runs of a task, the paper's first."""
        order = list(LABELS.values())
        found = {label for label, its_task, _ in self._runs if its_task == task}
        return sorted(found, key=lambda label: (_rank(label, order), label))

    def sizes(self, label: str, task: str = "regbench") -> list[int]:
        return sorted(n for its_label, its_task, n in self._runs if (its_label, its_task) == (label, task))

    def learners(self) -> list[str]:
        return sorted({e.label for e in self.entries if e.learner is not None})


def _rank(label: str, order: Sequence[str]) -> int:
    base = label.partition("+")[0].removesuffix(WIRING)
    return order.index(base) if base in order else len(order)


def _identity(entry: Entry) -> tuple[str, ...]:
    if entry.config is not None:
        return ("run", entry.config.hash)
    return ("learner", entry.learner or "", entry.fingerprint)


def _weight(table: dict[str, Any]) -> tuple[bool, int, int]:
    """Of two tables of language models the one of longer training, with more rows, of larger models is taken."""
    return table["steps"] >= BRIEF, len(table["rows"]), max(row["parameters"] for row in table["rows"])


def _without_seed(config: RunConfig) -> str:
    plain = as_plain(config)
    del plain["seed"]
    return json.dumps(plain, sort_keys=True)


def read_folder(root: Path) -> Known:
    """Everything below a folder: runs, scores of learners, what analyses and the benchmark of heads wrote."""
    entries: list[Entry] = []
    runs = find_runs(root)
    for run in runs:
        entry = entry_of_run(run, run.folder.relative_to(root).as_posix())
        if entry is not None:
            entries.append(entry)
    for path in sorted(root.glob("learners/*.json")):
        entries += entries_of_learners(path, path.relative_to(root).as_posix())
    found = [*sorted(root.glob("analysis/*.json")), *root.glob("ngram_heads/ngram_heads.json")]
    tables = {path.stem: read_json(path) for path in found}
    if text := text_table(runs):
        tables[TEXT] = text
    return Known((), tables) + Known(tuple(entries))


def text_table(runs: Sequence[RunSummary]) -> dict[str, Any]:
    """Perplexities of language models, from one setting, as `_weight` chooses: a row for each model."""
    settings: dict[str, dict[str, list[RunSummary]]] = {}
    for run in runs:
        if on_text(run.config) and run.result is not None and "perplexity" in run.result["test"]:
            model = run.config.model
            same = [as_plain(run.config.data), as_plain(run.config.recipe), model.d_model, model.n_layers, run.config.precision]
            key = json.dumps(same)
            settings.setdefault(key, {}).setdefault(label_of(run.config), []).append(run)
    return max((_text_rows(json.loads(key), group) for key, group in settings.items()), key=_weight, default={})


def _text_rows(setting: Any, by_label: dict[str, list[RunSummary]]) -> dict[str, Any]:
    rows = []
    for label, group in sorted(by_label.items()):
        results = {str(run.config.seed): run.result or {} for run in group}
        seeds = {seed: result["test"]["perplexity"]["mean"] for seed, result in results.items()}
        perplexity = float(np.exp(np.mean(np.log(list(seeds.values())))))  # of the mean loss
        first = next(iter(results.values()))
        rows.append({"label": label, "perplexity": perplexity, "by_seed": seeds, "parameters": first["parameters"]})
    return {"setting": setting, "steps": first["steps"], "rows": rows}


@lru_cache(maxsize=1)
def packed() -> Known:
    """What this package brings: everything in its `results/`."""
    return unpack(json.loads(files(__package__).joinpath(PACKED).read_text("utf-8")))


def pack(known: Known) -> dict[str, Any]:
    """For one file: problems' token counts are written once for each test set."""
    counts: dict[str, list[int]] = {}
    entries = []
    for entry in known.entries:
        plain = entry.as_plain()
        if entry.by_problem:
            counts[entry.fingerprint] = list(plain["by_problem"]["tokens"])
            # whole ten-thousandths take half the room
            plain["by_problem"] = {m: [round(1e4 * x) for x in plain["by_problem"][m]] for m in ("tvd", "accuracy")}
        entries.append(plain)
    return {"tokens": counts, "entries": entries, "tables": known.tables}


def unpack(plain: dict[str, Any]) -> Known:
    entries = []
    for one in plain["entries"]:
        if "by_problem" in one:
            values = {m: [x / 1e4 for x in column] for m, column in one["by_problem"].items()}
            one = {**one, "by_problem": {"tokens": plain["tokens"][one["fingerprint"]], **values}}
        entries.append(Entry.from_plain(one))
    return Known(tuple(entries), plain["tables"])


def known(*roots: Path) -> Known:
    """What the package brings and what is in these folders; of the same run, what is in the last of them."""
    found = packed()
    for root in roots:
        found = found + read_folder(root)
    return found
