# Every target builds the environment it needs first (tools/bootstrap.sh; nothing to do the second time).
# ARGS goes to the command behind the target: make test ARGS="tests/disagg -k fence"

SHELL := bash
VENV_PYTHON := .venv/bin/python
ARGS ?=
COMPILE = "$$(tools/bootstrap.sh --print-uv)" pip compile --universal --python-version 3.12 --generate-hashes \
	--custom-compile-command 'make lock' --quiet

.DEFAULT_GOAL := help
.PHONY: help env demo test soak gpu-test gpu-check kernel-table train-tiny lint format protos lock clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: ## make .venv from requirements.lock (EXTRAS="cuda13" adds extras)
	@tools/bootstrap.sh

demo: env ## start prefill and decode, answer some prompts, compare with a single process
	@$(VENV_PYTHON) -m serve demo $(ARGS)

test: env ## run the tests (all but the soak and GPU ones)
	@$(VENV_PYTHON) -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

soak: env ## run the long tests: many requests, many repetitions, real processes
	@NPROC=$${NPROC:-4} $(VENV_PYTHON) -m pytest -q -m soak $(ARGS)  # threads for interpreted kernels

gpu-test: env ## run the tests that need a GPU
	@$(VENV_PYTHON) -m pytest -q -m gpu $(ARGS)

gpu-check: env ## check the kernels on the GPU of this machine, then measure them
	@tools/gpu_check.sh $(ARGS)

kernel-table: env ## compile the kernels for every target, no GPU needed, and write the table of docs/kernels.md
	@$(VENV_PYTHON) -m tests.pallas_kernels.deviceless.table

train-tiny: env ## train the tiny model that the package ships, in build/ (half an hour on two idle cores; resumes)
	@tools/train_tiny.sh $(ARGS)

lint: env ## ruff, pyright, import-linter, buildifier
	@tools/lint.sh

format: env ## rewrite Python files the way lint wants them
	@$(VENV_PYTHON) -m ruff check --fix-only --quiet .
	@$(VENV_PYTHON) -m ruff format .

protos: env ## generate the protobuf code from the .proto files
	@tools/generate_protos.sh

lock: ## resolve pyproject.toml into requirements*.lock (make lock ARGS=--upgrade for new versions)
	@$(COMPILE) pyproject.toml --group dev --output-file requirements.lock $(ARGS)
	@$(COMPILE) --group cuda-compiler --no-deps --output-file requirements-cuda.lock $(ARGS)

clean: ## remove the environment, caches and build results
	rm -rf .venv .cache build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
