"""The training loop: read it from the top."""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.loggers import Logger
from lightning_fabric.strategies import ModelParallelStrategy
from safetensors.torch import save_file
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from ..errors import IcllError, whole
from ..files import replacing
from ..model import Model, model_of
from ..tasks import Batch
from .checkpoint import load_checkpoint, save_checkpoint
from .config import RunConfig
from .optimize import make_optimizers, rate_at, set_rate, warmup_steps
from .randomness import random_state, seed_everything, set_random_state
from .source import Source

CHECKPOINT_SECONDS = 60.0


@dataclass(frozen=True)
class Machine:
    """Where and on how much a run trains. Nothing of it changes what is trained, but that several processes draw other random
    numbers (dropout, relabelling) than one."""

    accelerator: str = "auto"
    devices: int = 1
    nodes: int = 1
    strategy: str = "auto"
    threads: int | None = None

    def __post_init__(self) -> None:
        for name in ("devices", "nodes", "threads"):
            if getattr(self, name) is not None:
                whole(f"--{name}", getattr(self, name), 1)

    def fabric(self, precision: str, loggers: list[Logger] | None = None) -> Fabric:
        several = self.devices * self.nodes > 1
        accelerator = "cpu" if self.accelerator == "auto" and not torch.cuda.is_available() else self.accelerator
        strategy: Any = "ddp" if several and self.strategy == "auto" else self.strategy
        if strategy == "fsdp":
            strategy = ModelParallelStrategy(shard, self.devices * self.nodes, 1)
        try:
            return Fabric(
                accelerator=accelerator, strategy=strategy, devices=self.devices, num_nodes=self.nodes,
                precision=precision, loggers=loggers,  # type: ignore[arg-type]
            )  # fmt: skip
        except (ValueError, RuntimeError) as error:  # what this machine does not have
            raise IcllError(f"{error} (see --accelerator, --devices, --strategy)") from None


def shard(model: Any, mesh: Any) -> Any:
    """FSDP: every process holds its part of each layer, and has a layer whole only while it computes with it."""
    for part in [*model.blocks, model]:
        # Whole weights, if they stayed after validation, would not take the parts of a running mean.
        fully_shard(part, mesh=mesh["data_parallel"], reshard_after_forward=True)
    return model


@dataclass
class Progress:
    """Where a run stands."""

    epoch: int = 0  # the one being trained, from 0
    batch: int = 0  # of that epoch, the next to do
    step: int = 0
    loss_sum: float = 0.0  # of the epoch so far
    loss_tokens: int = 0
    best: float = math.inf  # validation loss
    best_epoch: int = -1
    seconds: float = 0.0  # trained, over all sittings
    cpu_seconds: float = 0.0
    sittings: int = 1
    threads: int | None = None  # of each process; as many again give the same bits
    rows: list[dict[str, Any]] = field(default_factory=list)  # of metrics.jsonl


Watch = Callable[[Progress, dict[str, Any]], None]


