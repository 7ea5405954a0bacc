"""Mixers beside their peers: forward and backward, tokens per second and peak memory, B = 32, L = 400, d = 128.

    python benchmarks/mixers.py [--quick] [--only mamba] [--growth] [--bf16] [--out results/mixers]

Every case runs in a process of its own, one after the other, so that its peak memory is its own. Peers that are not installed
(transformers, mambapy, fla-core with einops) are left out, and named.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from measuring import peak_mb
from torch import nn

import icll
from icll.files import replacing
from icll.mixers import find_architecture, make_mixer
from icll.ops import linear_attend, naive_linear_attend, naive_selective_scan, naive_wkv, selective_scan, wkv

B, L, D, H = 32, 400, 128, 2
LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
NAMES = ("transformer", "llama", "linear_transformer", "retnet", "lstm", "rwkv", "gla", "mamba", "s4", "h3", "hyena")
Case = tuple[Callable[..., torch.Tensor], list[torch.Tensor]]


def mixer(name: str, form: str | None = None) -> nn.Module:
    given = {"d_model": D, "n_heads": H, "n_layers": 2, "layer": 0, "max_length": max(LENGTHS), "dropout": 0.0}
    return make_mixer(find_architecture(name), given, {"form": form} if form else {})


def layer(module: nn.Module, length: int = L, batch: int = B) -> Case:
    x = torch.randn(batch, length, D, requires_grad=True)
    return module, [x]


class BareAttention(nn.Module):
    """Two linear maps around torch's attention: the least a Transformer layer does."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.transpose(1, 2) for part in self.qkv(x).view(len(x), -1, 3, H, D // H).unbind(2))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape))


def scan_inputs() -> list[torch.Tensor]:
    E, N = 2 * D, 16
    parts = [torch.randn(B, L, E), F.softplus(torch.randn(B, L, E) - 4), -torch.arange(1.0, N + 1).repeat(E, 1)]
    return [t.requires_grad_() for t in (*parts, torch.randn(B, L, N), torch.randn(B, L, N))]


def wkv_inputs() -> list[torch.Tensor]:
    return [t.requires_grad_() for t in (torch.rand(D), torch.randn(D), torch.randn(B, L, D), torch.randn(B, L, D))]


def attend_inputs(gated: bool, length: int = L) -> list[torch.Tensor]:
    K = D // H
    parts = [torch.randn(B, length, H, K) for _ in range(3)]
    if gated:
        parts.append(F.logsigmoid(torch.randn(B, length, H, K)) / 16)
    return [t.requires_grad_() for t in parts]


def hf_mamba() -> Any:
    from transformers import MambaConfig
    from transformers.models.mamba import modeling_mamba

    return modeling_mamba, MambaConfig(hidden_size=D, num_hidden_layers=1, state_size=16)


def hf_mamba_layer() -> Case:
    modeling, config = hf_mamba()
    return layer(modeling.MambaMixer(config, 0))


def hf_scan() -> Case:
    modeling, _ = hf_mamba()
    x, dt, A, B_, C = scan_inputs()
    scan = modeling.mamba_selective_scan
    return lambda x, dt, A, B, C: scan(x.mT, dt.mT, A, B.mT, C.mT).mT, [x, dt, A, B_, C]


def mambapy_layer() -> Case:
    from mambapy.mamba import MambaBlock, MambaConfig

    return layer(MambaBlock(MambaConfig(d_model=D, n_layers=1)))


def mambapy_scan() -> Case:
    from mambapy.pscan import pscan

    def scan(x: torch.Tensor, dt: torch.Tensor, A: torch.Tensor, B: torch.Tensor, C: torch.Tensor) -> torch.Tensor:
        states = pscan(torch.exp(dt[..., None] * A), dt[..., None] * B[:, :, None] * x[..., None])
        return (states @ C[..., None])[..., 0]

    return scan, scan_inputs()


def hf_rwkv_layer() -> Case:
    from transformers import RwkvConfig
    from transformers.models.rwkv.modeling_rwkv import RwkvSelfAttention

    attention = RwkvSelfAttention(RwkvConfig(hidden_size=D, num_hidden_layers=1, context_length=L))
    for parameter in attention.parameters():
        nn.init.normal_(parameter, std=0.1)
    return lambda x, *_: attention(x)[0], [torch.randn(B, L, D, requires_grad=True), *attention.parameters()]


def hf_wkv() -> Case:
    from transformers.models.rwkv.modeling_rwkv import rwkv_linear_attention_cpu

    return lambda *args: rwkv_linear_attention_cpu(*args)[0], wkv_inputs()


