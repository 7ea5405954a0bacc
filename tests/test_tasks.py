from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors import safe_open

import icll
from icll import IcllError
from icll.languages import Automaton, Profile
from icll.tasks import (
    LengthBuckets,
    ProblemDataset,
    Problems,
    associative_recall,
    collate,
    load,
    make_loader,
    problems_of,
    regbench,
    to_datasets,
    to_jsonl,
)

SMALL = Profile(states=(2, 4), alphabet=(2, 3), edges=(1, 2))  # languages often repeat here


# --- RegBench ---


def test_tensors_have_the_shapes_and_meaning_they_promise(repo):
    p = repo.test
    n, longest = len(p), int(p.lengths.max())
    assert n == 500 and p.tokens.shape == p.states.shape == p.scored.shape == (n, longest)
    assert p.tokens.dtype == torch.int64 and p.truth.dtype == torch.float32 and p.scored.dtype == torch.bool
    assert p.truth.shape == (n, longest, icll.VOCAB_SIZE)
    truth = p.truth
    for i in range(0, n, 50):
        automaton, length, state = p.automata[i], int(p.lengths[i]), 0
        for t in range(length):
            token = int(p.tokens[i, t])
            state = 0 if token == icll.SEP else int(automaton.transitions[state, token - 1])
            assert state == p.states[i, t] >= 0
            assert np.allclose(truth[i, t, 1:19], automaton.next_probs(state))
            following = int(p.tokens[i, t + 1]) if t + 1 < length else icll.PAD
            assert p.scored[i, t] == (1 <= following <= 18)
        assert (p.tokens[i, length:] == icll.PAD).all() and (p.states[i, length:] == -1).all()
        assert not p.scored[i, length:].any() and not truth[i, length:].any()
    assert (truth[..., [0, 19]] == 0).all()


def test_held_out_sets_do_not_depend_on_the_training_size_and_training_sets_are_nested(repo):
    large = regbench(train=900, profile="repo", seed=0)
    assert large.test.fingerprint == repo.test.fingerprint
    assert large.valid.fingerprint == repo.valid.fingerprint
    assert np.array_equal(large.train[:150].tokens, repo.train.tokens)
    assert large.train[:150].fingerprint == repo.train.fingerprint


@pytest.mark.parametrize("profile", ["repo", "paper", SMALL], ids=["repo", "paper", "small"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_language_is_in_two_sets(profile, seed):
    sizes = {"train": 300, "valid": 100, "test": 100}
    data = regbench(profile=profile, seed=seed, **sizes)
    languages = [set(problems.automata) for _, problems in data.items()]
    assert len(set().union(*languages)) == sum(map(len, languages)) == 500


def test_seeds_and_profiles_give_other_problems(repo):
    assert regbench(150, "repo", seed=1).test.fingerprint != repo.test.fingerprint
    # the same seed of two profiles must not give the same languages: one may be trained on, the other tested on
    near = Profile(edges=(1, 3), length=(1, 49), strings=(10, 20))
    shared = set(regbench(400, near, seed=0).train.automata) & set(repo.test.automata)
    assert len(shared) < 20


def test_the_published_sets_never_change(repo, paper):
    """Anything that changes these changes the benchmark: it would need a new format version."""
    recall = associative_recall(150)
    found = {name: p.fingerprint[:16] for name, p in [("repo", repo.test), ("paper", paper.test), ("recall", recall.test)]}
    assert found == {"repo": "d13080e3407d9a2d", "paper": "911e26ceac1020ec", "recall": "d7f446a41557039c"}


def test_same_seed_gives_identical_bytes_in_any_process(tmp_path):
    code = "import sys; from icll.tasks import regbench; regbench(300, 'repo', 5).save(sys.argv[1])"
    for name, variables in {"a": {"PYTHONHASHSEED": "0"}, "b": {"PYTHONHASHSEED": "77", "NUMBA_NUM_THREADS": "1"}}.items():
        environment = {**os.environ, **variables}
        subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], check=True, env=environment)
    for split in ("train", "valid", "test"):
        file = f"{split}.safetensors"
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_subsets_by_number_slice_list_and_mask(repo):
    p = repo.test
    assert p[3].text(0) == p.text(3) == p[-497].text(0)
    assert [q.text(0) for q in p[:3]] == [p.text(i) for i in range(3)]
    picked = p[[7, 2, 7]]
    assert len(picked) == 3 and picked.text(0) == picked.text(2) == p.text(7)
    assert picked.automata[1] == p.automata[2]
    assert len(p[p.lengths.numpy() > 400]) == int((p.lengths > 400).sum())
    with pytest.raises(IndexError, match="problem 500 does not exist"):
        p[500]


