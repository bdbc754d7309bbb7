# Two commands do everything on a fresh machine: `make demo` and `make test`. Both set up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# Versions come from constraints.txt; torch is installed by its exact version so that a CPU build is taken where one is.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: setup demo test test-gpu check bench docs dist clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (once; a few minutes)"
	@rm -f $(STAMP)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) setuptools setuptools-scm $(shell grep '^torch==' constraints.txt)
	@$(PIP) --no-build-isolation --editable '.[rdf,molecules,search,baselines,report,ray,onnx,serve,docs,dev]'
	@touch $(STAMP)

demo: setup
	@$(BIN)/rgat demo

test: setup
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup

# For a machine with a GPU and its own torch: needs pytest, pytest-xdist and hypothesis, no other library.
test-gpu:
	@OMP_NUM_THREADS=1 PYTHONPATH=src:$$PYTHONPATH $(PYTHON) -m pytest -m gpu -n 16 --dist worksteal -p no:benchmark tests/training tests/ops tests/nn tests/sampling tests/test_node_classifier.py tests/data/test_graph_store.py

check: setup
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

bench: setup
	@mkdir -p build
	@$(BIN)/python benchmarks/layers.py --out build/layers.json

# The documentation site; open build/site/index.html.
docs: setup
	@$(BIN)/python scripts/build_docs.py

# The wheel and the source package, in dist/.
dist: setup
	@$(BIN)/python -m build --no-isolation

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache
