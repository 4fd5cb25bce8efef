# The two commands: `make demo` and `make test`. Both make the virtual environment if it is not there.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
TRACE_VENV ?= .venv-trace
TRACE_READY := $(TRACE_VENV)/.ready
# The CPU build: from the usual index if it has it, else from that of PyTorch.
TORCH := torch==2.13.0+cpu
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

.PHONY: demo test test-shown test-fast test-thorough mutate fuzz explore test-trace docs lint lock clean

demo: $(READY)
	$(BIN)/ridgeline run resnet50 dgx1-v100 --plan data=8 --batch 2048 --precision fp16-mixed --out out

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
	$(BIN)/ruff format --check sim tests benchmarks docs/site
	$(BIN)/mypy
	$(BIN)/mypy docs/site
	$(BIN)/lint-imports

$(READY): pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e ".[study,test,lint]"
	touch $@

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e ".[docs]"
	touch $@

$(TRACE_READY): pyproject.toml requirements.lock
	$(PYTHON) -m venv $(TRACE_VENV)
	$(TRACE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH) \
	  || $(TRACE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH) --index-url $(TORCH_INDEX)
	$(TRACE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e ".[test,trace]" onnxscript transformers
	touch $@

# Pin what is installed now, after an upgrade that the tests have passed.
lock: $(DOCS_READY)
	$(BIN)/python -m pip freeze --exclude-editable | grep -v '^ridgeline' > requirements.lock

clean:
	rm -rf $(VENV) $(TRACE_VENV) out build dist
