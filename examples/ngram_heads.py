"""A first sign of the paper's claim: RetNet on RegBench, with and without n-gram heads, a few minutes on two cores.

    python examples/ngram_heads.py [--epochs 5] [--train 2500] [--model retnet]

Trains on 2,500 problems, scores on the 500 test problems, and prints both beside the n-gram learner.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F

from icll import build_model, evaluate
from icll.learners import NGram
from icll.tasks import Splits, make_loader, regbench


def train(model: torch.nn.Module, data: Splits, epochs: int, rate: float = 3e-3, batch: int = 32) -> None:
    loader = make_loader(data.train, batch_size=batch, shuffle=True, seed=0)
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.1)
    total = epochs * len(loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=total, pct_start=0.1, cycle_momentum=False)
    start = time.perf_counter()
    for epoch in range(epochs):
        losses = []
        for batch_ in loader:
            loss = F.cross_entropy(model(batch_.tokens).flatten(0, 1), batch_.targets.flatten(), ignore_index=-100)
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            losses.append(float(loss.detach()))
        print(f"  epoch {epoch + 1}: loss {sum(losses) / len(losses):.3f}, {time.perf_counter() - start:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--train", type=int, default=2500)
    parser.add_argument("--model", default="retnet")
    options = parser.parse_args()
    data = regbench(train=options.train, profile="repo", seed=0)
    print(evaluate(NGram(3), data.test))
    for heads in ((), (1, 2, 3)):
        model = build_model(options.model, d_model=64, n_layers=2, n_heads=2, ngram_heads=heads, seed=0)
        name = options.model + (f" + n-gram heads {heads}" if heads else "")
        print(f"{name}, {model.n_parameters():,} parameters")
        train(model, data, options.epochs)
        print(evaluate(model, data.test, name=name), flush=True)


if __name__ == "__main__":
    main()
