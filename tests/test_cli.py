"""The command line as a person would type it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import datasets
import pytest

from icll import IcllError
from icll.cli import main
from icll.cli.common import Where, open_problems, parse_options
from icll.cli.runs import _problems
from icll.cli.scores import _labels
from icll.languages import Profile
from icll.model import ModelConfig
from icll.tasks import associative_recall, load, regbench
from icll.training import RECIPES, DataConfig, Machine, RunConfig
from icll.training.runs import prepare


def run(capsys, *arguments: str) -> str:
    main(arguments)
    return capsys.readouterr().out


def test_make_show_score(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = run(capsys, "data", "make", "--profile", "repo", "--train", "150", "--seed", "3", "--out", "data")
    assert "data/train.safetensors: 150 problems" in out and "data/test.safetensors: 500 problems" in out
    assert load("data").train.origin.seed == 3
    out = run(capsys, "data", "show", "data", "--problem", "2", "--split", "valid")
    problem = load("data").valid[2]
    assert problem.strings(0)[0] in out and problem.automata[0].table() in out
    assert (tmp_path / "automaton-valid-2.svg").read_text().startswith("<?xml")
    out = run(
        capsys, "score", "ngram:2", "ngram:3", "uniform", "oracle", "--data", "data", "--problems", "20", "--picture", "c.png"
    )
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[2:6]] == ["ngram:2", "ngram:3", "uniform", "oracle"]
    assert "0.000 [0.000, 0.000]  1.000 [1.000, 1.000]" in lines[5]
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_json_output(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = json.loads(run(capsys, "data", "make", "--train", "10", "--out", "d", "--json"))
    assert made[0]["problems"] == 10 and len(made[0]["fingerprint"]) == 64
    shown = json.loads(run(capsys, "data", "show", "d", "--json"))
    assert len(shown["tokens"]) == len(shown["truth"]) == len(shown["states"])
    assert not list(tmp_path.glob("*.svg"))
    scored = json.loads(run(capsys, "score", "oracle", "mine=uniform", "--data", "d", "--problems", "5", "--json"))
    assert scored["scores"][0]["accuracy"]["mean"] == 1 and scored["scores"][0]["problems"] == 5
    assert [one["name"] for one in scored["scores"]] == ["oracle", "mine"]


def test_make_other_tasks_profiles_and_own_automata(tmp_path, capsys):
    run(capsys, "data", "make", "--task", "recall", "--train", "20", "--out", str(tmp_path / "recall"))
    assert load(tmp_path / "recall").test.tokens.shape == (500, 382)
    ranges = ["--states", "3", "5", "--length", "2", "4", "--strings", "2", "2"]
    run(capsys, "data", "make", "--train", "20", *ranges, "--out", str(tmp_path / "own"))
    assert load(tmp_path / "own").train.origin.profile["length"] == [2, 4]
    (tmp_path / "tables.txt").write_text("a b\n0 1 .\n1 . 0\n\nc\n0 0\n")
    run(capsys, "data", "make", "--automata", str(tmp_path / "tables.txt"), "--out", str(tmp_path / "mine"))
    mine = load(tmp_path / "mine" / "test.safetensors")
    assert len(mine) == 2 and set(mine.text(1)) == {"c", "|"}


def test_export(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(capsys, "data", "make", "--train", "10", "--out", "d")
    run(capsys, "data", "export", "d", "--split", "train", "--out", "train.jsonl")
    assert len((tmp_path / "train.jsonl").read_text().splitlines()) == 10
    assert "truth" in json.loads((tmp_path / "train.jsonl").read_text().splitlines()[0])
    run(capsys, "data", "export", "d", "--split", "train", "--no-truth", "--out", "bare.jsonl")
    assert "truth" not in json.loads((tmp_path / "bare.jsonl").read_text().splitlines()[0])
    run(capsys, "data", "export", "d", "--split", "train", "--to", "datasets", "--out", "folder")
    assert datasets.load_from_disk(str(tmp_path / "folder")).num_rows == 10


def test_making_the_same_data_again_is_fine_but_other_data_is_not_replaced(tmp_path, capsys):
    run(capsys, "data", "make", "--train", "10", "--out", str(tmp_path))
    before = (tmp_path / "train.safetensors").read_bytes()
    run(capsys, "data", "make", "--train", "10", "--out", str(tmp_path))
    with pytest.raises(SystemExit):
        main(["data", "make", "--train", "11", "--out", str(tmp_path)])
    assert (tmp_path / "train.safetensors").read_bytes() == before
    (tmp_path / "train.safetensors").write_bytes(before[:500])
    with pytest.raises(SystemExit):  # a damaged file is not replaced unasked either
        main(["data", "make", "--train", "10", "--out", str(tmp_path)])
    assert "damaged" in capsys.readouterr().err
    run(capsys, "data", "make", "--train", "11", "--out", str(tmp_path), "--force")
    assert len(load(tmp_path).train) == 11


@pytest.mark.parametrize(
    ("command", "cause"),
    [
        ("data make --profile repoo --out OUT", "unknown profile 'repoo': choose from paper, repo; did you mean 'repo'?"),
        ("data make --train 0 --out OUT", "train set must be at least 1, not 0"),
        ("data make --train -5 --out OUT", "not -5"),
        ("data make --train many --out OUT", "unable to convert"),
        ("data make --trian 5 --out OUT", "Did you mean --train?"),
        ("data make --seed -1 --out OUT", "the seed must be at least 0"),
        ("data make", "--out"),
        ("data make --states 2 2 --alphabet 1 1 --edges 1 1 --out OUT", "3500 distinct languages asked for, but only 18"),
        ("data make --edges 3 2 --out OUT", "least first"),
        ("data make --automata nowhere.txt --out OUT", "nowhere.txt: No such file"),
        ("data make --out file/below", "Not a directory"),
        ("data show nowhere", "does not exist"),
        ("data show file", "not a data file of icll"),
        ("data show --problem 500", "there are 0..499"),
        ("data show --picture a.bmp", "must end with .svg"),
        ("data export file --out e.jsonl", "not a data file of icll"),
        ("score", "PREDICTORS"),
        ("score nothing", "unknown predictor"),
        ("score ngram:x", "must be a number"),
        ("score ngram:3 --problems 0", "--problems must be 1..500"),
        ("score ngram:3 --problems 501", "--problems must be 1..500"),
        ("score ngram:3 --data file", "not a data file of icll"),
        ("data make --train 999999999999 --out OUT", "at most 100,000,000"),
        ("data make --length 1 100000 --strings 1 100000 --out OUT", "more than 10,000,000 tokens"),
        ("data make --task recall --profile repo --out OUT", "--profile has no effect with --task recall"),
        ("data make --automata file --train 5 --out OUT", "--train has no effect with --automata"),
        ("data make --automata file --out OUT", "file, table 1: the table has no states"),
        ("score ngram:3 --data file --profile repo", "--profile has no effect"),
        ("score oracle:x", "oracle takes no option"),
        ("scroe ngram:3", 'Did you mean "score"'),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(command, cause, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("not data")
    with pytest.raises(SystemExit) as stop:
        main(command.replace("OUT", "out").split())
    printed = capsys.readouterr()
    assert stop.value.code == 2
    assert printed.out == "" and len(printed.err.strip().splitlines()) == 1
    assert printed.err.startswith("icll: ") and cause in printed.err
    assert [p.name for p in tmp_path.iterdir()] == ["file"]  # nothing half-written


def test_a_disk_that_fills_up_leaves_nothing_half_written(tmp_path, capsys):
    """A limit on the size of files stands in for the disk: the write fails halfway through, inside the operating system."""
    run(capsys, "data", "make", "--train", "10", "--out", str(tmp_path / "compiled"))  # else the kernels' cache would fail
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000));"
        "from icll.cli import main; main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", code, "data", "make", "--train", "5000", "--out", "data"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("icll: data/train.safetensors: ") and len(done.stderr.strip().splitlines()) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["compiled"]


def test_a_read_only_folder_is_named(tmp_path, capsys, monkeypatch):
    def refuse(**options):
        raise PermissionError(13, "Permission denied", "temporary")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with pytest.raises(SystemExit) as stop:
        main(["data", "make", "--train", "10", "--out", str(tmp_path / "new")])
    assert stop.value.code == 2
    assert "new/train.safetensors: Permission denied" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_help_is_quick_because_it_loads_nothing_heavy():
    code = (
        "import sys, icll.cli\n"
        "try: icll.cli.main(['data', 'make', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numba', 'matplotlib', 'datasets'} & set(sys.modules); assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Example:" in done.stdout


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, icll; heavy = {'torch', 'numba', 'matplotlib'} & set(sys.modules); assert not heavy, heavy"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_making_data_needs_no_torch(tmp_path):
    code = (
        "import sys, icll.cli; icll.cli.main(['data', 'make', '--train', '5', '--out', sys.argv[1]]);"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True)


def test_every_command_has_help_with_an_example(capsys):
    for command in ("data make", "data show", "data export", "score"):
        main([*command.split(), "--help"])
        assert "Example:" in capsys.readouterr().out


def test_models(capsys):
    out = run(capsys, "models", "--d-model", "32", "--layers", "1", "--length", "100")
    rows = {line.split()[0]: line for line in out.splitlines()[2:]}
    assert {"transformer", "mamba", "hyena"} <= set(rows)
    assert "grows" in rows["transformer"] and "constant" in rows["mamba"] and "prefix kept" in rows["hyena"]
    made = json.loads(run(capsys, "models", "retnet", "--json"))
    assert made["models"][0]["model"] == "retnet" and made["models"][0]["parameters"] > 0


def test_the_package_is_its_command():
    done = subprocess.run([sys.executable, "-m", "icll", "models", "tranformer"], capture_output=True, text=True)
    assert done.returncode == 2 and "did you mean 'transformer'" in done.stderr


def test_check(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = run(capsys, "check", "gla", "--option", "value_gate=true")
    assert "holds   causal, by gradient" in out and "FAILS" not in out
    (tmp_path / "acausal.py").write_text(
        "from torch import nn\nclass Mixer(nn.Linear):\n"
        "    def __init__(self, d_model): super().__init__(d_model, d_model)\n"
        "    def forward(self, x): return super().forward(x + x.mean(1, keepdim=True))\n"
    )
    command = [str(Path(sys.executable).with_name("icll"))]
    done = subprocess.run([*command, "check", "acausal:Mixer"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and "FAILS   causal, by perturbation" in done.stdout
    assert done.stderr.startswith("icll: acausal:Mixer fails") and len(done.stderr.splitlines()) == 1
    assert "causal, by perturbation: changing token" in done.stderr
    for arguments, message in (
        (["check", "nowhere:Mixer"], "cannot import 'nowhere'"),
        (["check", "gla", "--option", "value_gate"], "write name=value"),
        (["models", "tranformer"], "did you mean 'transformer'"),
        (["models", "transformer", "--d-model", "30", "--heads", "4"], "not divisible"),
    ):
        with pytest.raises(SystemExit) as error:
            main(arguments)
        captured = capsys.readouterr().err
        assert error.value.code == 2 and message in captured and captured.count("\n") == 1


def test_a_legend_names_models_and_folders_only_where_it_must(tmp_path):
    for name, seed in (("a", 0), ("b", 1), ("c", 2)):
        heads = (1, 2) if name == "a" else ()
        config = RunConfig(ModelConfig("retnet", 8, 1, 1, ngram_heads=heads), DataConfig(train=8), RECIPES["fast"], seed)
        prepare(config, tmp_path / name)
    runs = [str(tmp_path / name) for name in "abc"]
    assert _labels(["ngram:3", *runs]) == ["3-gram", "RetNet+NGH(1,2)", *runs[1:]]


def test_predictors_are_scored_on_the_data_their_runs_were_trained_for(tmp_path):
    for name, profile, seed in (("a", "repo", 0), ("b", "repo", 1), ("c", "paper", 0)):
        data = DataConfig(profile=profile, train=8 + seed)
        prepare(RunConfig(ModelConfig("retnet", 8, 1, 1), data, RECIPES["fast"], seed), tmp_path / name)
    a, b, c = (str(tmp_path / name) for name in "abc")
    assert "repo" in str(open_problems(None, None, None, None, None, ["ngram:2", a, b]).origin)
    assert "paper" in str(open_problems(None, None, None, "paper", None, [a]).origin)
    assert "paper" in str(open_problems(None, None, None, None, None, ["ngram:2"]).origin)
    with pytest.raises(IcllError, match="were trained on different data"):
        open_problems(None, None, None, None, None, [a, c])
    with pytest.raises(IcllError, match="does not exist"):
        open_problems(Path("nowhere"), "train", None, None, None)


def test_training_takes_a_folder_of_data_make(tmp_path):
    named, own = tmp_path / "named", tmp_path / "own"
    regbench(6, "repo", seed=3).save(named)
    assert _problems(named, None, None, None, None, False) == DataConfig(profile="repo", train=6, seed=3)
    associative_recall(4, seed=1).save(tmp_path / "recall")
    assert _problems(tmp_path / "recall", None, None, None, None, False) == DataConfig("recall", train=4, seed=1)

    splits = regbench(6, Profile(states=(5, 6)), seed=0)
    splits.save(own)
    data = _problems(own, None, None, None, None, True)
    assert data.relabel and data.load().train.fingerprint == splits.train.fingerprint

    for folder, options, message in (
        (named, {"profile": "repo"}, "--profile has no effect with --data"),
        (tmp_path / "none", {}, "is not a folder"),
    ):
        with pytest.raises(IcllError, match=message):
            _problems(folder, **{"task": None, "profile": None, "train": None, "seed": None, "relabel": False, **options})
    replace(splits, train=splits.train[2:5]).save(own)  # a part of them: no settings would make it again
    with pytest.raises(IcllError, match="the problems in train are not all"):
        _problems(own, None, None, None, None, False)


def test_runs_are_listed_with_their_data_and_found_by_values(tmp_path, capsys):
    prepare(RunConfig(ModelConfig("retnet", 8, 1, 1), DataConfig(profile="repo", seed=3), RECIPES["fast"]), tmp_path / "a")
    assert "repo, seed 3" in run(capsys, "runs", str(tmp_path))
    assert "no runs" in run(capsys, "runs", str(tmp_path), "--filter", "n_layers")
    assert "retnet" in run(capsys, "runs", str(tmp_path), "--filter", "muon")


def test_options_are_true_false_or_values():
    assert parse_options(["a=True", "b=false", "c=no", "d=[1,2]"]) == {"a": True, "b": False, "c": "no", "d": [1, 2]}


def test_options_of_where_to_train_are_those_of_a_machine() -> None:
    assert asdict(Where()) == asdict(Machine())
