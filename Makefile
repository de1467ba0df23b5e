# Two commands: `make demo` and `make test`. Each sets up .venv when it is not there.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
DEMO_OUT := runs/demo

.PHONY: help demo test evidence oracle lint types docs setup clean

help:  ## show the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

setup: $(STAMP)  ## create .venv and install everything

# torch comes first and pinned, so that no other package chooses another build; README.md tells how to get the CPU one.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0 -c constraints.txt
	$(PIP) -e '.[dev]' -c constraints.txt
	touch $@

demo: setup models/smollm2 data/chain_sum/train.parquet  ## run both trainers on SmolLM2-135M and compare them
	rm -rf $(DEMO_OUT)
	$(BIN)/verlift parity run --config-name smollm2 --out $(DEMO_OUT)

models/smollm2: | setup
	$(BIN)/verlift data smollm2 --out $@

data/chain_sum/train.parquet: | setup
	$(BIN)/verlift data reasoning-gym --task chain_sum --rows 64 --seed 1 --out $@ \
		--set min_terms=2 --set max_terms=2 --set min_digits=1 --set max_digits=1

# Tests of one process run side by side; those on Ray share one Ray and one TransferQueue, one after the other.
test: setup oracle lint types  ## lint, types, import rules and every test
	$(BIN)/python -m pytest -m 'not ray and not evidence' --numprocesses auto --maxprocesses 8 --dist loadfile
	$(BIN)/python -m pytest -m 'ray and not evidence'

lint: setup  ## ruff and the import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup  ## mypy
	$(BIN)/mypy

oracle: setup  ## verl 0.9.1 beside the project, for tests that compare with it
	test -d .oracle/verl || bash tests/oracle/install.sh

evidence: setup oracle models/smollm2 data/chain_sum/train.parquet  ## what is too long for CI; prints its counts
	$(BIN)/python -m pytest -m 'slow or evidence'
	EXACTNESS_BATCHES=200 $(BIN)/python -m pytest tests/shared_algos/test_exactness.py
	ORACLE_EXAMPLES=2000 $(BIN)/python -m pytest tests/oracle/test_oracle_protocol.py
	DAMAGE_EXAMPLES=1000 $(BIN)/python -m pytest tests/parity_tests/test_robustness.py
	$(BIN)/verlift parity matrix
	$(BIN)/verlift parity mutants
	$(BIN)/verlift parity sweep --count 500
	rm -rf runs/chained
	$(BIN)/verlift parity run --config-name smollm2 --steps 5 --out runs/chained/grpo
	$(BIN)/verlift parity run --config-name smollm2 --steps 5 --out runs/chained/ppo algorithm.adv_estimator=gae

docs: setup  ## write the tables of docs/algorithms.md anew
	$(BIN)/python -c "from pathlib import Path; from shared_algos.listing import fill; \
		page = Path('docs/algorithms.md'); page.write_text(fill(page.read_text()))"

clean:  ## remove what tests and builds leave, but not .venv, models, data or runs
	rm -rf build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache .tox
