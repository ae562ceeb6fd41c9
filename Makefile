# `make demo` and `make test` work on a fresh machine with nothing but Python (>= 3.11) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test setup lint types tests clean

demo: setup
	$(BIN)/python examples/associative_recall.py

test: setup lint types tests

setup: $(VENV)/ready

# constraints.txt pins what was tested; pyproject.toml says what is allowed
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

tests: setup
	$(BIN)/pytest --numprocesses 2 --cov --cov-report=term:skip-covered --cov-fail-under=90

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .coverage
