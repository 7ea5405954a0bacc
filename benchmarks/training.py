"""The training loop: its speed beside the bare step, beside padding to the longest problem, and as a share of the GEMM peak.

    python benchmarks/training.py [--steps 20] [--out results/training_speed]

Transformer, 4 layers, d = 128, on problems of RegBench, with the recipe `fast`. The forms take turns, so that a change of the
machine's speed meets them all.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

import icll
from icll.files import replacing
from icll.model import ModelConfig, model_of
from icll.tasks import Batch, LengthBuckets, collate
from icll.training import RECIPES, DataConfig, RunConfig, Trainer
from icll.training.optimize import make_optimizers

CONFIG = RunConfig(
    ModelConfig("transformer", d_model=128, n_layers=4, n_heads=2), DataConfig(profile="repo", train=2500), RECIPES["fast"]
)


class Enough(Exception):
    pass


def by_the_loop(trainer: Trainer, steps: int) -> float:
    """Seconds that the loop takes for so many steps, whatever it does besides computing."""
    left = steps

    def watch(progress: Any, row: dict[str, Any]) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise Enough

    begin = time.perf_counter()
    with contextlib.suppress(Enough):
        trainer.fit(watch)
    return time.perf_counter() - begin


def bare(model: Any, optimizers: list[Any], batches: list[Batch]) -> float:
    """Forward, backward, clip, optimiser: nothing else."""
    begin = time.perf_counter()
    for batch in batches:
        loss = F.cross_entropy(model(batch.tokens).flatten(0, 1), batch.targets.flatten(), ignore_index=-100)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return time.perf_counter() - begin


def gemm_peak(seconds: float = 1.0) -> float:
    """The most operations per second of a float32 product, over a few sizes."""
    best = 0.0
    for n in (512, 1024, 2048):
        a, b = torch.randn(n, n), torch.randn(n, n)
        _ = a @ b
        begin, times = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            _ = a @ b
            times += 1
        best = max(best, 2 * n**3 * times / (time.perf_counter() - begin))
    return best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    steps = arguments.steps
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(CONFIG, Path(folder))
        problems = trainer.source.splits.train
        longest = int(np.diff(problems.offsets).max())
        buckets = LengthBuckets(np.diff(problems.offsets), CONFIG.recipe.batch_size, seed=CONFIG.seed)
        batches = [collate(problems[np.asarray(indices)]) for indices in buckets]
        padded = [
            Batch(
                F.pad(b.tokens, (0, longest - b.tokens.shape[1])),
                F.pad(b.targets, (0, longest - b.targets.shape[1]), value=-100),
                b.scored,
                b.lengths,
            )
            for b in batches
        ]
        model = model_of(CONFIG.model, 0)
        optimizers = make_optimizers(model, CONFIG.recipe)
        by_the_loop(trainer, 2)
        bare(model, optimizers, batches[:2])
        seconds = {"loop": 0.0, "bare": 0.0, "padded": 0.0}
        peaks, done, tokens = [], trainer.progress.batch, 0
        for number in range(arguments.rounds):
            if done + steps > len(batches):  # another epoch would score the validation set
                break
            mine = slice(done, done + steps)
            tokens += sum(int((b.targets >= 0).sum()) for b in batches[mine])
            order = ["loop", "bare", "padded"] if number % 2 else ["padded", "bare", "loop"]
            for form in order:
                if form == "loop":
                    seconds[form] += by_the_loop(trainer, steps)
                else:
                    seconds[form] += bare(model, optimizers, (batches if form == "bare" else padded)[mine])
            peaks.append(gemm_peak())
            done += steps
        assert trainer.progress.batch == done
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            bare(model, optimizers, batches[:3])
        trained = batches[2:done]
        # Forward once, backward twice; only the work on tokens that are no padding counts.
        flops = sum(3 * model.flops_per_token(int(n)) * int(n) for b in trained for n in b.lengths)
    events = profiler.key_averages()
    whole = sum(e.self_cpu_time_total for e in events)
    parts = sorted(((e.key, e.self_cpu_time_total / whole) for e in events), key=lambda p: -p[1])[:10]
    peak = max(peaks)
    result = {
        "tokens_per_second": {form: tokens / s for form, s in seconds.items()},
        "loop_over_bare": seconds["bare"] / seconds["loop"],
        "loop_over_padding": seconds["padded"] / seconds["loop"],
        "gemm_peak_gflops": peak / 1e9, "loop_gflops": flops / seconds["loop"] / 1e9,
        "share_of_peak": flops / seconds["loop"] / peak,
        "bare_step_by_operator": dict(parts), "threads": torch.get_num_threads(), "steps": done,
        "icll": icll.__version__, "torch": torch.__version__,
    }  # fmt: skip
    for form, speed in result["tokens_per_second"].items():
        print(f"{form:8} {speed:10,.0f} tokens/s")
    print(f"the loop over the bare step: {result['loop_over_bare']:.3f} (goal 0.95)")
    print(f"the loop over padding to the longest problem: {result['loop_over_padding']:.2f}")
    print(
        f"GEMM peak {peak / 1e9:.0f} GFLOP/s, the loop {result['loop_gflops']:.0f}: {result['share_of_peak']:.0%} (aim: 40 %)"
    )
    print("the bare step by operator: " + ", ".join(f"{key} {share:.0%}" for key, share in parts))
    if arguments.out:
        with replacing(arguments.out / "training.json") as (path,):
            path.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
