# Every target sets up .venv by itself; nothing but make and Python 3.11 or newer is needed.
.DEFAULT_GOAL := help
.PHONY: help demo test test-fast lint check fix bench docs results matrix setup

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# More than eight processes cost more memory than they save time.
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal
NEW_ENOUGH := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c '$(NEW_ENOUGH)' 2>/dev/null && { echo $$p; break; }; done)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Otherwise each of the tests' processes would compile the package and the tests anew.
unexport PYTHONDONTWRITEBYTECODE

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null \
		|| sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1  \2/p' $(MAKEFILE_LIST)

demo: $(READY) ## analyze a sample training step, without needing a GPU
	$(BIN)/graphdoctor analyze sample_models/adam_training.py

test: $(READY) ## run the whole test suite, on every core
	$(PYTEST)

test-fast: $(READY) ## run the tests of what has changed since main, for at most a minute
	@tests=$$($(BIN)/python tests/support/touched.py); test -n "$$tests" || { echo "nothing has changed"; exit 0; }; \
		echo $$tests; $(PYTEST) $$tests

lint: $(READY) ## check style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/words.py

check: $(READY) ## check the sample models against their baseline
	$(BIN)/graphdoctor check

fix: $(READY) ## put style right where a tool can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## measure graphdoctor's own speed
	@set -e; for script in benchmarks/speed/*.py; do echo "== $$script"; $(BIN)/python $$script; done

docs: $(READY) ## write docs/rules/, the schemas and the README's demo anew, and the site of all pages into site/
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html has the documentation, and needs no network"

results: $(READY) ## write docs/results.md, docs/prediction.md and docs/accuracy.md from what was measured
	$(BIN)/python benchmarks/pages/results.py
	$(BIN)/python benchmarks/pages/prediction.py
	$(BIN)/python benchmarks/pages/accuracy.py
	$(BIN)/python benchmarks/pages/trace_peers.py

matrix: $(READY) ## run the suite's quick half with other versions of torch, which takes gigabytes
	$(BIN)/python benchmarks/truth/matrix.py 2.6.0 2.9.1 2.14.1 2.15.0
	$(BIN)/python benchmarks/pages/versions.py

setup: $(READY) ## make .venv with the pinned dependencies

# Installed again only when what is to be installed has changed. Bytecode is made when a module is first imported:
# to compile all of torch and transformers takes more than a minute.
$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "graphdoctor needs Python 3.11 or newer with its venv module, and found none on PATH;" \
		"install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c '$(NEW_ENOUGH)' || { echo "graphdoctor needs Python 3.11 or newer with its venv module;" \
		"$(PYTHON) is $$($(PYTHON) --version 2>&1)" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt pip hatchling editables
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt --no-build-isolation -e '.[test,tensorboard]' --group dev --group docs
	@touch $@
