# You only need three commands: `make chat`, `make app` and `make test`.

BIN := .venv/bin
PYTHON ?= python3
PYODIDE := src/wgemma/web/pyodide/NOTICE.txt

.PHONY: help chat app serve test test-all lint fuzz screenshots

help:
	@echo "make chat      set up, then chat with the tiny model"
	@echo "make app       set up, then serve the web page"
	@echo "make serve     set up, then serve models to Ollama's, OpenAI's and Anthropic's clients"
	@echo "make test      set up, then lint and run the tests"
	@echo "make test-all  the same, with the slow tests"
	@echo "make fuzz      throw a million hostile inputs at every reader (SEED=1 COUNT=1000000)"

# Without a terminal, answer one sample prompt. With one, run the chat as a separate job, so that Ctrl-C stops an answer
# without ending make.
chat: .venv/.run
	@if [ -t 0 ] && [ -t 1 ]; then set -m; $(BIN)/wgemma run; \
	else echo "Hello! What can you do?" | $(BIN)/wgemma run --max-tokens 128; fi

app: .venv/.run $(PYODIDE)
	@if [ -t 0 ] && [ -t 1 ]; then set -m; fi; $(BIN)/wgemma app

serve: .venv/.run
	@if [ -t 0 ] && [ -t 1 ]; then set -m; fi; $(BIN)/wgemma serve

# Two workers, each with one thread of a software adapter. The browser tests run separately, because Playwright keeps an
# event loop running and other tests start their own. They are distributed by file, because a file's tests share a page,
# and in the order of their names: files with many tests first would leave the slowest for the end.
PYTEST := LP_NUM_THREADS=1 $(BIN)/python -m pytest
BY_FILE := -n 2 --dist loadfile --no-loadscope-reorder
test: lint $(PYODIDE)
	$(PYTEST) -n 2 --dist worksteal -m "not slow" --ignore tests/browser
	$(PYTEST) $(BY_FILE) -m "not slow" tests/browser

test-all: lint .venv/.clients $(PYODIDE)
	$(PYTEST) -n 2 --dist worksteal --ignore tests/browser
	$(PYTEST) $(BY_FILE) tests/browser

TSC := $(BIN)/node .venv/types/node_modules/typescript/bin/tsc
lint: .venv/.dev .venv/.types
	$(BIN)/ruff check src tests bench tools hatch_build.py
	$(BIN)/ruff format --check src tests bench tools hatch_build.py
	$(BIN)/mypy src
	$(TSC) --project .
	$(TSC) --project tools/types/worker.json

SEED ?= 1
COUNT ?= 1000000
fuzz: .venv/.dev
	PYTHONPATH=tests LP_NUM_THREADS=1 $(BIN)/python -m fuzz --seed $(SEED) --count $(COUNT)

# The screenshots in docs/img.
screenshots: .venv/.dev $(PYODIDE)
	$(BIN)/python tools/screenshots.py

# Python for the page: wheels include it, a clone downloads it.
$(PYODIDE): tools/fetch_pyodide.py | .venv/.run
	@$(BIN)/python tools/fetch_pyodide.py
	@touch $@

# What users need, and what developers need on top. The stamp files make the second run fast.
.venv/.run: pyproject.toml tools/setup.sh tools/find_adapter.py
	@sh tools/setup.sh "$(PYTHON)" .
	@touch $@

.venv/.dev: .venv/.run
	@sh tools/setup.sh "$(PYTHON)" ".[dev]"
	@touch $@

# Clients of the server and Ray, for the slow tests: from PyPI and from npm.
.venv/.clients: pyproject.toml tools/clients/package.json tools/clients/package-lock.json | .venv/.dev
	@echo "Installing clients and Ray into .venv …"
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev,clients,ray]"
	@mkdir -p .venv/clients && cp tools/clients/package*.json .venv/clients
	@$(BIN)/npm ci --prefix .venv/clients --ignore-scripts --no-audit --no-fund --loglevel error
	@touch $@

# TypeScript, which checks the JSDoc types of the page. Node comes as a wheel, with .[dev].
.venv/.types: tools/types/package.json tools/types/package-lock.json | .venv/.dev
	@echo "Installing TypeScript into .venv …"
	@mkdir -p .venv/types && cp tools/types/package*.json .venv/types
	@$(BIN)/npm ci --prefix .venv/types --ignore-scripts --no-audit --no-fund --loglevel error
	@touch $@
