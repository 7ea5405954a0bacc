"""The first example of README and of each page runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = {
    "README.md": 0,
    "docs/profiles.md": 0,
    "docs/data.md": 0,
    "docs/models.md": 0,
    "docs/ngram-heads.md": 0,
    "docs/analysis.md": 0,
}


@pytest.mark.parametrize(("page", "number"), EXAMPLES.items())
def test_python_example_runs(page, number):
    block = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)[number]
    exec(compile(block, page, "exec"), {})


def test_training_example_runs(repo):
    import torch

    block = re.findall(r"```python\n(.*?)```", (ROOT / "docs/data.md").read_text(), re.DOTALL)[1]
    names = {"data": repo, "model": torch.nn.Embedding(20, 20)}
    exec(compile(block.replace("range(10)", "range(1)"), "docs/data.md", "exec"), names)
    assert 0 < names["loss"].item() < 10


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_commands_of_the_readme_exist(capsys):
    from icll.cli import main

    commands = re.findall(r"^icll ((?:data )?\w+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(commands) >= 4
    for command in commands:
        main([*command.split(), "--help"])


def test_the_mixer_of_the_docs_conforms(tmp_path, monkeypatch):
    from icll.conformance import check_mixer

    block = re.findall(r"```python\n(.*?)```", (ROOT / "docs/models.md").read_text(), re.DOTALL)[1]
    assert len(block.splitlines()) <= 30
    (tmp_path / "leaky_of_the_docs.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    assert not [str(c) for c in check_mixer("leaky_of_the_docs:Leaky") if c.passed is False]


def test_the_training_example_of_the_docs_runs(tmp_path, monkeypatch, small_validation):
    monkeypatch.chdir(tmp_path)
    block = re.findall(r"```python\n(.*?)```", (ROOT / "docs/training.md").read_text(), re.DOTALL)[0]
    exec(compile(block, "docs/training.md", "exec"), {})
