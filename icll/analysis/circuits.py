"""A Transformer whose weights are set by hand, so that what it does is known: the n-gram circuit of section 5.1.

Layer 1 has n heads; head k copies the token k places before. The first head of layer 2 compares its own token and those n - 1
copies with the n copies at every earlier position, so it attends exactly to what followed the last n tokens before; the model
predicts those followers. Tools that look for circuits can be held to it.
"""

from __future__ import annotations

import math

import torch

from ..errors import whole
from ..mixers import Attention
from ..model import Model, build_model
from ..tokens import VOCAB_SIZE

LOGIT = 4.0  # of a token that always followed
SHARP = 1e5  # of attention: a score this far below the best has weight 0


def ngram_circuit(n: int, max_length: int = 256, vocab_size: int = VOCAB_SIZE) -> Model:
    """In float64. A row of the stream is (u, -u), so that every norm only divides by a constant; u consists of one-hot parts:
    the token [V], its position [P], the tokens 1..n places before [V] each, and, at the end, what followed [V]."""
    whole("n", n, 1)
    V, P = vocab_size, max_length
    half = V + P + n * V + V
    width = max(P, n * V + 1, -(-2 * half // n))  # of a head
    width += n * width % 2
    d = n * width
    model = build_model("transformer", d_model=d, n_layers=2, n_heads=n, vocab_size=V, max_length=P, tie=False).double().eval()
    model.name = f"hand-built {n}-gram circuit"
    assert model.positions is not None
    token, place = torch.arange(V), V + torch.arange(P)
    before = [V + P + (k - 1) * V + torch.arange(V) for k in range(1, n + 1)]  # where the token k places before is kept
    followed = V + P + n * V + torch.arange(V)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
        for weights, at in ((model.embedding.weight, token), (model.positions.weight, place)):
            weights[torch.arange(len(at)), at] = 1.0
            weights[torch.arange(len(at)), d // 2 + at] = -1.0
        first, second = (block.mixer for block in model.blocks)
        norms = [math.sqrt(2 * parts / d + 1e-5) for parts in (2, 2 + n)]  # what the two norms divide by
        for k in range(1, n + 1):
            q, key, v = _rows(first, k - 1)
            at = torch.arange(P)
            first.qkv.weight[q[at], place] = SHARP
            first.qkv.weight[key[at[k:]], place[: P - k]] = 1.0
            first.qkv.weight[key[at[:k]], place[0]] = 1.0  # the first tokens have none so far before them: they take the first
            _copy(first, v, (k - 1) * width, token, before[k - 1], norms[0])
        q, key, v = _rows(second, 0)
        for m, (mine, theirs) in enumerate(zip([token, *before[:-1]], before, strict=True)):
            part = m * V + torch.arange(V)
            second.qkv.weight[q[part], mine] = SHARP
            second.qkv.weight[key[part], theirs] = 1.0
        second.qkv.bias[q[n * V]] = SHARP
        second.qkv.weight[key[n * V], place[:n]] = -2.0 * n  # before position n there are no n tokens to compare
        _copy(second, v, 0, token, followed, norms[1])
        model.output.weight[token, followed] = LOGIT * math.sqrt(2 * (3 + n) / d)
    return model


def _rows(mixer: Attention, head: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The rows of the mixer's map that make a head's queries, keys and values."""
    at = torch.arange(mixer.width)
    return tuple((part * mixer.n_heads + head) * mixer.width + at for part in range(3))  # type: ignore[return-value]


def _copy(mixer: Attention, v: torch.Tensor, start: int, source: torch.Tensor, target: torch.Tensor, norm: float) -> None:
    """Let a head write what it attends to in `source` into `target`, in both halves of the stream."""
    d, at = mixer.out.weight.shape[0], torch.arange(len(source))
    mixer.qkv.weight[v[at], source] = norm
    mixer.out.weight[target, start + at] = 1.0
    mixer.out.weight[d // 2 + target, start + at] = -1.0
