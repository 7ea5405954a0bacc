"""N-gram heads on one core: the operator beside the naive form, its memory, the bundle beside RetNet, and time per token
decoded.

    python benchmarks/ngram_heads.py [--out results/ngram_heads]

With --out: ngram_heads.json and step.png, the time per token from the 100th to the 100,000th.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from measuring import peak_mb
from torch import nn

import icll
from icll.files import replacing
from icll.mixers import NGramBlock, NGramMemory, Retention, WholeText
from icll.ops import naive_ngram_attend, ngram_attend

GOALS = {(4, 512): 5.0, (4, 2048): 40.0, (1, 8192): 150.0}
D, N = 256, 3
VOCABULARY = 18


def inputs(batch: int, length: int, width: int = D) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, VOCABULARY + 1, (batch, length), generator=generator)
    return tokens, torch.randn(batch, length, width, generator=generator, requires_grad=True)


def both_ways(attend: Callable[..., torch.Tensor], tokens: torch.Tensor, values: torch.Tensor) -> float:
    start = time.perf_counter()
    torch.autograd.grad(attend(tokens, values, N).sum(), values)
    return time.perf_counter() - start


def best(work: Callable[[], float], seconds: float = 2.0) -> float:
    work()
    times: list[float] = []
    while sum(times) < seconds or len(times) < 2:
        times.append(work())
    return min(times)


def memory_of(length: int, pipe: Any) -> None:
    """In a process of its own: how much the peak grows by one forward and backward pass, and the whole process's peak."""
    torch.set_num_threads(1)
    both_ways(ngram_attend, *inputs(1, 64))  # compile
    tokens, values = inputs(1, length)
    before = peak_mb()
    seconds = both_ways(ngram_attend, tokens, values)
    pipe.send({"grew_mb": peak_mb() - before, "process_mb": peak_mb(), "seconds": seconds})


def in_child(length: int) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=memory_of, args=(length, theirs))
    process.start()
    result = ours.recv()
    process.join()
    return result


def bundle_against_retnet() -> tuple[float, float]:
    """Seconds of NGH(1,2,3) and of two RetNet layers with their feed-forward, B = 32, L = 400, d = 128, forward and
    backward."""
    d = 128
    tokens, x = inputs(32, 400, d)
    heads = nn.ModuleList(NGramBlock(d, n) for n in (1, 2, 3))
    mlp = lambda: nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))  # noqa: E731
    layers = nn.ModuleList(nn.ModuleList([nn.Sequential(nn.LayerNorm(d), Retention(d, 2)), mlp()]) for _ in range(2))

    def bundle() -> float:
        start = time.perf_counter()
        contexts, y = WholeText(tokens, 3), x
        for head in heads:
            y = head(y, contexts)
        torch.autograd.grad(y.sum(), [x, *heads.parameters()])
        return time.perf_counter() - start

    def pair() -> float:
        start = time.perf_counter()
        y = x
        for mixer, ff in layers:  # type: ignore[misc]
            y = y + mixer(y)
            y = y + ff(y)
        torch.autograd.grad(y.sum(), [x, *layers.parameters()])
        return time.perf_counter() - start

    return best(bundle), best(pair)


def decoding(tokens_to_read: int = 100_000) -> list[tuple[int, float]]:
    """Microseconds per token of a memory with orders 1, 2, 3, in windows of 500 tokens."""
    memory = NGramMemory(1, (1, 2, 3))
    generator = torch.Generator().manual_seed(0)
    # Tokens of a language with many contexts, so that the tables grow all the way.
    tokens = torch.randint(0, 200, (1, tokens_to_read), generator=generator)
    values = torch.randn(1, 1, D, generator=generator)
    times, last = [], time.perf_counter()
    for t in range(tokens_to_read):
        memory.read(tokens[:, t : t + 1])
        for n in (1, 2, 3):
            memory.average(f"x.{n}", n, "drop", values)
        if (t + 1) % 500 == 0:
            now = time.perf_counter()
            times.append((t + 1, (now - last) / 500 * 1e6))
            last = now
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    result: dict[str, Any] = {
        "version": icll.__version__,
        "torch": torch.__version__,
        "d": D,
        "n": N,
        "speed": [],
        "memory": {},
    }
    print(f"forward + backward, one core, D = {D}, n = {N}")
    for (batch, length), goal in GOALS.items():
        tokens, values = inputs(batch, length)
        ours = best(lambda t=tokens, v=values: both_ways(ngram_attend, t, v))
        naive = best(lambda t=tokens, v=values: both_ways(naive_ngram_attend, t, v), 0.1)
        verdict = "reached" if naive / ours >= goal else "NOT reached"
        print(f"B={batch} L={length:6,}: {ours * 1e3:9.2f} ms   naive {naive * 1e3:10.1f} ms   "
              f"{naive / ours:7.0f} times (goal {goal:g}: {verdict})", flush=True)  # fmt: skip
        result["speed"].append({"batch": batch, "length": length, "ours": ours, "naive": naive, "times": naive / ours})
    print("peak memory, B = 1")
    for length in (8192, 16384, 32768, 65536, 131072):
        got = result["memory"][str(length)] = in_child(length)
        print(
            f"L={length:7,}: {got['seconds']:.2f} s, grows by {got['grew_mb']:6.0f} MB, whole process {got['process_mb']:6.0f}"
        )
    bundle, pair = bundle_against_retnet()
    result["bundle"] = {"bundle": bundle, "retnet_pair": pair, "share": bundle / pair}
    verdict = "reached" if bundle / pair <= 0.35 else "NOT reached"
    print(
        f"NGH(1,2,3) {bundle * 1e3:.0f} ms, two RetNet layers {pair * 1e3:.0f} ms: {bundle / pair:.0%} (goal 35 %: {verdict})"
    )
    times = decoding()
    result["microseconds_per_token"] = times
    early, late = (float(np.median([us for t, us in times if a <= t <= b])) for a, b in ((0, 10_000), (90_000, 100_000)))
    print(f"decoding, heads 1, 2, 3: {early:.0f} us per token in the first 10,000, {late:.0f} us in the last of 100,000")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        with replacing(options.out / "ngram_heads.json") as (path,):
            path.write_text(json.dumps(result, indent=2) + "\n")
        draw(times, options.out / "step.png")


def draw(times: list[tuple[int, float]], path: Path) -> None:
    from matplotlib.figure import Figure

    from icll.report import save_figure
    from icll.report.style import COLOURS

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*times, strict=True), color=COLOURS[0], lw=0.8)
    axes.set_xlabel("tokens read")
    axes.set_ylabel("microseconds per token\n(heads of order 1, 2, 3)")
    axes.set_ylim(0, 2 * float(np.median([us for _, us in times])))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)


if __name__ == "__main__":
    main()
