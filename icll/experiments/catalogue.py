"""Each table and figure of the paper: which runs it needs at each budget, and what to draw from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..errors import unknown
from ..training import RunConfig
from . import figures
from .charts import Chart
from .results import LABELS, WIRING, Known
from .settings import (
    BUDGETS,
    CPU_DEPTHS,
    DEMO_TRAIN,
    DEPTH_MODELS,
    DEPTHS,
    MODELS,
    ORDERS,
    RECALL_SIZES,
    REGBENCH_SIZES,
    WIRED_WRONGLY,
    run,
)


@dataclass(frozen=True)
class Analysis:
    """Something measured on trained runs: a function of icll.experiments.analyses, and the runs it is given, by name."""

    name: str  # of the file it writes, and of its table
    function: str
    runs: tuple[tuple[str, RunConfig], ...] = ()
    options: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class Plan:
    """What an experiment needs at one budget."""

    runs: tuple[RunConfig, ...] = ()
    learners: tuple[str, ...] = ()
    problems: int = 0  # test problems that learners are scored on
    analyses: tuple[Analysis, ...] = ()

    def __add__(self, other: Plan) -> Plan:
        return Plan(
            tuple({c.hash: c for c in (*self.runs, *other.runs)}.values()),
            tuple(dict.fromkeys((*self.learners, *other.learners))),
            max(self.problems, other.problems),
            tuple({a.name: a for a in (*self.analyses, *other.analyses)}.values()),
        )

    def with_seeds(self, seeds: Sequence[int]) -> Plan:
        """Every run with each of these seeds, in place of its own; analyses look into those with the first."""
        runs = {c.hash: c for seed in seeds for c in (replace(c, seed=seed) for c in self.runs)}
        analyses = (replace(a, runs=tuple((name, replace(c, seed=seeds[0])) for name, c in a.runs)) for a in self.analyses)
        return replace(self, runs=tuple(runs.values()), analyses=tuple(analyses))


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    plans: dict[str, Plan]  # by budget
    chart: Callable[[Known], Chart] = field(repr=False)


LEARNERS = {
    "demo": ("ngram:2", "ngram:3", "bayes:300"),
    "cpu": ("uniform", "ngram:2", "ngram:3", "bayes", "baum-welch"),
    "paper": ("uniform", "ngram:2", "ngram:3", "bayes", "baum-welch"),
}
PROBLEMS = {"demo": 100, "cpu": 500, "paper": 500}


def _plan(budget: str, runs: Iterable[RunConfig], learners: bool = False, analyses: Iterable[Analysis] = ()) -> Plan:
    return Plan(tuple(runs), LEARNERS[budget] if learners else (), PROBLEMS[budget], tuple(analyses))


def _by_budget(make: Callable[[str], Plan]) -> dict[str, Plan]:
    return {budget: make(budget) for budget in BUDGETS}


def _all_models(budget: str, train: int, task: str = "regbench") -> list[RunConfig]:
    """Every architecture once, LSTM and Mamba also as the authors wired them."""
    runs = [run(model, budget, train, task=task) for model in MODELS]
    return runs + [run(model, budget, train, task=task, authors_bug=True) for model in WIRED_WRONGLY]


def _table1a(budget: str) -> Plan:
    if budget == "demo":
        three = (("retnet", ()), ("retnet", (1, 2, 3)), ("transformer", ()))
        return _plan(budget, [run(model, budget, DEMO_TRAIN, heads=heads) for model, heads in three], learners=True)
    rows = [run(model, budget, heads=heads) for model in ("retnet", "gla") for heads in ORDERS]
    return _plan(budget, [*rows, run("transformer", budget)])


def _heads(budget: str) -> Plan:
    """Beyond the paper's two models: heads in all ten."""
    train = 300 if budget == "demo" else 2500
    return _plan(budget, [run(model, budget, train, heads=heads) for model in MODELS for heads in ((), (1, 2, 3))])


def _figure1(budget: str) -> Plan:
    return _plan(budget, _all_models(budget, 300 if budget == "demo" else 2500), learners=True)


def _figure3a(budget: str) -> Plan:
    return _plan(budget, [c for n in RECALL_SIZES[budget] for c in _all_models(budget, n, "recall")])


def _figure3bc(budget: str) -> Plan:
    return _plan(budget, [c for n in REGBENCH_SIZES[budget] for c in _all_models(budget, n)], learners=True)


def _figure3d(budget: str) -> Plan:
    models = {"demo": ("retnet",), "cpu": DEPTH_MODELS, "paper": MODELS}[budget]
    depths = {"demo": (1, 2), "cpu": CPU_DEPTHS, "paper": DEPTHS}[budget]
    train = 300 if budget == "demo" else 2500
    runs = [run(model, budget, train, layers=depth) for model in models for depth in depths]
    wrong = [m for m in WIRED_WRONGLY if m in models]
    return _plan(budget, runs + [run(m, budget, train, layers=depth, authors_bug=True) for m in wrong for depth in depths])


