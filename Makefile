# Commands for developers. Each target first sets up .venv, and updates it when a file of RECIPE changes.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo install test test-slow test-all cells ui lint docs lock wheel release pictures gpu bench figures opponents \
	studies

BIN := .venv/bin
INSTALLED := .venv/.installed
INSTALLED_FOR_TESTS := .venv/.installed-for-tests
INSTALLED_FOR_DOCS := .venv/.installed-for-docs
PYTEST := $(BIN)/python -m pytest -ra --numprocesses 2 --dist loadfile --no-loadscope-reorder
RECIPE := pyproject.toml constraints.txt python_env.yaml .ci/setup .ci/mlflow_environment.py
# Benchmarks that need .venv-opponents.
OPPONENTS := training_opponents influence_opponents
OPPONENTS_INSTALLED := .venv-opponents/.installed
OPPONENTS_LISTS := experiments/benchmarks/opponents.txt experiments/benchmarks/opponents_alone.txt
# Excluded from `make bench`: modules that other benchmarks import, and programs that need arguments
# or .venv-opponents.
NO_BENCHMARKS := harness steps dense_part accuracy language_quality window_influence opponent_loop \
	$(OPPONENTS)
BENCHMARKS := $(filter-out $(NO_BENCHMARKS),$(patsubst experiments/benchmarks/%.py,%,$(wildcard experiments/benchmarks/*.py)))
# The benchmarks that documents quote; those of `make opponents` beside. `make figures QUOTED=wide_graph` measures only that one.
QUOTED := demo_time training_speed wide_graph ranking_speed load_triples influence_speed \
	influence_quality language_training serving_speed
PREFIX := $(HOME)/.local
COMPLETIONS = $(PREFIX)/share
STUDIES := training tracin loss language_model image_sequences
ERA5 := era5_uk_t2m_2019_03/era5-2mt-2019-03-uk.grib

export PYTHON
# Let Python write .pyc files even if the shell sets PYTHONDONTWRITEBYTECODE. Otherwise each test
# process would compile thousands of files again, which takes 5 seconds for torch and MLflow.
export PYTHONDONTWRITEBYTECODE :=

help:
	@echo "make demo    set up .venv; train, explain, compare and promote on the bundled graph"
	@echo "make install the command clew in ~/.local/bin, with completion for bash and zsh (PREFIX=...)"
	@echo "make test    set up .venv for tests too; the tests to run before each change"
	@echo "make test-slow  servers, browsers, killed processes, large inputs; make test-all: both"
	@echo "make cells   the fast tests with Python 3.11 to 3.13, and with the newest torch, MLflow, Streamlit and pandas"
	@echo "make ui      the dashboard at http://127.0.0.1:8501"
	@echo "make lint    ruff, mypy, import contracts, an audit of the installed packages"
	@echo "make docs    the documentation site in site/, with every link checked"
	@echo "make lock    uv.lock, requirements.txt and the image's: the versions of constraints.txt, with hashes (needs uv)"
	@echo "make wheel   the source distribution and the wheel in dist/, with its bill of materials"
	@echo "make release wheel, sources, bill of materials and site in dist/, the wheel tried in an empty environment, and a tag"
	@echo "make pictures the screenshots of every dashboard page for the documentation, after make demo"
	@echo "make gpu     checks and measures a GPU in ten minutes: gpu.json and gpu.md"
	@echo "make bench   all benchmarks: prints tables and writes JSON to experiments/benchmarks/results"
	@echo "make figures the benchmarks that README quotes, three rounds each, 22 minutes on 2 cores"
	@echo "make opponents other programs in .venv-opponents, and Clew against them, 12 minutes on 2 cores"
	@echo "make studies the studies that the guides' claims are about, about 35 minutes (estimate): JSON in experiments/studies/results"

demo: $(INSTALLED)
	@echo "The demo takes two to three minutes on 2 cores."
	@$(BIN)/clew demo

install: $(INSTALLED)
	@mkdir -p $(PREFIX)/bin $(COMPLETIONS)/bash-completion/completions $(COMPLETIONS)/zsh/site-functions
	@ln -sf $(CURDIR)/$(BIN)/clew $(PREFIX)/bin/clew
	@_CLEW_COMPLETE=bash_source $(BIN)/clew > $(COMPLETIONS)/bash-completion/completions/clew
	@_CLEW_COMPLETE=zsh_source $(BIN)/clew > $(COMPLETIONS)/zsh/site-functions/_clew
	@echo "clew is in $(PREFIX)/bin, which must be in PATH. bash completes it in the next terminal;"
	@echo "zsh too, if ~/.zshrc has, before compinit: fpath+=$(COMPLETIONS)/zsh/site-functions"

test: $(INSTALLED_FOR_TESTS)
	@echo "The tests took 16 minutes on 2 cores."
	@$(PYTEST) -m "not slow" $(PYTEST_ARGS)

test-slow: $(INSTALLED_FOR_TESTS)
	@$(PYTEST) --numprocesses 3 -m slow $(PYTEST_ARGS)

test-all: $(INSTALLED_FOR_TESTS)
	@$(PYTEST) $(PYTEST_ARGS)

# For example `make cells CELLS=3.12-pinned CELL_TESTS="-- tests/runs"`.
cells: $(INSTALLED_FOR_TESTS)
	@$(BIN)/python .ci/cells.py $(CELLS) $(CELL_TESTS)

ui: $(INSTALLED)
	@$(BIN)/clew ui

lint: $(INSTALLED_FOR_TESTS)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/mypy .ci/mlflow_environment.py tests/api/sample.py
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python .ci/supply_chain.py audit

docs: $(INSTALLED_FOR_DOCS)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --clean
	@echo "the documentation is in site/index.html"

lock: $(INSTALLED)
	@uv lock --quiet $$(sed -n 's/^[A-Za-z]/--upgrade-package=&/p' constraints.txt)
	@uv export --quiet --frozen --all-extras --no-emit-project --no-annotate --no-header \
		--output-file requirements.txt
	@$(BIN)/python .ci/image_requirements.py

wheel: $(INSTALLED_FOR_TESTS)
	@rm -rf build dist
	@$(BIN)/python -m build --outdir dist
	@$(BIN)/python .ci/supply_chain.py bill dist/*.whl

release: $(INSTALLED_FOR_TESTS)
	@.ci/release

pictures: $(INSTALLED_FOR_TESTS)
	@$(BIN)/python -m tests.browser.pictures ui/pictures

# Run the command for every name in the list, and print the names that failed at the end.
define each
	@failed=; \
	for name in $(1); do \
		echo "== $$name"; \
		$(2) || failed="$$failed $$name"; \
	done; \
	$(BIN)/python -m experiments.report; \
	if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi
endef

gpu: $(INSTALLED)
	@$(BIN)/python -m experiments.gpu --minutes 10 --out gpu.json

bench: $(INSTALLED_FOR_TESTS)
	$(call each,$(BENCHMARKS),$(BIN)/python -m experiments.benchmarks.$$name)

figures: $(INSTALLED_FOR_TESTS)
	$(call each,$(QUOTED),$(BIN)/python -m experiments.benchmarks.$$name)

opponents: $(INSTALLED) $(OPPONENTS_INSTALLED)
	$(call each,$(OPPONENTS),.venv-opponents/bin/python -m experiments.benchmarks.$$name)

studies: $(INSTALLED_FOR_TESTS) | data/era5_uk
	$(call each,$(STUDIES),$(BIN)/clew compare --study experiments/studies/$$name.yaml \
		--output experiments/studies/results/$$name.json)

data/era5_uk: | $(INSTALLED_FOR_TESTS)
	@if [ -z "$$CLEW_DATA" ]; then \
		echo "clew: CLEW_DATA is not set; set it to the folder that contains $(ERA5)" >&2; exit 2; \
	fi
	@mkdir -p data
	@$(BIN)/python -m experiments.image_sequences.era5 "$$CLEW_DATA/$(ERA5)" $@

$(INSTALLED): $(RECIPE)
	@.ci/setup '.[all]'
	@touch $@

$(OPPONENTS_INSTALLED): $(INSTALLED) $(OPPONENTS_LISTS)
	@$(BIN)/python -m venv --clear .venv-opponents
	@.venv-opponents/bin/pip install -q --disable-pip-version-check --constraint constraints.txt \
		--editable . --requirement $(word 1,$(OPPONENTS_LISTS))
	@.venv-opponents/bin/pip install -q --disable-pip-version-check --no-deps \
		--requirement $(word 2,$(OPPONENTS_LISTS))
	@touch $@

# Install the packages for the documentation here too: a second run of pip would take 12 seconds.
$(INSTALLED_FOR_TESTS): $(RECIPE)
	@.ci/setup '.[test,docs]'
	@touch $(INSTALLED) $(INSTALLED_FOR_DOCS) $@

$(INSTALLED_FOR_DOCS): $(RECIPE)
	@.ci/setup '.[all,docs]'
	@touch $(INSTALLED) $@