def test_strings_join_to_the_text(repo):
    assert "|".join(repo.test.strings(4)) == repo.test.text(4)
    assert all(repo.test.automata[4].accepts(s) for s in repo.test.strings(4))


def test_problems_of_own_automata_and_strings():
    a = Automaton.from_table([{"a": 1}, {"b": 0, "c": 1}])
    own = problems_of([a, a], "repo", seed=1)
    assert len(own) == 2 and own.text(0) != own.text(1)
    assert all(a.accepts(s) for i in range(2) for s in own.strings(i))
    mine = Problems.from_strings([["abab", "acc"]], [a])
    assert mine.truth[0, 0, [2, 3]].tolist() == [0.5, 0.5] and mine.strings_seen[0].tolist() == [0] * 4 + [1] * 4


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda: regbench(train=0), "train set must be at least 1, not 0"),
        (lambda: regbench(train=-5), "not -5"),
        (lambda: regbench(profile="authors"), "unknown profile"),
        (lambda: regbench(seed=-1), "seed"),
        (lambda: regbench(train=10_000, profile=Profile(states=(2, 2), alphabet=(1, 2), edges=(1, 1))), "distinct languages"),
        (lambda: associative_recall(train=0), "at least 1"),
        (lambda: associative_recall(seed=-3), "seed"),
        (lambda: problems_of([Automaton.from_table([{"a": 1}, {}])]), "state 1 has no outgoing edge"),
        (lambda: problems_of([]), "no automaton"),
        (lambda: Problems.from_strings([["aa"]], [Automaton.from_table([{"a": 1}, {"b": 0}])]), "does not accept"),
        (lambda: Problems.from_strings([["a", ""]], [Automaton.from_table([{"a": 0}])]), "list of strings"),
        (lambda: Problems.from_strings(["aa"], [Automaton.from_table([{"a": 0}])]), "list of strings"),
        (lambda: Problems.from_strings([["a|a"]], [Automaton.from_table([{"a": 0}])]), "without '|'"),
        (lambda: Problems.from_strings([], []), "no automaton"),
        (lambda: problems_of([Automaton([[0, 0]]), Automaton.from_table([{"a": 0}])]), "different widths"),
        (lambda: regbench(train=5.0), "whole number"),
        (lambda: Problems.from_strings([["a"]], []), "1 problems but 0 automata"),
    ],
)
def test_bad_requests_are_refused(make, cause):
    with pytest.raises(IcllError, match=cause):
        make()


# --- associative recall ---


def test_the_beginning_of_a_recall_problem_has_no_answer():
    cut = associative_recall(train=3).test[:4].cut(100)
    assert not cut.scored.any() and cut.trained[:, :-1].all()


def test_recall_is_a_map_shown_and_then_asked():
    data = associative_recall(train=300, seed=0)
    tokens = data.test.tokens
    assert tokens.shape == (500, 382) and data.vocab_size == 41
    keys, values = tokens[:, 0::2], tokens[:, 1::2]
    assert keys.min() == 1 and keys.max() == 20 and values.min() == 21 and values.max() == 40
    for k, v in zip(keys, values, strict=True):
        shown = dict(zip(k[:-1].tolist(), v[:-1].tolist(), strict=True))
        assert all(shown[key] == value for key, value in zip(k.tolist(), v.tolist(), strict=True))  # the query was shown
    assert data.test.scored.sum(1).eq(1).all() and data.test.scored[:, 380].all()
    assert data.test.truth[:, 380].gather(1, tokens[:, 381:]).eq(1).all()
    assert torch.allclose(data.test.truth[0, 1, 1:21], torch.tensor(1 / 20))
    assert all(a == a.minimal() and a.n_states == a.minimal().n_states for a in data.test.automata[:20])
    assert associative_recall(train=150, seed=0).test.fingerprint == data.test.fingerprint
    assert torch.equal(associative_recall(train=150, seed=0).train.tokens, data.train.tokens[:150])


