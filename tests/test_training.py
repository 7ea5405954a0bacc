"""Training: the loop, runs, and going on after a kill as if nothing had happened."""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file

from icll import IcllError, build_model, evaluate, load_run
from icll.cli import main
from icll.languages import Profile
from icll.mixers import ARCHITECTURES
from icll.model import ModelConfig
from icll.tasks import collate, make_loader, regbench
from icll.training import RECIPES, DataConfig, Recipe, RunConfig, as_plain, change, find_runs, from_plain, loop, train
from icll.training.checkpoint import load_checkpoint, save_checkpoint
from icll.training.loop import Machine, Trainer
from icll.training.optimize import Muon, make_optimizers, orthogonal, rate_at, warmup_steps
from icll.training.randomness import random_state, seed_everything, set_random_state
from icll.training.runs import prepare
from icll.training.source import relabelled

pytestmark = pytest.mark.usefixtures("small_validation")
FAMILIES = ("transformer", "retnet", "gla", "lstm", "rwkv", "mamba", "s4", "hyena")
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["icll.training"])


def tiny(model: str = "retnet", epochs: int = 2, **settings) -> RunConfig:
    settings = {"d_model": 16, "n_layers": 2, "n_heads": 2, "dropout": 0.1, **settings}
    return RunConfig(
        ModelConfig(model, **settings),
        DataConfig("regbench", "repo", train=40),
        Recipe("test", rate=3e-3, epochs=epochs, batch_size=8),
    )


# --- going on after a kill ---


def work(config: RunConfig, folder: str, kill_at: int | None, every: int, after: float) -> None:
    """Train in a process of its own, with a checkpoint after every so many steps, and die without warning so many seconds
    after a step: in the middle of the next one, or of a checkpoint."""
    torch.set_num_threads(1)
    whole = DataConfig.load
    DataConfig.load = lambda self: replace((d := whole(self)), valid=d.valid[:20], test=d.test[:20])  # type: ignore[method-assign]
    loop.CHECKPOINT_SECONDS = math.inf
    death = threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL))

    def watch(progress, row):
        # The sitting before may have got further than the step it was to die after: a small model makes many in that time.
        if kill_at is not None and progress.step >= kill_at and death.ident is None:
            death.start()
        if death.ident is not None and progress.epoch == config.recipe.epochs:
            death.join()  # no machine is so fast that the run ends first
        loop.CHECKPOINT_SECONDS = 0.0 if (progress.step % every == 0) else math.inf

    train(config, Path(folder), watch=watch)


def in_child(
    config: RunConfig, folder: Path, kill_at: int | None = None, every: int = 3, after: float = 0.0
) -> int | None:  # fmt: skip
    process = context.Process(target=work, args=(config, str(folder), kill_at, every, after))
    process.start()
    process.join(300)
    return process.exitcode


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def last_weights(folder: Path) -> dict[str, torch.Tensor]:
    found = load_checkpoint(folder / "last")
    assert found is not None
    return found[0]


@pytest.mark.slow
@pytest.mark.parametrize("model", FAMILIES)
def test_a_killed_run_ends_with_the_same_bits(model, tmp_path):
    """SIGKILL at three random moments, each time resumed."""
    config = tiny(model, ngram_heads=(1, 2)) if model == "retnet" else tiny(model)
    assert in_child(config, tmp_path / "whole") == 0
    for first in (1, 4, 7):
        kill_at, after = random.randint(first, first + 2), random.uniform(0, 0.03)  # another moment each time
        print(f"killed {after:.4f} s after step {kill_at}")
        assert in_child(config, tmp_path / "killed", kill_at, after=after) == -signal.SIGKILL
        assert not (tmp_path / "killed" / "result.json").exists()
    assert in_child(config, tmp_path / "killed") == 0
    assert digest(tmp_path / "killed") == digest(tmp_path / "whole")
    one, two = last_weights(tmp_path / "whole"), last_weights(tmp_path / "killed")
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("whole", "killed")]
    assert results[0]["test"]["tvd"] == results[1]["test"]["tvd"]
    rows = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("whole", "killed")]
    assert [json.loads(r)["train_loss"] for r in rows[0]] == [json.loads(r)["train_loss"] for r in rows[1]]
    assert results[1]["sittings"] >= 2  # those that a checkpoint was written in


