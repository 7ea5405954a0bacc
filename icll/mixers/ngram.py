"""N-gram heads (section 6, appendix F): layers that average what followed earlier occurrences of the last n tokens.

h_i   mean of x_(k+1) over the earlier ends k of the n tokens that end at i (icll.ops.ngram)
y_i   W_0 h_i + W_1 x_i
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from ..errors import IcllError, whole
from ..ops.ngram import Reset, attend_contexts, context_ids, ngram_attend, ngram_weights
from .base import Mixing


class Contexts(Protocol):
    """Where a head gets its averages from: a whole text, or a memory that reads one token after the other."""

    def average(self, key: str, n: int, repeat: str, values: torch.Tensor) -> torch.Tensor:
        """For values [B, L, D] of the tokens at hand. `key` names the head."""
        ...


class WholeText:
    """Contexts of whole texts [B, L], numbered once for all heads."""

    def __init__(self, tokens: torch.Tensor, n: int, reset: Reset = None):
        self.tokens, self.reset = tokens, reset
        self.ids = context_ids(tokens, n, reset)

    def average(self, key: str, n: int, repeat: str, values: torch.Tensor) -> torch.Tensor:
        return attend_contexts(self.ids[n - 1], values, repeat)

    def weights(self, n: int, repeat: str) -> torch.Tensor:
        """As a matrix, [B, L, L]."""
        return ngram_weights(self.tokens, n, repeat, self.reset)


class NGramMemory:
    """The same averages one token at a time: a table of contexts, and for each head a running sum of values in every row.

    Work per token does not grow; memory grows with the number of different contexts. With `max_contexts` it stops growing:
    each order keeps that many contexts of a text, and a new one takes the place of the one that was met least recently, which
    is forgotten. Unlike other recurrent states a memory is changed in place: copy.deepcopy it to go on from one point twice.
    `tensors` and `from_tensors` turn it into plain tensors and back.
    """

    def __init__(self, batch_size: int, orders: Sequence[int], reset: Reset = None, max_contexts: int | None = None):
        self.orders = sorted({whole("the order n of an n-gram head", n, 1) for n in orders})
        self.reset = frozenset([] if reset is None else [reset] if isinstance(reset, int) else reset)
        self.max_contexts = None if max_contexts is None else whole("max_contexts", max_contexts, 2)
        self.length = 0  # tokens read
        self.recent: list[list[int]] = [[] for _ in range(batch_size)]  # the last tokens, as many as the highest order
        # For each order: the slots of a text's contexts, least recently met first; how often each was followed.
        self.slots: dict[int, list[OrderedDict[tuple[int, ...], int]]] = {
            n: [OrderedDict() for _ in range(batch_size)] for n in self.orders
        }
        self.counts: dict[int, list[int]] = {n: [] for n in self.orders}
        self.last: dict[int, list[int]] = {n: [-1] * batch_size for n in self.orders}  # the slot of the last context, -1: none
        self.sums: dict[str, torch.Tensor] = {}  # for each head [slots, D], with room to grow
        self._text: WholeText | None = None  # of a first reading of many tokens, for which the parallel form is quicker
        self._steps: list[dict[int, tuple[list[int], list[int], list[int], list[int], list[int]]]] = []

    def read(self, tokens: torch.Tensor) -> None:
        """Take in the next tokens, [B, T]. Each head must then ask for their averages once, before the next call."""
        if len(tokens) != len(self.recent):
            raise IcllError(f"this memory is of {len(self.recent)} texts, not {len(tokens)}")
        self.length += tokens.shape[1]
        first = tokens.shape[1] > 1 and not any(self.recent) and self.max_contexts is None
        self._text = WholeText(tokens, self.orders[-1], sorted(self.reset) or None) if first else None
        self._steps = [self._advance(column) for column in tokens.T.tolist()]

    def _advance(self, tokens: list[int]) -> dict[int, tuple[list[int], list[int], list[int], list[int], list[int]]]:
        """One token for each text: for each order the slot written to, the one read, both counts, and slots that begin anew."""
        for recent, token in zip(self.recent, tokens, strict=True):
            recent.append(token)
            if len(recent) > self.orders[-1]:
                del recent[0]
        step = {}
        for n in self.orders:
            write, counts = list(self.last[n]), self.counts[n]
            read, fresh = [], []
            for b, recent in enumerate(self.recent):
                context = tuple(recent[-n:])
                if len(context) < n or not self.reset.isdisjoint(context[1:]):
                    read.append(-1)
                    continue
                table = self.slots[n][b]
                slot = table.get(context)
                if slot is None:
                    if self.max_contexts is not None and len(table) >= self.max_contexts:
                        _, slot = table.popitem(last=False)
                        counts[slot] = 0
                    else:
                        slot = len(counts)
                        counts.append(0)
                    fresh.append(slot)
                    table[context] = slot
                else:
                    table.move_to_end(context)
                read.append(slot)
            before = [counts[slot] if slot >= 0 else 0 for slot in read]
            for slot in write:
                if slot >= 0 and slot not in fresh:
                    counts[slot] += 1
            write = [-1 if slot in fresh else slot for slot in write]
            after = [counts[slot] if slot >= 0 else 0 for slot in read]
            self.last[n] = read
            step[n] = write, read, before, after, fresh
        return step

    def average(self, key: str, n: int, repeat: str, values: torch.Tensor) -> torch.Tensor:
        if values.shape[1] != len(self._steps):
            raise IcllError(f"the memory read {len(self._steps)} tokens, but was given {values.shape[1]} values")
        sums = self._room(key, n, values)
        if self._text is not None:
            written = torch.tensor([step[n][0] for step in self._steps], device=values.device).T  # [B, T]
            sums.index_add_(0, written[written >= 0], values.detach()[written >= 0].to(sums.dtype))
            return self._text.average(key, n, repeat, values)
        out = []
        for t, step in enumerate(self._steps):
            write, read, before, after, fresh = step[n]
            if fresh:
                sums[fresh] = 0
            rows = [b for b, slot in enumerate(write) if slot >= 0]
            if repeat == "keep" and rows:
                sums[[write[b] for b in rows]] += values[rows, t].to(sums.dtype)
            counts = torch.tensor(after if repeat == "keep" else before, device=values.device)[:, None]
            mean = sums[read] / counts.clamp(min=1)  # where nothing is read the count is 0, whatever row -1 holds
            out.append(torch.where(counts > 0, mean, 0).to(values.dtype))
            if repeat == "drop" and rows:
                sums[[write[b] for b in rows]] += values[rows, t].to(sums.dtype)
        return torch.stack(out, 1)

    def _room(self, key: str, n: int, values: torch.Tensor) -> torch.Tensor:
        needed = max(1, len(self.counts[n]))
        held = self.sums.get(key)
        if held is None or len(held) < needed:
            exact = torch.float64 if values.dtype == torch.float64 else torch.float32
            larger = torch.zeros(max(16, 2 * needed), values.shape[2], dtype=exact, device=values.device)
            if held is not None:
                larger[: len(held)] = held
            self.sums[key] = held = larger
        return held

    def reorder(self, rows: Sequence[int]) -> None:
        """Text b becomes a copy of text rows[b], as beam search asks for."""
        old_slots, old_counts, old_last = self.slots, self.counts, self.last
        self.recent = [list(self.recent[row]) for row in rows]
        origin: dict[int, list[int]] = {}
        self.slots, self.counts, self.last = {}, {}, {}
        for n in self.orders:
            origin[n], tables, last = [], [], []
            for row in rows:
                table = OrderedDict()
                for context, slot in old_slots[n][row].items():
                    table[context] = len(origin[n])
                    if slot == old_last[n][row]:
                        last.append(len(origin[n]))
                    origin[n].append(slot)
                if old_last[n][row] < 0:
                    last.append(-1)
                tables.append(table)
            self.slots[n], self.last[n] = tables, last
            self.counts[n] = [old_counts[n][slot] for slot in origin[n]]
        for key, held in self.sums.items():
            self.sums[key] = held[origin[order_of(key)]] if origin[order_of(key)] else held[:0]

    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything, as tensors: fit for a safetensors file."""
        settings = [len(self.recent), -1 if self.max_contexts is None else self.max_contexts, self.length]
        made = {
            "settings": torch.tensor(settings), "orders": torch.tensor(self.orders),
            "reset": torch.tensor(sorted(self.reset), dtype=torch.long),
            "recent": torch.tensor([[-1] * (self.orders[-1] - len(r)) + r for r in self.recent]),
        }  # fmt: skip
        for n in self.orders:
            rows = [[b, slot, *context] for b, table in enumerate(self.slots[n]) for context, slot in table.items()]
            made[f"contexts.{n}"] = torch.tensor(rows, dtype=torch.long).view(-1, n + 2)
            made[f"counts.{n}"] = torch.tensor(self.counts[n], dtype=torch.long)
            made[f"last.{n}"] = torch.tensor(self.last[n])
        return made | {f"sums.{key}": held.contiguous() for key, held in self.sums.items()}

    @classmethod
    def from_tensors(cls, tensors: dict[str, torch.Tensor]) -> NGramMemory:
        batch_size, max_contexts, length = tensors["settings"].tolist()
        limit = max_contexts if max_contexts >= 0 else None
        memory = cls(batch_size, tensors["orders"].tolist(), tensors["reset"].tolist(), limit)
        memory.length = length
        memory.recent = [[t for t in row if t >= 0] for row in tensors["recent"].tolist()]
        for n in memory.orders:
            for b, slot, *context in tensors[f"contexts.{n}"].tolist():
                memory.slots[n][b][tuple(context)] = slot
            memory.counts[n] = tensors[f"counts.{n}"].tolist()
            memory.last[n] = tensors[f"last.{n}"].tolist()
        memory.sums = {key.removeprefix("sums."): held.clone() for key, held in tensors.items() if key.startswith("sums.")}
        return memory


