"""Table 1(b): language models with and without n-gram heads in place of their second and their second-to-last layer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import unknown
from ..training import RunConfig, RunSummary
from .data import TextData
from .presets import PLACES, SIZES, Size, text_model
from .shards import Tokens


@dataclass(frozen=True)
class Row:
    """A row of the table, and the paper's perplexity (340M parameters, 7B tokens of SlimPajama)."""

    model: str
    heads: tuple[int, ...]
    published: float
    key: bool = False  # trained with several seeds: the two rows so near to each other that one does not decide

    @property
    def name(self) -> str:
        return self.model + (f"+ngh({','.join(map(str, self.heads))})" if self.heads else "")


ROWS = (
    Row("retnet", (), 16.55),
    Row("retnet", (1, 2, 3), 15.86),
    Row("gla", (), 15.65),
    Row("gla", (1, 1, 1), 15.54, key=True),
    Row("gla", (1, 2, 3), 15.24, key=True),
    Row("llama", (), 16.96),
    Row("llama", (1, 2, 3), 15.82),
)


@dataclass(frozen=True)
class Budget:
    size: Size
    seeds: int  # of the key rows


def _demo() -> Size:
    """A minute or so for each row: it shows that everything runs, not who is better."""
    recipe = replace(SIZES["5m"].recipe, name="text-demo", epochs=2, batch_size=16, accumulate=8)
    return replace(SIZES["5m"], d_model=64, n_layers=4, n_heads=dict.fromkeys(("llama", "retnet", "gla"), 2), vocab_size=1024,
                   context=256, tokens=400_000, recipe=recipe)  # fmt: skip


BUDGETS = {"demo": Budget(_demo(), 1), "cpu": Budget(SIZES["5m"], 3), "paper": Budget(SIZES["340m"], 1)}


def find_budget(name: str) -> Budget:
    if name not in BUDGETS:
        raise unknown("budget", name, BUDGETS)
    return BUDGETS[name]


def row_config(row: Row, size: Size, tokens: Tokens, seed: int = 0, ngram_after: tuple[int, ...] = PLACES) -> RunConfig:
    places = ngram_after if row.heads else PLACES  # a model without heads is the same run wherever others have them
    model = text_model(row.model, size, row.heads, vocab_size=tokens.vocab_size, separator=tokens.separator, ngram_after=places)
    return RunConfig(model, TextData(tokens.name, tokens.fingerprint, size.context, size.tokens), size.recipe, seed)


