"""The tables of section 5 from trained runs: distances (Figure 6), probes (Figure 5), heads; and which of the paper's
statements hold for them, by the means.

    python examples/section5.py TF=runs/tf TF2=runs/tf2 RetNet=runs/retnet LSTM=runs/lstm LNWr=runs/lnw_r --out results/analysis

Names matter: TF is the large Transformer, TF2 the shallow one, LNW, LNWr and LNWb are learned reweightings; others are other
models.
`--paper FILE` sets published distances beside ours, from JSON with a table {"TF-3gram": [0.21, ...], ...} under the key
`pairwise_tvd_first100`; the first number of each is taken.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from icll.analysis import Distances, ProbeConfig, RunProbes, distances, probe_run, score_heads
from icll.analysis.probes import TARGETS, is_error
from icll.errors import IcllError
from icll.files import replacing
from icll.progress import progress_bar
from icll.report import draw_distances, draw_heads, draw_probes, save_figure
from icll.training import change, load_run, read_config

LEARNERS = {"2gram": "ngram:2", "3gram": "ngram:3", "BW": "baum-welch", "truth": "oracle"}
REWEIGHTING = ("LNW", "LNWr", "LNWb")
Statement = tuple[str, bool | None, str]  # what the paper says, whether it holds for these runs, our numbers


def distance_statements(found: Distances) -> Iterator[Statement]:
    """The paper's, as far as their predictors are here."""

    def tvd(a: str, b: str) -> float:
        return float(found.mean[found.names.index(a), found.names.index(b)])

    def ordered(text: str, *pairs: tuple[str, str]) -> Iterator[Statement]:
        if all(name in found.names for pair in pairs for name in pair):
            values = [tvd(*pair) for pair in pairs]
            told = ", ".join(f"{a} to {b} {value:.3f}" for (a, b), value in zip(pairs, values, strict=True))
            yield text, values == sorted(values), told

    algorithms = [name for name in found.names if name in (*LEARNERS, *REWEIGHTING)]
    if "TF" in found.names and "LNWr" in algorithms:
        near = sorted(algorithms, key=lambda name: tvd("TF", name))
        told = ", ".join(f"{name} {tvd('TF', name):.3f}" for name in near)
        yield (
            "of the algorithms, learned reweighting of frequencies (LNWr) is nearest to the large Transformer",
            near[0] == "LNWr",
            told,
        )
        plain = [name for name in near if name not in REWEIGHTING]
        yield "of the others, the 3-gram model is nearest to it", plain[0] == "3gram", told
    yield from ordered("the large Transformer is nearer to the 3-gram model than to Baum-Welch, and to that than to the truth",
                       ("TF", "3gram"), ("TF", "BW"), ("TF", "truth"))  # fmt: skip
    yield from ordered(
        "the shallow Transformer is nearer to the 2-gram model than to the 3-gram model", ("TF2", "2gram"), ("TF2", "3gram")
    )


def probe_statements(found: dict[str, RunProbes]) -> Iterator[Statement]:
    others = [name for name, run in found.items() if run.model not in ("transformer", "llama") and name not in REWEIGHTING]
    if "TF" not in found or not others:
        return
    texts = {
        "frequency 1": "all models tell unigram frequencies, Transformers slightly better",
        "frequency 2": "Transformers tell 2-gram frequencies better than the other models",
        "frequency 3": "Transformers tell 3-gram frequencies better than the other models",
        "existence 2": "Transformers tell which 2-grams exist better than the other models",
        "existence 3": "Transformers tell which 3-grams exist better than the other models",
        "state": "Transformers tell equal states better than the other models",
    }
    for target, text in texts.items():
        scores = {name: found[name].result.best[target][0] for name in ("TF", *others)}
        best = (min if is_error(target) else max)(scores, key=scores.__getitem__)
        yield text, best == "TF", ", ".join(f"{name} {value:.3f}" for name, value in scores.items())
    scores = {name: found[name].result.best["count 3"] for name in ("TF", *others)}
    _, low, high = scores["TF"]
    apart = [name for name in others if scores[name][2] < low or scores[name][1] > high]
    told = ", ".join(f"{name} {mean:.2f} [{a:.2f}, {b:.2f}]" for name, (mean, a, b) in scores.items())
    yield "counts of 3-grams are told no better from Transformers (intervals overlap)", not apart, told


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def distance_table(found: Distances, paper: dict[str, Any]) -> str:
    def cell(i: int, j: int) -> str:
        a, b = found.names[i], found.names[j]
        published = paper.get(f"{a}-{b}", paper.get(f"{b}-{a}"))
        return f"{found.mean[i, j]:.3f}" + (f" ({published[0]:.2f})" if published and published[0] is not None else "")

    size = len(found.names)
    rows = [[found.names[i], *(cell(i, j) if j < i else "" for j in range(size - 1))] for i in range(1, size)]
    return table(["", *found.names[:-1]], rows)


