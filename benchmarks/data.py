"""Making data: sample, minimise, leave out repeats, write strings and files. Beside a plain-Python form, on one core.

python benchmarks/data.py [--problems 41000] [--memory 400000]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from icll.languages import get_profile
from icll.languages.plain import plain_regbench
from icll.tasks import regbench

PLAIN = 500  # problems the plain form makes: enough to time it
REPEATS = 5  # the best counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=41_000, help="train + 1,000 held out")
    parser.add_argument("--memory", type=int, default=400_000, help="problems for the memory table; 0 leaves it out")
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        make("repo", options.peak)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    print(f"{'profile':8} {'problems':>9} {'seconds':>8} {'problems/s':>11} {'plain/s':>8} {'ratio':>7}")
    for name in ("repo", "paper"):
        make(name, 2000)  # compile, or load the compiled kernels
        ours, plain = [], []
        for _ in range(REPEATS):  # by turns, so that a busy moment of the machine meets both
            ours.append(make(name, options.problems))
            plain.append(make_plain(name, PLAIN))
        seconds = min(ours)
        rate, plain = options.problems / seconds, PLAIN / min(plain)
        print(f"{name:8} {options.problems:9,} {seconds:8.2f} {rate:11,.0f} {plain:8,.0f} {rate / plain:6.0f}x")

    if options.memory:
        print(f"\n{'problems':>9} {'peak MB':>8}  (whole process, repo, files written)")
        for count in (options.memory // 4, options.memory // 2, options.memory):
            run = subprocess.run([sys.executable, __file__, "--peak", str(count)], capture_output=True, text=True, check=True)
            print(f"{count:9,} {float(run.stdout):8,.0f}")


def make(profile: str, problems: int) -> float:
    """Seconds for a data set of that many problems, from nothing to files."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        regbench(train=problems - 1000, profile=profile, seed=0).save(folder)
        return time.perf_counter() - start


def make_plain(profile: str, problems: int) -> float:
    """Seconds for the same in plain Python: problems, languages and files, as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        with (Path(folder) / "problems.jsonl").open("w") as file:
            for problem in plain_regbench(problems, get_profile(profile), seed=0):
                file.write(json.dumps(problem) + "\n")
        return time.perf_counter() - start


if __name__ == "__main__":
    main()
