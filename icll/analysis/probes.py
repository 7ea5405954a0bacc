"""What hidden states tell (section 5.2, appendix E): probes for n-gram statistics and for the automaton's state.

A probe is a small MLP on the hidden state h of one layer at one time step, and a question. For n-grams the question is the
last n - 1 tokens and a next one, c:

    e_c, e_h   embed(c) [n, d / 2] flattened, W_proj h         [n d / 2] each
    y          W_2 gelu(W_1 [e_c, e_h, e_c * e_h] + b_1) + b_2

count       how often c followed those n - 1 tokens              squared error, scored by |y - target| / target
frequency   the same as a share of all that followed them        squared error, scored by |y - target| / target
existence   whether it ever did                                  binary cross-entropy, scored by accuracy

and for states it is a second hidden state: e_i, e_j = W_proj h_i, W_proj h_j [d]; are both time steps in the same state?

One probe for each layer and target; all that have the same shapes are trained together, as batched matrix products. Hidden
states are computed once, at a few time steps of every problem. They, and the two regressions' targets, are standardised by the
training problems' means and deviations: the same probes learn in fewer epochs.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ..errors import IcllError, whole
from ..files import read_json, replacing
from ..metrics import pooled
from ..model import Model, evaluating
from ..ops.ngram_counts import follower_counts
from ..tasks.problems import Problems, Splits

ORDERS = (1, 2, 3)
KINDS = ("count", "frequency", "existence")
STATE = "state"
EARLIEST = 75  # the first time step that is probed
Progress = Callable[[int, int], object]


def target(kind: str, n: int) -> str:
    return f"{kind} {n}"


TARGETS = (*(target(kind, n) for kind in KINDS for n in ORDERS), STATE)


def is_error(name: str) -> bool:
    """Whether a target is scored by relative error; the others by accuracy."""
    return name.startswith(("count", "frequency"))


@dataclass(frozen=True)
class ProbeConfig:
    """Appendix E, but for the epochs (there: 1,000), each of which draws one time step of every problem."""

    epochs: int = 150
    width: int = 128  # d
    batch_size: int = 64
    rate: float = 3e-4
    lowest_rate: float = 1e-4  # cosine from the one to the other
    betas: tuple[float, float] = (0.9, 0.99)
    steps_kept: int = 32  # time steps of each problem whose hidden states are kept
    problems: int = 2500  # of the training set, at most
    held_out: int = 500  # of validation and test set each, at most
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "width", "batch_size", "problems", "held_out"):
            whole(name, getattr(self, name), 1)
        whole("steps_kept", self.steps_kept, 2)
        if self.width % 2:
            raise IcllError(f"the width of probes must be even, not {self.width}")


# --- what is asked, and of what ---


@dataclass(frozen=True)
class Samples:
    """Some time steps of each of N problems: hidden states, and what the probes are asked about them."""

    hidden: torch.Tensor  # [layers, N, K, D]
    tokens: torch.Tensor  # [N, K, 2]: the last two, the newest last
    states: torch.Tensor  # [N, K]
    steps: torch.Tensor  # [N, K]
    counts: torch.Tensor  # [N, K, 3, V]: of followers after contexts of 0, 1, 2 tokens
    symbols: int  # ids 1..symbols may be asked about

    def __len__(self) -> int:
        return self.hidden.shape[1]


def choose_steps(problems: Problems, count: int, seed: int) -> tuple[Problems, torch.Tensor]:
    """The problems that are long enough, and `count` time steps [N, K] of each, without repetition where there are enough."""
    long = np.flatnonzero(np.diff(problems.offsets) >= EARLIEST + 2)
    if not len(long):
        raise IcllError(f"no problem has the {EARLIEST + 2} tokens that probes need: time steps from {EARLIEST} on are probed")
    kept = problems[long]
    rng = np.random.default_rng(seed)
    rows = []
    for length in np.diff(kept.offsets):
        there = length - EARLIEST
        rows.append(EARLIEST + rng.choice(there, count, replace=there < count))
    return kept, torch.from_numpy(np.stack(rows))


def take_samples(
    model: Model, problems: Problems, steps: torch.Tensor, progress: Progress = lambda done, total: None
) -> Samples:
    """Hidden states after every layer at these time steps [N, K], and the truth about them."""
    order = np.argsort(np.diff(problems.offsets), kind="stable")
    hidden: torch.Tensor | None = None
    tokens = torch.empty(*steps.shape, 2, dtype=torch.long)
    states = torch.empty(*steps.shape, dtype=torch.long)
    counts = torch.empty(*steps.shape, len(ORDERS), problems.vocab_size, dtype=torch.float32)
    with evaluating(model):
        for start in range(0, len(order), 32):
            which = torch.from_numpy(order[start : start + 32])
            batch, at = problems[which.numpy()], steps[which]
            b = torch.arange(len(which))[:, None]
            layers = model(batch.tokens.to(model.device), return_hidden=True).hidden
            if hidden is None:
                hidden = torch.empty(len(layers), *steps.shape, layers[0].shape[-1])
            for i, layer in enumerate(layers):
                hidden[i, which] = layer.cpu()[b, at].float()
            tokens[which] = torch.stack([batch.tokens[b, at - 1], batch.tokens[b, at]], -1)
            states[which] = batch.states[b, at]
            counts[which] = follower_counts(batch.tokens, len(ORDERS), problems.vocab_size)[b, at]
            progress(start + len(which), len(order))
    assert hidden is not None
    return Samples(hidden, tokens, states, steps, counts, len(problems.vocabulary.symbols))


@dataclass(frozen=True)
class Questions:
    """One time step of every problem, for the probes of all layers."""

    step: torch.Tensor  # [N], an index of the kept ones
    queries: dict[str, torch.Tensor]  # for each n-gram target [N, n]: context and next token
    values: dict[str, torch.Tensor]  # for each target [N]
    other: torch.Tensor  # [N], the second time step of the state probe


def ask(samples: Samples, generator: torch.Generator) -> Questions:
    """Time steps at random; a next token at random, for regressions among those that followed; as many pairs of equal states
    as of different ones."""
    N, K = samples.states.shape
    rows = torch.arange(N)
    step = torch.randint(K, (N,), generator=generator)
    queries, values = {}, {}
    for n in ORDERS:
        counts = samples.counts[rows, step, n - 1]  # [N, V]
        symbols = torch.zeros_like(counts)
        symbols[:, 1 : samples.symbols + 1] = 1.0
        followed = (counts > 0) * symbols
        none = followed.sum(-1, keepdim=True) == 0  # a context that nothing followed has no count to tell
        seen = torch.multinomial(torch.where(none, symbols, followed), 1, generator=generator)[:, 0]
        anyone = torch.multinomial(symbols, 1, generator=generator)[:, 0]
        context = samples.tokens[rows, step, 2 - (n - 1) :]
        count = counts[rows, seen]
        nothing = torch.full_like(count, torch.nan)
        values[target("count", n)] = torch.where(none[:, 0], nothing, count)
        values[target("frequency", n)] = torch.where(none[:, 0], nothing, count / counts.sum(-1).clamp(min=1))
        values[target("existence", n)] = (counts[rows, anyone] > 0).float()
        for kind, token in (("count", seen), ("frequency", seen), ("existence", anyone)):
            queries[target(kind, n)] = torch.cat([context, token[:, None]], 1)
    apart = samples.steps != samples.steps[rows, step][:, None]  # not with itself
    equal = samples.states == samples.states[rows, step][:, None]
    same, different = (equal & apart).float(), (~equal & apart).float()
    wanted = torch.rand(N, generator=generator) < 0.5
    wanted = torch.where(wanted, same.sum(1) > 0, different.sum(1) == 0)
    other = torch.multinomial(torch.where(wanted[:, None], same, different) + 1e-12, 1, generator=generator)[:, 0]
    values[STATE] = wanted.float()
    return Questions(step, queries, values, other)


# --- probes ---


class Stack(torch.nn.Module):
    """P probes of the same shapes, one for each of layers x kinds, in batched products. n = 0: state probes."""

    def __init__(self, layers: int, names: list[str], n: int, hidden: int, vocab: int, width: int, generator: torch.Generator):
        super().__init__()
        self.layers, self.names, self.n = layers, names, n
        P = layers * len(names)
        inner = n * width // 2 if n else width

        def uniform(*shape: int, inputs: int) -> torch.nn.Parameter:
            bound = 1 / math.sqrt(inputs)  # as torch's linear maps begin
            return torch.nn.Parameter((2 * torch.rand(*shape, generator=generator) - 1) * bound)

        self.project = uniform(P, hidden, inner, inputs=hidden)
        self.embed = torch.nn.Parameter(torch.randn(P, vocab, width // 2, generator=generator)) if n else None
        self.W_1, self.b_1 = uniform(P, 3 * inner, width, inputs=3 * inner), uniform(P, 1, width, inputs=3 * inner)
        self.W_2, self.b_2 = uniform(P, width, 1, inputs=width), uniform(P, 1, 1, inputs=width)

    def forward(self, h: torch.Tensor, question: torch.Tensor) -> torch.Tensor:
        """h [layers, B, D]; question: queries [kinds, B, n], or other hidden states [layers, B, D]. To [layers, kinds, B]."""
        kinds = len(self.names)
        mine = torch.bmm(h.repeat_interleave(kinds, 0), self.project)  # [P, B, inner]
        if self.embed is None:
            theirs = torch.bmm(question.repeat_interleave(kinds, 0), self.project)
        else:
            asked = question.repeat(self.layers, 1, 1).flatten(1)  # [P, B n], kinds in turn within a layer
            theirs = self.embed.gather(1, asked[..., None].expand(-1, -1, self.embed.shape[2])).view(*mine.shape)
        x = torch.cat([theirs, mine, theirs * mine], -1)
        y = torch.baddbmm(self.b_2, F.gelu(torch.baddbmm(self.b_1, x, self.W_1)), self.W_2)
        return y.view(self.layers, kinds, -1)


def make_stacks(layers: int, hidden: int, vocab: int, config: ProbeConfig) -> list[Stack]:
    generator = torch.Generator().manual_seed(config.seed)
    stacks = [Stack(layers, [target(k, n) for k in KINDS], n, hidden, vocab, config.width, generator) for n in ORDERS]
    return [*stacks, Stack(layers, [STATE], 0, hidden, vocab, config.width, generator)]


@dataclass(frozen=True)
class Scales:
    """Means and deviations of hidden states [layers, 1, 1, D] and of regression targets, and the best constant answer to each
    question, all from the training problems."""

    mean: torch.Tensor
    deviation: torch.Tensor
    values: dict[str, tuple[float, float]]
    constants: dict[str, float]

    @classmethod
    def of(cls, samples: Samples, config: ProbeConfig) -> Scales:
        mean = samples.hidden.mean((1, 2), keepdim=True)
        deviation = samples.hidden.std((1, 2), keepdim=True).clamp(min=1e-6)
        drawn = ask(samples, torch.Generator().manual_seed(config.seed)).values
        values, constants = {}, {}
        for name in drawn:
            known = drawn[name][drawn[name].isfinite()]
            constants[name] = _least_relative_error(known) if is_error(name) else float(known.mean() > 0.5)
            values[name] = (float(known.mean()), float(known.std().clamp(min=1e-6))) if is_error(name) else (0.0, 1.0)
        return cls(mean, deviation, values, constants)


def _least_relative_error(targets: torch.Tensor) -> float:
    """The constant c with the least mean of |c - t| / t: a median in which t weighs 1 / t."""
    ordered = targets.sort().values
    weights = (1 / ordered).cumsum(0)
    return float(ordered[int((weights < weights[-1] / 2).sum())])


def _answers(stack: Stack, samples: Samples, questions: Questions, rows: torch.Tensor) -> torch.Tensor:
    h = samples.hidden[:, rows, questions.step[rows]]
    if stack.n:
        question = torch.stack([questions.queries[name][rows] for name in stack.names])
    else:
        question = samples.hidden[:, rows, questions.other[rows]]
    return stack(h, question)


def train_probes(
    samples: Samples, scales: Scales, vocab: int, config: ProbeConfig, *, shuffle: bool = False,
    watch: Callable[[int, list[Stack]], None] = lambda epoch, stacks: None,
) -> list[Stack]:  # fmt: skip
    """Train a probe for every layer and target. `shuffle` hands out each epoch's targets at random: what is left to learn is
    chance. `samples` are standardised already."""
    stacks = make_stacks(samples.hidden.shape[0], samples.hidden.shape[-1], vocab, config)
    parameters = [p for stack in stacks for p in stack.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=config.rate, betas=config.betas, fused=True)
    generator = torch.Generator().manual_seed(config.seed + 1)
    for epoch in range(config.epochs):
        along = 0.5 * (1 + math.cos(math.pi * epoch / config.epochs))
        optimizer.param_groups[0]["lr"] = config.lowest_rate + (config.rate - config.lowest_rate) * along
        questions = ask(samples, generator)
        values = questions.values
        if shuffle:
            values = {name: v[torch.randperm(len(v), generator=generator)] for name, v in values.items()}
        for rows in torch.randperm(len(samples), generator=generator).split(config.batch_size):
            loss = torch.zeros(())
            for stack in stacks:
                answers = _answers(stack, samples, questions, rows)  # [layers, kinds, B]
                for i, name in enumerate(stack.names):
                    # A sum over layers: the probes of a stack share no parameter, so each has the gradient of its own mean.
                    loss = loss + _loss(name, answers[:, i], values[name][rows], scales)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        watch(epoch + 1, stacks)
    return stacks


def _loss(name: str, answers: torch.Tensor, values: torch.Tensor, scales: Scales) -> torch.Tensor:
    """answers [layers, B], values [B]; a value that is nan is not asked for."""
    known = values.isfinite()
    answers, values = answers[:, known], values[known].expand(len(answers), -1)
    if not answers.numel():
        return answers.sum()
    if is_error(name):
        mean, deviation = scales.values[name]
        return (answers - (values - mean) / deviation).square().mean(1).sum()
    return F.binary_cross_entropy_with_logits(answers, values, reduction="none").mean(1).sum()


def score_probes(
    stacks: list[Stack], samples: Samples, scales: Scales, config: ProbeConfig, rounds: int = 8
) -> dict[str, torch.Tensor]:
    """For each target [layers, N]: each problem's mean relative error or accuracy over some questions; nan where none was."""
    generator = torch.Generator().manual_seed(config.seed + 2)
    found: dict[str, list[torch.Tensor]] = {}
    rows = torch.arange(len(samples))
    with torch.no_grad():
        for _ in range(rounds):
            questions = ask(samples, generator)
            for stack in stacks:
                answers = _answers(stack, samples, questions, rows)
                for i, name in enumerate(stack.names):
                    value = questions.values[name]
                    if is_error(name):
                        mean, deviation = scales.values[name]
                        score = (answers[:, i] * deviation + mean - value).abs() / value
                    else:
                        score = ((answers[:, i] > 0) == (value > 0.5)).float()
                    found.setdefault(name, []).append(score)
    return {name: torch.stack(scores).nanmean(0) for name, scores in found.items()}


