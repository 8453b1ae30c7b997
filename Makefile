# Everything a newcomer types. `make help` lists the targets; scripts/bootstrap.sh does the installing.
#
#   PYTHON=python3.12            the interpreter for .venv (3.10 to 3.13; default: a suitable one on PATH)
#   TORCH='torch==2.14.1'        what pip is to install for torch (default: one that can be imported, else torch==2.13.0)
#   DEMO_ARGS=--keep             options for `trtbuild demo`
#   PYTEST_ARGS='-k serve -x'    options for pytest

SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
READY := $(VENV)/.ready
MODEL := $(VENV)/.demo-model

PYTHON ?=
TORCH ?=
DEMO_ARGS ?=
PYTEST_ARGS ?=

$(READY): pyproject.toml scripts/bootstrap.sh
	@PYTHON='$(PYTHON)' TORCH='$(TORCH)' scripts/bootstrap.sh environment
	@touch $@

# Naming an interpreter or a torch looks again at an environment that is already there.
ifneq ($(strip $(PYTHON)$(TORCH)),)
$(READY): FORCE
endif

$(MODEL): $(READY)
	@scripts/bootstrap.sh model
	@touch $@

.PHONY: demo test test-all check bench install clean help FORCE

demo: $(MODEL)  ## Run the whole path on a real small model: convert, render, serve, generate, measure
	@$(VENV)/bin/trtbuild demo $(DEMO_ARGS)

test: $(READY)  ## Run the tests
	@$(VENV)/bin/python -m pytest -m 'not slow' $(PYTEST_ARGS)

test-all: $(READY)  ## Run the tests, the slow ones too
	@$(VENV)/bin/python -m pytest $(PYTEST_ARGS)

check: $(READY)  ## Run what every commit must pass: ruff, mypy, the fast unit tests
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/python -m pytest tests/unit -m 'not slow and not triton' -q $(PYTEST_ARGS)

bench: $(READY)  ## Run every script in benchmarks/
	@for script in $(wildcard benchmarks/*.py); do echo "== $$script"; $(VENV)/bin/python $$script || exit; done

install: $(READY)  ## Only make .venv

clean:  ## Remove .venv, caches and built packages
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find builder client tests benchmarks model_repo_templates -name __pycache__ -type d -prune -exec rm -rf {} +

help:
	@awk 'BEGIN {FS = ":.*##"} /^[a-z-]+:.*##/ {printf "  make %-10s %s\n", $$1, $$2}' Makefile
	@awk 'NR > 2 && /^#  / {sub(/^#/, ""); print} /^SHELL/ {exit}' Makefile
