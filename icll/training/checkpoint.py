"""Checkpoints: everything a run needs to go on, in one file that is whole or is not used."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ..files import replacing

KEEP = 2  # the newest, and the one before it in case the newest is damaged


def save_checkpoint(folder: Path, step: int, tensors: dict[str, torch.Tensor], notes: dict[str, Any]) -> Path:
    """Write `step-N.safetensors` under a temporary name, rename it, and drop old ones."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {"notes": json.dumps(notes), "sha256": _digest(tensors)}
    path = folder / f"step-{step:09d}.safetensors"
    with replacing(path) as (temporary,):
        save_file(tensors, temporary, metadata)
    files = _newest_first(folder)
    later = [p for p in files if p.name > path.name]  # damaged, since the run went back behind them
    for old in (*later, *[p for p in files if p not in later][KEEP:]):
        old.unlink(missing_ok=True)
    return path


def load_checkpoint(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    """Tensors and notes of the newest whole checkpoint, None if there is none. Damaged ones are passed over with a warning."""
    candidates = _newest_first(folder)
    for i, path in enumerate(candidates):
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (the file is no dict)
            if metadata.get("sha256") != _digest(tensors):
                raise ValueError("its checksum does not agree")
            return tensors, json.loads(metadata["notes"])
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            instead = "using the one before it" if i + 1 < len(candidates) else "there is no other, so the run begins anew"
            warnings.warn(f"{path.name} is damaged ({error}): {instead}", stacklevel=2)
    return None


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.safetensors"), reverse=True)


def _digest(tensors: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {list(tensors[name].shape)}".encode())
        digest.update(tensors[name].contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
