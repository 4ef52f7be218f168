# make demo | wheel | test | unit | lint | docs | notebooks | api | notes | soak | lock. Needs make and Python 3.11 or later (on Debian: apt install make python3-venv).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo wheel test unit lint docs notebooks api notes soak lock

help:
	@echo "make demo    run the whole mill on a small crawl, offline, into demo/"
	@echo "make wheel   build dist/gristmill-*.whl, with compiled kernels for first runs"
	@echo "make test    run the tests (make unit: only those that start no processes)"
	@echo "make lint    run ruff and mypy"
	@echo "make api     renew the list of the public interface (tests/public_interface.txt), and show what changed"
	@echo "make notes   print the notes of a release from CHANGELOG.md (VERSION=0.1.0)"
	@echo "make docs    build the book into build/site (build/site/index.html)"
	@echo "make notebooks  work through docs/notebooks again and store what they show"
	@echo "make soak    run the slowest tests, then long proofs, ten minutes of each; run again to resume (SOAK=60: one minute)"
	@echo "make lock    renew requirements-dev.lock, the versions that tests run with (needs uv: pip install uv)"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Gristmill needs Python 3.11 or later; try make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# Stamps: reinstall only when the dependencies or the list of packages change.
INSTALLS := pyproject.toml setup.py

$(VENV)/.installed: $(INSTALLS) | $(BIN)/python
	$(BIN)/python -m pip install -q -e .
	@touch $@

$(VENV)/.installed-dev: $(INSTALLS) | $(BIN)/python
	$(BIN)/python -m pip install -q -e '.[dev]'
	@touch $@ $(VENV)/.installed

demo: $(VENV)/.installed
	$(BIN)/gristmill demo --out demo

# With kernels compiled for any x86-64 processor of the last ten years, for this Python and numba: a first run begins
# with them. Those of other Pythons that are in kernels/compiled are packed too.
wheel: $(VENV)/.installed
	GRISTMILL_CACHE=build/kernels $(BIN)/gristmill maintain warm --to kernels/compiled
	rm -rf build/lib
	$(BIN)/python -m pip wheel -q --no-deps -w dist .

# Tests of a file stay in one process, which makes their shared fixtures once.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test: $(VENV)/.installed-dev
	$(PYTEST) -m "not soak"

unit: $(VENV)/.installed-dev
	$(PYTEST) -m "not run and not soak"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

api: $(VENV)/.installed-dev
	$(BIN)/python -m tests.public_interface

VERSION ?= $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
notes:
	@awk -v version='$(VERSION)' '/^## /{ on = $$2 == version; next } on { print; found = 1 } \
	  END { if (!found) { print "CHANGELOG.md has no section " version; exit 1 } }' CHANGELOG.md
# The hint of mkdocs-material on its successor is no warning of ours.
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict -q
	@echo "build/site/index.html"

notebooks: $(VENV)/.installed-dev
	$(BIN)/python docs/site/notebooks.py

SOAK ?= 600
soak: $(VENV)/.installed-dev
	$(PYTEST) -m soak
	$(BIN)/python -m benchmarks.soak.soak --seconds $(SOAK)

lock:
	uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --upgrade --no-annotate -q \
	  --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command "make lock" -o requirements-dev.lock
