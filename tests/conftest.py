from __future__ import annotations

import os

import pytest
import torch

from icll.tasks import Splits, regbench

if os.environ.get("PYTEST_XDIST_WORKER"):  # two workers with two threads each would wait for each other on two cores
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
