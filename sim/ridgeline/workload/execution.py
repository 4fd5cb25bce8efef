"""An Execution: a workload that is already distributed, as tasks of every rank.

It comes from a Chakra execution trace or a profiler and needs no Plan: which rank does what, what
waits for what and who talks to whom is in the trace. Times are either replayed as measured or
priced anew from the work of each task (`ridgeline.parallel.executions.lower`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from ridgeline.errors import RidgelineError
from ridgeline.workload.formats import FORMAT_BYTES

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int32]

MAX_RANKS = 65_536


class TaskKind(IntEnum):
    """What a task of an execution does."""

    MARK = 0  # takes no time: metadata, markers
    COMPUTE = 1  # a kernel on the device
    HOST = 2  # work of the host
    MEMORY = 3  # a transfer between the device and a memory behind it
    COLLECTIVE = 4
    SEND = 5
    RECEIVE = 6


COLLECTIVES = (
    "all-reduce",
    "reduce",
    "all-gather",
    "gather",
    "scatter",
    "broadcast",
    "all-to-all",
    "reduce-scatter",
    "barrier",
)
"""Names of collective operations; `Execution.op` is an index into them."""

FORMATS = tuple(FORMAT_BYTES)
"""Number formats that a task may state; `Execution.format` is an index into them, or -1."""


@dataclass(frozen=True, eq=False)
class Execution:
    """Tasks of all traced ranks as flat arrays, rank by rank, each rank's in the trace's order.

    Shapes: N ranks, T tasks, D dependencies, G groups.

    Attributes
    ----------
    name
        Where it comes from, for people.
    ranks
        [N] Number of each traced rank, ascending.
    world
        How many ranks there are, traced or not; groups and peers are below it.
    task_ptr
        [N+1] Rank ``ranks[i]`` has the tasks ``task_ptr[i]:task_ptr[i+1]``.
    id
        [T] The trace's own number of the task; unique within a rank.
    kind
        [T] `TaskKind`.
    stream
        [T] The queue of its rank that plays it, an index into `stream_names`.
    label
        [T] Index into `label_names`.
    start_s, duration_s
        [T] As measured; NaN where nothing was measured.
    flops
        [T] Arithmetic of a compute task; NaN where the trace does not say.
    size_bytes
        [T] Of a compute or memory task, what it moves to and from the device's memory; of a send or
        receive, the message; of a collective, as nccl-tests counts it: the whole buffer. NaN
        where the trace does not say.
    format
        [T] Index into `FORMATS`, or -1.
    op
        [T] Index into `COLLECTIVES` of a collective, else -1.
    group
        [T] Group of a collective; -1: all ranks, or not a collective.
    peer, tag
        [T] Other side and tag of a send or receive, else -1 and 0.
    dep_ptr, dep_index
        [T+1], [D] Task t waits for the tasks ``dep_index[dep_ptr[t]:dep_ptr[t+1]]`` of its rank.
    group_ptr, group_rank
        [G+1], [...] Members of every group.
    group_names
        [G] The trace's own names of the groups.
    """

    name: str
    ranks: Indices
    world: int
    task_ptr: Ints
    id: Ints
    kind: npt.NDArray[np.uint8]
    stream: Indices
    label: Indices
    start_s: Floats
    duration_s: Floats
    flops: Floats
    size_bytes: Floats
    format: npt.NDArray[np.int8]
    op: npt.NDArray[np.int8]
    group: Indices
    peer: Indices
    tag: Indices
    dep_ptr: Ints
    dep_index: Indices
    group_ptr: Ints
    group_rank: Indices
    group_names: tuple[str, ...]
    stream_names: tuple[str, ...]
    label_names: tuple[str, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def n_tasks(self) -> int:
        """Number of tasks."""
        return len(self.kind)

    @property
    def measured(self) -> bool:
        """Whether every task that takes time on a device or host has a measured time."""
        timed = (self.kind == TaskKind.COMPUTE) | (self.kind == TaskKind.HOST)
        return bool(timed.any()) and not bool(np.isnan(self.duration_s[timed]).any())

    @property
    def total_flops(self) -> float:
        """Stated arithmetic of all tasks of all traced ranks."""
        return float(np.nansum(self.flops))

    def members(self, group: int) -> Indices:
        """Return the ranks of a group; -1: all ranks."""
        if group < 0:
            return np.arange(self.world, dtype=np.int32)
        return self.group_rank[self.group_ptr[group] : self.group_ptr[group + 1]]

    def rank_of_task(self) -> Indices:
        """[T] Index into `ranks` of every task."""
        return np.repeat(np.arange(len(self.ranks), dtype=np.int32), np.diff(self.task_ptr))

    def same(self, other: Execution) -> bool:
        """Tell whether two are equal in all but their names and notes."""
        for one in fields(self):
            if one.name in {"name", "notes"}:
                continue
            a, b = getattr(self, one.name), getattr(other, one.name)
            equal = (
                np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
                if isinstance(a, np.ndarray)
                else a == b
            )
            if not equal:
                return False
        return True

    def __repr__(self) -> str:
        return (
            f"<Execution {self.name}: {self.n_tasks} tasks of {len(self.ranks)} ranks"
            f"{'' if len(self.ranks) == self.world else f' of {self.world}'}>"
        )


def check_execution(execution: Execution) -> None:
    """Raise RidgelineError unless all numbers are where they must be.

    Dependencies that run in a circle are found when the execution is played.
    """
    e = execution
    for name in ("flops", "size_bytes", "duration_s"):
        values = getattr(e, name)
        bad = np.flatnonzero((values < 0) | np.isinf(values))
        if len(bad):
            raise _at(e, int(bad[0]), f"{name} is {values[bad[0]]:g}, allowed is 0 or more")
    for name, least, most in (
        ("peer", -1, e.world - 1),
        ("group", -1, len(e.group_ptr) - 2),
        ("op", -1, len(COLLECTIVES) - 1),
        ("format", -1, len(FORMATS) - 1),
    ):
        values = getattr(e, name)
        bad = np.flatnonzero((values < least) | (values > most))
        if len(bad):
            found = values[bad[0]]
            raise _at(e, int(bad[0]), f"{name} is {found}, allowed is {least} to {most}")
    if len(e.group_rank) and (e.group_rank.min() < 0 or e.group_rank.max() >= e.world):
        raise RidgelineError(
            f"{e.name}: a group has the rank {e.group_rank.max()}; there are {e.world} ranks"
        )
    p2p = (e.kind == TaskKind.SEND) | (e.kind == TaskKind.RECEIVE)
    for mask, values, what in (
        (e.kind == TaskKind.COLLECTIVE, e.op, "which collective it is"),
        (p2p, e.peer, "its other side"),
    ):
        bad = np.flatnonzero(mask & (values < 0))
        if len(bad):
            raise _at(e, int(bad[0]), f"it does not say {what}")
    silent = np.flatnonzero((p2p | (e.kind == TaskKind.COLLECTIVE)) & np.isnan(e.size_bytes))
    if len(silent):
        raise _at(e, int(silent[0]), "it does not say how many bytes it moves")


def _at(execution: Execution, task: int, message: str) -> RidgelineError:
    e = execution
    rank = e.ranks[int(np.searchsorted(e.task_ptr, task, "right")) - 1]
    label = e.label_names[e.label[task]]
    return RidgelineError(f"{e.name}: rank {rank}, node {e.id[task]} ({label!r}): {message}")
