"""Is a Program well formed? Cheap checks on whole arrays, each with a message that names the entry.

The executors rely on these checks: after them no index is out of range and no time is negative or
not a number. Cycles of dependencies are found by playing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline.engine.program import Program
from ridgeline.errors import RidgelineError

Array = npt.NDArray[Any]

# field: (dtype, length, how many more entries it has than that)
_SHAPES: dict[str, tuple[type[np.generic], str, int]] = {
    "capacity": (np.float64, "resource_names", 0),
    "shared": (np.bool_, "resource_names", 0),
    "latency_s": (np.float64, "latency_s", 0),
    "repeat": (np.int64, "latency_s", 0),
    "weight": (np.float64, "latency_s", 0),
    "work_ptr": (np.int64, "latency_s", 1),
    "work_resource": (np.int32, "work_resource", 0),
    "work_amount": (np.float64, "work_resource", 0),
    "event_ptr": (np.int64, "event_ptr", 0),
    "phase_ptr": (np.int64, "event_ptr", 0),
    "event_account": (np.int32, "event_account", 0),
    "event_count": (np.float64, "event_account", 0),
    "kind": (np.uint8, "kind", 0),
    "stream": (np.int32, "kind", 0),
    "group": (np.int32, "kind", 0),
    "cost": (np.int32, "kind", 0),
    "priority": (np.int32, "kind", 0),
    "multiplicity": (np.int32, "kind", 0),
    "label": (np.int32, "kind", 0),
    "dep_ptr": (np.int64, "kind", 1),
    "dep_index": (np.int32, "dep_index", 0),
    "group_ptr": (np.int64, "group_ptr", 0),
    "group_stream": (np.int32, "group_stream", 0),
    "stream_rank": (np.int32, "stream_names", 0),
    "rank_multiplicity": (np.int32, "rank_multiplicity", 0),
    "memory_ptr": (np.int64, "kind", 1),
    "memory_rank": (np.int32, "memory_rank", 0),
    "memory_kind": (np.int32, "memory_rank", 0),
    "memory_start": (np.int64, "memory_rank", 0),
    "memory_end": (np.int64, "memory_rank", 0),
}

# field: what it points into
_POINTERS = {
    "phase_ptr": "latency_s",
    "work_ptr": "work_resource",
    "event_ptr": "event_account",
    "dep_ptr": "dep_index",
    "group_ptr": "group_stream",
    "memory_ptr": "memory_rank",
}

# field: (what it indexes, how many more entries that has than things it stands for)
_INDICES = {
    "work_resource": ("resource_names", 0),
    "event_account": ("accounts", 0),
    "kind": ("kind_names", 0),
    "stream": ("stream_names", 0),
    "group": ("group_ptr", 1),
    "cost": ("event_ptr", 1),
    "label": ("label_names", 0),
    "dep_index": ("kind", 0),
    "group_stream": ("stream_names", 0),
    "stream_rank": ("rank_multiplicity", 0),
    "memory_rank": ("rank_multiplicity", 0),
    "memory_kind": ("memory_kinds", 0),
}


def check_program(program: Program) -> None:
    """Raise RidgelineError unless `program` is well formed."""
    _check_shapes(program)
    for field, target in _POINTERS.items():
        _check_pointer(field, getattr(program, field), len(getattr(program, target)))
    for field, (target, more) in _INDICES.items():
        least = -1 if field == "group" else 0
        _check_index(field, getattr(program, field), least, len(getattr(program, target)) - more)
    _check_values(program)
    _check_no_repeats(program)
    _check_gang_leaders(program)


def _require(good: npt.NDArray[np.bool_], field: str, values: Array, allowed: str) -> None:
    if not good.all():
        first = int(np.argmin(good))
        raise RidgelineError(f"program: {field}[{first}] is {values[first]}, allowed is {allowed}")


def _check_shapes(program: Program) -> None:
    for field, (dtype, target, more) in _SHAPES.items():
        found = getattr(program, field)
        shape = (len(getattr(program, target)) + more,)
        if found.dtype != dtype or found.shape != shape:
            raise RidgelineError(
                f"program: {field} is {found.dtype}{list(found.shape)}, "
                f"needed is {np.dtype(dtype)}{list(shape)}"
            )
    initial = program.memory_initial
    table = (len(program.rank_multiplicity), len(program.memory_kinds))
    if initial.dtype != np.int64 or initial.shape != table:
        raise RidgelineError(
            f"program: memory_initial is {initial.dtype}{list(initial.shape)}, "
            f"needed is int64{list(table)}"
        )


def _check_pointer(field: str, pointer: Array, length: int) -> None:
    if len(pointer) == 0 or pointer[0] != 0 or pointer[-1] != length:
        raise RidgelineError(f"program: {field} must begin with 0 and end with {length}")
    _require(np.diff(pointer) >= 0, field, pointer, "that no entry is greater than the next")


def _check_index(field: str, index: Array, least: int, length: int) -> None:
    if len(index) and (index.min() < least or index.max() >= length):
        good = (index >= least) & (index < length)
        _require(good, field, index, f"{least} to {length - 1}")


def _check_values(program: Program) -> None:
    p = program
    for field in ("capacity", "weight"):
        values = getattr(p, field)
        _require((values > 0) & np.isfinite(values), field, values, "a finite number above 0")
    for field in ("latency_s", "work_amount", "event_count"):
        values = getattr(p, field)
        _require((values >= 0) & np.isfinite(values), field, values, "a finite number from 0")
    for field in ("repeat", "multiplicity", "rank_multiplicity"):
        values = getattr(p, field)
        _require(values >= 1, field, values, "1 or more")
    initial = p.memory_initial.reshape(-1)
    _require(initial >= 0, "memory_initial", initial, "0 bytes or more")


def _check_no_repeats(program: Program) -> None:
    """Check that no phase names a resource twice and no group a stream twice."""
    for pointer, field in (("work_ptr", "work_resource"), ("group_ptr", "group_stream")):
        index = getattr(program, field).astype(np.int64)
        owner = np.repeat(
            np.arange(len(getattr(program, pointer)) - 1), np.diff(getattr(program, pointer))
        )
        order = np.lexsort((index, owner))
        same = (np.diff(owner[order]) == 0) & (np.diff(index[order]) == 0)
        good = np.ones(len(index), np.bool_)
        good[order[1:]] = ~same
        _require(good, field, index, "that an entry occurs once")


def _check_gang_leaders(program: Program) -> None:
    """Check that the stream of a task with a group is one of the group's."""
    p = program
    gangs = np.flatnonzero(p.group >= 0)
    if len(gangs) == 0:
        return
    n = len(p.stream_names)
    sizes = np.diff(p.group_ptr)
    members = np.repeat(np.arange(len(sizes)), sizes) * n + p.group_stream
    leads = p.group[gangs].astype(np.int64) * n + p.stream[gangs]
    good = np.isin(leads, members)
    if not good.all():
        task = int(gangs[int(np.argmin(good))])
        raise RidgelineError(
            f"program: stream[{task}] is {p.stream[task]}, allowed is a stream of its group "
            f"{p.group[task]}"
        )
