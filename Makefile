# `make demo` and `make test` work on a fresh machine with nothing but Python (>= 3.11) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test setup lint types tests clean browser-tests screenshots docs docs-serve

demo: setup
	$(BIN)/python examples/code_execution.py

test: setup lint types tests browser-tests

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

# A browser is a package of the system: CI tries to install one; without one these tests are left out, and that is said.
# What fails gets a second chance, since a browser on a busy machine may be slow to start.
browser-tests: setup
	@if $(BIN)/python -m tests.play.browser $(if $(CI),--install); \
	then $(BIN)/pytest -m browser tests/play tests/report tests/test_docs_browser.py || $(BIN)/pytest -m browser tests/play tests/report tests/test_docs_browser.py --last-failed; \
	else echo "browser tests were left out"; fi

# pictures of the local web page with the packaged model, or with the models in RFWP_PLAY_MODELS
screenshots: setup
	mkdir -p docs/images
	RFWP_SCREENSHOTS=docs/images $(BIN)/pytest -m browser tests/play -k screenshots

# the theme says at every start until when it is maintained (May 2027); once is enough
docs docs-serve: export NO_MKDOCS_2_WARNING = 1

# the site, in build/docs: open build/docs/index.html
docs: setup
	$(BIN)/mkdocs build --strict

# on http://127.0.0.1:8000, and built again whenever a page changes
docs-serve: setup
	$(BIN)/mkdocs serve --strict

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .coverage
