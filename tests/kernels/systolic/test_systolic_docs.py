"""The examples of docs/systolic.md and of docstrings give what they say."""

from __future__ import annotations

import doctest
from pathlib import Path

from ridgeline.kernels.systolic import gemm

ROOT = Path(__file__).parents[3]


def test_examples() -> None:
    page = doctest.testfile(str(ROOT / "docs" / "systolic.md"), module_relative=False)
    assert page.attempted > 5
    assert page.failed == 0
    docstrings = doctest.testmod(gemm)
    assert docstrings.attempted >= 3
    assert docstrings.failed == 0
