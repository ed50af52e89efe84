# Every target does its own set-up: a virtual environment in .venv, filled from PyPI.
PYTHON ?= python3
BIN := .venv/bin
LOWEST_TESTS := tests/contract/test_commands.py tests/contract/test_command_line.py tests/contract/test_entry_point.py \
	tests/contract/test_forged_runs.py tests/contract/test_interrupted_runs.py tests/contract/test_algorithms.py \
	tests/contract/test_estimators_sklearn.py tests/unit/test_ledger.py tests/unit/test_ledger_files.py \
	tests/unit/test_spending.py tests/unit/test_spending_files.py

.PHONY: demo test test-slow test-lowest lint format docs clean mutants audit-calibration bench bench-quick

demo: .venv/installed
	$(BIN)/coterie demo

test: lint
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow"

test-slow: .venv/installed .venv-flower/installed
	$(BIN)/pytest -n 2 --dist worksteal -m slow
	.venv-flower/bin/pytest -m slow tests/engines/test_flower.py tests/engines/test_flower_kits.py

# The lowest versions that pyproject.toml allows, in an environment of their own.
test-lowest:
	$(PYTHON) -m venv .venv-lowest
	$(PYTHON) tools/lowest_versions.py sklearn parquet report > .venv-lowest/constraints.txt
	.venv-lowest/bin/python -m pip install --quiet --constraint .venv-lowest/constraints.txt --editable '.[sklearn,parquet,report]' pytest hypothesis
	JAX_ENABLE_COMPILATION_CACHE=false .venv-lowest/bin/pytest $(LOWEST_TESTS)

# Single-line changes of what states or keeps a loss; MUTANTS="--all" for every one of them (docs/mutants.md).
mutants: .venv/installed
	$(BIN)/python tools/mutants.py $(MUTANTS)

audit-calibration: .venv/installed
	$(BIN)/python benchmarks/audit_calibration.py

bench: .venv/installed
	$(BIN)/python benchmarks/bench.py

bench-quick: .venv/installed
	$(BIN)/python benchmarks/bench.py --quick

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

# Pages of docs/ into site/; a link that leads nowhere is an error.
docs: .venv/installed
	$(BIN)/zensical build --clean --strict

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

# Flower wants older versions of three packages, so it has an environment of its own.
.venv-flower/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-flower
	grep --invert-match --extended-regexp '^(packaging|protobuf|rich|typer)==' constraints.txt > .venv-flower/constraints.txt
	.venv-flower/bin/python -m pip install --quiet --constraint .venv-flower/constraints.txt --editable '.[flower]' pytest hypothesis
	touch $@

clean:
	rm -rf .venv .venv-flower .venv-lowest build dist site .cache