def fla(folder: str) -> Any:
    package = importlib.util.find_spec("fla")
    if package is None or package.origin is None:
        raise ImportError("fla-core")
    spec = importlib.util.spec_from_file_location(f"fla_{folder}", Path(package.origin).parent / "ops" / folder / "naive.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fla_gla() -> Case:
    return lambda *args: fla("gla").naive_recurrent_gla(*args)[0], attend_inputs(True)


def fla_linear(form: str) -> Case:
    op = getattr(fla("linear_attn"), f"naive_{form}_linear_attn")
    if form == "chunk":  # takes whole chunks of 64 only
        return op, attend_inputs(False, 448)
    return lambda *args: op(*args)[0], attend_inputs(False)


def decay() -> torch.Tensor:
    return torch.log(1 - 2.0 ** (-5 - torch.arange(H)))


def fla_retention(form: str) -> Case:
    op = getattr(fla("simple_gla"), f"naive_{form}_simple_gla")
    return lambda q, k, v: op(q, k, v, decay().expand(q.shape[:3]))[0], attend_inputs(False)


def our_attend(length: int = L, gated: bool = False, constant: bool = False, naive: bool = False) -> Case:
    op = naive_linear_attend if naive else linear_attend
    scale = (D // H) ** -0.5
    if constant:
        return lambda q, k, v: op(q * scale, k, v, decay()), attend_inputs(False, length)
    return lambda q, *rest: op(q * scale, *rest), attend_inputs(gated, length)


CASES: dict[str, tuple[str, Callable[[], Case], str | None, float | None]] = {}


def case(name: str, make: Callable[[], Case], peer_of: str | None = None, target: float | None = None) -> None:
    """`peer_of` is ours that this one is a peer of; `target` how many times its speed ours should have."""
    CASES[name] = (name, make, peer_of, target)


case("mamba layer", lambda: layer(mixer("mamba")))
case("mamba layer, Hugging Face slow path", hf_mamba_layer, "mamba layer", 4)
case("mamba layer, mambapy", mambapy_layer, "mamba layer", 4)
case("mamba layer, our recurrence", lambda: layer(mixer("mamba", "recurrent")), "mamba layer", 5)
case("selective scan", lambda: (selective_scan, scan_inputs()))
case("selective scan, Hugging Face slow path", hf_scan, "selective scan", 10)
case("selective scan, mambapy", mambapy_scan, "selective scan", 10)
case("selective scan, our recurrence", lambda: (naive_selective_scan, scan_inputs()), "selective scan", 5)
case("rwkv layer", lambda: layer(mixer("rwkv")))
case("rwkv layer, Hugging Face", hf_rwkv_layer, "rwkv layer", 4)
case("rwkv layer, our recurrence", lambda: layer(mixer("rwkv", "recurrent")), "rwkv layer", 5)
case("wkv", lambda: (wkv, wkv_inputs()))
case("wkv, Hugging Face", hf_wkv, "wkv", 10)
case("wkv, our recurrence", lambda: (naive_wkv, wkv_inputs()), "wkv", 5)
case("gated linear attention", lambda: our_attend(gated=True))
case("gated linear attention, fla recurrence", fla_gla, "gated linear attention", 5)
case("gated linear attention, our recurrence", lambda: our_attend(gated=True, naive=True), "gated linear attention", 5)
case("linear attention", our_attend)
case("linear attention, fla recurrence", lambda: fla_linear("recurrent"), "linear attention", 5)
case("linear attention, fla chunks", lambda: fla_linear("chunk"), "linear attention", 0.95)
case("linear attention, our recurrence", lambda: our_attend(naive=True), "linear attention", 5)
case("retention", lambda: our_attend(constant=True))
case("retention, fla recurrence", lambda: fla_retention("recurrent"), "retention", 5)
case("retention, fla chunks", lambda: fla_retention("chunk"), "retention", 0.95)
case("retention, our recurrence", lambda: our_attend(constant=True, naive=True), "retention", 5)
case("transformer layer", lambda: layer(mixer("transformer")))
case("transformer layer, bare SDPA", lambda: layer(BareAttention()), "transformer layer", 0.95)
case("lstm layer", lambda: layer(mixer("lstm")))
case("lstm layer, torch", lambda: torch_lstm(), "lstm layer", 0.95)
case("lstm layer, our recurrence", lambda: layer(mixer("lstm", "recurrent")), "lstm layer", 5)
for _name in ("s4", "h3"):
    case(f"{_name} layer", lambda name=_name: layer(mixer(name)))
    case(f"{_name} layer, our recurrence", lambda name=_name: layer(mixer(name, "recurrent")), f"{_name} layer", 5)
for _name in ("gla", "retnet", "linear_transformer"):
    case(f"{_name} layer", lambda name=_name: layer(mixer(name)))
    case(f"{_name} layer, our recurrence", lambda name=_name: layer(mixer(name, "recurrent")), f"{_name} layer", 5)
case("hyena layer", lambda: layer(mixer("hyena")))
case("hyena layer, direct sum", lambda: layer(mixer("hyena", "direct")), "hyena layer", None)
case("llama layer", lambda: layer(mixer("llama")))


def torch_lstm() -> Case:
    lstm = nn.LSTM(D, D, batch_first=True)
    x = torch.randn(B, L, D, requires_grad=True)
    return lambda x, *_: lstm(x)[0], [x, *lstm.parameters()]


def measure(make: Callable[[], Case], seconds: float, autocast: bool = False) -> dict[str, float]:
    """Tokens per second of the quickest run, and how much the process grew at its peak."""
    torch.manual_seed(0)
    work, inputs = make()
    wanted = [*inputs, *(work.parameters() if isinstance(work, nn.Module) else [])]
    wanted = [t for t in wanted if t.requires_grad]
    # A first run on little compiles the kernels, so that the compiler's memory is not counted as the layer's.
    small = [t.detach()[:1, :64].requires_grad_() if t.dim() >= 3 else t for t in inputs]
    work(*small).sum().backward()
    before = peak_mb()
    times: list[float] = []
    tokens = inputs[0].shape[0] * inputs[0].shape[1] if inputs[0].dim() == 3 or inputs[0].dim() == 4 else B * L
    while sum(times) < seconds or (len(times) < 2 and sum(times) < 10):
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = work(*inputs)
        torch.autograd.grad(out.sum(), wanted, allow_unused=True)
        times.append(time.perf_counter() - start)
    return {"tokens_per_second": tokens / min(times), "seconds": min(times), "peak_mb": max(0.0, peak_mb() - before)}


def in_child(kind: str, key: str, seconds: float, pipe: Any, length: int = L, batch: int = B) -> None:
    torch.set_num_threads(2)
    try:
        if kind == "growth":
            result = measure(lambda: layer(mixer(key), length, batch), seconds)
        else:
            result = measure(CASES[key][1], seconds, autocast=kind == "bf16")
        pipe.send(result)
    except ImportError as error:
        pipe.send({"missing": str(error)})


def run(kind: str, key: str, seconds: float, **sizes: int) -> dict[str, Any]:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=in_child, args=(kind, key, seconds, theirs), kwargs=sizes)
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        return {"missing": "the process ended without a result"}
    finally:
        process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="half a second for each case")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--growth", action="store_true", help="only the cost against the length")
    parser.add_argument("--bf16", action="store_true", help="also our layers under bf16 autocast")
    parser.add_argument("--out", type=Path, help="folder for mixers.json")
    options = parser.parse_args()
    seconds = 0.5 if options.quick else 3.0
    result: dict[str, Any] = {
        "version": icll.__version__, "torch": torch.__version__, "cpu": platform.processor() or platform.machine(),
        "threads": 2, "batch": B, "length": L, "d_model": D, "heads": H, "cases": {}, "bf16": {}, "growth": {},
    }  # fmt: skip
    if not options.growth:
        print(f"{'':48}{'tokens/s':>12}{'peak MB':>10}   ours is")
        for name, (_, _, peer_of, target) in CASES.items():
            if options.only not in name:
                continue
            got = result["cases"][name] = run("case", name, seconds)
            if target is not None and target < 1 and "seconds" in got and peer_of:  # close: in turns, the best of each
                for _ in range(2):
                    for key in (peer_of, name):
                        again = run("case", key, seconds)
                        if again["tokens_per_second"] > result["cases"][key]["tokens_per_second"]:
                            result["cases"][key] = again
                got = result["cases"][name]
            if "missing" in got:
                print(f"{name:48}   left out: {got['missing']}")
                continue
            line = f"{name:48}{got['tokens_per_second']:12,.0f}{got['peak_mb']:10.0f}"
            if peer_of and "seconds" in result["cases"].get(peer_of, {}):
                ratio = result["cases"][peer_of]["tokens_per_second"] / got["tokens_per_second"]
                got["ours_is_times"] = ratio
                goal = "" if target is None else f" (goal {target:g}: {'reached' if ratio >= target else 'NOT reached'})"
                line += f"   {ratio:.2f} times as fast{goal}"
            print(line, flush=True)
    if options.bf16:
        print("\nbf16 autocast against float32, our layers")
        for name in NAMES:
            key = f"{name} layer"
            got = result["bf16"][name] = run("bf16", key, seconds)
            full = result["cases"].get(key) or run("case", key, seconds)
            print(f"{name:24}{got['tokens_per_second'] / full['tokens_per_second']:8.2f} times", flush=True)
    if options.growth or not options.only:
        print(f"\nseconds for 16,384 tokens by length{''.join(f'{n:>10,}' for n in LENGTHS)}   and peak MB")
        for name in NAMES:
            rows = [run("growth", name, 0.1, length=n, batch=16384 // n) for n in LENGTHS]
            result["growth"][name] = dict(zip(map(str, LENGTHS), rows, strict=True))
            times = "".join(f"{r['seconds']:10.3f}" for r in rows)
            memory = " ".join(f"{r['peak_mb']:.0f}" for r in rows)
            print(f"{name:35}{times}   {memory}", flush=True)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        with replacing(options.out / "mixers.json") as (path,):
            Path(path).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
