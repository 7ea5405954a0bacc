from __future__ import annotations

import pytest

from icll.tasks import Splits, regbench


@pytest.fixture(scope="session")
def repo() -> Splits:
    return regbench(train=150, profile="repo", seed=0)


@pytest.fixture(scope="session")
def paper() -> Splits:
    return regbench(train=150, profile="paper", seed=0)
