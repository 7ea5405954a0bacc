"""What the paper says, tested on what is known. A test answers True, False or None (not run), and says what it saw."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..errors import unknown
from ..training import RunConfig
from .figures import N, mean, setting_of, text_change
from .paper import Claim
from .results import LABELS, WIRING, Entry, Known
from .settings import DEPTHS, MODELS
from .statistics import Difference, paired


class Answer(NamedTuple):
    holds: bool | None
    detail: str


NOT_RUN = "the runs it needs are not there"
CONVOLUTIONAL = ("S4", "H3", "Hyena")
RECURRENT = ("RetNet", "GLA", "Mamba", "Linear Transformer", "LSTM", "RWKV")
TESTS: dict[str, Callable[..., Answer]] = {}
ANALYSES = {  # tests of what models learned, and the tables they read
    **dict.fromkeys(("previous_token_heads", "two_gram_head", "not_by_state"), "attention"),
    **dict.fromkeys(("probe_best", "probe_existence", "probe_larger", "probe_counts"), "probes"),
    **dict.fromkeys(("nearer", "nearest_model"), "distances"),
}


def test(function: Callable[..., Answer]) -> Callable[..., Answer]:
    TESTS[function.__name__] = function
    return function


def answer(claim: Claim, known: Known) -> Answer:
    if claim.test not in TESTS:
        raise unknown("test of a claim", claim.test, TESTS)
    said = TESTS[claim.test](known, **claim.args)
    table = ANALYSES.get(claim.test)
    if table and said.holds is not None:
        return said._replace(detail=said.detail + _looked_into(known, f"{table}-{claim.args.get('train', N)}"))
    return said


def _looked_into(known: Known, table: str) -> str:
    """How good the models were that an analysis looked into."""
    named = json.loads(known.tables[table]["key"])[1] if "key" in known.tables.get(table, {}) else []
    found = {name: entry.tvd for name, hash_ in named if (entry := known.run(hash_))}
    return f" (of models with a TVD of: {_listed(found)})" if found else ""


def _other_models() -> list[str]:
    return [LABELS[m] for m in MODELS if m != "transformer"]


def _models(known: Known, train: int, labels: Sequence[str], task: str = "regbench") -> dict[str, list[Entry]]:
    return {label: runs for label in labels if (runs := known.runs(label, train, task))}


def _all(known: Known, labels: Sequence[str], train: int = N) -> list[list[Entry]] | None:
    found = [known.any(label, train) for label in labels]
    return found if all(found) else None


def _listed(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in sorted(values.items(), key=lambda item: item[1]))


def _missing(*names: str) -> Answer:
    return Answer(None, f"{NOT_RUN}: {', '.join(names)}")


# --- the data ---


@test
def mean_length(known: Known, expected: float) -> Answer:
    """The paper's number counts symbols; separators come on top."""
    from ..tasks import regbench

    said = []
    for profile in ("paper", "repo"):
        problems = regbench(2500, profile).train
        symbols = float((problems.flat != problems.vocabulary.separator_id).sum()) / len(problems)
        said.append((symbols, f"{profile}: {symbols:.0f} symbols, {len(problems.flat) / len(problems):.0f} tokens"))
    return Answer(abs(said[0][0] - expected) < 8, "; ".join(text for _, text in said))


@test
def disjoint_languages(known: Known) -> Answer:
    from ..tasks import regbench

    data = regbench(2500, "repo")
    tables = [a for part in (data.train, data.valid, data.test) for a in part.automata]
    return Answer(len(set(tables)) == len(tables), f"{len(set(tables)):,} different languages in {len(tables):,} problems")


# --- learners ---


@test
def learner_order(known: Known, better: str, worse: str, metric: str = "tvd") -> Answer:
    """On the same problems, the most there are."""
    pairs = [
        (a, b) for a in known.entries for b in known.entries
        if (a.label, b.label) == (better, worse) and a.fingerprint == b.fingerprint and a.learner and b.learner
    ]  # fmt: skip
    if not pairs:
        return _missing(better, worse)
    a, b = max(pairs, key=lambda pair: pair[0].n_problems)
    gap = a.scores[metric][0] - b.scores[metric][0]
    seen = _listed({e.label: e.scores[metric][0] for e in (a, b)})
    return Answer(gap < 0 if metric == "tvd" else gap > 0, f"{metric}: {seen}, on {a.n_problems} problems")


