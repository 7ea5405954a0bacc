"""Throughput of the training loop on real text: each model with and without n-gram heads, at equal parameters.

    python benchmarks/text.py [--corpus sotu] [--size 5m] [--threads 2] [--steps 5] [--out results/text]

Both models of a pair take their steps in turns, on the same batches, so that a slow moment of the machine hits both; the median
of the ratios counts. The goal: heads cost at most 15 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import icll
from icll.files import replacing
from icll.text import SIZES, TextData, open_corpus, text_model, tokenise
from icll.text.presets import MODELS, count_parameters
from icll.training import Machine, RunConfig, Trainer

GOAL = 1.15
BATCH = 16_384  # tokens


def trainer(model: str, heads: tuple[int, ...], size: str, length: int, tokens: Any, threads: int, folder: Path) -> Trainer:
    """Pieces as in the preset, or of one context."""
    rows = BATCH // length
    chosen = SIZES[size]
    recipe = replace(chosen.recipe, batch_size=rows, accumulate=min(rows, chosen.recipe.accumulate))
    shape = text_model(model, chosen, heads, vocab_size=tokens.vocab_size, context=length, separator=tokens.separator)
    config = RunConfig(shape, TextData(tokens.name, tokens.fingerprint, length, 10 * BATCH), recipe)
    return Trainer(config, folder, Machine("cpu", threads=threads))


def seconds(one: Trainer, batch: Any, count: int) -> float:
    start = time.perf_counter()
    one._step(batch, count)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="sotu")
    parser.add_argument("--size", default="5m", choices=SIZES)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--lengths", default="512,2048")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tokens = tokenise(open_corpus(options.corpus), f"bpe:{SIZES[options.size].vocab_size}")
    rows: list[dict[str, Any]] = []
    print(f"{options.size} on {tokens.name}, batches of {BATCH:,} tokens, {options.threads} threads")
    with tempfile.TemporaryDirectory() as folder:
        for length in map(int, options.lengths.split(",")):
            for model in options.models.split(","):
                pair = [
                    trainer(model, heads, options.size, length, tokens, options.threads, Path(folder))
                    for heads in ((), (1, 2, 3))
                ]
                batches = pair[0].source.batches(0, 0, 0, 1)
                first, count = next(batches)
                for one in pair:
                    one._step(first, count)  # kernels compile here
                times: list[tuple[float, float]] = []
                for _ in range(options.steps):
                    times.append((seconds(pair[0], first, count), seconds(pair[1], first, count)))
                ratio = statistics.median(b / a for a, b in times)
                speeds = [BATCH / statistics.median(column) for column in zip(*times, strict=True)]
                sizes = [count_parameters(one.config.model) for one in pair]
                verdict = "reached" if ratio <= GOAL else "NOT reached"
                print(
                    f"L={length:5,} {model:7} {speeds[0]:8,.0f} tokens/s, with heads {speeds[1]:8,.0f}: time {ratio - 1:+.1%} "
                    f"(goal +15 %: {verdict}); parameters {sizes[0]:,} and {sizes[1]:,}",
                    flush=True,
                )
                rows.append({
                    "length": length, "model": model, "tokens_per_second": speeds[0], "with_heads": speeds[1],
                    "time_ratio": ratio, "parameters": sizes[0], "parameters_with_heads": sizes[1],
                })  # fmt: skip
    if options.out:
        about = {"version": icll.__version__, "torch": torch.__version__, "size": options.size, "corpus": tokens.name}
        with replacing(options.out / "throughput.json") as (path,):
            path.write_text(json.dumps({**about, "threads": options.threads, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