def table1b_configs(
    budget: str,
    tokens: Tokens,
    train_tokens: int | None = None,
    precision: str = "32-true",
    context: int | None = None,
    ngram_after: tuple[int, ...] = PLACES,
) -> list[RunConfig]:
    """All runs of the table: the rows with seed 0 first, then the other seeds of the key rows. `train_tokens` to train on,
    `context` (batches keep their number of tokens) and the layers that heads replace may differ from the budget's, to see
    what the table depends on."""
    found = find_budget(budget)
    size = replace(found.size, tokens=train_tokens or found.size.tokens)
    if context is not None:
        batch = max(1, round(size.recipe.batch_size * size.context / context))
        pieces = math.gcd(batch, size.recipe.accumulate)
        size = replace(size, context=context, recipe=replace(size.recipe, batch_size=batch, accumulate=pieces))
    return [
        replace(row_config(row, size, tokens, seed, ngram_after), precision=precision)
        for seed in range(found.seeds) for row in ROWS if seed == 0 or row.key
    ]  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A row measured: perplexities on the test set, one for each seed, and how they differ from the model without heads."""

    row: Row
    parameters: int | None
    perplexities: dict[int, float]  # by seed
    base: dict[int, float]  # of the model without heads
    by_position: dict[tuple[int, int], float] = field(default_factory=dict)  # change after from..to tokens of the context

    @property
    def mean(self) -> float | None:
        """Geometric: of the losses."""
        return _mean(self.perplexities.values())

    @property
    def change(self) -> tuple[float, float | None] | None:
        """Relative change of the perplexity over the seeds both have, and its standard error if there are several."""
        seeds = sorted(self.perplexities.keys() & self.base.keys())
        if not self.row.heads or not seeds:
            return None
        logs = [math.log(self.perplexities[s] / self.base[s]) for s in seeds]
        mean = sum(logs) / len(logs)
        error = math.sqrt(sum((x - mean) ** 2 for x in logs) / (len(logs) - 1) / len(logs)) if len(logs) > 1 else None
        return math.expm1(mean), error

    @property
    def published_change(self) -> float | None:
        base = next(r.published for r in ROWS if r.model == self.row.model and not r.heads)
        return self.row.published / base - 1 if self.row.heads else None

    def as_dict(self) -> dict[str, Any]:
        change = self.change
        return {
            "row": self.row.name, "parameters": self.parameters, "perplexity": self.mean, "by_seed": self.perplexities,
            "change": change and change[0], "change_error": change and change[1],
            "by_position": [{"from": a, "to": b, "change": change} for (a, b), change in self.by_position.items()],
            "published": self.row.published, "published_change": self.published_change,
        }  # fmt: skip


def table1b(runs: Sequence[RunSummary], configs: Sequence[RunConfig]) -> list[Entry]:
    """The table from those runs of the configs that are finished; rows that are not stay empty."""
    results = {run.config.hash: run.result for run in runs if run.result}
    known: dict[tuple[str, tuple[int, ...]], dict[int, dict[str, Any]]] = {}
    for config in configs:
        if (result := results.get(config.hash)) is not None:
            known.setdefault((config.model.model, config.model.ngram_heads), {})[config.seed] = result
    entries = []
    for row in ROWS:
        mine, base = known.get((row.model, row.heads), {}), known.get((row.model, ()), {})
        parameters = next((result["parameters"] for result in mine.values()), None)
        changes = _by_position(mine, base) if row.heads else {}
        entries.append(Entry(row, parameters, _perplexities(mine), _perplexities(base), changes))
    return entries


def _perplexities(results: dict[int, dict[str, Any]]) -> dict[int, float]:
    return {seed: result["test"]["perplexity"]["mean"] for seed, result in results.items()}


def _by_position(mine: dict[int, dict[str, Any]], base: dict[int, dict[str, Any]]) -> dict[tuple[int, int], float]:
    """Where in the context heads help: at its first tokens there is nothing to match, so that what they gain there has other
    causes."""
    ratios: dict[tuple[int, int], list[float]] = {}
    for seed in sorted(mine.keys() & base.keys()):
        for one, other in zip(*(r[seed]["test"].get("by_position", []) for r in (mine, base)), strict=True):
            ratios.setdefault((one["from"], one["to"]), []).append(one["perplexity"] / other["perplexity"])
    return {band: (_mean(values) or 1.0) - 1 for band, values in ratios.items()}


def claims(entries: Sequence[Entry]) -> list[tuple[str, bool | None, str]]:
    """What the paper says of the table, whether it holds here (None: not all of it is measured), and the numbers."""
    by = {(e.row.model, e.row.heads): e for e in entries}
    full = {m: by[m, (1, 2, 3)].change for m in ("retnet", "gla", "llama")}
    changes = {m: c[0] for m, c in full.items() if c is not None}
    shown = ", ".join(f"{m} {c:+.1%}" for m, c in changes.items())
    complete = len(changes) == len(full)
    one, three = (by["gla", heads].perplexities for heads in ((1, 1, 1), (1, 2, 3)))
    shared = sorted(one.keys() & three.keys())
    means = [_mean(of[seed] for seed in shared) or 0.0 for of in (one, three)]
    pair = means[1] < means[0] if shared else None
    return [
        ("heads (1,2,3) help every model", all(c < 0 for c in changes.values()) if complete else None, shown),
        ("(1,2,3) helps gla more than (1,1,1)", pair, f"{means[1]:.2f} against {means[0]:.2f}" if shared else ""),
        ("llama gains most", min(changes, key=lambda m: changes[m]) == "llama" if complete else None, shown),
    ]


def _mean(values: Iterable[float]) -> float | None:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else None