class Trainer:
    """One run in one process (of several, if the machine has them)."""

    def __init__(self, config: RunConfig, folder: Path, machine: Machine | None = None, loggers: list[Logger] | None = None):
        self.config, self.folder, self.machine = config, folder, machine or Machine()
        if self.machine.threads:
            torch.set_num_threads(self.machine.threads)
        self.fabric = self.machine.fabric(config.precision, loggers)
        self.fabric.launch()
        if (
            config.precision == "bf16-mixed"
            and self.fabric.device.type == "cpu"
            and not self.fabric.global_rank
            and lacks_bf16()
        ):
            warnings.warn(
                "this processor has no bfloat16 units: bf16-mixed takes longer here than 32-true, not shorter", stacklevel=2
            )
        seed_everything(config.seed)
        self.source: Source = config.data.source(config.recipe, config.seed)
        if self.source.vocab_size > config.model.vocab_size:
            raise IcllError(
                f"the data has {self.source.vocab_size:,} token ids, the model {config.model.vocab_size:,}: give it as many"
            )
        if self.fabric.world_size > 1:  # batches too small to share are told before anything is written
            next(iter(self.source.batches(0, 0, self.fabric.global_rank, self.fabric.world_size)))
        self.total = config.recipe.epochs * len(self.source)
        self.warmup = warmup_steps(config.recipe, self.total)
        model = model_of(config.model, config.seed)
        if config.model.authors_bug:  # processes that share gradients wait for those of every weight that has one
            model.blocks[:-1].requires_grad_(False)  # type: ignore[attr-defined]
        self.bare: Model = model
        self.model = self.fabric.setup_module(model)
        self.optimizers: list[Any] = [self.fabric.setup_optimizers(o) for o in make_optimizers(model, config.recipe)]
        # The running mean of the weights, if the recipe has one: what is scored and kept, while training goes on without it.
        self.average = [p.detach().clone() for p in model.parameters()] if config.recipe.average else []
        self.progress = Progress()
        self.last_checkpoint = time.monotonic()
        self.interrupted = self.stopping = False  # somebody pressed Ctrl-C; all processes know
        self.due = False  # a checkpoint, after this step

    # --- the loop ---

    def fit(self, watch: Watch = lambda progress, row: None, until: int | None = None) -> Progress:
        """Train from where the run stands to its end, or to the end of epoch `until`. One process is watched."""
        if self.fabric.global_rank > 0:
            watch = lambda progress, row: None  # noqa: E731
        recipe, progress = self.config.recipe, self.progress
        self.started, self.cpu_started = time.monotonic(), time.process_time()
        with self._finishing_steps():
            while progress.epoch < min(recipe.epochs, until or recipe.epochs) and not self._stalled():
                self.model.train()
                share = self.fabric.global_rank, self.fabric.world_size
                losses = [row["valid_loss"] for row in progress.rows]
                for batch, tokens in self.source.batches(progress.epoch, progress.batch, *share):
                    set_rate(self.optimizers, recipe, rate_at(recipe, progress.step, self.total, self.warmup, losses))
                    loss = self._step(batch, tokens)
                    progress.step += 1
                    progress.batch += 1
                    progress.loss_sum += loss * tokens
                    progress.loss_tokens += tokens
                    watch(progress, {"loss": loss, "total": self.total, "tokens": tokens, "padded": batch.tokens.numel()})
                    if self.stopping or self.due:
                        self.checkpoint()
                    if self.stopping:
                        raise KeyboardInterrupt
                self._end_epoch(watch)
                self.checkpoint()
        if self.interrupted:  # since the last step
            raise KeyboardInterrupt
        return progress

    @contextmanager
    def _finishing_steps(self) -> Iterator[None]:
        """Ctrl-C waits for the end of the step: half a step cannot be kept. Pressed again, it does not wait, and nothing is
        kept but the last checkpoint."""
        if threading.current_thread() is not threading.main_thread():  # signals are not ours there
            yield
            return

        def wait(number: int, frame: Any) -> None:
            self.interrupted = True
            signal.signal(signal.SIGINT, before)

        before = signal.signal(signal.SIGINT, wait)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _step(self, batch: Batch, tokens: int) -> float:
        """One step on this process's share of a batch of `tokens` targets; returns the loss of the whole batch."""
        pieces = cut(Batch(*(part.to(self.fabric.device) for part in batch)), self._pieces(len(batch.tokens)))
        total: Any = 0.0
        for i, piece in enumerate(pieces):
            with self.fabric.no_backward_sync(self.model, enabled=i + 1 < len(pieces)):
                part = self.model(piece.tokens, targets=piece.targets)
                # Gradients are averaged over processes, so each one's share counts as many times as there are processes.
                self.fabric.backward(part * self.fabric.world_size / tokens)
                total = total + part.detach()
        # One clock says when a checkpoint is due: all processes take part in it, or none.
        due = self.fabric.global_rank == 0 and time.monotonic() - self.last_checkpoint > CHECKPOINT_SECONDS
        news = total.new_tensor([float(self.interrupted), float(due)])
        sums: Any = self.fabric.all_reduce(torch.cat([total.reshape(1), news]), reduce_op="sum")
        loss, self.stopping, self.due = float(sums[0]) / tokens, bool(sums[1]), bool(sums[2])
        clip = math.inf if self.config.recipe.clip is None else self.config.recipe.clip
        norm = float(gathered(torch.nn.utils.clip_grad_norm_(self.bare.parameters(), clip)))
        for what, value in (("loss", loss), ("norm of the gradient", norm)):
            if not math.isfinite(value):
                raise self._not_finite(what, value)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if self.average:
            # At the beginning it forgets faster: it would else remember the first weights for long.
            decay = min(self.config.recipe.average, (1 + self.progress.step) / (10 + self.progress.step))
            with torch.no_grad():
                for mean, p in zip(self.average, self.bare.parameters(), strict=True):
                    mean.lerp_(p, 1 - decay)
        return loss

    def _pieces(self, rows: int) -> int:
        """In how many pieces to compute this process's share: all processes in as many, since they gather weights for each."""
        world = self.fabric.world_size
        if world == 1 or self.config.recipe.accumulate == 1:
            return self.config.recipe.accumulate
        least: Any = self.fabric.all_reduce(torch.tensor(rows, device=self.fabric.device), reduce_op="min")
        return min(-(-self.config.recipe.accumulate // world), int(least))

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """The model has its mean weights for as long as it is scored and kept."""
        if not self.average:
            yield
            return
        own = [p.detach().clone() for p in self.bare.parameters()]
        self._set(self.average)
        try:
            yield
        finally:
            self._set(own)

    @torch.no_grad()
    def _set(self, tensors: list[torch.Tensor]) -> None:
        for p, tensor in zip(self.bare.parameters(), tensors, strict=True):
            p.copy_(tensor)

    def _not_finite(self, what: str, value: float) -> IcllError:
        bad = [name for name, p in self.bare.named_parameters() if not p.isfinite().all()]
        gradients = [name for name, p in self.bare.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
        cause = f"weights of {bad[0]}" if bad else f"gradients of {gradients[0]}" if gradients else "the outputs alone"
        return IcllError(
            f"the {what} is {value} at step {self.progress.step} (seen in {cause}): lower --rate or set --clip; the last good "
            f"checkpoint is in {self.folder / 'last'}"
        )

    def _end_epoch(self, watch: Watch) -> None:
        """Score on the validation set, write the metrics down, keep the best weights."""
        progress = self.progress
        row: dict[str, Any] = {}
        with self._averaged():
            if self.fabric.global_rank == 0 or self.machine.strategy == "fsdp":  # no process has a whole model alone
                row = {
                    "epoch": progress.epoch + 1, "step": progress.step, "train_loss": progress.loss_sum / progress.loss_tokens,
                    **self.source.validate(self.bare), "rate": self.optimizers[0].param_groups[0]["lr"],
                    "seconds": progress.seconds + time.monotonic() - self.started,
                }  # fmt: skip
            row = self.fabric.broadcast(row)
            if not math.isfinite(row["valid_loss"]):
                raise self._not_finite("validation loss", row["valid_loss"])
            progress.rows.append(row)
            if row["valid_loss"] < progress.best:
                progress.best, progress.best_epoch = row["valid_loss"], progress.epoch
                best = weights(self.bare)
                if self.fabric.global_rank == 0:
                    with replacing(self.folder / "model.safetensors") as (path,):
                        save_file(best, path)
        progress.epoch, progress.batch = progress.epoch + 1, 0
        progress.loss_sum, progress.loss_tokens = 0.0, 0
        if self.fabric.global_rank == 0:
            with replacing(self.folder / "metrics.jsonl") as (path,):
                path.write_text("".join(json.dumps(r) + "\n" for r in progress.rows), "utf-8")
            self.fabric.log_dict({k: v for k, v in row.items() if k != "step"}, step=progress.step)
        watch(progress, row)

    @property
    def finished(self) -> bool:
        return self.progress.epoch >= self.config.recipe.epochs or self._stalled()

    def _stalled(self) -> bool:
        recipe, progress = self.config.recipe, self.progress
        # While only beginnings are read, whole problems may be predicted worse and worse: it waits from there on.
        since = max(progress.best_epoch, math.ceil(recipe.short * recipe.epochs) - 1)
        return recipe.patience is not None and progress.best_epoch >= 0 and progress.epoch - 1 - since >= recipe.patience

    # --- checkpoints ---

    def checkpoint(self) -> None:
        """Everything that the next step depends on, and what has been written down so far."""
        progress = self.progress
        now, cpu = time.monotonic(), time.process_time()
        progress.seconds += now - self.started
        progress.cpu_seconds += cpu - self.cpu_started
        progress.threads = torch.get_num_threads()
        self.started, self.cpu_started = now, cpu
        tensors = {f"model.{name}": p for name, p in weights(self.bare).items()}
        tensors |= {f"random.{name}": state for name, state in self._random_states().items()}
        tensors |= {f"average.{i}": gathered(mean) for i, mean in enumerate(self.average)}
        for i, optimizer in enumerate(self.optimizers):
            for number, state in optimizer.state_dict()["state"].items():
                for name, value in state.items():
                    tensors[f"optimizer.{i}.{number}.{name}"] = gathered(torch.as_tensor(value))
        if self.fabric.global_rank == 0:
            save_checkpoint(self.folder / "last", progress.step, tensors, asdict(progress))
        self.fabric.barrier()
        self.last_checkpoint = time.monotonic()  # a slow disk does not make the next one due at once

    def restore(self) -> bool:
        """Go back to the newest whole checkpoint, if there is one."""
        found = load_checkpoint(self.folder / "last")
        if found is None:
            return False
        tensors, notes = found
        load_weights(self.bare, {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
        rank = min(self.fabric.global_rank, len(tensors["random.torch"]) - 1)  # there may be more processes now
        mine = {k.removeprefix("random."): v[rank].clone() for k, v in tensors.items() if k.startswith("random.")}
        set_random_state(mine, self.fabric.device)
        for i, mean in enumerate(self.average):
            mean.copy_(parted(tensors[f"average.{i}"], mean))
        for i, optimizer in enumerate(self.optimizers):
            state: dict[int, dict[str, torch.Tensor]] = {}
            for key, value in tensors.items():
                if key.startswith(f"optimizer.{i}."):
                    number, name = key.split(".")[2:]
                    state.setdefault(int(number), {})[name] = value
            groups = optimizer.state_dict()["param_groups"]
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            for number, p in zip([n for group in groups for n in group["params"]], parameters, strict=True):
                for name, value in state.get(number, {}).items():
                    state[number][name] = parted(value, p) if value.shape == p.shape else value
            optimizer.load_state_dict({"state": state, "param_groups": groups})
        self.progress = Progress(**notes)
        self.progress.sittings += 1
        if self.progress.threads and not self.machine.threads:
            torch.set_num_threads(self.progress.threads)
        return True

    def _random_states(self) -> dict[str, torch.Tensor]:
        """Of every process: each draws for its own share of the batches."""
        states = random_state(self.fabric.device)
        if self.fabric.world_size == 1:
            return {name: state[None] for name, state in states.items()}
        everyone: Any = self.fabric.all_gather({name: state.to(self.fabric.device) for name, state in states.items()})
        return everyone


def lacks_bf16() -> bool:
    """Whether this processor is known to compute products in bfloat16 by software."""
    known: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # an older torch does not tell
    return known.get("architecture") == "x86_64" and not (known.get("avx512_bf16") or known.get("amx_bf16"))


def cut(batch: Batch, pieces: int) -> list[Batch]:
    """A batch as so many smaller ones (or one for each row, if there are fewer)."""
    pieces = min(pieces, len(batch.tokens))
    return [Batch(*(part[i::pieces] for part in batch)) for i in range(pieces)] if pieces > 1 else [batch]


def weights(model: Model) -> dict[str, torch.Tensor]:
    """By name, each once: a tied output is the embedding."""
    return {name: gathered(p.detach()) for name, p in model.named_parameters()} | dict(model.named_buffers())


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor that processes hold parts of: all of them must ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def parted(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """This process's part of a whole tensor, if `like` is a part."""
    return distribute_tensor(tensor, like.device_mesh, like.placements) if isinstance(like, DTensor) else tensor


def load_weights(model: Model, tensors: dict[str, torch.Tensor]) -> None:
    mine = dict(model.named_parameters()) | dict(model.named_buffers())
    if set(mine) != set(tensors):
        odd = sorted(set(mine) ^ set(tensors))[0]
        raise IcllError(f"these weights are of another model: {odd} is not in both")
    with torch.no_grad():
        for name, tensor in tensors.items():
            if mine[name].shape != tensor.shape:
                raise IcllError(
                    f"these weights are of another model: {name} is {list(tensor.shape)} there, {list(mine[name].shape)} here"
                )
            mine[name].copy_(parted(tensor, mine[name]))


def peak_memory_mb() -> float | None:
    """None where the system does not tell."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << (20 if sys.platform == "darwin" else 10))
