"""The random number generators that a run depends on: seeding them, and keeping their states."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """torch's generators, and those of Python and numpy for a stranger's mixer: ours do not use them."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """Of all generators, as tensors whose shapes never change, so that processes can gather them."""
    _, words, spare = random.getstate()
    legacy: Any = np.random.get_state()  # noqa: NPY002
    _, keys, *rest = legacy
    found = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor([*words, spare is not None, spare or 0.0], dtype=torch.float64),
        "numpy": torch.tensor([*keys.tolist(), *rest], dtype=torch.float64),
    }
    if device.type in ("cuda", "mps"):
        found[device.type] = getattr(torch, device.type).get_rng_state()
    return found


def set_random_state(found: dict[str, torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(found["torch"])
    *words, has_spare, spare = found["python"].tolist()
    random.setstate((3, tuple(map(int, words)), spare if has_spare else None))
    *keys, place, has_spare, spare = found["numpy"].tolist()
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), int(place), int(has_spare), spare))  # noqa: NPY002
    if device.type in found:  # a run that goes on elsewhere has no such state
        getattr(torch, device.type).set_rng_state(found[device.type])
