"""Blocks: pieces of a Program that are played many times, copied as arrays and not task by task.

A block is a short list of tasks, say what one pipeline stage does for one micro-batch. Its tasks
depend on each other by their places in the block, and on what is outside of it through *ports*,
which are numbered and get their tasks when the block is placed. A thousand copies of a block cost a
few array operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline.engine.program import Ints
from ridgeline.errors import RidgelineError

NOTHING = -1
"""The task of a port that waits for nothing."""

_COLUMNS = ("kind", "label", "stream", "group", "cost", "priority", "multiplicity")


@dataclass
class Block:
    """Tasks in order; `ProgramBuilder.add_to_block` writes them.

    Attributes
    ----------
    tasks
        One row of `_COLUMNS` for each task.
    deps
        For each task, places in the block (from 0), or ports as ``-1 - port``.
    memory
        For each task, (rank, kind, bytes at its start, bytes at its end).
    """

    tasks: list[tuple[int, ...]] = field(default_factory=list)
    deps: list[tuple[int, ...]] = field(default_factory=list)
    memory: list[tuple[tuple[int, int, int, int], ...]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tasks)


def port(number: int) -> int:
    """Return what stands for a port among the dependencies of a block's task."""
    return -1 - number


@dataclass(frozen=True)
class TaskArrays:
    """Tasks as columns: the fields of a Program that grow with them."""

    kind: npt.NDArray[np.uint8]
    label: npt.NDArray[np.int32]
    stream: npt.NDArray[np.int32]
    group: npt.NDArray[np.int32]
    cost: npt.NDArray[np.int32]
    priority: npt.NDArray[np.int32]
    multiplicity: npt.NDArray[np.int32]
    dep_count: npt.NDArray[np.int64]
    dep_index: npt.NDArray[np.int32]
    memory_count: npt.NDArray[np.int64]
    memory_rank: npt.NDArray[np.int32]
    memory_kind: npt.NDArray[np.int32]
    memory_start: Ints
    memory_end: Ints


_TYPES: dict[str, Any] = {
    "kind": np.uint8,
    "dep_count": np.int64,
    "memory_count": np.int64,
    "memory_start": np.int64,
    "memory_end": np.int64,
}


def joined(parts: list[TaskArrays]) -> TaskArrays:
    """Return tasks one after the other; empties `parts`, so that only one column is there twice."""
    names = [f.name for f in fields(TaskArrays)]
    columns = {name: [getattr(part, name) for part in parts] for name in names}
    parts.clear()
    return TaskArrays(
        **{
            name: np.concatenate(columns.pop(name)).astype(_TYPES.get(name, np.int32), copy=False)
            for name in names
        }
    )


def lengths(blocks: Sequence[Block]) -> Ints:
    """Return the number of tasks of every block."""
    return np.array([len(block) for block in blocks], np.int64)


def copies(blocks: Sequence[Block], order: Ints, first: Ints, ports: Ints) -> TaskArrays:
    """Return copies of blocks, one after the other.

    Parameters
    ----------
    blocks
        [B] What is copied.
    order
        [N] Which block each copy is of.
    first
        [N] Number of the first task of each copy.
    ports
        [N, Q] Task of every port of every copy; `NOTHING` where it waits for nothing.

    Raises
    ------
    RidgelineError
        If a block uses a port that `ports` does not have.
    """
    table = np.array([row for b in blocks for row in b.tasks], np.int64).reshape(-1, len(_COLUMNS))
    size = lengths(blocks)
    row, copy = _places(_starts(size)[order], size[order])
    deps, of_task = _flat([deps for b in blocks for deps in b.deps])
    place, owner = _places(_starts(of_task)[row], of_task[row])
    before = deps[place].astype(np.int64)
    outside = before < 0
    number = np.where(outside, -1 - before, 0)
    if number.size and number.max() >= ports.shape[1]:
        raise RidgelineError(f"a block has a port {number.max()}, but {ports.shape[1]} are given")
    task = np.where(outside, ports[copy[owner], number], first[copy[owner]] + before)
    waits = task != NOTHING
    held, of_memory = _flat([entries for b in blocks for entries in b.memory], width=4)
    entry, _ = _places(_starts(of_memory)[row], of_memory[row])
    kind, label, stream, group, cost, priority, multiplicity = table[row].astype(np.int32).T
    return TaskArrays(
        kind=kind.astype(np.uint8),
        label=label,
        stream=stream,
        group=group,
        cost=cost,
        priority=priority,
        multiplicity=multiplicity,
        dep_count=np.bincount(owner[waits], minlength=len(row)).astype(np.int64),
        dep_index=task[waits].astype(np.int32),
        memory_count=of_memory[row],
        memory_rank=held[entry, 0].astype(np.int32),
        memory_kind=held[entry, 1].astype(np.int32),
        memory_start=held[entry, 2],
        memory_end=held[entry, 3],
    )


def _starts(counts: Ints) -> Ints:
    return np.cumsum(counts) - counts


def _places(start: Ints, count: Ints) -> tuple[Ints, Ints]:
    """Return indices start[i] ... start[i] + count[i] - 1 for all i in turn, and the i of each."""
    owner = np.repeat(np.arange(len(count)), count)
    return np.arange(len(owner)) - (_starts(count) - start)[owner], owner


def _flat(rows: Sequence[Sequence[Any]], width: int = 0) -> tuple[Ints, Ints]:
    """Return all entries of all rows in one array, and how many each row has."""
    shape = (-1, width) if width else (-1,)
    entries = np.array([entry for row in rows for entry in row], np.int64).reshape(shape)
    return entries, np.array([len(row) for row in rows], np.int64)
