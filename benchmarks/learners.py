"""Learners on one core: against plain forms, against hmmlearn (if installed), and their growth with the problem's length.

python benchmarks/learners.py
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from collections import Counter
from collections.abc import Callable

import numpy as np
import torch

import icll
from icll.languages import Profile
from icll.learners import BaumWelch, BayesFilter, NGram
from icll.learners.baum_welch import em_step, random_hmm
from icll.tasks import regbench

LENGTHS = (100, 400, 1600, 6400)


def main() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    problems = regbench(1, "repo").test
    order = np.argsort(np.abs(np.diff(problems.offsets) - 376))  # problems of about the mean length
    tokens = problems[order[:8]].tokens
    text = problems.text(int(order[0]))

    many = problems[order[:100]].tokens
    seconds = best(lambda: NGram(3).predict(many)) / len(many)
    plain = best(lambda: [recount(text[: t + 1], 3) for t in range(len(text))], 2)
    ratio = f"recount per prefix {plain * 1e3:10.0f} ms   {plain / seconds:8,.0f}x"
    print(f"3-gram          {seconds * 1e3:10.3f} ms/problem   {ratio}")
    seconds = best(lambda: BaumWelch(threads=1).predict(tokens[:3]), 2) / 3
    print(f"Baum-Welch      {seconds * 1e3:10.0f} ms/problem   (10 iterations, refitted at every token)")
    for particles in (300, 1000):
        learner = BayesFilter(particles, profile="repo", threads=1)
        seconds = best(lambda learner=learner: learner.predict(tokens), 1) / len(tokens)
        print(f"Bayes {particles:6,}    {seconds * 1e3:10.0f} ms/problem")
    em_against_hmmlearn(problems[int(order[0])])

    print(f"\nms by tokens     {''.join(f'{n:>12,}' for n in LENGTHS)}")
    long = regbench(1, Profile(length=(300, 400), strings=(25, 25)), valid=1, test=1).test.tokens
    for name, learner in {
        "3-gram": NGram(3),
        "Baum-Welch, 1 it.": BaumWelch(iterations=1, threads=1),
        "Bayes 100": BayesFilter(100, threads=1),
    }.items():
        row = []
        for n in LENGTHS:
            learner.predict(long[:, :10])  # compile
            repeats = 20 if isinstance(learner, NGram) else 1
            row.append(f"{1e3 * best(lambda learner=learner, n=n: learner.predict(long[:, :n]), repeats, warm=False):,.3g}")
        print(f"{name:17}{''.join(f'{cell:>12}' for cell in row)}")


def best(work: Callable[[], object], repeats: int = 5, warm: bool = True) -> float:
    """Seconds of the quickest of several runs, after one to compile."""
    if warm:
        work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def recount(text: str, order: int) -> dict[str, float]:
    """The 3-gram's row for one prefix, counted anew: the form a recount per prefix takes in plain Python."""
    strings = [["<s>"] * (order - 1) + list(s) for s in text.split("|")]
    counts = [Counter(tuple(s[i : i + n]) for s in strings for i in range(len(s) - n + 1)) for n in range(order + 1)]
    words = set(text) - {"|"}

    def probability(n: int, history: tuple[str, ...]) -> dict[str, float]:
        total = counts[n - 1][history] if n > 1 else sum(counts[1].values())
        row = {w: c / total for w in words if (c := counts[n][(*history, w)])}
        unseen = words - row.keys()
        if unseen:
            lower = probability(n - 1, history[1:])
            rest = sum(lower[w] for w in unseen)
            beta = 1 - sum(row.values())
            row |= {w: beta * lower[w] / rest for w in unseen}
        return row

    return probability(order, tuple(strings[-1][len(strings[-1]) - order + 1 :])) if words else {}


def em_against_hmmlearn(problem: icll.tasks.Problems) -> None:
    try:
        from hmmlearn.hmm import CategoricalHMM
    except ImportError:
        print("hmmlearn is not installed: its comparison is left out")
        return
    symbols = problem.flat[problem.flat != icll.SEP].astype(np.int64)
    at = np.cumsum([0, *map(len, problem.strings(0))])
    start, move, emit = np.empty(12), np.empty((12, 12, 12)), np.empty((18, 12, 12))
    random_hmm(12, 18, np.array([1], dtype=np.uint64), start, move, emit)
    ours = best(lambda: em_step(symbols, at, start, move, emit, False))
    rng = np.random.default_rng(0)
    model = CategoricalHMM(n_components=144, n_iter=1, init_params="", tol=-np.inf, implementation="scaling")
    model.n_features = 18
    model.startprob_ = rng.dirichlet(np.ones(144))
    model.transmat_ = rng.dirichlet(np.ones(144), 144)
    model.emissionprob_ = rng.dirichlet(np.ones(18), 144)
    theirs = best(lambda: model.fit((symbols - 1)[:, None], np.diff(at)))
    print(f"EM iteration    {ours * 1e3:10.2f} ms   hmmlearn, 144 states {theirs * 1e3:10.1f} ms   {theirs / ours:8.0f}x")


if __name__ == "__main__":
    main()
