from __future__ import annotations

import os
from pathlib import Path

# Each parallel worker has a cache of compiled kernels of its own: two processes that compile one kernel for different types at
# the same moment may give both the same file name in Numba's index, and one would then run the other's code.
if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ["NUMBA_CACHE_DIR"] = str(Path(__file__).parent.parent / ".pytest_cache" / f"numba-{worker}")

import pytest
import torch

from icll.tasks import Splits, regbench

if worker:  # two workers with two threads each would wait for each other on two cores
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])))


@pytest.fixture(scope="session")
def repo() -> Splits:
    return regbench(train=150, profile="repo", seed=0)


@pytest.fixture(scope="session")
def paper() -> Splits:
    return regbench(train=150, profile="paper", seed=0)


@pytest.fixture
def small_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    """For training in tests: scoring 500 problems after each epoch would be most of the time."""
    from dataclasses import replace

    from icll.training import DataConfig

    whole = DataConfig.load

    def load(self: DataConfig) -> Splits:
        data = whole(self)
        return replace(data, valid=data.valid[:20], test=data.test[:20])

    monkeypatch.setattr(DataConfig, "load", load)
