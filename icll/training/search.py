"""Many runs: each in a folder of its own below one root."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import IcllError
from .config import RunConfig
from .runs import train


@dataclass(frozen=True)
class Outcome:
    config: RunConfig
    folder: Path
    result: dict[str, Any] | None
    error: str | None


def run_all(
    configs: Sequence[RunConfig],
    root: Path,
    *,
    engine: str = "local",
    jobs: int | None = None,
    address: str | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> list[Outcome]:
    """Train each config in `root / config.name`; finished runs are taken as they are."""
    outcomes = []
    for i, config in enumerate(configs):
        folder = root / config.name
        try:
            outcomes.append(Outcome(config, folder, train(config, folder), None))
        except IcllError as error:
            outcomes.append(Outcome(config, folder, None, str(error)))
        progress(i + 1, len(configs))
    return outcomes
