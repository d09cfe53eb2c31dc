# Everything a person or CI needs, each target doing its own set-up. See README.md.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: help demo test check bench clean

help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(VENV)/.core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	@touch $@

# torch is pinned by constraints.txt; asked for by name so that pip takes that very build.
$(VENV)/.test: $(VENV)/.core
	$(PIP) torch transformers accelerate hypothesis "pytest<9" pytest-xdist safetensors import-linter mypy ruff
	@touch $@

demo: $(VENV)/.core  ## compare the sample dumps, which hide a planted bug
	@$(BIN)/tensordiff demo

test: $(VENV)/.test  ## install what the tests need, run them
	$(BIN)/python -m pytest

check: $(VENV)/.test  ## style, types, boundaries
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.test  ## speed, side by side with what people use today; writes docs/speed.md
	$(BIN)/python -m benchmarks.run

clean:  ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