def order_of(key: str) -> int:
    """A head's key ends with its order, as in `block.3`."""
    return int(key.rpartition(".")[2])


class NGramHead(nn.Module):
    """One head: two linear maps, 2 d^2 + 2 d parameters. `head(x, tokens)` stands alone; in models heads share contexts."""

    def __init__(self, d_model: int, n: int, repeat: str = "drop", reset: Reset = None, bias: bool = True):
        super().__init__()
        self.n, self.repeat, self.reset = whole("the order n of an n-gram head", n, 1), repeat, reset
        self.key = f"head.{n}"
        self.followed = nn.Linear(d_model, d_model, bias=bias)  # of what followed
        self.own = nn.Linear(d_model, d_model, bias=bias)

    def forward(self, x: torch.Tensor, tokens: torch.Tensor | Contexts) -> torch.Tensor:
        """x [B, L, D]; tokens [B, L], or the contexts of a model."""
        if isinstance(tokens, torch.Tensor):
            average = ngram_attend(tokens, x, self.n, self.repeat, self.reset)
        else:
            average = tokens.average(self.key, self.n, self.repeat, x)
        return self.followed(average) + self.own(x)

    def mixing(self, x: torch.Tensor, tokens: torch.Tensor | Contexts) -> Mixing:
        """The averages as a matrix, [B, 1, L, L], of what is read."""
        text = WholeText(tokens, self.n, self.reset) if isinstance(tokens, torch.Tensor) else tokens
        assert isinstance(text, WholeText)
        weights = text.weights(self.n, self.repeat)[:, None].to(x.dtype)
        return Mixing(weights, x[:, None], lambda z: self.followed(z) + self.own(x))

    def extra_repr(self) -> str:
        return f"n={self.n}, repeat={self.repeat!r}" + ("" if self.reset is None else f", reset={self.reset}")