def test_a_truncated_checkpoint_is_survived(tmp_path):
    config = tiny(epochs=3)
    assert in_child(config, tmp_path / "whole") == 0
    assert in_child(config, tmp_path / "run", kill_at=11, every=2) == -signal.SIGKILL
    newest = max((tmp_path / "run" / "last").iterdir())
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.warns(UserWarning, match=f"{newest.name} is damaged"):
        train(config, tmp_path / "run")
    # This process need not have the child's number of threads, so only what must hold on any: it went on and finished.
    assert json.loads((tmp_path / "run" / "result.json").read_text())["sittings"] == 2


def test_checkpoints_are_whole_or_not_used(tmp_path):
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, {"w": torch.full((4,), float(step))}, {"step": step})
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["step-000000002.safetensors", "step-000000003.safetensors"]
    newest = tmp_path / "step-000000003.safetensors"
    content = bytearray(newest.read_bytes())
    content[-3] ^= 1  # one bit of one weight
    newest.write_bytes(content)
    with pytest.warns(UserWarning, match=r"checksum does not agree\): using the one before it"):
        tensors, notes = load_checkpoint(tmp_path)
    assert notes["step"] == 2 and torch.equal(tensors["w"], torch.full((4,), 2.0))
    for step in (2, 3):  # from there it goes on, and what is damaged does not displace what is new
        save_checkpoint(tmp_path / "again", step, {"w": torch.zeros(4)}, {"step": step})
    save_checkpoint(tmp_path / "again", 1, {"w": torch.ones(4)}, {"step": 1})
    assert [p.name for p in (tmp_path / "again").iterdir()] == ["step-000000001.safetensors"]
    (tmp_path / "step-000000002.safetensors").write_text("no checkpoint")
    with pytest.warns(UserWarning, match="there is no other, so the run begins anew"):
        assert load_checkpoint(tmp_path) is None


def test_first_steps_read_beginnings(monkeypatch):
    monkeypatch.setattr("icll.training.source.SHORT", 30)
    source = DataConfig("regbench", "repo", train=40).source(Recipe("test", epochs=4, batch_size=8, short=0.3), seed=0)
    whole = DataConfig("regbench", "repo", train=40).source(Recipe("test", epochs=4, batch_size=8), seed=0)
    short = []
    for epoch in range(4):
        for (one, count), (other, full) in zip(source.batches(epoch, 0, 0, 1), whole.batches(epoch, 0, 0, 1), strict=True):
            end = one.tokens.shape[1]
            short.append(end == 30)
            assert torch.equal(one.tokens, other.tokens[:, :end]) and torch.equal(one.targets, other.targets[:, :end])
            assert count == int((one.targets >= 0).sum()) <= full == int((other.targets >= 0).sum())
            assert one.lengths.max() == end
    assert short == [True] * 6 + [False] * 14  # 0.3 of 4 epochs of 5 batches
    with pytest.raises(IcllError, match="short must be a share"):
        Recipe("test", short=1.5)


def test_a_full_disk_is_named_and_nothing_lost(tmp_path, monkeypatch, capsys):
    config = tiny()
    train(config, tmp_path / "run", until=1)
    before = {p.name: p.read_bytes() for p in (tmp_path / "run" / "last").iterdir()}

    def full(*arguments, **options):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("icll.training.checkpoint.save_file", full)
    with pytest.raises(SystemExit) as ended:
        main(["resume", str(tmp_path / "run")])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and "No space left on device" in said and "step-0000000" in said and "Traceback" not in said
    assert {p.name: p.read_bytes() for p in (tmp_path / "run" / "last").iterdir()} == before


def test_every_generator_goes_on_where_it_was():
    device = torch.device("cpu")
    seed_everything(3)
    random.gauss(0, 1)  # leaves a spare number behind
    np.random.standard_normal()  # noqa: NPY002
    state = random_state(device)

    def draw():
        return random.gauss(0, 1), random.random(), np.random.standard_normal(), torch.rand(1).item()  # noqa: NPY002

    first = draw()
    seed_everything(4)
    set_random_state(state, device)
    assert draw() == first


def test_a_run_goes_on_with_as_many_threads(tmp_path):
    threads = torch.get_num_threads()
    try:
        train(tiny(), tmp_path / "run", machine=Machine(threads=2), until=1)
        torch.set_num_threads(1)
        assert train(tiny(), tmp_path / "run")["threads"] == 2
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("option", ["--threads", "--devices", "--nodes"])
def test_a_machine_without_anything_is_refused(option, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["train", "retnet", option, "0", "--out", str(tmp_path / "run")])
    assert f"{option} must be at least 1, not 0" in capsys.readouterr().err and not (tmp_path / "run").exists()