def constant_scores(samples: Samples, scales: Scales, config: ProbeConfig, rounds: int = 8) -> dict[str, float]:
    """The score of the best answer that knows neither hidden state nor question, as the training problems tell it."""
    generator = torch.Generator().manual_seed(config.seed + 2)
    found: dict[str, list[torch.Tensor]] = {}
    for _ in range(rounds):
        for name, value in ask(samples, generator).values.items():
            found.setdefault(name, []).append(value)
    result = {}
    for name, parts in found.items():
        value = torch.cat(parts)
        value = value[value.isfinite()]
        constant = scales.constants[name]
        score = (value - constant).abs() / value if is_error(name) else ((value > 0.5) == (constant > 0.5)).float()
        result[name] = float(score.mean())
    return result


# --- a whole run ---


@dataclass(frozen=True)
class ProbeResult:
    """Scores of one set of probes: for each target and layer on the validation and the test set, the layer chosen on the
    former, and the test score there with its 95 % interval over problems."""

    valid: dict[str, list[float]]
    test: dict[str, list[float]]
    layer: dict[str, int]  # from 1
    best: dict[str, tuple[float, float, float]]
    curves: list[dict[str, Any]]  # validation scores of the best layer along the epochs

    @classmethod
    def of(cls, valid: dict[str, torch.Tensor], test: dict[str, torch.Tensor], curves: list[dict[str, Any]]) -> ProbeResult:
        layer: dict[str, int] = {}
        best: dict[str, tuple[float, float, float]] = {}
        for name, scores in valid.items():
            means = scores.nanmean(1)
            chosen = int(means.argmin() if is_error(name) else means.argmax())
            values = test[name][chosen].double().numpy()
            known = np.isfinite(values)
            interval = pooled(np.where(known, values, 0.0)[:, None], known[:, None].astype(float))
            layer[name] = chosen + 1
            mean, low, high = (float(part[0]) for part in interval)
            best[name] = mean, low, high
        by_layer = [{name: s.nanmean(1).tolist() for name, s in part.items()} for part in (valid, test)]
        return cls(by_layer[0], by_layer[1], layer, best, curves)


