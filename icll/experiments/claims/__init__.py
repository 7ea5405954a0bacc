"""What the paper says, tested on what is known. A test answers True, False or None (not run), and says what it saw."""

from __future__ import annotations

from ...errors import unknown
from ..figures import N
from ..paper import Claim
from ..results import Known
from . import architectures, heads, inside, learners, text  # each adds its tests to TESTS
from .base import TESTS, Answer
from .inside import ANALYSES, distance, looked_into

__all__ = ["TESTS", "Answer", "answer", "architectures", "distance", "heads", "inside", "learners", "text"]


def answer(claim: Claim, known: Known) -> Answer:
    if claim.test not in TESTS:
        raise unknown("test of a claim", claim.test, TESTS)
    said = TESTS[claim.test](known, **claim.args)
    table = ANALYSES.get(claim.test)
    if table and said.holds is not None:
        return said._replace(detail=said.detail + looked_into(known, f"{table}-{claim.args.get('train', N)}"))
    return said
