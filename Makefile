# make demo, make test: everything on a fresh machine, from the virtual environment to the answer.

# The first of these that is new enough and not too new; say `make PYTHON=/path/to/python3.12 …` for another.
PYTHON ?= $(shell for p in python3 python3.12 python3.11; do $$p -c '$(SUITS)' 2>/dev/null && echo $$p && break; done)
SUITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install -q -c constraints.txt
WORKERS ?= 2
TESTS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test format bench clean
.DELETE_ON_ERROR:

help:
	@echo "make demo    compare the policies on the paper's cluster and print Table 1, ours"
	@echo "make test    style, types, layers, documents, tests (TESTS=tests/act for some of them, WORKERS=8 for more processes)"
	@echo "make format  put the code into the house's format"
	@echo "make bench   measure speed and memory"
	@echo "make clean   remove the virtual environment and every cache in this folder"

demo: .venv/.demo
	$(BIN)/adlro compare --cluster paper16 --workload paper --seeds 10

# First what takes longest to compile, on two cores: it goes into the cache that the parallel tests then share.
test: .venv/.dev
	scripts/test_parts.sh
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	@echo "Building the documents …"
	@folder=$$(mktemp -d); NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -d $$folder/site >$$folder/log 2>&1; \
	    built=$$?; [ $$built = 0 ] || cat $$folder/log; rm -rf $$folder; exit $$built
	@echo "Compiling (some minutes the first time) …"
	@$(BIN)/adlro compare --policies sjf,multifactor,adlro,adlro-lookahead --jobs 20 --seeds 1 --json >/dev/null & \
	    folder=$$(mktemp -d); $(BIN)/adlro train --quick --steps 256 --set environments=32 --set worlds=4 \
	    --set exam_environments=2 --set exam_jobs=16 --out $$folder/out --json >/dev/null 2>&1; rm -rf $$folder; wait
	$(BIN)/pytest -n $(WORKERS) --dist worksteal $(TESTS)

format: .venv/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.demo
	$(BIN)/adlro bench

clean:
	rm -rf .venv .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps say which extras are in, and that they are newer than what was asked for.
.venv/.demo: pyproject.toml constraints.txt | .venv/bin/pip
	@echo "Installing adlro into .venv (a minute or two the first time) …"
	@$(INSTALL) -e .
	@touch $@

.venv/.dev: pyproject.toml constraints.txt | .venv/bin/pip
	@echo "Installing adlro and the development tools into .venv (a minute or two the first time) …"
	@$(INSTALL) -e '.[dev]'
	@touch .venv/.demo $@

.venv/bin/pip:
	@if ! '$(PYTHON)' -c '$(SUITS)' 2>/dev/null; then \
	    echo "adlro needs Python 3.11 or 3.12; '$(or $(PYTHON),python3)' answers: $$('$(or $(PYTHON),python3)' -V 2>&1 | head -n 1)" >&2; \
	    echo "Install one of them, then run: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; \
	    exit 1; \
	fi
	'$(PYTHON)' -m venv .venv
