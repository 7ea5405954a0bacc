"""Models and the checks on them."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from ..errors import IcllError, whole
from .common import JSON, MixerOptions, allow_local_plugins, app, parse_options, print_json, print_table


@app.command
def models(
    names: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    /,
    *,
    d_model: int = 64,
    layers: int = 2,
    heads: int = 2,
    vocab_size: int = 20,
    length: int = 400,
    json_: JSON = False,
) -> None:
    """The models there are: parameters, operations per token, and the size of the state when decoding.

    Example: `icll models --d-model 256 --layers 4 --length 1000`

    Parameters
    ----------
    names
        Only these; your own as `package.module:Class`.
    d_model
        Width.
    layers
        How many.
    heads
        How many, for the models that have heads.
    vocab_size
        Number of token ids.
    length
        Tokens read, for the operations and for states that grow.
    """
    from ..mixers import ARCHITECTURES, can_step
    from ..model import build_model

    whole("--length", length, 1)
    allow_local_plugins()
    rows, table = [], []
    for name in names or ARCHITECTURES:
        model = build_model(
            name, d_model=d_model, n_layers=layers, n_heads=heads, vocab_size=vocab_size, max_length=max(length, 1024)
        )  # fmt: skip
        mixer = model.blocks[0].mixer if model.blocks else model  # learned reweighting has no layers
        grows = model.state_bytes(length) > model.state_bytes(1) if length > 1 else False
        row = {
            "model": name,
            "parameters": model.n_parameters(),
            "flops_per_token": model.flops_per_token(length),
            "state_bytes": model.state_bytes(length),
            "state": "prefix kept" if not can_step(mixer) else "grows" if grows else "constant",
            "forms": list(getattr(mixer, "forms", [])),
        }
        rows.append(row)
        numbers = [f"{row[key]:,.0f}" for key in ("parameters", "flops_per_token", "state_bytes")]
        table.append([name, *numbers, str(row["state"]), ", ".join(getattr(mixer, "forms", []))])
    if json_:
        settings = {"d_model": d_model, "layers": layers, "heads": heads, "vocab_size": vocab_size, "length": length}
        print_json({**settings, "models": rows})
        return
    print(f"{layers} layers of width {d_model}, {heads} heads, {vocab_size} token ids; after {length} tokens:")
    print_table(["model", "parameters", "FLOPs/token", "state bytes", "state", "forms"], table)


@app.command
def check(mixer: str, /, *, option: MixerOptions = None, json_: JSON = False) -> None:
    """Hold a token mixer to the contract: shapes, causality, lengths, batches, steps, gradients, dtypes, devices.

    Exits with code 2 if something fails.

    Example: `icll check my_package.mixers:MyMixer`

    Parameters
    ----------
    mixer
        `package.module:Class` of a torch module that maps [B, L, D] to [B, L, D], or the name of a model.
    """
    from ..conformance import check_mixer

    allow_local_plugins()
    checks = check_mixer(mixer, parse_options(option))
    failed = [c for c in checks if c.passed is False]
    if json_:
        print_json({"mixer": mixer, "passed": not failed, "checks": [vars(c) for c in checks]})
    else:
        print("\n".join(map(str, checks)))
    if failed:
        reasons = "; ".join(f"{c.name}: {c.detail}" for c in failed[:2])
        more = f" and {len(failed) - 2} more" if len(failed) > 2 else ""
        raise IcllError(f"{mixer} fails {len(failed)} of {len(checks)} checks: {reasons}{more}")