def probe(
    model: Model, data: Splits, config: ProbeConfig | None = None, *, shuffle: bool = False,
    progress: Progress = lambda done, total: None,
) -> tuple[ProbeResult, dict[str, float]]:  # fmt: skip
    """Probe a model: trained on hidden states of the training problems, the layer chosen on the validation problems, scored on
    the test problems. Also the scores of constant answers."""
    config = config or ProbeConfig()
    if data.train.origin.task != "regbench":
        raise IcllError("probes ask about n-grams and states of automata: choose a run of the task regbench")
    parts = {
        "train": data.train[: config.problems],
        "valid": data.valid[: config.held_out],
        "test": data.test[: config.held_out],
    }
    samples = {}
    for offset, (name, problems) in enumerate(parts.items()):
        kept, steps = choose_steps(problems, config.steps_kept, config.seed + offset)
        samples[name] = take_samples(model, kept, steps)
    scales = Scales.of(samples["train"], config)
    for part in samples.values():
        part.hidden.sub_(scales.mean).div_(scales.deviation)
    curves: list[dict[str, Any]] = []
    every = max(1, config.epochs // 15)

    def watch(epoch: int, stacks: list[Stack]) -> None:
        if epoch % every == 0 or epoch == config.epochs:
            scores = {name: s.nanmean(1) for name, s in score_probes(stacks, samples["valid"], scales, config, 2).items()}
            row = {name: float(s.min() if is_error(name) else s.max()) for name, s in scores.items()}
            curves.append({"epoch": epoch, **row})
        progress(epoch, config.epochs)

    stacks = train_probes(samples["train"], scales, data.vocab_size, config, shuffle=shuffle, watch=watch)
    valid, test = (score_probes(stacks, samples[name], scales, config) for name in ("valid", "test"))
    return ProbeResult.of(valid, test, curves), constant_scores(samples["test"], scales, config)


CONTROLS = ("untrained", "shuffled")
RESULT = "probes.json"


@dataclass(frozen=True)
class RunProbes:
    """All of a run's probes: its own, those of the same model before training, those with shuffled targets; and constants."""

    run: str
    model: str
    config: ProbeConfig
    result: ProbeResult
    controls: dict[str, ProbeResult]
    constant: dict[str, float]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> RunProbes:
        config = ProbeConfig(**{**plain["config"], "betas": tuple(plain["config"]["betas"])})
        controls = {name: ProbeResult(**control) for name, control in plain["controls"].items()}
        return cls(**{**plain, "config": config, "result": ProbeResult(**plain["result"]), "controls": controls})


def probe_run(
    folder: Path,
    config: ProbeConfig | None = None,
    *,
    controls: bool = True,
    force: bool = False,
    progress: Progress = lambda done, total: None,
) -> RunProbes:
    """Probe a run's model and keep the result in its folder, where it is taken from if the same is asked for again."""
    from ..model import model_of
    from ..training import load_run, problem_data, read_config

    config = config or ProbeConfig()
    run = read_config(folder)
    own, model = problem_data(run, folder), load_run(folder)
    key = _key(folder, config)
    path = folder / RESULT
    kept = read_json(path) if path.exists() and not force else {}
    if kept.get("key") == key and (not controls or kept["probes"]["controls"]):
        return RunProbes.from_dict(kept["probes"])
    data, start = own.load(), time.monotonic()
    jobs: dict[str, tuple[Model, bool]] = {"own": (model, False)}
    if controls:
        jobs |= {"untrained": (model_of(run.model, run.seed).eval(), False), "shuffled": (model, True)}
    results, constants = {}, {}
    for before, (name, (other, shuffle)) in enumerate(jobs.items()):

        def told(done: int, total: int, before: int = before) -> None:
            progress(before * total + done, len(jobs) * total)

        results[name], constants[name] = probe(other, data, config, shuffle=shuffle, progress=told)
    result, constant = results.pop("own"), constants["own"]
    made = RunProbes(folder.name, run.model.model, config, result, results, constant, time.monotonic() - start)
    with replacing(path) as (temporary,):
        temporary.write_text(json.dumps({"key": key, "probes": made.as_dict()}, indent=2) + "\n", "utf-8")
    return made


def _key(folder: Path, config: ProbeConfig) -> str:
    """Changes with the weights and the settings."""
    settings = json.dumps(asdict(config), sort_keys=True).encode()
    return hashlib.sha256((folder / "model.safetensors").read_bytes() + settings).hexdigest()