# --- files ---


def test_files_read_back_whole(repo, tmp_path):
    repo.save(tmp_path / "data")
    back = load(tmp_path / "data")
    for name, problems in repo.items():
        other = getattr(back, name)
        assert torch.equal(problems.tokens, other.tokens) and torch.equal(problems.truth, other.truth)
        assert problems.origin == other.origin and problems.fingerprint == other.fingerprint
    assert load(tmp_path / "data" / "test.safetensors").fingerprint == repo.test.fingerprint
    with safe_open(tmp_path / "data" / "test.safetensors", "np") as file:
        header = json.loads(file.metadata()["icll"])
        assert file.get_tensor("tokens").dtype == np.uint8
    assert header["profile"]["edges"] == [1, 3] and (header["seed"], header["version"], header["split"]) == (0, 1, "test")
    assert header["fingerprint"] == repo.test.fingerprint


def test_automata_of_many_states_read_back(tmp_path):
    data = regbench(5, Profile(states=(200, 300)), valid=2, test=2)
    data.save(tmp_path)
    assert torch.equal(load(tmp_path).train.states, data.train.states)
    assert data.train.automata.sizes.max() > 127


@pytest.mark.parametrize("keep", [0, 5, 100, 1000, 200_000])
def test_a_truncated_file_is_refused(repo, tmp_path, keep):
    repo.test.save(tmp_path / "whole")
    part = tmp_path / "part"
    part.write_bytes((tmp_path / "whole").read_bytes()[:keep])
    with pytest.raises(IcllError, match="cut short"):
        load(part)


def test_an_edited_file_is_refused(repo, tmp_path):
    repo.test.save(tmp_path / "whole")
    data = (tmp_path / "whole").read_bytes()
    edits = {
        "a token": data[:-1000] + bytes([data[-1000] ^ 3]) + data[-999:],
        "the seed": data.replace(b'\\"seed\\": 0', b'\\"seed\\": 7'),
        "the profile": data.replace(b"[1, 49]", b"[1, 48]"),
    }
    for what, changed in edits.items():
        assert changed != data, what
        (tmp_path / "edited").write_bytes(changed)
        with pytest.raises(IcllError, match="damaged or was edited"):
            load(tmp_path / "edited")


def test_a_newer_format_is_named(repo, tmp_path):
    repo.test.save(tmp_path / "file")
    data = (tmp_path / "file").read_bytes()
    (tmp_path / "file").write_bytes(data.replace(b'\\"version\\": 1', b'\\"version\\": 9'))
    with pytest.raises(IcllError, match=r"format 9.*upgrade icll"):
        load(tmp_path / "file")


def test_a_file_with_a_true_fingerprint_but_nonsense_inside_is_refused(repo, tmp_path):
    """The fingerprint says that nothing changed, not that it was right: kernels must not run on any of these."""

    def spoiled(**changes):
        p = repo.test[:3]
        bad = Problems(p.flat.copy(), p.offsets.copy(), p.automata.take(np.arange(3)), p.origin)
        bad.automata.rows = bad.automata.rows.copy()
        changes["change"](bad)
        bad.save(tmp_path / "bad")
        return tmp_path / "bad"

    def rows(value):
        return lambda p: p.automata.rows.__setitem__((0, 0), value)

    cases = [
        (lambda p: p.flat.__setitem__(5, 40), "token 40 is outside the vocabulary"),
        (lambda p: p.flat.__setitem__(5, 0), "token 0 is outside the vocabulary"),
        (rows(99), "names a state it does not have"),
        (lambda p: p.automata.rows.__setitem__(0, -1), "without outgoing edges"),
        (lambda p: p.offsets.__setitem__(1, p.offsets[0] - 5), "do not fit together"),
        (lambda p: p.flat.__setitem__(slice(0, 10), 1), "does not accept"),
    ]
    for change, cause in cases:
        with pytest.raises(IcllError, match=cause):
            load(spoiled(change=change))


def test_a_folder_of_sets_that_do_not_belong_together_is_refused(repo, paper, tmp_path):
    repo.save(tmp_path)
    paper.valid.save(tmp_path / "valid.safetensors")
    with pytest.raises(IcllError, match="mixes data sets"):
        load(tmp_path)
    repo.train.save(tmp_path / "valid.safetensors")
    with pytest.raises(IcllError, match="mixes data sets"):
        load(tmp_path)