@test
def beats_learner(known: Known, label: str, learner: str) -> Answer:
    """At the largest training set there is."""
    runs = [known.runs(label, n) for n in known.sizes(label)]
    other = known.learner(learner)
    entry = known.learner(label)
    found = runs[-1] if runs else [entry] if entry else []
    if not found or other is None:
        return _missing(label, learner)
    at = f" at N = {found[0].train:,}" if found[0].train else ""
    return Answer(mean(found) < other.tvd, _listed({label + at: mean(found), other.label: other.tvd}))


# --- architectures ---


@test
def transformer_best(known: Known) -> Answer:
    said, holds = [], []
    for n in known.sizes("Transformer"):
        others = _models(known, n, _other_models())
        if n < N or len(others) < 4:
            continue
        ours, first = known.runs("Transformer", n), {}
        for metric, best in (("tvd", min), ("accuracy", max)):
            name = best(others, key=lambda label: mean(others[label], metric))
            first[metric] = name
            sign = 1 if metric == "tvd" else -1
            holds.append(sign * mean(ours, metric) < sign * mean(others[name], metric))
            said.append(f"N = {n:,}: {metric} {mean(ours, metric):.3f}, {name} {mean(others[name], metric):.3f}")
    return Answer(all(holds), "; ".join(said)) if holds else _missing("Transformer and four others at N = 2,500 or more")


@test
def data_efficient(known: Known) -> Answer:
    """The smallest training set with a TVD below the 3-gram's."""
    level = known.learner("3-gram")
    needed, largest = {}, {}
    for label in ("Transformer", *_other_models()):
        sizes = known.sizes(label)
        if level is not None and len(sizes) > 1:
            needed[label] = min((n for n in sizes if mean(known.runs(label, n)) < level.tvd), default=10**9)
            largest[label] = sizes[-1]
    if len(needed) < 5 or "Transformer" not in needed:
        return _missing("3-gram, and the Transformer and four others at two sizes")
    said = [f"{k} {v:,}" if v < 10**9 else f"{k} more than {largest[k]:,}" for k, v in needed.items()]
    ours = needed.pop("Transformer")
    return Answer(ours < min(needed.values()), f"problems needed to beat the 3-gram: {', '.join(said)}")


@test
def below_baselines(known: Known) -> Answer:
    level, others = known.learner("3-gram"), _models(known, N, _other_models())
    if level is None or len(others) < 5:
        return _missing("3-gram and five architectures at N = 2,500")
    behind = [label for label, runs in others.items() if mean(runs) > level.tvd]
    listed = _listed({k: mean(v) for k, v in others.items()})
    said = f"{len(behind)} of {len(others)} are behind the 3-gram ({level.tvd:.3f}): {listed}"
    return Answer(len(behind) > len(others) / 2, said)


@test
def convolutional_poor(known: Known) -> Answer:
    """At the largest size that enough models have; the paper's own numbers show no gap at N = 2,500."""
    for n in sorted({n for label in _other_models() for n in known.sizes(label)}, reverse=True):
        found = _models(known, n, _other_models())
        poor = [mean(runs) for label, runs in found.items() if label in CONVOLUTIONAL]
        rest = [mean(runs) for label, runs in found.items() if label not in CONVOLUTIONAL]
        if n >= N and len(poor) == 3 and len(rest) >= 3:
            gap = float(np.mean(poor) - np.mean(rest))
            return Answer(gap > 0.03, f"N = {n:,}: mean TVD {np.mean(poor):.3f} against {np.mean(rest):.3f} of the others")
    return _missing("S4, H3, Hyena and three others at N = 2,500 or more")


@test
def recall_learned(known: Known, train: int) -> Answer:
    found = _models(known, train, [LABELS[m] for m in MODELS], "recall")
    if len(found) < 5 or "S4" not in found:
        return _missing(f"recall at N = {train:,}")
    scores = {label: mean(runs, "accuracy") for label, runs in found.items()}
    learned = all(score >= 0.9 for label, score in scores.items() if label != "S4")
    return Answer(learned and scores["S4"] < 0.9, _listed(scores))


