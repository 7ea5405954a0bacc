"""How each model is trained at each budget: the one place to change it.

demo: minutes, to see everything work. cpu: two cores, a night at most for Table 1(a). paper: the published setting, with the
widths and depths that the authors' search picked.
"""

from __future__ import annotations

from dataclasses import replace

from ..model import ModelConfig
from ..tokens import RECALL, VOCAB_SIZE
from ..training import RECIPES, DataConfig, Recipe, RunConfig, change
from .paper import load_paper
from .results import LABELS

BUDGETS = ("demo", "cpu", "paper")
MODELS = ("transformer", "retnet", "gla", "mamba", "linear_transformer", "hyena", "h3", "lstm", "rwkv", "s4")
WIRED_WRONGLY = ("lstm", "mamba")  # also trained with the authors' wiring, which the published curves carry
DEPTHS = (1, 2, 4, 8, 12)
ORDERS = ((), (1,), (1, 2), (1, 2, 3))

DEMO = change(RECIPES["fast"], epochs=4)
CPU = RECIPES["fast"]  # enough where n-gram heads are wired in
# Without them a model sits on a plateau, TVD 0.60, until it has found something like them by itself: that takes more steps,
# larger ones, more layers, and a mean of the weights, since it memorises meanwhile.
LONG = change(RECIPES["fast"], rate=5e-3, muon_rate=5e-3, epochs=20, average=0.997)
# Recall is found from large embeddings: from small ones models stay at the frequencies of values for thousands of steps. The
# beginnings of problems are enough to find it, and take a third of the time.
RECALL_CPU = change(RECIPES["fast"], rate=1e-3, muon_rate=1e-2, epochs=32, short=0.75)
# Layers as the authors' search had them at N = 2,500, where they are not those of RetNet; heads likewise, but for the
# Transformer, which had one.
RETNET_SIZE = (64, 4, 1)
SIZES = {"transformer": (64, 8, 2), "h3": (64, 2, 2), "s4": (64, 2, 2), "lstm": (64, 2, 2)}
# Layers of an LSTM are plainly stacked: without a norm or a residual, little of small embeddings comes through four of them.
EMBEDDING_STD = {"lstm": 1.0}
TRANSFORMER_OPTIONS = {"attention_dropout": 0}  # with it a step takes twice the time

DEMO_TRAIN = 1000
RECALL_SIZES = {"demo": (300,), "cpu": (625, 5000), "paper": (150, 300, 625, 1250, 2500, 5000)}
REGBENCH_SIZES = {"demo": (300,), "cpu": (1000, 2500, 5000), "paper": (1000, 2500, 5000, 10_000, 20_000, 40_000)}
CPU_DEPTHS = (1, 2, 4, 8)
DEPTH_MODELS = ("transformer", "retnet", "lstm", "mamba")  # of figure 3(d) at the budget cpu


def size_of(model: str, budget: str, train: int, heads: tuple[int, ...] = ()) -> tuple[int, int, int]:
    """Width, layers, heads."""
    if model.startswith("lnw"):  # they have neither
        return 64, 2, 2
    if budget == "paper":
        sizes = load_paper().sizes.get(LABELS.get(model, model)) or load_paper().sizes["RetNet"]  # GLA's are not published
        return sizes[min(sizes, key=lambda n: abs(n - train))]
    return (64, 2, 2) if budget == "demo" or heads else SIZES.get(model, RETNET_SIZE)


def recipe_of(
    model: str, budget: str, train: int = 2500, heads: tuple[int, ...] = (), task: str = "regbench"
) -> Recipe:  # fmt: skip
    if model.startswith("lnw"):
        return RECIPES["lnw"]
    if budget == "paper":
        return RECIPES["authors"]
    if budget == "demo":
        return DEMO
    recipe = RECALL_CPU if task == "recall" else CPU if heads else LONG
    epochs = max(1, round(recipe.epochs * 2500 / train))  # as many steps at each size
    if model == "transformer" and task == "regbench":  # more problems, more steps until it leaves its second plateau
        epochs = max(epochs, recipe.epochs)
    patience = 10 if train < 2500 else None  # few problems are memorised long before the end
    return change(recipe, epochs=epochs, patience=patience)


def run(
    model: str,
    budget: str,
    train: int = 2500,
    *,
    heads: tuple[int, ...] = (),
    task: str = "regbench",
    seed: int = 0,
    layers: int | None = None,
    authors_bug: bool = False,
) -> RunConfig:
    """The run of a model at a budget. Data that stands beside published numbers is of the profile `repo`."""
    width, depth, n_heads = size_of(model, budget, train, heads)
    made = ModelConfig(
        model, width, layers or depth, n_heads, RECALL.size if task == "recall" else VOCAB_SIZE, dropout=0.1,
        ngram_heads=heads, authors_bug=authors_bug,
        options=TRANSFORMER_OPTIONS if model == "transformer" and budget != "paper" else {},
        embedding_std=EMBEDDING_STD.get(model, 0.02) if budget == "cpu" else 0.02,
    )  # fmt: skip
    if task == "recall" and budget == "paper":
        made = replace(made, d_model=min(width, 256))  # as far as the paper searched there
    elif task == "recall":
        n_heads = 4 if model == "retnet" else 1
        made = replace(made, d_model=64, n_layers=2, n_heads=n_heads, dropout=0.0, embedding_std=1.0)
    data = DataConfig(task, "paper" if task == "recall" else "repo", train)
    return RunConfig(made, data, recipe_of(model, budget, train, heads, task), seed)
