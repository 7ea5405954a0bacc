# Two commands do everything on a machine that has Python 3.11 or newer and make: make demo, make test.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
SOURCES := pyproject.toml constraints.txt

.PHONY: help demo test lint bench clean

help:
	@echo "make demo    install, make data, train three models, score them beside learners, write the report: see demo/"
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
	$(BIN)/icll reproduce table1a --budget demo --out demo/runs
	$(BIN)/icll score ngram:2 ngram:3 bayes:300 demo/runs/retnet-* demo/runs/transformer-* oracle --data demo/data \
		--problems 100 --picture demo/scores.png
	$(BIN)/icll generate demo/runs/retnet-ngh123-* --prompt "abcab|abab|cabca|bcabc" --strings 3 --length 12
	$(BIN)/icll report --runs demo/runs --runs results/training --out demo/report
	@echo "done: open demo/report/index.html in a browser: step through a problem with the arrow keys, and see how models compare"

test: lint $(VENV)/test
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
		echo "no Chromium here: the tests that open the report's page in a browser are skipped (apt-get install chromium)"
	$(BIN)/python -m pytest -n 2

lint: $(VENV)/lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/test
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/learners.py
	$(BIN)/python benchmarks/ngram_heads.py
	$(BIN)/python benchmarks/mixers.py --bf16
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/text.py

clean:
	rm -rf $(VENV) demo
