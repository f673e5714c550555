# The two commands a newcomer needs are `make demo` and `make test`. Each makes its own virtual environment.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
JOBS ?= 2
CORE = $(wildcard ext/*.c ext/*.h ext/*.pyx ext/*.pxi) setup.py pyproject.toml

.DEFAULT_GOAL := help

.PHONY: help
help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(VENV)/.demo  ## Run the overload experiment: 4 servers, one limit, 80 clients
	$(BIN)/gatecount demo $(ARGS)

.PHONY: test
test: $(VENV)/.test  ## Check types, style and all tests but the heavy ones (7 to 9 minutes on 2 cores)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

.PHONY: verify
verify: $(VENV)/.test  ## Run the whole proof and print a table of what was tried (under 25 minutes)
	$(BIN)/python tests/verify.py $(ARGS)

.PHONY: bench
bench: $(VENV)/.bench  ## Measure against competitors and print one table of ratios
	$(BIN)/python -m pytest -c benchmarks/pytest.ini benchmarks $(ARGS)

.PHONY: single-step
single-step:  ## Kill a process at every instruction while rivals act at every other (minutes)
	@mkdir -p build
	$(CC) -std=c11 -Wall -Wextra -O2 -Iext tests/c/test_single_step.c $(addprefix ext/,cap.c gate.c owner.c segment.c wait.c) \
		-o build/test_single_step -pthread
	build/test_single_step every && build/test_single_step grid

.PHONY: format
format: $(VENV)/.test  ## Put the Python files into the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: clean
clean:  ## Remove everything that was built
	rm -rf build dist .venv* .mypy_cache .pytest_cache .ruff_cache src/gatecount/_core*.so src/*.egg-info ext/_core.c

# One stamp per set of extras: the package is built again when the core changes.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed, $(PYTHON) is older: make … PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip

$(VENV)/.demo: EXTRAS = demo,plot
$(VENV)/.test: EXTRAS = test,lint
$(VENV)/.bench: EXTRAS = bench
$(VENV)/.demo $(VENV)/.test $(VENV)/.bench: $(VENV)/bin/python $(CORE)
	$(BIN)/python -m pip install -q -e '.[$(EXTRAS)]'
	@touch $@