@test
def recall_low_data(known: Known) -> Answer:
    weak = (*CONVOLUTIONAL, "LSTM", "RWKV")
    for n in sorted({n for label in known.labels("recall") for n in known.sizes(label, "recall")}, reverse=True):
        found = {k: mean(v, "accuracy") for k, v in _models(known, n, [LABELS[m] for m in MODELS], "recall").items()}
        low = [found[k] for k in weak if k in found]
        rest = [v for k, v in found.items() if k not in weak]
        if n <= 1250 and len(low) > 2 and len(rest) > 2:
            return Answer(float(np.mean(rest)) > float(np.mean(low)) + 0.05, f"N = {n:,}: {_listed(found)}")
    return _missing("recall with at most 1,250 problems")


@test
def contrast(known: Known) -> Answer:
    """How many models come within 0.1 of the best accuracy, at the largest size both tasks have."""
    labels = [LABELS[m] for m in MODELS]
    sizes = {n for label in labels for n in known.sizes(label)} & {n for label in labels for n in known.sizes(label, "recall")}
    for n in sorted(sizes, reverse=True):
        both = [{k: mean(v, "accuracy") for k, v in _models(known, n, labels, task).items()} for task in ("regbench", "recall")]
        shared = set(both[0]) & set(both[1])
        if len(shared) >= 5:
            near = [sum(one[k] > max(one[x] for x in shared) - 0.1 for k in shared) for one in both]
            said = f"N = {n:,}: {near[0]} of {len(shared)} models are within 0.1 of the best accuracy, in recall {near[1]}"
            return Answer(near[0] < near[1], said)
    return _missing("five models at the same size in both tasks")


@test
def one_layer(known: Known) -> Answer:
    level = known.learner("2-gram")
    found = {label: mean(runs) for m in MODELS if (runs := known.by_depth(label := LABELS[m], N).get(1))}
    if len(found) < 3 or level is None:
        return _missing("three models of one layer at N = 2,500")
    return Answer(all(v > level.tvd for v in found.values()), f"{_listed(found)}; the 2-gram has {level.tvd:.3f}")


def _by_depth(known: Known, label: str, metric: str = "accuracy") -> dict[int, float]:
    return {k: mean(runs, metric) for k, runs in known.by_depth(label, N).items() if k in DEPTHS}


@test
def depth_transformer(known: Known) -> Answer:
    by_depth = _by_depth(known, "Transformer")
    if len(by_depth) < 3:
        return _missing("Transformers of three depths")
    steps = np.diff(list(by_depth.values()))
    return Answer(bool((steps > 0).all()), ", ".join(f"{k} layers {v:.3f}" for k, v in by_depth.items()))


@test
def depth_others(known: Known) -> Answer:
    """From two layers to the best depth: more than 0.01 of accuracy is a gain."""
    found = {label: by for label in _other_models() if len(by := _by_depth(known, label)) >= 3 and 2 in by}
    if not found:
        return _missing("a model other than the Transformer at three depths")
    gains = {label: max(by.values()) - by[2] for label, by in found.items()}
    wired = {m: by for m in ("LSTM", "Mamba") if len(by := _by_depth(known, m + WIRING)) >= 3}
    said = f"accuracy gained over two layers: {_listed(gains)}"
    if wired:
        gained = {m: max(by.values()) - by.get(2, max(by.values())) for m, by in wired.items()}
        said += f"; with the authors' wiring: {_listed(gained)}"
    return Answer(all(g <= 0.01 for g in gains.values()), said)


# --- what models learned ---


def _attention(known: Known) -> list[dict[str, Any]] | None:
    table = known.tables.get("attention-2500")
    return table["heads"] if table else None