# --- runs ---


def test_a_run_has_everything(tmp_path):
    config = tiny(ngram_heads=(1, 2, 3))
    result = train(config, tmp_path / "run")
    folder = tmp_path / "run"
    shown = {p.name for p in folder.iterdir() if not p.name.startswith(".")}
    assert shown == {"config.yaml", "metrics.jsonl", "model.safetensors", "result.json", "last"}
    assert from_plain(RunConfig, yaml.safe_load((folder / "config.yaml").read_text())) == config
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [r["epoch"] for r in rows] == [1, 2] and rows[1]["train_loss"] < rows[0]["train_loss"]
    for part in ("valid", "test"):
        assert 0 < result[part]["tvd"]["low"] < result[part]["tvd"]["mean"] < result[part]["tvd"]["high"] < 1
    for key in ("commit", "versions", "fingerprints", "seconds", "cpu_seconds", "peak_memory_mb", "steps", "hash"):
        assert key in result
    model = load_run(folder)
    scores = evaluate(model, regbench(40, "repo").test[:20])
    assert scores.tvd == pytest.approx(result["test"]["tvd"]["mean"], abs=1e-6)


def test_asking_again_shows_the_result(tmp_path):
    config = tiny()
    first = train(config, tmp_path / "run")
    calls = []
    assert train(config, tmp_path / "run", watch=lambda *a: calls.append(a)) == first and not calls
    again = train(config, tmp_path / "run", force=True, watch=lambda *a: calls.append(a))
    assert calls and again["test"]["tvd"] == first["test"]["tvd"]


def test_a_folder_of_another_config_is_left_alone(tmp_path):
    train(tiny(), tmp_path / "run")
    before = (tmp_path / "run" / "config.yaml").read_text()
    with pytest.raises(IcllError, match=r"run of another config \(model.d_model is 16 there, 32 here\)"):
        train(tiny(d_model=32), tmp_path / "run")
    assert (tmp_path / "run" / "config.yaml").read_text() == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(IcllError, match="not empty and not a run"):
        train(tiny(), tmp_path / "other")


def test_the_hash_knows_what_matters():
    assert tiny().hash == tiny().hash != tiny(d_model=32).hash
    assert replace(tiny(), seed=1).hash != tiny().hash
    assert tiny(ngram_heads=[1, 2]).hash == tiny(ngram_heads=(1, 2)).hash


@pytest.mark.parametrize(("plain", "message"), [
    ({"modell": {}}, "did you mean 'model'"),
    ({"model": {"model": "retnet", "dmodel": 3}}, "unknown setting of model 'dmodel'.*did you mean 'd_model'"),
    ({"model": 3}, "model must be a table of settings"),
    ({"model": {"model": "retnet"}, "recipe": {"optimizer": "adam"}}, "did you mean 'adamw'"),
    ({}, "model"),
])  # fmt: skip
def test_configs_are_read_strictly(plain, message):
    with pytest.raises(IcllError, match=message):
        from_plain(RunConfig, plain)


def test_find_runs(tmp_path):
    for seed in (0, 1):
        prepare(replace(tiny(), seed=seed), tmp_path / f"run-{seed}")
    (tmp_path / "run-1" / "config.yaml").write_text("nonsense: [")
    with pytest.warns(UserWarning, match="run-1 is left out"):
        assert [r.folder.name for r in find_runs(tmp_path)] == ["run-0"]


# --- the loop ---


