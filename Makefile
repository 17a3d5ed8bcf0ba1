# `make run`, `make test` and `make check` set themselves up: all they need is Python 3.11+ and make.
PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --constraint constraints.txt

.PHONY: run test test-real check prove bench soak rooms clean

run: $(VENV)/run.stamp
	@exec $(BIN)/slowcall up

test: $(VENV)/dev.stamp
	@$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

prove: $(VENV)/run.stamp
	@$(BIN)/slowcall prove $(ARGS)

# Against model servers of other makers, each in a virtual environment of its own: minutes, once.
test-real: $(VENV)/dev.stamp
	@$(BIN)/python -m pytest tests/real -o python_files='real_*.py' $(ARGS)

# Beside other queues, each in the pinned version of tests/bench/peers.txt: some need another redis-py.
bench: $(VENV)/dev.stamp .venv-peers/peers.stamp
	@$(BIN)/python -m tests.bench $(ARGS)

soak: $(VENV)/dev.stamp
	@$(BIN)/python -m tests.bench.soak $(ARGS)

.venv-peers/peers.stamp: tests/bench/peers.txt
	@echo "Adding the peers of the bench to .venv-peers (once) ..."
	@$(BIN)/python -m venv .venv-peers
	@.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check --requirement tests/bench/peers.txt
	@touch $@

check: $(VENV)/dev.stamp
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q tests/house

# The README's table of rooms, from what the rooms say of themselves.
rooms: $(VENV)/dev.stamp
	@$(BIN)/python -m tests.house

clean:
	rm -rf $(VENV) .venv-peers .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

$(BIN)/python:
	@.ci/venv $(VENV) $(PYTHON)

$(VENV)/run.stamp: $(BIN)/python pyproject.toml constraints.txt
	@echo "Setting up slowcall in $(VENV) (once) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt hatchling editables
	@$(PIP) --editable .
	@touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp
	@echo "Adding the tools of the tests to $(VENV) (once) ..."
	@$(PIP) --editable '.[dev,otel]'
	@touch $@