@test
def previous_token_heads(known: Known) -> Answer:
    heads = _attention(known)
    if not heads:
        return _missing("figure4")
    early = [h for h in heads if h["layer"] <= max(1, max(x["layer"] for x in heads) // 2)]
    best = max(early, key=lambda h: h["scores"]["previous"])
    return Answer(best["scores"]["previous"] > 0.5, f"layer {best['layer']}: score {best['scores']['previous']:.2f}")


def _two_gram(heads: list[dict[str, Any]]) -> dict[str, Any]:
    return max(heads, key=lambda h: h["scores"]["n=2"])


@test
def two_gram_head(known: Known) -> Answer:
    heads = _attention(known)
    if not heads:
        return _missing("figure4")
    best = _two_gram(heads)
    scores = best["scores"]
    said = ", ".join(f"{rule} {scores[rule]:.2f}" for rule in ("n=1", "n=2", "n=3", "state"))
    return Answer(scores["n=2"] > 0.5 and scores["n=2"] > scores["n=1"], f"layer {best['layer']}: {said}")


@test
def not_by_state(known: Known) -> Answer:
    heads = _attention(known)
    if not heads:
        return _missing("figure4")
    scores = _two_gram(heads)["scores"]
    return Answer(
        scores["n=2"] > scores["state"],
        f"overlap with the n = 2 rule {scores['n=2']:.2f}, with the state rule {scores['state']:.2f}",
    )


def _probe(known: Known, task: str, n: int, train: int) -> dict[str, float]:
    table = known.tables.get(f"probes-{train}")
    rows = table["rows"] if table else []
    return {row["model"]: row["value"] for row in rows if (row["task"], row["n"]) == (task, n)}


@test
def probe_best(known: Known, task: str, n: int, train: int) -> Answer:
    found = _probe(known, task, n, train)
    others = {k: v for k, v in found.items() if not k.startswith("Transformer")}
    ours = {k: v for k, v in found.items() if k.startswith("Transformer")}
    if not ours or len(others) < 2:
        return _missing(f"probes of models trained on {train:,}")
    if task in ("frequency", "count"):  # errors
        holds, what = min(ours.values()) < min(others.values()), "relative error"
    else:
        holds, what = max(ours.values()) > max(others.values()), "accuracy"
    rows = [row for row in known.tables[f"probes-{train}"]["rows"] if (row["task"], row["n"]) == (task, n)]
    widest = max((row["high"] - row["low"] for row in rows if "low" in row), default=0.0)
    return Answer(holds, f"{what}: {_listed(found)}" + (f"; 95 % intervals up to {widest:.3f} wide" if widest else ""))


@test
def probe_existence(known: Known, train: int) -> Answer:
    """Means over n = 1, 2, 3."""
    by_order = [_probe(known, "existence", n, train) for n in (1, 2, 3)]
    found = {k: float(np.mean([v[k] for v in by_order])) for k in by_order[0] if all(k in v for v in by_order)}
    second, rest = {"RetNet", "Mamba"}, {k for k in found if not k.startswith("Transformer")} - {"RetNet", "Mamba"}
    if "Transformer" not in found or not second <= set(found) or not rest:
        return _missing(f"probes of the Transformer, RetNet, Mamba and others trained on {train:,}")
    best = max(v for k, v in found.items() if k.startswith("Transformer"))
    holds = best > max(found[k] for k in second) and min(found[k] for k in second) > max(found[k] for k in rest)
    return Answer(holds, f"accuracy: {_listed(found)}")


@test
def probe_larger(known: Known, train: int) -> Answer:
    found = {k: v for k, v in _probe(known, "frequency", 3, train).items() if k.startswith("Transformer")}
    if len(found) < 2:
        return _missing("probes of Transformers of several depths")
    by_depth = sorted(found, key=lambda k: int(k.partition("/")[2] or 99))
    values = [found[k] for k in by_depth]
    return Answer(all(a > b for a, b in pairwise(values)), _listed(found))


@test
def probe_counts(known: Known, train: int) -> Answer:
    said, holds = [], []
    for n in (1, 2, 3):
        found = _probe(known, "count", n, train)
        ours = [v for k, v in found.items() if k.startswith("Transformer")]
        others = [v for k, v in found.items() if not k.startswith("Transformer")]
        if ours and others:
            holds.append(min(ours) > 0.85 * min(others))
            said.append(f"n = {n}: {min(ours):.3f}, best of the others {min(others):.3f}")
    return Answer(all(holds), "; ".join(said)) if holds else _missing("count probes")


def distance(known: Known, a: str, b: str, train: int = N) -> float | None:
    table = known.tables.get(f"distances-{train}")
    if not table or a not in table["names"] or b not in table["names"]:
        return None
    return table["matrix"][table["names"].index(a)][table["names"].index(b)]


@test
def nearer(known: Known, a: str, order: list[str]) -> Answer:
    """`a` is nearer to the first than to each of the others."""
    found = {b: distance(known, a, b) for b in order}
    if any(v is None for v in found.values()):
        return _missing(*(b for b, v in found.items() if v is None))
    values = {b: v for b, v in found.items() if v is not None}
    return Answer(all(values[order[0]] < values[b] for b in order[1:]), f"from {a}: {_listed(values)}")


@test
def nearest_model(known: Known, label: str, learner: str) -> Answer:
    """Of all models, this one is nearest to the learner."""
    found = {m: d for m in (label, *_other_models()) if (d := distance(known, m, learner)) is not None}
    if label not in found or len(found) < 3:
        return _missing(f"distances of {label} and two other models to the {learner}")
    return Answer(min(found, key=lambda m: found[m]) == label, f"from the {learner}: {_listed(found)}")


# --- n-gram heads ---


@test
def head_parameters(known: Known) -> Answer:
    from ..mixers import NGramHead

    d = 64
    count = sum(p.numel() for p in NGramHead(d, 1).parameters())
    return Answer(count in (2 * d * d, 2 * d * d + d, 2 * d * d + 2 * d), f"d = {d}: {count:,} = 2 d^2 + {count - 2 * d * d}")


@test
def head_decoding(known: Known) -> Answer:
    table = known.tables.get("ngram_heads")
    if not table:
        return _missing("benchmarks/ngram_heads.py")
    times = [microseconds for _, microseconds in table["microseconds_per_token"]]
    tenth = max(1, len(times) // 10)
    first, last = float(np.mean(times[:tenth])), float(np.mean(times[-tenth:]))
    tokens = table["microseconds_per_token"][-1][0]
    return Answer(last < 1.2 * first, f"{first:.0f} us per token at first, {last:.0f} us after {tokens:,} tokens")


@test
def improves(known: Known, base: str, heads: list[int], least: float) -> Answer:
    name = f"{base}+NGH({','.join(map(str, heads))})"
    found = _all(known, [base, name])
    if found is None:
        return _missing(base, name)
    return Answer(1 - mean(found[1]) / mean(found[0]) > least, _gained(known, *found))


def _gained(known: Known, base: list[Entry], heads: list[Entry]) -> str:
    """By how much heads lower the TVD of a model at its best; and of one that is trained just as the one with heads."""

    def said(runs: list[Entry]) -> str:
        share = 1 - mean(heads) / mean(runs)
        return f"{mean(runs):.3f} ({setting_of(runs)}) to {mean(heads):.3f} ({setting_of(heads)}): by {share:.0%}"

    alike = [e for one in heads if one.config and (e := known.run(_headless(one).hash))]
    same = {e.source for e in alike} == {e.source for e in base}
    return said(base) + (f"; trained alike: {said(alike)}" if alike and not same else "")


def _headless(entry: Entry) -> RunConfig:
    """The config of the same run without heads."""
    assert entry.config is not None
    return replace(entry.config, model=replace(entry.config.model, ngram_heads=()))


@test
def improves_less(known: Known, base: str, heads: list[int], than: str) -> Answer:
    suffix = f"+NGH({','.join(map(str, heads))})"
    found = _all(known, [base, base + suffix, than, than + suffix])
    if found is None:
        return _missing(base, than)
    ours, theirs = (mean(found[i]) - mean(found[i + 1]) for i in (0, 2))
    said = [f"{found[i][0].label} {_gained(known, found[i], found[i + 1])}" for i in (0, 2)]
    return Answer(0 < ours < theirs, "; ".join(said))


@test
def matches(known: Known, label: str, other: str, within: float) -> Answer:
    """No worse by more than `within`; better counts."""
    found = _all(known, [label, other])
    if found is None:
        return _missing(label, other)
    return Answer(mean(found[0]) < mean(found[1]) + within, _compared(*found))


@test
def improves_on(known: Known, label: str, other: str) -> Answer:
    found = _all(known, [label, other])
    if found is None:
        return _missing(label, other)
    difference = _paired(*found)
    # without scores of each problem the means must do
    holds = difference.high < 0 if difference else mean(found[0]) < mean(found[1])
    return Answer(holds, _compared(*found))


def _paired(a: list[Entry], b: list[Entry]) -> Difference | None:
    """Of the first seed both have."""
    both = [(x, y) for x in a for y in b if x.seed == y.seed or None in (x.seed, y.seed)]
    return paired(*both[0]) if both else None


def _compared(a: list[Entry], b: list[Entry]) -> str:
    said = ", ".join(f"{runs[0].label} {mean(runs):.3f} ({setting_of(runs)})" for runs in (a, b))
    difference = _paired(a, b)
    return said + (f"; problem by problem, seed {a[0].seed}: {difference}" if difference else "")


@test
def more_accurate(known: Known, labels: list[str], other: str) -> Answer:
    found = _all(known, [*labels, other])
    if found is None:
        return _missing(*labels, other)
    scores = {runs[0].label: mean(runs, "accuracy") for runs in found}
    return Answer(all(scores[label] > scores[other] for label in labels), _listed(scores))


@test
def heads_help(known: Known) -> Answer:
    """Attention, recurrences and convolutions: one of each at least."""
    pairs = {}
    for label in known.labels():
        if label.endswith("+NGH(1,2,3)"):
            found = _all(known, [label.partition("+")[0], label])
            if found:
                pairs[label.partition("+")[0]] = mean(found[0]) - mean(found[1])
    if not all(set(kind) & set(pairs) for kind in (("Transformer", "Llama"), RECURRENT, CONVOLUTIONAL)):
        seen = f"; TVD lower by: {_listed(pairs)}" if pairs else ""
        return Answer(None, f"{NOT_RUN}: a Transformer, a recurrent and a convolutional model with and without heads{seen}")
    return Answer(all(gain > 0 for gain in pairs.values()), f"TVD lower by: {_listed(pairs)}")


# --- real text ---

TEXT_MODELS = ("RetNet", "GLA", "Llama")


def _text(known: Known) -> dict[str, dict[str, Any]]:
    table = known.tables.get("text")
    return {row["label"]: row for row in table["rows"]} if table else {}


def _text_gains(known: Known) -> dict[str, float]:
    """Share of the perplexity that heads of orders 1, 2, 3 take away."""
    text = _text(known)
    suffix = "+NGH_1(1,2,3)+NGH_-2(1,2,3)"
    both = [m for m in TEXT_MODELS if m in text and m + suffix in text]
    return {m: -change for m in both if (change := text_change(text[m + suffix], text[m])) is not None}


def _text_seen(known: Known, gains: dict[str, float]) -> str:
    million = max(row["parameters"] for row in _text(known).values()) / 1e6
    return f"perplexity lower by: {', '.join(f'{m} {gain:.1%}' for m, gain in gains.items())}, at {million:.0f}M parameters"


def _text_answer(known: Known, holds: Callable[[dict[str, float]], bool]) -> Answer:
    """From the gains of all three models; fewer decide nothing."""
    gains = _text_gains(known)
    if len(gains) < len(TEXT_MODELS):
        seen = f" ({_text_seen(known, gains)})" if gains else ""
        return Answer(None, f"{NOT_RUN}: all of table1b{seen}")
    return Answer(holds(gains), _text_seen(known, gains))


@test
def text_heads_help(known: Known) -> Answer:
    return _text_answer(known, lambda gains: min(gains.values()) > 0)


@test
def text_gains_most(known: Known, label: str) -> Answer:
    return _text_answer(known, lambda gains: max(gains, key=lambda m: gains[m]) == label)


@test
def text_up_to(known: Known, expected: float) -> Answer:
    return _text_answer(known, lambda gains: max(gains.values()) >= expected - 0.01)


@test
def text_orders(known: Known, times: float) -> Answer:
    """Heads of three orders take away so many times of what three of the first order do."""
    text = _text(known)
    base, ones, orders = "GLA", "GLA+NGH_1(1,1,1)+NGH_-2(1,1,1)", "GLA+NGH_1(1,2,3)+NGH_-2(1,2,3)"
    if not {base, ones, orders} <= set(text):
        return _missing("the three rows of GLA in table1b")
    some, all_orders = (text_change(text[label], text[base]) for label in (ones, orders))
    if some is None or all_orders is None:
        return _missing("table1b with the same seeds")
    holds = all_orders < 0 and all_orders < some and (some >= 0 or all_orders / some >= times)
    return Answer(holds, f"perplexity with three of order 1 {some:+.1%}, with orders 1, 2, 3 {all_orders:+.1%}")
