# Two commands are enough: `make run` (the paper's figures) and `make test`. Each sets up .venv when needed, once.
PYTHON ?= python3
EXTRAS ?=
SECONDS ?= 600
TIMES ?= 5
VENV := .venv
export PYTHONDONTWRITEBYTECODE= # or every process of the tests compiles everything again
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed$(if $(EXTRAS),-$(EXTRAS))
DEV := $(VENV)/.dev

.PHONY: setup run test soak explore lint format bench clean

setup: $(INSTALLED)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable ".$(if $(EXTRAS),[$(EXTRAS)])"
	touch $@

$(DEV): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@ $(INSTALLED)

run: $(INSTALLED)
	$(BIN)/confide reproduce

test: $(DEV)
	$(BIN)/python -m pytest

# Random kills and cuts on a network of real processes; `make soak SECONDS=60 SEED=7` repeats one, shorter.
soak: $(DEV)
	CONFIDE_SOAK=1 $(BIN)/python -m pytest -n 1 -rP tests/deploy/cluster/test_kills.py tests/deploy/cluster/test_sizes.py
	$(BIN)/python tests/soak.py --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

# Property tests with examples that nobody has seen (the default run repeats its own), and more stories of faults.
explore: $(DEV)
	for i in $$(seq $(TIMES)); do CONFIDE_EXPLORE=1 $(BIN)/python -m pytest -m hypothesis || exit 1; done
	CONFIDE_STORIES=$$(($(TIMES) * 400)) $(BIN)/python -m pytest tests/deploy/box/test_faults.py

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	$(BIN)/confide bench regression

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
