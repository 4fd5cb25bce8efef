# The two commands: `make demo` and `make test`. Both make the virtual environment if it is not there.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
TRACE_VENV ?= .venv-trace
TRACE_READY := $(TRACE_VENV)/.ready
UV := uv==0.13.9
# The CPU build: from the usual index if it has it, else from that of PyTorch.
TORCH := torch==2.13.0+cpu
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

.PHONY: demo test test-shown test-fast test-thorough mutate fuzz explore test-trace test-matrix docs lint lock sbom clean

demo: $(READY)
	$(BIN)/ridgeline demo

# What pages, notebooks, examples in help, reproductions and tables of residuals show.
SHOWN := tests/docs tests/notebooks tests/cli/test_verb_examples.py tests/study/validate \
	$(wildcard tests/study/test_reproduce*.py)
# Two processes and more, if there are cores for them; a file's tests stay together.
XDIST := --numprocesses auto --maxprocesses 4 --dist loadfile
PYTEST := $(BIN)/python -m pytest $(XDIST)

test: $(READY)
	$(PYTEST) $(addprefix --ignore=,$(SHOWN))

test-shown: $(READY)
	$(PYTEST) $(SHOWN)

# The rooms below studies, without what starts processes and files that take three seconds and more.
LONG := $(shell cat tests/data/long_test_files.txt)
test-fast: $(READY)
	$(PYTEST) -m "not slow and not thorough" $(addprefix --ignore=,$(LONG)) tests/engine tests/hardware \
	  tests/kernels tests/network tests/parallel tests/software tests/workload \
	  $(filter-out $(LONG),$(wildcard tests/test_*.py))

# Further cases of properties, of which `test` runs some.
test-thorough: $(READY)
	$(PYTEST) -m thorough

# Do tests fail when one operator or number of the package is another? About an hour.
mutate: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check cosmic-ray==8.7.0
	$(BIN)/python benchmarks/mutate.py
	$(BIN)/python benchmarks/mutate.py --sample 40

# Spoiled files for every reader, with a seed that no run has seen: about two minutes.
fuzz: $(READY)
	$(BIN)/python benchmarks/fuzz_readers.py --cases 12000 --seed $$(date +%s)

# The property tests on cases that no run has seen.
explore: $(READY)
	$(BIN)/python -m pytest --hypothesis-profile explore -m "not slow and not thorough"

# The tests that need PyTorch and onnx, in a virtual environment of their own; those that measure
# by themselves.
needs_torch = $(shell grep -lE 'importorskip|^import (torch|onnx)' $(1)/test_*.py)
test-trace: $(TRACE_READY)
	$(TRACE_VENV)/bin/python -m pytest $(XDIST) $(call needs_torch,tests/workload/trace)
	$(TRACE_VENV)/bin/python -m pytest $(call needs_torch,tests/study/live)

# The documentation site, in build/site; a warning is an error.
docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: $(READY)
	$(BIN)/ruff check sim tests benchmarks docs/site
	$(BIN)/ruff check --preview --select PLW1514 sim tests benchmarks docs/site  # encodings of text files
	$(BIN)/ruff format --check sim tests benchmarks docs/site
	$(BIN)/mypy
	$(BIN)/mypy docs/site
	$(BIN)/lint-imports

$(READY): pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --require-hashes -r requirements.lock
	$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	touch $@

$(DOCS_READY): $(READY) requirements-docs.lock
	$(PIP_INSTALL) --require-hashes -r requirements-docs.lock
	touch $@

$(TRACE_READY): pyproject.toml requirements.lock
	$(PYTHON) -m venv $(TRACE_VENV)
	$(TRACE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH) \
	  || $(TRACE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH) --index-url $(TORCH_INDEX)
	sed -n 's/^\([A-Za-z].*\) \\$$/\1/p' requirements.lock > $(TRACE_VENV)/versions.txt
	$(TRACE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c $(TRACE_VENV)/versions.txt -e ".[test,trace]" onnxscript transformers
	touch $@

# The newest versions that the bounds allow, for every Python and system, with the hashes of their files.
COMPILE := $(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --no-annotate --no-header pyproject.toml
lock: $(READY)
	$(PIP_INSTALL) $(UV)
	$(COMPILE) --python-version 3.11 --extra study --extra cluster --extra test --extra lint --output-file requirements.lock
	$(COMPILE) --python-version 3.11.5 --extra docs --constraints requirements.lock --output-file requirements-docs.lock

# Lowest and newest versions of every dependency, on each Python here, from wheel and sdist: half an hour and more.
test-matrix: $(READY)
	$(PIP_INSTALL) $(UV)
	$(BIN)/python benchmarks/install_matrix.py

# What is installed, for who has to account for it: CycloneDX, of the lock.
sbom: $(READY)
	mkdir -p dist
	$(BIN)/python benchmarks/write_sbom.py --out dist/ridgeline.cdx.json

clean:
	rm -rf $(VENV) $(TRACE_VENV) out build dist
