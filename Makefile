# aorta: what to type. `make help` explains itself; everything here is thin, the work is in the aorta command.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
AORTA := $(VENV)/bin/aorta
ARGS ?=
EXTRAS ?=
CONFIG ?=
WORKLOAD ?= ranking
RESULTS ?= results/profiling
# ranking has two configurations, of which the command takes the one that fits the machine
named = $(or $(CONFIG),$(patsubst %,config/%.yaml,$(filter-out ranking,$(WORKLOAD))))
config_flag = $(if $(named),--config $(named))
site = [ ! -f scripts/profiling_config.sh ] || source scripts/profiling_config.sh

# A target that is not here: say which are.
.DEFAULT:
	@echo "make: there is no target '$@'; these are:" >&2; $(MAKE) --no-print-directory help >&2; exit 2

.PHONY: help setup profile submit-profiling wait aggregate validate test lint format \
        cluster-up cluster-down cluster-status slurm-files wheelhouse clean

help: ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  ARGS='--override a.b=1', CONFIG=file and WORKLOAD=dcrnn are for profile and submit-profiling"

setup: $(VENV)/.ready ## make .venv with the aorta command in it, from pinned constraints

$(VENV)/.ready: pyproject.toml constraints.txt scripts/setup.sh
	PYTHON=$(PYTHON) scripts/setup.sh $(VENV)

profile: setup ## run 1, 2 and 4 nodes on this machine, wait, and write docs/BOTTLENECK_ANALYSIS.md
	$(AORTA) profile --results '$(RESULTS)' $(config_flag) $(ARGS)

submit-profiling: setup ## submit the 1-, 2- and 4-node jobs to Slurm
	$(site); $(AORTA) submit --results '$(RESULTS)' $(config_flag) $(ARGS)

wait: setup ## wait until every job of the newest submission has ended
	$(AORTA) wait --results '$(RESULTS)'

aggregate: setup ## analyse every scenario and write docs/BOTTLENECK_ANALYSIS.md
	$(AORTA) aggregate '$(RESULTS)'

validate: setup ## put known faults into real runs and write docs/validation.md; exit status 0: every target is met
	$(AORTA) validate $(ARGS)

test: setup ## run the tests; as root also install and start the Slurm cluster for the tests that need it
	scripts/test.sh $(ARGS)

lint: setup ## ruff, mypy --strict, import contracts, words, shell and committed sbatch files
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/python scripts/words.py
	@if command -v shellcheck >/dev/null; then shellcheck $$(git ls-files 'scripts/*.sh') .ci/run; else echo "shellcheck is not installed: shell scripts not checked"; fi

format: setup ## rewrite the code in the house style
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

cluster-up: setup ## start a real 4-node Slurm cluster on this machine; as root it installs Slurm's packages if need be
	$(AORTA) cluster up --install $(ARGS)

cluster-down: setup ## stop it and leave nothing behind
	$(AORTA) cluster down

cluster-status: setup ## show its daemons and nodes
	$(AORTA) cluster status

slurm-files: setup ## render slurm/*.sbatch again from the template
	$(VENV)/bin/python -m aorta.launch.sbatch slurm

wheelhouse: setup ## fetch every wheel for machines without internet into wheelhouse/ (EXTRAS=train: torch too)
	PYTHON=$(VENV)/bin/python scripts/wheelhouse.sh wheelhouse '$(EXTRAS)'

clean: ## remove what builds and tests leave (results stay)
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
