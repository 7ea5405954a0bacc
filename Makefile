# Two commands do everything on a machine that has Python 3.11 or newer, make and a C compiler: make demo, make test.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
SOURCES := pyproject.toml constraints.txt

.PHONY: help demo test lint bench clean

help:
	@echo "make demo    install, make data, train two models, score them beside learners: results in demo/"
	@echo "make test    install, check the style and run all tests"
	@echo "make lint    ruff and mypy"
	@echo "make bench   benchmarks, with ratios"
	@echo "make clean   remove the environment and the demo's results"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/core: $(BIN)/python $(SOURCES)
	@echo "installing icll (the first time takes a minute or two)"
	$(PIP) --editable .
	@touch $@

$(VENV)/test: $(VENV)/core
	$(PIP) --editable ".[test]"
	@touch $@

$(VENV)/lint: $(VENV)/core
	$(PIP) --editable ".[lint]"
	@touch $@

demo: $(VENV)/core
	$(BIN)/icll data make --profile repo --train 2500 --seed 0 --out demo/data
	$(BIN)/icll data show demo/data --problem 5 --picture demo/automaton.svg
	$(BIN)/icll train retnet --profile repo --train 1000 --epochs 4 --out demo/retnet
	$(BIN)/icll train retnet --ngram-heads 1,2,3 --profile repo --train 1000 --epochs 4 --out demo/retnet-ngh
	$(BIN)/icll score ngram:3 bayes:300 demo/retnet demo/retnet-ngh oracle --data demo/data --problems 100 \
		--picture demo/scores.png
	$(BIN)/icll generate demo/retnet-ngh --prompt "abcab|abab|cabca|bcabc" --strings 3 --length 12
	@echo "done: look at demo/automaton.svg (a language), demo/scores.png (how fast each predictor learns it) and"
	@echo "demo/retnet-ngh (a run: curves.png, result.json)"

test: lint $(VENV)/test
	$(BIN)/python -m pytest -n 2

lint: $(VENV)/lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/core
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/learners.py
	$(BIN)/python benchmarks/ngram_heads.py
	$(BIN)/python benchmarks/mixers.py --bf16

clean:
	rm -rf $(VENV) demo