@pytest.mark.parametrize("model", ARCHITECTURES)
def test_one_batch_is_learned_by_heart(model):
    torch.manual_seed(0)
    made = build_model(model, d_model=64, n_layers=2, n_heads=2, seed=0)
    batch = collate(regbench(4, "repo").train[:2])
    tokens, targets = batch.tokens[:, :60], batch.targets[:, :60]
    optimizers = make_optimizers(made, Recipe(rate=1e-2 if model in ("lstm", "s4", "h3") else 5e-3, weight_decay=0.0))
    for _ in range(400):
        loss = torch.nn.functional.cross_entropy(made(tokens).flatten(0, 1), targets.flatten(), ignore_index=-100)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(made.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if loss < 0.02:
            break
    assert loss < 0.05


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    config = tiny()
    trainer_folder = tmp_path / "run"

    def poison(progress, row):
        if progress.step == 7:
            with torch.no_grad():
                next(iter(poisoned[0].bare.blocks[0].mixer.parameters())).fill_(math.nan)

    prepare(config, trainer_folder)
    poisoned = [Trainer(config, trainer_folder)]
    with pytest.raises(IcllError, match=r"the loss is nan at step 7 .*weights of blocks.0.mixer.*last good checkpoint"):
        poisoned[0].fit(poison)
    tensors = last_weights(trainer_folder)
    assert all(t.isfinite().all() for name, t in tensors.items() if name.startswith("model."))


def test_a_gradient_that_is_not_finite_spoils_no_weights(tmp_path):
    config = tiny()
    prepare(config, tmp_path / "run")
    trainer = Trainer(config, tmp_path / "run")
    trainer.bare.blocks[0].mixer.register_full_backward_hook(
        lambda module, inputs, outputs: tuple(g * math.nan for g in inputs) if trainer.progress.step == 6 else None
    )
    with pytest.raises(IcllError, match=r"the norm of the gradient is nan at step 6 .*gradients of .*lower --rate"):
        trainer.fit()
    assert all(p.isfinite().all() for p in trainer.bare.parameters())


def test_ctrl_c_keeps_what_was_done(tmp_path, capsys):
    """Pressed in the middle of a step, which is finished first: going on gives the weights of a run without it."""
    config = tiny()
    train(config, tmp_path / "whole", machine=Machine(threads=1))
    prepare(config, tmp_path / "run")
    trainer = Trainer(config, tmp_path / "run", Machine(threads=1))
    calls = []

    def press(module, arguments):
        calls.append(module.training)
        if len(calls) == 7:
            os.kill(os.getpid(), signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    trainer.bare.blocks[1].register_forward_pre_hook(press)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    assert signal.getsignal(signal.SIGINT) is handler
    step = load_checkpoint(tmp_path / "run" / "last")[1]["step"]
    assert step == trainer.progress.step == sum(calls) > 0
    assert train(config, tmp_path / "run", machine=Machine(threads=1))["sittings"] == 2
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")


def test_early_stopping(tmp_path):
    config = replace(tiny(), recipe=Recipe("test", rate=1e-12, epochs=50, batch_size=8, patience=2, warmup=0))
    assert train(config, tmp_path / "run")["epochs"] <= 6


def test_a_running_mean_of_the_weights_is_kept(tmp_path):
    config = replace(tiny(), recipe=change(tiny().recipe, average=0.8))
    trainer = Trainer(config, tmp_path / "run", Machine(threads=1))
    (tmp_path / "run").mkdir()
    means = [p.detach().clone() for p in trainer.bare.parameters()]

    def follow(progress, row):
        if "total" in row:  # after a step
            decay = min(0.8, progress.step / (9 + progress.step))
            for mean, p in zip(means, trainer.bare.parameters(), strict=True):
                mean += (1 - decay) * (p.detach() - mean)

    trainer.fit(follow)
    kept = load_file(tmp_path / "run" / "model.safetensors")
    assert trainer.progress.best_epoch == 1  # the last one
    for (name, p), mean in zip(trainer.bare.named_parameters(), means, strict=True):
        torch.testing.assert_close(kept[name], mean)
        assert not torch.equal(p, mean)
    train(config, tmp_path / "parts", machine=Machine(threads=1), until=1)
    train(config, tmp_path / "parts", machine=Machine(threads=1))  # from the checkpoint
    assert (tmp_path / "parts" / "model.safetensors").read_bytes() == (tmp_path / "run" / "model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(24, 24), (16, 48), (48, 16)])
def test_muon_steps_like_torchs(shape):
    torch.manual_seed(0)
    ours = torch.nn.Parameter(torch.randn(shape, dtype=torch.float64))
    theirs = torch.nn.Parameter(ours.detach().clone())
    pairs = [
        (ours, Muon([ours], 0.02, 0.1)),
        (theirs, torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")),
    ]
    for _ in range(5):
        gradient = torch.randn(shape, dtype=torch.float64)
        for p, optimizer in pairs:
            p.grad = gradient.clone()
            optimizer.step()
    assert torch.allclose(ours, theirs, atol=2e-3)  # theirs is orthogonal in bfloat16
    values = torch.linalg.svdvals(orthogonal(torch.randn(shape, dtype=torch.float64)))
    assert values.min() > 0.3 and values.max() < 1.3


def test_muon_takes_stacked_maps_one_by_one():
    """A matrix that holds three maps is trained as three matrices would be."""
    torch.manual_seed(0)
    apart = [torch.nn.Parameter(torch.randn(n, 16)) for n in (16, 16, 24)]
    stacked = torch.nn.Parameter(torch.cat([p.detach() for p in apart]))
    one, many = Muon([{"params": [stacked], "parts": (16, 16, 24)}], 0.02, 0.1), Muon(apart, 0.02, 0.1)
    for _ in range(3):
        for p in apart:
            p.grad = torch.randn_like(p)
        stacked.grad = torch.cat([p.grad for p in apart])
        one.step()
        many.step()
    assert torch.allclose(stacked, torch.cat(list(apart)), atol=1e-6)


def test_two_processes_train_like_one(tmp_path):
    """Through the command line: Fabric starts the second process by running the command again."""
    script = tmp_path / "two.py"
    script.write_text(
        "import sys, torch\nfrom pathlib import Path\nfrom icll.model import ModelConfig\n"
        "from icll.training import *\ntorch.set_num_threads(1)\n"
        "config = RunConfig(ModelConfig('retnet', 16, 2, 2), DataConfig('regbench', 'repo', train=40),"
        # shares of unequal size, in pieces; and a running mean
        " Recipe('test', 'muon', rate=3e-3, epochs=2, batch_size=9, accumulate=9, average=0.9))\n"
        "machine = Machine('cpu', int(sys.argv[2]), strategy=sys.argv[3])\n"
        "train(config, Path(sys.argv[1]), machine=machine, until=int(sys.argv[4]))\n"
    )
    losses = {}
    for devices, strategy, sittings in ((1, "auto", (2,)), (2, "ddp", (2,)), (2, "fsdp", (1, 2))):
        folder = tmp_path / f"run-{devices}-{strategy}"
        for until in sittings:  # the last goes on from a checkpoint
            command = [sys.executable, str(script), str(folder), str(devices), strategy, str(until)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr[-2000:]
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        losses[strategy] = [row[name] for row in rows for name in ("train_loss", "valid_loss")]
        assert json.loads((folder / "result.json").read_text())["processes"] == devices
    assert losses["ddp"] == pytest.approx(losses["auto"], rel=1e-5)
    assert losses["fsdp"] == pytest.approx(losses["auto"], rel=1e-5)


def test_relabelling_permutes_symbols_and_nothing_else():
    batch = collate(regbench(4, "repo").train[:4])
    other = relabelled(batch, [0, 1])
    assert torch.equal(batch.tokens == 0, other.tokens == 0) and torch.equal(batch.tokens == 19, other.tokens == 19)
    for a, b in zip(batch.tokens, other.tokens, strict=True):
        pairs = {(int(x), int(y)) for x, y in zip(a, b, strict=True)}
        assert len({x for x, _ in pairs}) == len({y for _, y in pairs}) == len(pairs)
    kept = batch.targets >= 0
    following = torch.nn.functional.pad(other.tokens[:, 1:], (0, 1))
    assert torch.equal(other.targets[kept], following[kept]) and torch.equal(other.targets >= 0, kept)
    assert not torch.equal(batch.tokens, other.tokens)


def test_schedules():
    recipe = RECIPES["authors"]
    assert warmup_steps(recipe, 1000) == 100
    assert rate_at(recipe, 99, 1000, 100) == pytest.approx(1) and rate_at(recipe, 1000, 1000, 100) == pytest.approx(0.1)
    assert rate_at(recipe, 0, 1000, 100) < 0.02
    with pytest.warns(UserWarning, match="25,000 steps is too long for a run of 15,800: capped at 1,580"):
        assert warmup_steps(RECIPES["text"], 15_800) == 1580


def test_optimizers_of_a_recipe():
    model = build_model("s4", d_model=16)
    (adamw,) = make_optimizers(model, Recipe(rate=5e-3))
    slow = adamw.param_groups[-1]
    assert slow["weight_decay"] == 0 and slow["scale"] == pytest.approx(0.2)
    assert any(p is model.blocks[0].mixer.ssm.log_dt for p in slow["params"])
    both = make_optimizers(build_model("transformer", d_model=16), Recipe(optimizer="muon"))
    assert [type(o).__name__ for o in both] == ["AdamW", "Muon"]
    assert all(sum(g["parts"]) == len(p) for g in both[1].param_groups for p in g["params"])
    assert (16, 16, 16) in [g["parts"] for g in both[1].param_groups]  # queries, keys and values


def test_bf16_trains(tmp_path):
    result = train(replace(tiny(epochs=1), precision="bf16-mixed"), tmp_path / "run")
    assert math.isfinite(result["test"]["tvd"]["mean"])


@pytest.mark.parametrize("units", [True, False])
def test_bf16_without_units_for_it_is_told_to_be_slow(units, tmp_path, monkeypatch, recwarn):
    known = {"architecture": "x86_64", "avx512_bf16": units}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known, raising=False)
    train(replace(tiny(epochs=1), precision="bf16-mixed"), tmp_path / "run")
    assert any("no bfloat16 units" in str(w.message) for w in recwarn) is not units


# --- the command line ---


def test_from_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["train", "gla", "--ngram-heads", "1,2", "--profile", "repo", "--train", "40", "--epochs", "1", "--d-model", "16"]
    main([*command, "--out", "runs/a"])
    out = capsys.readouterr().out
    assert "runs/a: 1 epochs" in out and "test" in out
    assert (tmp_path / "runs/a/curves.png").read_bytes().startswith(b"\x89PNG")
    main(["train", "lstm", "--task", "recall", "--train", "40", "--epochs", "1", "--d-model", "16", "--out", "runs/b"])
    capsys.readouterr()
    main(["resume", "runs/a"])
    assert "runs/a: 1 epochs" in capsys.readouterr().out
    main(["runs", "runs", "--sort", "tvd", "--filter", "gla"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[1].startswith("runs/a") and "finished" in lines[1]
    main(["score", "ngram:2", "runs/a", "--profile", "repo", "--problems", "5", "--no-cache"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]] == ["ngram:2", "runs/a"]
    with pytest.raises(SystemExit):
        main(["score", "runs/b", "--profile", "repo", "--problems", "5"])
    assert "runs/b was trained on 41 token ids, these problems have 20" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["score", "runs"])
    assert "runs is a folder, but not a run" in capsys.readouterr().err
    main(["runs", "runs", "--json"])
    assert [r["model"] for r in json.loads(capsys.readouterr().out)] == ["gla", "lstm"]


@pytest.mark.parametrize(("arguments", "message"), [
    (["train", "retnett"], "did you mean 'retnet'"),
    (["train", "retnet", "--recipe", "fastt"], "did you mean 'fast'"),
    (["train", "retnet", "--d-modle", "3"], "--d-model"),
    (["train", "retnet", "--ngram-heads", "1;2"], "write numbers with commas"),
    (["train", "retnet", "--task", "recall", "--relabel"], "relabel is for regbench"),
    (["train", "retnet", "--logger", "paper"], "unknown logger"),
    (["train", "retnet", "--clip", "-1"], "clip must be above 0, not -1"),
    (["sweep", "icll-grid", "--model", "retnet", "--recipe", "lnw"], "unknown recipe 'lnw'"),
    (["sweep", "icll-grid", "--model", "retnet", "--tries", "0"], "--tries must be at least 1, not 0"),
    (["resume", "nowhere"], "nowhere is not a run: it has no config.yaml"),
    (["runs", "nowhere"], "nowhere is not a folder"),
])  # fmt: skip
def test_bad_input(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as error:
        main(arguments)
    text = capsys.readouterr().err
    assert error.value.code == 2 and message in text and text.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_loaders_still_feed_a_loop_of_your_own():
    batch = next(iter(make_loader(regbench(8, "repo").train, 4)))
    assert batch.tokens.shape == batch.targets.shape


def test_two_processes_do_not_train_in_one_folder(tmp_path):
    folder, begun = tmp_path / "run", []

    def watch(progress, row):
        if not begun:
            begun.append(True)
            with pytest.raises(IcllError, match="another process is training"):
                train(tiny(), folder)

    first = train(tiny(), folder, watch=watch)
    assert begun and train(tiny(), folder) == first  # free again


def test_a_folder_that_a_kill_left_before_the_config_was_written_is_new(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".config.yaml.abc").write_text("half a conf")
    assert train(tiny(), tmp_path / "run")["steps"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("keep me")
    with pytest.raises(IcllError, match="is not empty and not a run"):
        train(tiny(), tmp_path / "mine")


def test_plain_configs_hold_everything():
    plain = as_plain(tiny(ngram_heads=(1,)))
    assert json.loads(json.dumps(plain)) == plain and from_plain(RunConfig, plain) == tiny(ngram_heads=(1,))
    own = replace(tiny(), data=DataConfig(profile=Profile(states=(2, 4), alphabet=(4, 6)), train=20))
    again = from_plain(RunConfig, json.loads(json.dumps(as_plain(own))))
    assert again == own and again.data.load().train.fingerprint == own.data.load().train.fingerprint