def test_missing_files_are_named(tmp_path, repo):
    with pytest.raises(IcllError, match="does not exist"):
        load(tmp_path / "nothing")
    repo.test.save(tmp_path / "test.safetensors")
    with pytest.raises(IcllError, match=r"has no train\.safetensors and no valid\.safetensors"):
        load(tmp_path)


def test_a_failed_save_leaves_nothing_behind(repo, tmp_path, monkeypatch):
    calls = []

    def full(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return real(*arguments, **options)

    from icll.tasks import problems as module

    real = module.write_safetensors
    monkeypatch.setattr(module, "write_safetensors", full)
    with pytest.raises(OSError, match="No space left"):
        repo.save(tmp_path / "new" / "data")
    assert list(tmp_path.iterdir()) == []


# --- loaders and exports ---


def test_loader_gives_every_problem_once_with_little_padding(repo):
    problems = regbench(1000, "repo").train
    loader = make_loader(problems, batch_size=32, seed=1)
    batches = list(loader)
    assert len(batches) == len(loader) == 32
    texts = [icll.decode(row.tolist()) for batch in batches for row in batch.tokens]
    assert sorted(texts) == sorted(problems.text(i) for i in range(1000))
    used = sum(int(b.lengths.sum()) for b in batches) / sum(b.tokens.numel() for b in batches)
    assert used > 0.9
    batch = batches[0]
    assert torch.equal(batch.targets[:, :-1][batch.scored[:, :-1]], batch.tokens[:, 1:][batch.scored[:, :-1]])
    assert (batch.targets[~batch.scored] == -100).all() and not (batch.targets == icll.SEP).any()


def test_the_loss_covers_what_the_authors_covered(repo):
    recall = associative_recall(train=8).train
    batch = next(iter(make_loader(recall, 4)))
    assert torch.equal(batch.targets[:, :-1], batch.tokens[:, 1:]) and (batch.scored.sum(1) == 1).all()
    batch = next(iter(make_loader(repo.train, 4, separators=True)))
    assert (batch.targets == icll.SEP).any() and ((batch.targets != -100).sum(1) == batch.lengths - 1).all()
    plain = torch.utils.data.DataLoader(ProblemDataset(repo.train), 4, collate_fn=collate)
    assert next(iter(plain)).tokens.shape[0] == 4


def test_order_depends_on_seed_and_epoch_alone():
    lengths = np.random.default_rng(0).integers(10, 600, 500)
    a, b = LengthBuckets(lengths, 16, seed=3), LengthBuckets(lengths, 16, seed=3)
    first = list(a)
    assert first == list(b)
    a.set_epoch(1)
    assert list(a) != first
    ordered = [i for batch in LengthBuckets(lengths, 16, shuffle=False) for i in batch]
    assert sorted(ordered) == list(range(500)) and (np.diff(lengths[ordered]) >= 0).all()


def test_dataset_and_loader_with_workers(repo):
    dataset = ProblemDataset(repo.train)
    assert len(dataset) == 150 and dataset[3].text(0) == repo.train.text(3)
    loader = make_loader(repo.train, batch_size=50, workers=1)
    assert sum(len(batch.tokens) for batch in loader) == 150


def test_json_lines_hold_strings_automaton_and_truth(repo, tmp_path):
    to_jsonl(repo.test[:20], tmp_path / "test.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "test.jsonl").read_text().splitlines()]
    assert len(lines) == 20
    for i, line in enumerate(lines):
        p = repo.test[i]
        assert line["tokens"] == p.tokens[0].tolist() and line["strings"] == p.strings(0)
        assert line["states"] == p.states[0].tolist() and line["transitions"] == p.automata[0].transitions.tolist()
        dense = torch.zeros_like(p.truth[0])
        for t, row in enumerate(line["truth"]):
            for token, probability in row.items():
                dense[t, int(token)] = probability
        assert torch.allclose(dense, p.truth[0])


def test_export_to_hugging_face_datasets(repo, tmp_path):
    exported = to_datasets(repo.test[:10], cache_dir=str(tmp_path))
    assert exported.num_rows == 10
    row = exported[4]
    assert row["strings"] == repo.test.strings(4)
    assert np.allclose(row["truth"], repo.test[4].truth[0])
