"""What the user may say about an array and a product."""

from __future__ import annotations

from typing import get_args

import numpy as np

from ridgeline.errors import ConfigError, nearest
from ridgeline.hardware.array import Dataflow, Edge, Fold
from ridgeline.kernels.systolic.closed_form import FoldSchedule, IntArray

_INT64_MAX = np.iinfo(np.int64).max


def schedule_of(
    dataflow: str, fold: str, edge: str, hop_row: int, hop_col: int, mac_latency: int
) -> FoldSchedule:
    """Check how a product is folded onto an array; raise ConfigError."""
    named = (
        ("dataflow", dataflow, get_args(Dataflow)),
        ("fold", fold, get_args(Fold)),
        ("edge", edge, get_args(Edge)),
    )
    for name, value, allowed in named:
        if value not in allowed:
            raise ConfigError(
                f"{name} must be one of {', '.join(allowed)}; found {value!r}"
                f"{nearest(str(value), allowed)}"
            )
    latencies = (("hop_row", hop_row), ("hop_col", hop_col), ("mac_latency", mac_latency))
    for name, cycles in latencies:
        whole_number(name, cycles)
    return FoldSchedule(dataflow, fold, edge, hop_row, hop_col, mac_latency)  # type: ignore[arg-type]


def whole_number(name: str, value: object) -> int:
    """Return a whole number of at least 1, or raise ConfigError."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or int(value) < 1:  # type: ignore[call-overload]
        raise ConfigError(f"{name} must be a whole number of at least 1; found {value!r}")
    return int(value)  # type: ignore[call-overload, no-any-return]


def whole_numbers(name: str, values: object) -> IntArray:
    """Return an int64 array of numbers of at least 1, or raise ConfigError."""
    array = np.asarray(values)
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise ConfigError(f"{name} must be whole numbers, found an array of {array.dtype}")
    if array.min() < 1:
        raise ConfigError(f"{name} must be at least 1; found {array.min()}")
    if array.dtype.kind == "u" and array.max() > _INT64_MAX:
        raise ConfigError(f"{name} must be at most 2**63 - 1; found {array.max()}")
    return array.astype(np.int64, copy=False)
