# Two commands are enough: `make run` (the paper's figures) and `make test`. Each sets up .venv when needed, once.
PYTHON ?= python3
EXTRAS ?=
SECONDS ?= 600
TIMES ?= 5
VENV := .venv
export PYTHONDONTWRITEBYTECODE= # or every process of the tests compiles everything again
# What runs here writes no ledger into anybody's home.
export CONFIDE_STATE ?= $(abspath $(VENV))/state
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed$(if $(EXTRAS),-$(EXTRAS))
DEV := $(VENV)/.dev
WITH_EXTRAS := $(VENV)/extras

.PHONY: setup run test test-extras test-busy test-portable compare steady mutants large-log soak explore lint format bench clean

setup: $(INSTALLED)

# What pip says is shown only when it fails.
define install
@echo "installing into $(1), about a minute"
@test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
@$(1)/bin/python -m pip install --editable "$(2)" > $(1)/pip.log 2>&1 || { cat $(1)/pip.log; exit 1; }
@touch $(3)
endef

$(INSTALLED): pyproject.toml
	$(call install,$(VENV),.$(if $(EXTRAS),[$(EXTRAS)]),$@)

$(DEV): pyproject.toml
	$(call install,$(VENV),.[dev],$@ $(INSTALLED))

$(WITH_EXTRAS)/.installed: pyproject.toml
	$(call install,$(WITH_EXTRAS),.[dev-extras],$@)

run: $(INSTALLED)
	$(BIN)/confide reproduce

test: $(DEV)
	$(BIN)/python -m pytest

# With JAX and PyTorch, in an environment of their own: all other tests show that confide works without them.
test-extras: $(WITH_EXTRAS)/.installed
	$(WITH_EXTRAS)/bin/python -m pytest tests/extras tests/engines/test_driver.py tests/test_examples.py

# Beside busy loops, in a random order; then with the arithmetic of other processors. Minutes each, not part of CI.
test-busy: $(DEV)
	$(BIN)/python tests/tools/busy.py

test-portable: $(DEV)
	$(BIN)/python tests/tools/portable.py

# Is this tree slower than that commit? `make compare BASE=HEAD~1`, `make compare BASE=v1 TURNS=1 PARTS="run bench"`.
compare: $(DEV)
	$(BIN)/python tests/tools/compare.py $(or $(BASE),$(error BASE=commit is missing)) $(if $(TURNS),--times $(TURNS)) \
		$(if $(PARTS),--parts $(PARTS))

# Does a bench print the same ratios five times in a row? `make steady`, `make steady BENCHES=secure TIMES=3`.
steady: $(DEV)
	$(BIN)/python tests/tools/steady.py --times $(TIMES) $(BENCHES)

# Which of twenty broken lines of src do the tests notice? `make mutants SEED=3`.
mutants: $(DEV)
	$(BIN)/python tests/tools/mutants.py $(if $(SEED),--seed $(SEED))

# A gzipped log as long as Avazu's, read in less than 2 GiB of memory: minutes, and 2.3 GB of the disk.
large-log: $(DEV)
	$(BIN)/python tests/tools/large_log.py

# Random kills and cuts on a network of real processes, then everything else that can befall one (`tests/chaos.py`);
# `make soak SECONDS=60 SEED=7` repeats one, shorter.
soak: $(DEV)
	CONFIDE_SOAK=1 $(BIN)/python -m pytest -n 1 -rP tests/cluster/test_kills.py tests/cluster/test_sizes.py \
		tests/cluster/test_full_disk.py tests/cluster/test_one_client_off.py tests/deploy/node/test_flood.py
	$(BIN)/python tests/soak.py --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))
	$(BIN)/python tests/chaos.py --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

# The whole tables of cases (the default run has the telling ones), then property tests with examples that nobody has
# seen (the default run repeats its own), and more stories of faults.
explore: $(DEV)
	CONFIDE_EXPLORE=1 $(BIN)/python -m pytest -m "not hypothesis"
	for i in $$(seq $(TIMES)); do CONFIDE_EXPLORE=1 $(BIN)/python -m pytest -m hypothesis || exit 1; done
	CONFIDE_STORIES=$$(($(TIMES) * 400)) $(BIN)/python -m pytest tests/testing/test_faults.py

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --verbose > $(VENV)/imports.log || { cat $(VENV)/imports.log; exit 1; }

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	$(BIN)/confide bench regression

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
