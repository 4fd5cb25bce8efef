"""Plans with fields that once described software come out as they did: see the benchmark."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "tests" / "data" / "golden_software.json.gz"
ROWS = 60


def _script() -> ModuleType:
    name = "golden_software"
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


GOLDEN = _script()
CASES = GOLDEN.sample(GOLDEN.read(RECORD), ROWS)


@pytest.mark.parametrize("case", [case for _, case in CASES], ids=[str(at) for at, _ in CASES])
def test_a_case_comes_out_as_before(case: dict[str, object]) -> None:
    assert GOLDEN.named(case) or GOLDEN.differences(case) == [], GOLDEN.described(case)