class NGramBlock(nn.Module):
    """x + head(norm(x)); with `mlp`, as for real text, then x + MLP(norm(x)) of width d, 4 d^2 parameters in all."""

    def __init__(
        self, d_model: int, n: int, repeat: str = "drop", norm: type[nn.Module] = nn.LayerNorm, mlp: bool = False
    ):  # fmt: skip
        super().__init__()
        self.norm = norm(d_model, eps=1e-5)  # type: ignore[call-arg]
        self.head = NGramHead(d_model, n, repeat)
        self.mlp = None
        if mlp:
            self.mlp_norm = norm(d_model, eps=1e-5)  # type: ignore[call-arg]
            self.mlp = nn.Sequential(nn.Linear(d_model, d_model), nn.SiLU(), nn.Linear(d_model, d_model))

    def forward(self, x: torch.Tensor, contexts: torch.Tensor | Contexts) -> torch.Tensor:
        x = x + self.head(self.norm(x), contexts)
        return x if self.mlp is None else x + self.mlp(self.mlp_norm(x))

    def mixing(self, x: torch.Tensor, contexts: torch.Tensor | Contexts) -> Mixing:
        return self.head.mixing(self.norm(x), contexts)

    def start_at_zero(self) -> None:
        """Make the block the identity, for a model that is trained already: only the maps into the stream are zeroed."""
        maps = [self.head.followed, self.head.own] + ([] if self.mlp is None else [self.mlp[2]])
        for linear in maps:
            for parameter in linear.parameters():
                nn.init.zeros_(parameter)


def place_after(after: int | Sequence[int], n_layers: int, mode: str) -> list[int]:
    """Places between layers: after=1 is after the first layer, -1 after the last. To replace: indices of layers."""
    places = [after] if isinstance(after, int) else list(after)
    result = []
    for place in places:
        least, most = (-n_layers, n_layers - 1) if mode == "replace" else (-n_layers, n_layers)
        if not isinstance(place, int) or isinstance(place, bool) or not least <= place <= most:
            raise IcllError(f"n-gram heads after layer {place}: the model has {n_layers} layers, so choose {least}..{most}")
        result.append(place if place >= 0 else place + n_layers + (mode == "insert"))
    if len(set(result)) < len(result):
        raise IcllError(f"n-gram heads twice in one place: {places}")
    return sorted(result)
