"""Quantities of a result by name: what a measured row is compared with, and what a user asks for.

A name is a dotted path of the result (``step_time_s``, ``memory_bytes.total``) or one that is
derived from it (`DERIVED`), perhaps times a factor: ``tokens_per_s*0.78``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from ridgeline.errors import RidgelineError, nearest
from ridgeline.report.power import device_power_w, node_power
from ridgeline.report.result import Result
from ridgeline.study.memory_quantities import (
    activations_kept,
    share_of_activations,
    states_allocated,
    states_of_a_parameter,
)

Derived = Callable[[Result], float]

DERIVED: dict[str, Derived] = {
    "memory_bytes.states_allocated": states_allocated,
    "memory_bytes.activations_kept": activations_kept,
    "device_power_w": device_power_w,
    "node_wall_w": lambda result: node_power(result).wall_w,
    "node_supplied_w": lambda result: node_power(result).supplied_w,
    "memory_bytes.states_of_a_parameter": states_of_a_parameter,
    "memory_share.activations": share_of_activations,
}
"""Quantities that are computed from a result when they are asked for, by name."""


def quantity_of(result: object, text: str) -> float:
    """Return a quantity of a result: of a step, a kernel or a collective, perhaps times a number.

    Raises
    ------
    RidgelineError
        If the result has no such number.
    """
    name, star, factor = (part.strip() for part in text.partition("*"))
    if isinstance(result, Result) and name in DERIVED:
        value = DERIVED[name](result)
    else:
        value = _stated(result, name)
    if not star:
        return value
    try:
        return value * float(factor)
    except ValueError as error:
        raise RidgelineError(f"the factor of a quantity is a number, found {factor!r}") from error


def _stated(result: object, name: str) -> float:
    """Follow a dotted path through the numbers of a result."""
    found: Any = result
    for part in name.split("."):
        if isinstance(found, Mapping):
            found = found.get(part)
        else:
            found = getattr(found, part) if part in _fields(found) else None
    if isinstance(found, bool | int | float):
        return float(found)
    known = _known(result)
    raise RidgelineError(
        f"a result has no number {name!r}{nearest(name, known)} (it has: {', '.join(known)})"
    )


def _fields(result: object) -> set[str]:
    if not is_dataclass(result):
        return set()
    return {f.name for f in fields(result)} - {"details"} | (
        {"uncertainty", "manifest"} if isinstance(result, Result) else set()
    )


def _known(result: object) -> list[str]:
    """Return the names of all numbers of a result."""
    if isinstance(result, Result):
        return [*_numbers(result.to_row()), *DERIVED]
    return _numbers({name: getattr(result, name) for name in sorted(_fields(result))})


def _numbers(row: Mapping[str, Any]) -> list[str]:
    return [name for name, value in row.items() if isinstance(value, bool | int | float)]
