"""Further cases of a property, which `make test` leaves out and `make test-thorough` runs."""

from __future__ import annotations

from typing import Any

import pytest


def further(*cases: Any) -> list[Any]:
    """Mark cases of `pytest.mark.parametrize` as thorough; a tuple is the arguments of one."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.thorough)
        for case in cases
    ]
