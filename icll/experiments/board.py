"""All models and learners at one size of training set, best first, with what they cost; and tests of differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .figures import TABLE_1A, N, mean, setting_of, spread
from .paper import load_paper
from .results import WIRING, Entry, Known
from .statistics import Difference, over_seeds, paired


@dataclass(frozen=True)
class Place:
    """A line of the leaderboard. Means are over seeds; intervals over problems if there is one seed, else over seeds."""

    label: str
    tvd: float
    tvd_range: tuple[float, float]
    accuracy: float
    cross_entropy: float
    above_floor: float | None  # nats above the Bayes filter
    parameters: int | None
    flops: float | None
    state_bytes: int | None
    seconds: float | None
    setting: str
    source: str
    paper: float | None
    mine: bool = False


def leaderboard(known: Known, train: int = N, epochs: int | None = None, mine: Sequence[str] = ()) -> list[Place]:
    """Runs of N training problems, and learners. `epochs`: only runs that trained as long, for a fair comparison. `mine`: runs,
    by their hashes, that have lines of their own."""
    floor = known.learner("Bayes filter")
    learners = [e for label in known.learners() if (e := known.learner(label))]
    most = max((e.n_problems for e in learners), default=0)  # those on fewer problems are no match
    groups: list[list[Entry]] = [[e] for e in learners if e.n_problems == most]
    if epochs is not None:
        keep = [e.config.hash for e in known.entries if e.config and e.config.recipe.epochs == epochs]
        known = known.only(keep)
    own = [entry for hash_ in mine if (entry := known.run(hash_))]
    known = Known(tuple(e for e in known.entries if e.config is None or e.config.hash not in mine))
    groups += [runs for label in known.labels() if (runs := known.runs(label, train))]
    places = [_place(group, floor, train) for group in groups]
    places += [replace(_place([entry], floor, train), mine=True) for entry in own]
    return sorted(places, key=lambda place: place.tvd)


def _place(group: Sequence[Entry], floor: Entry | None, train: int) -> Place:
    first, paper = group[0], load_paper()
    label = first.label
    number = None
    if label not in ("LSTM", "Mamba") and not first.brief:  # published with another wiring, and trained for longer
        name = label.removesuffix(WIRING)
        number = paper.find(name, "tvd", train if first.config else None)
    nats = mean(group, "cross_entropy")
    same_problems = floor is not None and floor.fingerprint == first.fingerprint
    return Place(
        label, mean(group), spread(group, "tvd"), mean(group, "accuracy"), nats,
        nats - floor.cross_entropy if floor and same_problems else None, first.parameters, first.flops, first.state_bytes,
        float(np.mean([e.seconds for e in group if e.seconds])) if first.config and first.seconds else None,
        setting_of(group), first.source, number.value if number else None,
    )  # fmt: skip


@dataclass(frozen=True)
class Compared:
    a: str
    b: str
    difference: Difference  # of TVD, a minus b


def differences(known: Known, train: int = N) -> list[Compared]:
    """Rows of Table 1(a) against the row above and against the Transformer, and LSTM and Mamba against the authors' wiring."""
    pairs = [(a, b) for a, b in zip(TABLE_1A[1:], TABLE_1A, strict=False) if a.partition("+")[0] == b.partition("+")[0]]
    pairs += [(label, "Transformer") for label in TABLE_1A] + [(m, m + WIRING) for m in ("LSTM", "Mamba")]
    found = []
    for a, b in pairs:
        left, right = known.any(a, train), known.any(b, train)
        if not left or not right:
            continue
        found += compared(left, right)
    return found


def compared(a: Sequence[Entry], b: Sequence[Entry]) -> list[Compared]:
    """Over problems, of the first seed of each, and over seeds where there are several."""
    tests = (paired(a[0], b[0]), over_seeds([e.tvd for e in a], [e.tvd for e in b]))
    return [Compared(a[0].label, b[0].label, difference) for difference in tests if difference is not None]


def seed_spread(known: Known, train: int = N) -> float | None:
    """By how much TVD differs at most between seeds of one setting; None if there is one seed of each."""
    groups = [known.runs(label, train) for label in known.labels()]
    ranges = [max(e.tvd for e in runs) - min(e.tvd for e in runs) for runs in groups if len(runs) > 1]
    return max(ranges, default=None)
