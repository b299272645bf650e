# make demo, make test: everything on a fresh machine, from the virtual environment to the answer.

# The first of these that is new enough and not too new; say `make PYTHON=/path/to/python3.12 …` for another.
PYTHON ?= $(shell for p in python3 python3.12 python3.11; do $$p -c '$(SUITS)' 2>/dev/null && echo $$p && break; done)
SUITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))
BIN := .venv/bin
# Without compiling every module to bytecode: Python does that for those that are imported.
INSTALL := $(BIN)/python -m pip install -q --no-compile -c constraints.txt
# Four on two cores: the tests with Slurm and with daemons mostly wait.
WORKERS ?= 4
TESTS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1

# The stages of `make test`, in order; each is also a target of its own. A new stage needs three things: its name here,
# the tool it runs (TOOL_name), and a target below.
STAGES := setup parts style types layers docs compile pytest
TOOL_setup := pip
TOOL_parts := scripts/test_parts.sh
TOOL_style := ruff
TOOL_types := mypy
TOOL_layers := lint-imports
TOOL_docs := mkdocs
TOOL_compile := adlro
TOOL_pytest := pytest

.PHONY: help demo test test-kubernetes $(STAGES) docs machine-code wheel format bench clean
.DELETE_ON_ERROR:

help:
	@echo "make demo    compare the policies on the paper's cluster and print Table 1, ours"
	@echo "make test    run all checks: $(STAGES)"
	@echo "             (TESTS=tests/live runs some of the tests, WORKERS=8 uses more processes)"
	@echo "make types   run one stage of make test alone; likewise for the others"
	@echo "make test-kubernetes  run the tests of Kubernetes on a real control plane, which it builds once (Debian, root)"
	@echo "make docs    build the documents as a site, into site/"
	@echo "make wheel   build the wheel into dist/"
	@echo "make format  format the code"
	@echo "make bench   measure speed and memory"
	@echo "make clean   remove the virtual environment and every cache in this folder"

demo: .venv/.demo
	$(BIN)/adlro compare --cluster paper16 --workload paper --seeds 10

# Compiling begins with the first check and goes on beside the others. Its own turn only waits for it.
test:
	@log=$$(mktemp); compiling=; trap '[ -z "$$compiling" ] || kill $$compiling 2>/dev/null; rm -f "$$log"' EXIT; \
	for stage in $(foreach stage,$(STAGES),$(stage):$(TOOL_$(stage))); do \
	    name=$${stage%%:*} begin=$$(date +%s); \
	    echo "make test: stage '$$name' ($${stage#*:})"; \
	    case $$name in \
	        style) $(MAKE) --no-print-directory GOAL=test compile >"$$log" 2>&1 & compiling=$$!;; \
	    esac; \
	    case $$name in \
	        compile) wait $$compiling; failed=$$?; compiling=; cat "$$log"; [ $$failed = 0 ];; \
	        *) $(MAKE) --no-print-directory GOAL=test $$name;; \
	    esac || { \
	        echo "make test: stage '$$name' failed ($${stage#*:}), see above. Rerun it alone with: make $$name" >&2; exit 1; }; \
	    echo "make test: stage '$$name' passed in $$(($$(date +%s) - begin)) s"; \
	done
	@echo "make test: all stages passed"

# The same tests as in `make test`, on etcd and kube-apiserver instead of the server in the tests' own process.
test-kubernetes: .venv/.dev
	scripts/control_plane.sh
	ADLRO_KUBERNETES=real $(BIN)/pytest -q tests/kubernetes

setup: .venv/.dev

parts:
	scripts/test_parts.sh

style: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/.dev
	$(BIN)/mypy

layers: .venv/.dev
	$(BIN)/lint-imports --no-logo

# The site, into site/; a dead link or a page without a place in the menu is an error. No -q: it hides warnings from
# --strict too.
docs: .venv/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -d site

# Compile what takes longest, on two cores, into the cache that the parallel tests then share.
compile: .venv/.dev
	@echo "Compiling (about a minute the first time) …"
	@folder=$$(mktemp -d); trap 'kill $$compare $$train 2>/dev/null; rm -rf "$$folder"' EXIT; trap 'exit 1' INT TERM; \
	$(BIN)/adlro compare --policies sjf,multifactor,adlro,adlro-lookahead --jobs 20 --seeds 1 --json \
	    >/dev/null 2>"$$folder/compare" & compare=$$!; \
	$(BIN)/adlro train --quick --steps 256 --set environments=32 --set worlds=4 --set exam_environments=2 \
	    --set exam_jobs=16 --out "$$folder/out" --json >/dev/null 2>"$$folder/train" & train=$$!; \
	wait $$compare || { cat "$$folder/compare" >&2; exit 1; }; \
	wait $$train || { cat "$$folder/train" >&2; exit 1; }

pytest: .venv/.dev
	$(BIN)/pytest -n $(WORKERS) --dist worksteal $(TESTS)

# The machine code that the wheel of a release brings along (.github/workflows/wheel.yml).
machine-code: .venv/.demo
	scripts/machine_code.sh $(BIN)/adlro src/adlro/machine_code

wheel: | .venv/bin/pip
	$(BIN)/python -m pip wheel -q --no-deps -w dist .

format: .venv/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.demo
	$(BIN)/adlro bench

clean:
	rm -rf .venv .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist site src/*.egg-info src/adlro/machine_code
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
	    echo "Install one of them, then run: make PYTHON=python3.12 $(or $(GOAL),$(MAKECMDGOALS))" >&2; \
	    exit 1; \
	fi
	'$(PYTHON)' -m venv .venv
