# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help demo test check format clean

help:
	@echo "make demo    set up .venv and run the main job on embedded data"
	@echo "make test    set up .venv, then lint, type-check and run every test"
	@echo "make format  let ruff put the source in order"
	@echo "make clean   remove .venv and what the demo wrote"

# The environment is built once, and again only when the pinned versions or the package's own metadata change.
$(READY): requirements.txt pyproject.toml
	@echo "==> setting up .venv (first run only: about a minute)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.7
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -r requirements.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e .
	@touch $(READY)

demo: $(READY)
	@$(BIN)/halflabel demo

check: $(READY)
	@echo "==> ruff"
	@$(BIN)/ruff check src tests benchmarks examples
	@$(BIN)/ruff format --check src tests benchmarks examples
	@echo "==> mypy --strict"
	@$(BIN)/mypy
	@echo "==> import-linter"
	@$(BIN)/lint-imports --no-logo

test: check
	@echo "==> pytest"
	@$(BIN)/python -m pytest -n 2 --dist loadfile

format: $(READY)
	@$(BIN)/ruff check --fix src tests benchmarks examples
	@$(BIN)/ruff format src tests benchmarks examples

clean:
	rm -rf .venv demo
