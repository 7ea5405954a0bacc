"""The wheel in an empty environment, as a user would install it."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def call(*command: object, cwd: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, env=environment)
    if done.returncode and any(word in done.stderr for word in ("NewConnectionError", "Temporary failure in name resolution")):
        pytest.skip("no package index can be reached from here")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_wheel_installs_into_an_empty_environment_and_works_from_any_folder(tmp_path):
    call(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path / "dist", ROOT, cwd=tmp_path)
    (wheel,) = (tmp_path / "dist").glob("icll-*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    python, folder = tmp_path / "venv/bin/python", tmp_path / "elsewhere"
    folder.mkdir()
    call(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel, cwd=folder)
    assert "No broken requirements" in call(python, "-m", "pip", "check", cwd=folder)
    out = call(tmp_path / "venv/bin/icll", "score", "ngram:3", "oracle", "--problems", "50", cwd=folder)
    assert out.splitlines()[2].startswith("ngram:3") and out.splitlines()[3].startswith("oracle")
    assert list(folder.iterdir()) == []