def _named(budget: str, train: int) -> tuple[tuple[str, RunConfig], ...]:
    """The runs that are looked into, by the names the paper uses: TF/2 is the Transformer of two layers."""
    if budget == "demo":
        return tuple((LABELS[m], run(m, budget, DEMO_TRAIN)) for m in ("transformer", "retnet"))
    deep = 12 if budget == "paper" else None
    transformers = [("Transformer", run("transformer", budget, train, layers=deep))]
    transformers += [(f"Transformer/{k}", run("transformer", budget, train, layers=k)) for k in (2, 4)]
    others = ("retnet", "gla", "mamba", "lstm") if budget == "cpu" else tuple(m for m in MODELS if m != "transformer")
    return (*transformers, *((LABELS[m], run(m, budget, train)) for m in others))


def _table(name: str, budget: str, train: int) -> str:
    """Of an analysis; those of the demo are never taken for the paper's setting."""
    return f"{name}-demo" if budget == "demo" else f"{name}-{train}"


def _figure4(budget: str) -> Plan:
    # the paper's has 8 layers, 1 head and N = 2,500
    runs = _named(budget, DEMO_TRAIN)[:1] if budget == "demo" else (("Transformer", run("transformer", budget)),)
    return _plan(budget, [c for _, c in runs], analyses=[Analysis(_table("attention", budget, 2500), "attention", runs)])


def _probes(train: int) -> Callable[[str], Plan]:
    def make(budget: str) -> Plan:
        if budget != "paper" and train > 2500:  # 40,000 problems are no night's work on two cores
            return Plan()
        runs = _named(budget, train)
        epochs = {"demo": 5, "cpu": None, "paper": 1000}[budget]
        options = (("epochs", epochs),)
        return _plan(
            budget, [c for _, c in runs], analyses=[Analysis(_table("probes", budget, train), "probes", runs, options)]
        )

    return make


def _figure6(budget: str) -> Plan:
    learners = {"demo": ("ngram:2", "ngram:3", "oracle")}.get(budget, ("ngram:2", "ngram:3", "baum-welch", "bayes", "oracle"))
    options = (("learners", learners), ("problems", PROBLEMS[budget]))
    analyses = []
    for train in {"demo": (DEMO_TRAIN,), "cpu": (2500,), "paper": (2500, 40_000)}[budget]:
        runs = _named(budget, train)
        if budget != "demo":
            runs += tuple((LABELS[m], run(m, budget, train)) for m in ("lnw", "lnw_r"))
            runs += tuple((LABELS[m] + WIRING, run(m, budget, train, authors_bug=True)) for m in WIRED_WRONGLY)
        analyses.append(Analysis(_table("distances", budget, train), "distances", runs, options))
    return _plan(budget, [c for a in analyses for _, c in a.runs], analyses=analyses)


def text_plan(
    budget: str, corpus: str, precision: str = "32-true", report: Callable[[int, int], object] = lambda done, total: None
) -> Plan:  # fmt: skip
    """The runs of Table 1(b), which depend on the corpus: it is made into tokens first."""
    from ..text import open_corpus, tokenise
    from ..text.table1b import find_budget, table1b_configs

    vocabulary = find_budget(budget).size.vocab_size
    tokens = tokenise(open_corpus(corpus), f"bpe:{vocabulary}", report=lambda done, total: report(done, total or done))
    return Plan(tuple(table1b_configs(budget, tokens, precision=precision)))


EXPERIMENTS = {
    e.name: e
    for e in (
        Experiment("figure1", "Which models learn languages in context?", _by_budget(_figure1), figures.figure1),
        Experiment("figure2", "A problem, and the automaton it comes from", _by_budget(lambda _: Plan()), figures.figure2),
        Experiment("figure3a", "Associative recall against training problems", _by_budget(_figure3a), figures.figure3a),
        Experiment("figure3bc", "Accuracy and TVD against training problems", _by_budget(_figure3bc), figures.figure3bc),
        Experiment("figure3d", "Accuracy and TVD against depth", _by_budget(_figure3d), figures.figure3d),
        Experiment("figure4", "Attention of a Transformer", _by_budget(_figure4), figures.figure4),
        Experiment("figure5", "Probes at N = 2,500", _by_budget(_probes(2500)), figures.figure5),
        Experiment("figure6", "How far apart predictors are", _by_budget(_figure6), figures.figure6),
        Experiment("figure7", "Probes at N = 40,000", _by_budget(_probes(40_000)), figures.figure7),
        Experiment("table1a", "N-gram heads in RetNet and GLA", _by_budget(_table1a), figures.table1a),
        Experiment("heads", "N-gram heads in every architecture", _by_budget(_heads), figures.heads),
        Experiment("table1b", "N-gram heads in language models of real text", _by_budget(lambda _: Plan()), figures.table1b),
    )
}


def find(name: str) -> list[Experiment]:
    """One by name, or all of them."""
    if name == "all":
        return list(EXPERIMENTS.values())
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, [*EXPERIMENTS, "all"])
    return [EXPERIMENTS[name]]