def probe_table(found: dict[str, RunProbes]) -> str:
    def cell(run: RunProbes, target: str) -> str:
        mean, low, high = run.result.best[target]
        return f"{mean:.3f} [{low:.3f}, {high:.3f}], layer {run.result.layer[target]}"

    first = next(iter(found.values()))
    rows = []
    for target in TARGETS:
        controls = [f"{control.best[target][0]:.3f}" for control in first.controls.values()]
        rows.append([target, *(cell(run, target) for run in found.values()), *controls, f"{first.constant[target]:.3f}"])
    names = [f"{next(iter(found))}, {name}" for name in first.controls]
    return table(["", *found, *names, "best constant"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--paper", type=Path)
    parser.add_argument("--problems", type=int, default=500, help="test problems for the distances")
    parser.add_argument("--learners", default=",".join(LEARNERS), help="of 2gram, 3gram, BW, truth")
    parser.add_argument("--epochs", type=int, default=ProbeConfig().epochs, help="of the probes")
    options = parser.parse_args()
    runs = {name: Path(path) for name, _, path in (text.partition("=") for text in options.runs)}
    data = {read_config(path).data.profile for path in runs.values()}
    if len(data) > 1:
        raise IcllError(f"these runs are of different profiles ({', '.join(sorted(data))}): compare those of one")
    test = change(read_config(next(iter(runs.values()))).data, train=1).load().test
    paper = json.loads(options.paper.read_text())["pairwise_tvd_first100"] if options.paper else {}

    specs = {name: str(path) for name, path in runs.items()} | {name: LEARNERS[name] for name in options.learners.split(",")}
    with progress_bar("distances") as progress:
        near = distances(specs, test[: options.problems], progress=progress)
    save_figure(draw_distances(near, f"first 100 tokens of {options.problems} problems"), options.out / "distances.png")
    found, heads = {}, {}
    for name, path in runs.items():
        with progress_bar(f"probes of {name}") as progress:
            # controls of the first run are in the table; those of the others would take twice as long as all else
            made = probe_run(path, ProbeConfig(epochs=options.epochs), controls=not found, progress=progress)
            found[name] = replace(made, run=name)
        try:
            heads[name] = score_heads(load_run(path), test[: min(50, len(test))].cut(200))
        except IcllError as error:  # a model without matrices
            print(f"{name}: {error}")
        else:
            save_figure(draw_heads(heads[name]), options.out / f"heads-{name}.png")
    save_figure(draw_probes(list(found.values())), options.out / "probes.png")

    statements = [*distance_statements(near), *probe_statements(found)]
    rows = [[text, "-" if holds is None else "holds" if holds else "does not hold", told] for text, holds, told in statements]
    text = "# Section 5 on these runs\n\nMean TVD over the first 100 tokens of "
    text += f"{options.problems} problems ({test.origin}); in brackets the paper's.\n\n"
    text += (
        distance_table(near, paper) + "\nProbes, test scores at the layer chosen on validation: relative error of counts and "
    )
    text += f"frequencies, accuracy of the rest; {options.epochs} epochs.\n\n" + probe_table(found) + "\n"
    text += table(["the paper says", "here", "numbers"], rows)
    text += "\n" + "".join(f"- {name}: {one.sentence()}\n" for name, one in heads.items())
    plain = {
        "distances": near.as_dict(), "probes": {name: run.as_dict() for name, run in found.items()},
        "heads": {name: one.as_dict() for name, one in heads.items()}, "statements": statements,
    }  # fmt: skip
    for name, content in (("section5.md", text), ("section5.json", json.dumps(plain, indent=2) + "\n")):
        with replacing(options.out / name) as (temporary,):
            temporary.write_text(content)
    print(text)


if __name__ == "__main__":
    main()
