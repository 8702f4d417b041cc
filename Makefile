# What people type. Each target sets up .venv first, and again when what it is made from changes.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test ui lint bench

BIN := .venv/bin
INSTALLED := .venv/.installed
INSTALLED_FOR_TESTS := .venv/.installed-for-tests
RECIPE := pyproject.toml constraints.txt python_env.yaml .ci/setup .ci/mlflow_environment.py
BENCHMARKS := $(filter-out experiments/benchmarks/harness.py,$(wildcard experiments/benchmarks/*.py))

export PYTHON

help:
	@echo "make demo    train, explain, compare and promote on the bundled graph"
	@echo "make test    every test that this machine can run"
	@echo "make ui      the dashboard on http://127.0.0.1:8501"
	@echo "make lint    ruff, types, import contracts"
	@echo "make bench   the benchmarks: tables here, JSON in experiments/benchmarks/results"

demo: $(INSTALLED)
	@$(BIN)/clew demo

test: $(INSTALLED_FOR_TESTS)
	@$(BIN)/python -m pytest -ra $(PYTEST_ARGS)

ui: $(INSTALLED)
	@$(BIN)/clew ui

lint: $(INSTALLED_FOR_TESTS)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/mypy .ci/mlflow_environment.py
	@$(BIN)/lint-imports --no-cache

bench: $(INSTALLED_FOR_TESTS)
	@failed=; \
	for file in $(BENCHMARKS); do \
		name=$$(basename $$file .py); \
		echo "== $$name"; \
		$(BIN)/python -m experiments.benchmarks.$$name || failed="$$failed $$name"; \
	done; \
	if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi; \
	echo "Results: experiments/benchmarks/results/*.json"

$(INSTALLED): $(RECIPE)
	@.ci/setup .
	@touch $@

$(INSTALLED_FOR_TESTS): $(RECIPE)
	@.ci/setup '.[test]'
	@touch $(INSTALLED) $@
