"""Convergence and calibration of the Bayes filter: TVD and cross-entropy against particles and against time.

    python benchmarks/bayes.py --problems 20 --particles 30,100,300,1000,3000,10000 --out results/bayes

Writes convergence.json and convergence.png. One thread for each problem; problems of the test set of profile `repo`, seed 0.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import icll
from icll import evaluate
from icll.learners import BayesFilter, NGram
from icll.report import save_figure
from icll.report.style import COLOURS
from icll.tasks import Problems, regbench

BINS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=20)
    parser.add_argument("--particles", default="30,100,300,1000,3000,10000")
    parser.add_argument("--out", type=Path, default=Path("results/bayes"))
    options = parser.parse_args()
    problems = regbench(1, "repo").test[: options.problems]
    BayesFilter(10, profile="repo", threads=1).predict(problems.tokens[:1, :30])  # compile
    rows = []
    for particles in map(int, options.particles.split(",")):
        learner = BayesFilter(particles, profile="repo", threads=1)
        scores = evaluate(learner, problems, batch_size=1)
        rows.append({"particles": particles, "moves": learner.moves, **scores.as_dict()})
        print(f"{particles:7,} particles: {scores}; {scores.seconds / len(problems):.3f} s/problem", flush=True)
    ngram = evaluate(NGram(3), problems)
    print(ngram)
    learner = BayesFilter(1000, profile="repo")
    bins = calibration(learner, problems)
    for row in bins:
        print(f"predicted {row['predicted']:.3f}   came true {row['came_true']:.3f}   ({row['pairs']:,} symbol predictions)")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    result = {
        "commit": commit, "version": icll.__version__, "data": str(problems.origin), "fingerprint": problems.fingerprint,
        "filter": rows, "ngram:3": ngram.as_dict(), "calibration of 1000 particles": bins,
    }  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "convergence.json").write_text(json.dumps(result, indent=2) + "\n")
    save_figure(draw(rows, ngram.tvd, ngram.cross_entropy), options.out / "convergence.png")


def calibration(learner: BayesFilter, problems: Problems) -> list[dict[str, float]]:
    """Of all symbols given a probability in a bin, what share came next?"""
    probs = learner.predict(problems.tokens)[..., 1:19]
    row, at = problems.scored.nonzero(as_tuple=True)
    p = probs[row, at].numpy()
    hit = np.eye(18)[problems.tokens[row, at + 1].numpy() - 1]
    which = np.minimum((p * BINS).astype(int), BINS - 1)
    return [
        {"predicted": float(p[which == b].mean()), "came_true": float(hit[which == b].mean()), "pairs": int((which == b).sum())}
        for b in range(BINS)
        if (which == b).any()
    ]


def draw(rows: list[dict], ngram_tvd: float, ngram_ce: float) -> Figure:
    figure = Figure(figsize=(10, 7), layout="constrained")
    panels = figure.subplots(2, 2, sharey="row")
    seconds = [r["seconds"] / r["problems"] for r in rows]
    for j, (x, label) in enumerate((([r["particles"] for r in rows], "particles"), (seconds, "seconds per problem, one core"))):
        for i, (metric, name, ngram) in enumerate(
            (("tvd", "TVD", ngram_tvd), ("cross_entropy", "cross-entropy (nats)", ngram_ce))
        ):
            axes = panels[i][j]
            mean, low, high = (np.array([r[metric][k] for r in rows]) for k in ("mean", "low", "high"))
            axes.plot(x, mean, color=COLOURS[0], marker="o", label="Bayes filter, 95 % interval over problems")
            axes.fill_between(x, low, high, color=COLOURS[0], alpha=0.18, lw=0)
            axes.axhline(ngram, color=COLOURS[1], ls="--", label="3-gram")
            axes.set_xscale("log")
            axes.set_xlabel(label)
            axes.set_ylabel(name if j == 0 else "")
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].legend(frameon=False, fontsize=9)
    return figure


if __name__ == "__main__":
    main()
