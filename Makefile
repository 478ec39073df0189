# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Each makes the virtual environment if there is none.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# A torch that the Python already has (a ROCm build, say) is used and never replaced: the new environment sees the packages
# of the Python it is made from, also where that is an environment itself. Otherwise this one is installed;
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu makes pip take the small CPU build.
TORCH ?= torch==2.13.0
TORCH_IN := $(shell $(PYTHON) -c "import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])" 2>/dev/null)

# Plugins of an environment that ours sees are not asked for, and their warnings would be errors.
PYTEST := PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(BIN)/python -m pytest -p xdist

.DELETE_ON_ERROR:
.PHONY: demo test lint types unit test-integration bench soak format clean

demo: $(VENV)/.has-demo
	$(BIN)/primus-mllog demo

test: lint types unit

lint: $(VENV)/.has-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.has-test
	$(BIN)/mypy

unit: $(VENV)/.has-test
	$(PYTEST) -n 2 --dist loadfile -q tests --ignore tests/integration

bench: $(VENV)/.has-test
	$(BIN)/python -m benchmarks $(if $(RECORD),--record)

soak: $(VENV)/.has-test
	$(BIN)/python tests/soak.py $(if $(RECORD),--record)

format: $(VENV)/.has-test
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) demo-results .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.has-demo: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(if $(TORCH_IN),echo "$(TORCH_IN)" > $$(echo $(VENV)/lib/python*/site-packages)/torch-of-the-python.pth,$(PIP) "$(TORCH)")
	$(PIP) --editable ".[demo]"
	touch $@

$(VENV)/.has-test: $(VENV)/.has-demo
	$(PIP) --editable ".[demo,test]"
	touch $@

# The real loops on a CPU, beside each other: releases of megatron-core that ship megatron.training (they declare
# Python 3.12 but run on older ones) and Megatron-Bridge over the demo's megatron-core. --no-deps leaves the
# environment alone: Bridge's own requirements want CUDA.
MEGATRON := 0.17.1 0.19.2
BRIDGE := 0.3.1

test-integration: $(VENV)/.has-integration $(MEGATRON:%=.megatron/%) $(BRIDGE:%=.megatron/bridge-%)
	$(PYTEST) -n 2 -q tests/integration

$(VENV)/.has-integration: $(VENV)/.has-test
	$(PIP) --editable ".[demo,test,integration]"
	touch $@

.megatron/bridge-%: $(VENV)/.has-demo
	$(PIP) --no-deps --upgrade --target $@ megatron-bridge==$* nvidia-resiliency-ext==0.4.1 nvidia-modelopt
	touch $@

.megatron/%: $(VENV)/.has-demo
	$(PIP) --ignore-requires-python --no-deps --upgrade --target $@ megatron-core==$*
	touch $@
