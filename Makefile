# `make` lists the targets. Each one sets up what it needs in .venv first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CODE   := src tests examples benchmarks

.DEFAULT_GOAL := help
.PHONY: help setup serve demo test slow ray fuzz check lint types docs dist format bench figures paper clean

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

EXPRESS := src/slimsched/serving/api/express

$(VENV)/.ready: pyproject.toml constraints.txt hatch_build.py $(wildcard $(EXPRESS)/express*.[ch]pp)
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Slim Scheduler needs Python 3.11 or newer: set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

setup: $(VENV)/.ready  ## install everything into .venv

serve: $(VENV)/.ready  ## serve on this machine until stopped, dashboard at http://127.0.0.1:8000/
	$(BIN)/slim serve --goal "accuracy>=78, p99<=300ms, min energy"

demo: $(VENV)/.ready  ## serve bursts on this machine, random routing against ours (about a minute)
	$(BIN)/slim demo

PYTEST    := $(BIN)/pytest --dist loadgroup
SLOW_JOBS ?= 3
SLOW      ?= slow and not alone
RAY_TESTS ?= tests/serving/ray

test: $(VENV)/.ready  ## run the tests, except those that are slow by nature or need Ray
	@$(PYTEST) -n auto -m "not slow and not ray"; code=$$?; \
	echo "left out: what is slow by nature, as chaos, floods, Slurm and the browser (make slow),"; \
	echo "  what needs Ray (make ray), and attacks at random (make fuzz)"; exit $$code

slow: $(VENV)/.ready  ## run the tests that are slow by nature: chaos, floods, Slurm, browser
	$(PYTEST) -n $(SLOW_JOBS) -m "$(SLOW)"
	$(BIN)/pytest -m alone

ray: $(VENV)/.ready  ## install the extra 'ray' and run the tests that need it
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]'
	$(if $(RAY_TESTS),SLIM_REQUIRE_RAY=1 $(BIN)/pytest $(RAY_TESTS))

FUZZ_S    ?= 60
FUZZ_SEED ?= $(shell shuf -i 0-999999 -n 1)

fuzz: $(VENV)/.ready  ## attack a server built with sanitizers (FUZZ_S=600 FUZZ_SEED=1)
	$(BIN)/python tests/hostile/fuzz --seconds $(FUZZ_S) --seed $(FUZZ_SEED)

check: lint types docs test  ## format, lint, types, docs and `make test`

lint: $(VENV)/.ready  ## format and lint, changing nothing
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)

types: $(VENV)/.ready  ## mypy --strict
	$(BIN)/mypy

docs: $(VENV)/.ready  ## build the documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

dist: $(VENV)/.ready  ## build wheel and sdist, and try them in fresh environments
	PYTHON=$(BIN)/python scripts/check-dist

format: $(VENV)/.ready  ## format the code in place
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

bench: $(VENV)/.ready  ## measure the simulator (benchmarks/README.md)
	$(BIN)/python benchmarks/simulator.py

figures: $(VENV)/.ready  ## make the main figures of the documents again, and show those that moved
	$(BIN)/python benchmarks/printed_figures.py

paper: WHAT ?= table3 table4 table5
paper: $(VENV)/.ready  ## reproduce the paper's tables, or others: make paper WHAT="fig1 fig2"
	$(BIN)/python benchmarks/paper/run.py $(WHAT)

clean:  ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache build dist
