# The two commands: `make demo` and `make test`. Both make the virtual environment if it is not there.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint lock clean

demo: $(READY)
	$(BIN)/ridgeline run resnet50 dgx1-v100 --plan data=8 --batch 2048 --precision fp16-mixed --out out

test: $(READY)
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check sim tests benchmarks
	$(BIN)/ruff format --check sim tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

$(READY): pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e ".[study,test,lint]"
	touch $@

# Pin what is installed now, after an upgrade that the tests have passed.
lock:
	$(BIN)/python -m pip freeze --exclude-editable | grep -v '^ridgeline' > requirements.lock

clean:
	rm -rf $(VENV) out build dist
