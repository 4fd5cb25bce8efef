"""Derived fields: an engine's rates follow from the size and clock of its arrays.

A file states both, and they are checked against each other. Whoever replaces the rows of an array
means another array, and its rates go with it, unless they are replaced, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ridgeline import units
from ridgeline.config import Document
from ridgeline.errors import ConfigError

_GEOMETRY = ("rows", "columns", "count", "clock")


def with_rates(document: Document, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return overrides of a device with the rates that follow from those of its arrays.

    Rates change in proportion to rows, columns, number and clock of the arrays.
    """
    engines = document.data.get("engines")
    found = dict(overrides)
    for name, engine in engines.items() if isinstance(engines, dict) else ():
        head = f"engines.{name}"
        changed = {
            field: overrides[path]
            for field in _GEOMETRY
            for path in (f"{head}.array.{field}", f"{head}.array.{field}.value")
            if path in overrides
        }
        if not changed or any(f"{path}.".startswith(f"{head}.rates.") for path in overrides):
            continue
        try:
            ratio = math.prod(
                _number(new) / _number(engine["array"].get(field, 1))
                for field, new in changed.items()
            )
            rates = {format_: _number(rate) * ratio for format_, rate in engine["rates"].items()}
        except (ConfigError, KeyError, TypeError, AttributeError, ZeroDivisionError):
            continue  # not what the schema asks for: it says so
        if not 0 < ratio < math.inf:
            continue  # nor is this
        for format_, rate in rates.items():
            found[f"{head}.rates.{format_}"] = {
                "value": f"{rate!r} FLOP/s",
                "source": f"follows from the override of array.{', array.'.join(changed)}",
                "basis": "derived",
            }
    return found


def _number(raw: Any) -> float:
    value = raw["value"] if isinstance(raw, dict) else raw
    return units.quantity(value) if isinstance(value, str) else float(value)
