"""Statements about language models on real text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..figures import text_change
from ..results import Known, published_text
from .base import NOT_RUN, Answer, missing, test

TEXT_MODELS = ("RetNet", "GLA", "Llama")


def _text(known: Known) -> dict[str, dict[str, Any]]:
    table = known.tables.get("text")
    return {row["label"]: row for row in table["rows"]} if table else {}


def _text_gains(known: Known) -> dict[str, float]:
    """Share of the perplexity that heads of orders 1, 2, 3 take away."""
    text = _text(known)
    suffix = "+NGH_1(1,2,3)+NGH_-2(1,2,3)"
    both = [m for m in TEXT_MODELS if m in text and m + suffix in text]
    return {m: -change for m in both if (change := text_change(text[m + suffix], text[m])) is not None}


def _text_seen(known: Known, gains: dict[str, float]) -> str:
    million = max(row["parameters"] for row in _text(known).values()) / 1e6
    return f"perplexity lower by: {', '.join(f'{m} {gain:.1%}' for m, gain in gains.items())}, at {million:.0f}M parameters"


def _text_answer(known: Known, holds: Callable[[dict[str, float]], bool]) -> Answer:
    """From the gains of all three models; fewer decide nothing."""
    gains = _text_gains(known)
    if len(gains) < len(TEXT_MODELS):
        seen = f" ({_text_seen(known, gains)})" if gains else ""
        return Answer(None, f"{NOT_RUN}: all of table1b{seen}")
    return Answer(holds(gains), _text_seen(known, gains))


@test
def text_heads_help(known: Known) -> Answer:
    return _text_answer(known, lambda gains: min(gains.values()) > 0)


@test
def text_gains_most(known: Known, label: str) -> Answer:
    return _text_answer(known, lambda gains: max(gains, key=lambda m: gains[m]) == label)


@test
def text_up_to(known: Known, expected: float) -> Answer:
    gains = _text_gains(known)
    if not gains or not published_text(known.tables["text"]):
        return Answer(
            None, f"{NOT_RUN}: models of 340M parameters on SlimPajama{f' ({_text_seen(known, gains)})' if gains else ''}"
        )
    return _text_answer(known, lambda gains: max(gains.values()) >= expected - 0.01)


@test
def text_orders(known: Known, times: float) -> Answer:
    """Heads of three orders take away so many times of what three of the first order do."""
    text = _text(known)
    base, ones, orders = "GLA", "GLA+NGH_1(1,1,1)+NGH_-2(1,1,1)", "GLA+NGH_1(1,2,3)+NGH_-2(1,2,3)"
    if not {base, ones, orders} <= set(text):
        return missing("the three rows of GLA in table1b")
    some, between = text_change(text[ones], text[base]), text_change(text[orders], text[ones])
    if some is None or between is None:
        return missing("table1b with the same seeds")
    all_orders = (1 + some) * (1 + between) - 1  # the two with heads are compared over all the seeds that both have
    seeds = sorted(set(text[ones]["by_seed"]) & set(text[orders]["by_seed"]))
    holds = all_orders < 0 and all_orders < some and (some >= 0 or all_orders / some >= times)
    said = (
        f"perplexity with three of order 1 {some:+.1%}, with orders 1, 2, 3 {all_orders:+.1%}, {between:+.1%} between the two"
    )
    return Answer(holds, f"{said} (seeds {', '.join(seeds)})")
