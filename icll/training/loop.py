"""The training loop: read it from the top."""

from __future__ import annotations

import json
import math
import random
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from lightning_fabric.loggers import Logger
from safetensors.torch import save_file

from ..errors import IcllError
from ..files import replacing
from ..model import Model, model_of
from ..predictors import evaluate
from ..tasks import Batch, LengthBuckets, Splits, collate
from ..tokens import N_SYMBOLS
from .checkpoint import load_checkpoint, save_checkpoint
from .config import RunConfig
from .optimize import make_optimizers, rate_at, set_rate, warmup_steps

CHECKPOINT_SECONDS = 60.0


@dataclass(frozen=True)
class Machine:
    """Where and on how much a run trains: nothing of it changes what is trained."""

    accelerator: str = "auto"
    devices: int = 1
    nodes: int = 1
    strategy: str = "auto"
    threads: int | None = None

    def fabric(self, precision: str, loggers: list[Logger] | None = None) -> Fabric:
        several = self.devices * self.nodes > 1
        accelerator = "cpu" if self.accelerator == "auto" and not torch.cuda.is_available() else self.accelerator
        strategy: Any = "ddp" if several and self.strategy == "auto" else self.strategy
        return Fabric(
            accelerator=accelerator, strategy=strategy, devices=self.devices, num_nodes=self.nodes,
            precision=precision, loggers=loggers,  # type: ignore[arg-type]
        )  # fmt: skip


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
        seed_everything(config.seed)
        self.data: Splits = config.data.load()
        self.buckets = LengthBuckets(np.diff(self.data.train.offsets), config.recipe.batch_size, seed=config.seed)
        self.total = config.recipe.epochs * len(self.buckets)
        self.warmup = warmup_steps(config.recipe, self.total)
        model = model_of(config.model, config.seed)
        self.bare: Model = model
        wrapped = self.fabric.setup(model, *make_optimizers(model, config.recipe))
        self.model, self.optimizers = wrapped[0], list(wrapped[1:])
        self.progress = Progress()
        self.last_checkpoint = time.monotonic()

    # --- the loop ---

    def fit(self, watch: Watch = lambda progress, row: None) -> Progress:
        """Train from where the run stands to its end."""
        recipe, progress = self.config.recipe, self.progress
        self.started, self.cpu_started = time.monotonic(), time.process_time()
        try:
            while progress.epoch < recipe.epochs and not self._stalled():
                self.model.train()
                losses = [row["valid_loss"] for row in progress.rows]
                for batch, tokens in self._batches(progress.epoch, progress.batch):
                    share = rate_at(recipe, progress.step, self.total, self.warmup, losses)
                    set_rate(self.optimizers, recipe, share)
                    loss = self._step(batch, tokens)
                    progress.step += 1
                    progress.batch += 1
                    progress.loss_sum += loss * tokens
                    progress.loss_tokens += tokens
                    watch(progress, {"loss": loss, "total": self.total, "tokens": tokens, "padded": batch.tokens.numel()})
                    if time.monotonic() - self.last_checkpoint > CHECKPOINT_SECONDS:
                        self.checkpoint()
                self._end_epoch(watch)
                self.checkpoint()
        except KeyboardInterrupt:
            self.checkpoint()
            raise
        return progress

    def _step(self, batch: Batch, tokens: int) -> float:
        """One step on this process's share of a batch of `tokens` targets; returns the loss of the whole batch."""
        logits = self.model(batch.tokens)
        total = F.cross_entropy(logits.flatten(0, 1).float(), batch.targets.flatten(), ignore_index=-100, reduction="sum")
        # Gradients are averaged over processes, so each one's share counts as many times as there are processes.
        self.fabric.backward(total * self.fabric.world_size / tokens)
        whole: Any = self.fabric.all_reduce(total.detach(), reduce_op="sum")
        loss = float(whole) / tokens
        if not math.isfinite(loss):
            raise self._not_finite(loss)
        if self.config.recipe.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.bare.parameters(), self.config.recipe.clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    def _not_finite(self, loss: float) -> IcllError:
        bad = [name for name, p in self.bare.named_parameters() if not p.isfinite().all()]
        gradients = [name for name, p in self.bare.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
        cause = f"weights of {bad[0]}" if bad else f"gradients of {gradients[0]}" if gradients else "the outputs alone"
        return IcllError(
            f"the loss is {loss} at step {self.progress.step} (seen in {cause}): lower --rate or set --clip; the last good "
            f"checkpoint is in {self.folder / 'last'}"
        )

    def _batches(self, epoch: int, skip: int) -> Iterator[tuple[Batch, int]]:
        """The rest of an epoch: batches in an order that depends on seed and epoch alone, cut among the processes."""
        self.buckets.set_epoch(epoch)
        rank, world = self.fabric.global_rank, self.fabric.world_size
        for number, indices in enumerate(self.buckets):
            if number < skip:
                continue
            problems = self.data.train[np.asarray(indices)]
            tokens = int(problems.trained.sum())
            if world > 1:
                mine = np.arange(rank, len(indices), world)
                problems = problems[mine] if len(mine) else problems[:0]
            if not len(problems):
                raise IcllError(f"a batch of {len(indices)} problems cannot be shared by {world} processes: lower --devices")
            batch = collate(problems)
            if self.config.data.relabel:
                batch = relabelled(batch, [self.config.seed, epoch, number, rank])
            yield Batch(*(part.to(self.fabric.device) for part in batch)), tokens

    def _end_epoch(self, watch: Watch) -> None:
        """Score on the validation set, write the metrics down, keep the best weights."""
        progress = self.progress
        row: dict[str, Any] = {}
        if self.fabric.global_rank == 0:
            scores = evaluate(self.bare, self.data.valid)
            row = {
                "epoch": progress.epoch + 1, "step": progress.step, "train_loss": progress.loss_sum / progress.loss_tokens,
                "valid_loss": scores.log_loss, "valid_tvd": scores.tvd, "valid_accuracy": scores.accuracy,
                "valid_cross_entropy": scores.cross_entropy, "rate": self.optimizers[0].param_groups[0]["lr"],
                "seconds": progress.seconds + time.monotonic() - self.started,
            }  # fmt: skip
        row = self.fabric.broadcast(row)
        progress.rows.append(row)
        if row["valid_loss"] < progress.best:
            progress.best, progress.best_epoch = row["valid_loss"], progress.epoch
            if self.fabric.global_rank == 0:
                with replacing(self.folder / "model.safetensors") as (path,):
                    save_file(weights(self.bare), path)
        progress.epoch, progress.batch = progress.epoch + 1, 0
        progress.loss_sum, progress.loss_tokens = 0.0, 0
        if self.fabric.global_rank == 0:
            with replacing(self.folder / "metrics.jsonl") as (path,):
                path.write_text("".join(json.dumps(r) + "\n" for r in progress.rows))
            self.fabric.log_dict({k: v for k, v in row.items() if k != "step"}, step=progress.step)
        watch(progress, row)

    def _stalled(self) -> bool:
        patience, progress = self.config.recipe.patience, self.progress
        return patience is not None and progress.best_epoch >= 0 and progress.epoch - 1 - progress.best_epoch >= patience

    # --- checkpoints ---

    def checkpoint(self) -> None:
        """Everything that the next step depends on, and what has been written down so far."""
        progress = self.progress
        now, cpu = time.monotonic(), time.process_time()
        progress.seconds += now - self.started
        progress.cpu_seconds += cpu - self.cpu_started
        self.started, self.cpu_started, self.last_checkpoint = now, cpu, now
        if self.fabric.global_rank == 0:
            tensors = {f"model.{name}": p for name, p in weights(self.bare).items()}
            tensors["rng"] = torch.get_rng_state()
            for i, optimizer in enumerate(self.optimizers):
                for number, state in optimizer.state_dict()["state"].items():
                    for name, value in state.items():
                        tensors[f"optimizer.{i}.{number}.{name}"] = torch.as_tensor(value)
            save_checkpoint(self.folder / "last", progress.step, tensors, asdict(progress))
        self.fabric.barrier()

    def restore(self) -> bool:
        """Go back to the newest whole checkpoint, if there is one."""
        found = load_checkpoint(self.folder / "last")
        if found is None:
            return False
        tensors, notes, damaged = found
        for text in damaged:
            warnings.warn(text, stacklevel=2)
        load_weights(self.bare, {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
        torch.set_rng_state(tensors["rng"])
        for i, optimizer in enumerate(self.optimizers):
            state: dict[int, dict[str, torch.Tensor]] = {}
            for key, value in tensors.items():
                if key.startswith(f"optimizer.{i}."):
                    number, name = key.split(".")[2:]
                    state.setdefault(int(number), {})[name] = value
            optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        self.progress = Progress(**notes)
        self.progress.sittings += 1
        return True


def relabelled(batch: Batch, seed: list[int]) -> Batch:
    """Every problem with its symbols permuted: as likely a problem, since the prior over languages knows no symbol from
    another."""
    rng = np.random.default_rng(seed)
    size = N_SYMBOLS + 2
    table = np.tile(np.arange(size), (len(batch.tokens), 1))
    for row in table:
        row[1 : N_SYMBOLS + 1] = rng.permutation(N_SYMBOLS) + 1
    mapping = torch.from_numpy(table)
    tokens = mapping.gather(1, batch.tokens)
    targets = torch.where(batch.targets >= 0, mapping.gather(1, batch.targets.clamp(min=0)), batch.targets)
    return Batch(tokens, targets, batch.scored, batch.lengths)


def weights(model: Model) -> dict[str, torch.Tensor]:
    """By name, each once: a tied output is the embedding."""
    return {name: p.detach() for name, p in model.named_parameters()} | dict(model.named_buffers())


def load_weights(model: Model, tensors: dict[str, torch.Tensor]) -> None:
    mine = weights(model)
    if set(mine) != set(tensors):
        odd = sorted(set(mine) ^ set(tensors))[0]
        raise IcllError(f"these weights are of another model: {odd} is not in both")
    with torch.no_grad():
        for name, tensor in tensors.items():
            mine[name].copy_(tensor)


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  (for a stranger's mixer; ours do not use it)
    torch.manual_seed(seed)


def peak_memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << (20 if sys.platform == "darwin" else 10))
