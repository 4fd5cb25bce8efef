"""PyTorch profiler (Kineto) traces as an Execution with measured times.

A kernel waits for the kernel before it on its stream, for the host's call that launched it, for
what its stream was told to wait for, and, where none of these explains when it began, for the
kernel of another stream that ended last before. What remains is kept as a delay of fixed length, so
that the replay of one rank gives the measured times exactly, and a replay on another network moves
what depends on it. The host is one chain of launches with the measured time between them; where
it waited for the device it waits for the same kernel again.

NCCL kernels become collectives of their process group if the trace describes it (PyTorch 2.2 and
later, ``Collective name`` ...); others are replayed as kernels, and a note counts them.

A run without a device is its host: the innermost op of every thread, in the order of its thread,
after the op of another thread that ended last before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import ConfigError
from ridgeline.workload.execution import COLLECTIVES, Execution, TaskKind, check_execution
from ridgeline.workload.trace.chakra import Names
from ridgeline.workload.trace.kineto_file import (
    HOST_OP,
    WAITS,
    DeviceActivity,
    Stream,
    Trace,
    ranks_of,
    read,
)

_OPS = {
    "allreduce": "all-reduce",
    "allreduce_coalesced": "all-reduce",
    "reduce": "reduce",
    "allgather": "all-gather",
    "_allgather_base": "all-gather",
    "allgather_into_tensor_coalesced": "all-gather",
    "allgather_coalesced": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "_reduce_scatter_base": "reduce-scatter",
    "reduce_scatter_tensor_coalesced": "reduce-scatter",
    "broadcast": "broadcast",
    "all_to_all": "all-to-all",
    "all_to_allv": "all-to-all",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
}
_BYTES = {"Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2,
          "Byte": 1, "Char": 1, "Bool": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1}  # fmt: skip


def load(path: str | Path) -> Execution:
    """Read the trace of one rank.

    Raises
    ------
    ConfigError
        If it is damaged or has no kernels; with file and line.
    """
    return load_ranks([path])


def load_ranks(paths: Iterable[str | Path]) -> Execution:
    """Read traces of several ranks of one job; collectives of traced ranks meet."""
    traces = [read(Path(path)) for path in paths]
    traces.sort(key=lambda trace: trace.rank)
    for one, two in pairwise(traces):
        if one.rank == two.rank:
            raise ConfigError(f"rank {two.rank} is in {one.file}, too", file=two.file)
    return _Builder(traces).execution()


def _world(trace: Trace) -> int:
    """Return how many ranks the job of a trace has at least; all of them, if the file says."""
    described = {
        (ranks, args.get("Group size"))
        for args in (kernel.args for kernel in trace.kernels)
        if isinstance(ranks := args.get("Process Group Ranks"), str)
    }
    groups = [ranks_of(ranks, size) for ranks, size in described]
    named = max((rank for ranks in (*groups, *trace.groups.values()) for rank in ranks), default=0)
    if trace.world is None:
        return max(named, trace.rank) + 1
    if named >= trace.world:
        raise ConfigError(
            f"{trace.world}, but a process group has the rank {named}",
            file=trace.file,
            field="distributedInfo.world_size",
        )
    return trace.world


class _Builder:
    """Collects the tasks of all ranks."""

    def __init__(self, traces: Sequence[Trace]) -> None:
        self.traces = traces
        self.world = max(_world(trace) for trace in traces)
        self.labels, self.streams = Names(), Names()
        self.groups: dict[tuple[int, ...], int] = {}
        self.columns: dict[str, list[Any]] = {
            name: []
            for name in ("kind", "stream", "label", "start_s", "duration_s", "size_bytes", "op",
                         "group", "id")
        }  # fmt: skip
        self.deps: list[list[int]] = []
        self.ptr = [0]
        self.plain = 0  # NCCL kernels without a description
        self.host_ops = 0  # pieces of ops of runs without a device

    def task(
        self,
        kind: TaskKind,
        stream: str,
        label: str,
        times: tuple[float, float],
        deps: Iterable[int],
        size_bytes: float = np.nan,
        op: int = -1,
        group: int = -1,
    ) -> int:
        """Add a task and return its number."""
        number = len(self.deps)
        values = (int(kind), self.streams(stream), self.labels(label), times[0] * 1e-6,
                  (times[1] - times[0]) * 1e-6, size_bytes, op, group,
                  number - self.ptr[-1])  # fmt: skip
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value)
        self.deps.append(sorted(set(deps)))
        return number

    def add(self, trace: Trace) -> None:
        """Add the tasks of one rank, host and kernels in the order in which they began."""
        activities = trace.kernels or trace.ops.activities()
        origin = min(kernel.start for kernel in activities)
        origin = min([origin, *(start for start, *_ in trace.calls)])
        launched = {kernel.correlation for kernel in activities}
        calls = sorted(
            (start - origin, end - origin, name, correlation)
            for start, end, name, correlation in trace.calls
            if correlation in launched or WAITS.fullmatch(name)
        )
        kernels = sorted(activities, key=lambda k: (k.start, k.stream))
        for kernel in kernels:
            kernel.start, kernel.end = kernel.start - origin, kernel.end - origin
        waits = sorted((at - origin, stream, on) for at, stream, on in trace.waits)
        _Rank(self, trace, kernels, calls, waits).add()
        self.ptr.append(len(self.deps))

    def group(self, ranks: tuple[int, ...]) -> int:
        """Return the number of a group; -1: all ranks."""
        if len(ranks) == self.world:
            return -1
        return self.groups.setdefault(ranks, len(self.groups))

    def execution(self) -> Execution:
        """Return the tasks of all ranks."""
        for trace in self.traces:
            self.add(trace)
        c, n = self.columns, len(self.deps)
        notes = [f"measured by the PyTorch profiler; {len(self.traces)} of {self.world} ranks"]
        if self.host_ops:
            notes.append(
                f"{self.host_ops} pieces of ops are work of the host, replayed as measured: there"
                " are no kernels"
            )
        if unfinished := sum(trace.unfinished for trace in self.traces):
            notes.append(f"{unfinished} kernels that did not end while recording are left out")
        if self.plain:
            notes.append(
                f"{self.plain} communication kernels without a described group are replayed as"
                " kernels"
            )
        execution = Execution(
            name=Path(self.traces[0].file).name.split(".")[0],
            ranks=np.array([trace.rank for trace in self.traces], np.int32),
            world=self.world,
            task_ptr=np.array(self.ptr, np.int64),
            id=np.array(c["id"], np.int64),
            kind=np.array(c["kind"], np.uint8),
            stream=np.array(c["stream"], np.int32),
            label=np.array(c["label"], np.int32),
            start_s=np.array(c["start_s"]),
            duration_s=np.array(c["duration_s"]),
            flops=np.full(n, np.nan),
            size_bytes=np.array(c["size_bytes"]),
            format=np.full(n, -1, np.int8),
            op=np.array(c["op"], np.int8),
            group=np.array(c["group"], np.int32),
            peer=np.full(n, -1, np.int32),
            tag=np.zeros(n, np.int32),
            dep_ptr=np.cumsum([0, *map(len, self.deps)], dtype=np.int64),
            dep_index=np.array([dep for deps in self.deps for dep in deps], np.int32),
            group_ptr=np.cumsum([0, *map(len, self.groups)], dtype=np.int64),
            group_rank=np.array([rank for ranks in self.groups for rank in ranks], np.int32),
            group_names=tuple(str(number) for number in range(len(self.groups))),
            stream_names=tuple(self.streams),
            label_names=tuple(self.labels),
            notes=tuple(notes),
        )
        check_execution(execution)
        return execution


class _Rank:
    """The tasks of one rank."""

    def __init__(
        self,
        to: _Builder,
        trace: Trace,
        kernels: Sequence[DeviceActivity],
        calls: Sequence[tuple[float, float, str, int]],
        waits: Sequence[tuple[float, Stream, Stream]],
    ) -> None:
        self.to, self.trace, self.kernels, self.calls = to, trace, kernels, calls
        self.waits = list(waits)
        self.devices = len({kernel.stream[0] for kernel in kernels})
        self.host, self.host_time = -1, 0.0  # last task of the host, and when it ended
        self.launch: dict[int, tuple[int, float]] = {}  # correlation -> host task, its end
        self.last: dict[Stream, tuple[int, float]] = {}  # stream -> last kernel, its end
        self.ended: list[tuple[float, int]] = []  # kernels by their end
        self.awaited: dict[Stream, set[int]] = {}  # stream -> kernels it was told to wait for

    def add(self) -> None:
        """Add everything in the order of its beginning."""
        import bisect

        moments = [(start, 1, i) for i, (start, *_) in enumerate(self.calls)]
        moments += [(kernel.start, 2, i) for i, kernel in enumerate(self.kernels)]
        moments += [(at, 0, i) for i, (at, *_) in enumerate(self.waits)]
        pending: list[tuple[float, int]] = []  # calls that wait, by when they return
        for _, what, i in sorted(moments):
            if what == 1:
                start, end, name, correlation = self.calls[i]
                if WAITS.fullmatch(name):
                    bisect.insort(pending, (end, i))
                else:
                    self._return(pending, start)
                    self._advance(name, start)
                    self.launch[correlation] = (self.host, self.host_time)
            elif what == 2:
                self._kernel(self.kernels[i])
            else:
                _, stream, on = self.waits[i]
                if on in self.last:
                    self.awaited.setdefault(stream, set()).add(self.last[on][0])
        self._return(pending, np.inf)

    def _advance(self, label: str, until: float, deps: Iterable[int] = ()) -> None:
        """Let the host work until a moment."""
        begin = max((self.host_time, *(self._end(dep) for dep in deps)))
        before = [self.host] if self.host >= 0 else []
        self.host = self.to.task(
            TaskKind.HOST, "host", label, (min(begin, until), until), [*before, *deps]
        )
        self.host_time = until

    def _return(self, pending: list[tuple[float, int]], until: float) -> None:
        """Let calls return that waited for the device, if they returned by a moment."""
        while pending and pending[0][0] <= until:
            end, i = pending.pop(0)
            if end <= self.host_time:
                continue
            earlier = [(at, task) for at, task in self.ended if self.host_time < at <= end]
            self._advance(self.calls[i][2], end, [max(earlier)[1]] if earlier else [])

    def _end(self, task: int) -> float:
        c = self.to.columns
        return float(c["start_s"][task] + c["duration_s"][task]) * 1e6

    def _stream(self, kernel: DeviceActivity) -> str:
        """Name a queue, with its device where there are several."""
        device, stream = kernel.stream
        return stream if self.devices == 1 else f"device {device} {stream}"

    def _kernel(self, kernel: DeviceActivity) -> None:
        deps = set(self.awaited.pop(kernel.stream, ()))
        ready = [0.0]
        if kernel.correlation in self.launch:
            task, at = self.launch[kernel.correlation]
            deps.add(task)
            ready.append(at)
        if kernel.stream in self.last:
            task, at = self.last[kernel.stream]
            deps.add(task)
            ready.append(at)
        deps = {dep for dep in deps if self._end(dep) <= kernel.start + 1e-3}
        others = [
            (at, task)
            for stream, (task, at) in self.last.items()
            if stream != kernel.stream and max(ready) < at <= kernel.start
        ]
        if others:
            deps.add(max(others)[1])
        begin = max((self._end(dep) for dep in deps), default=0.0)
        if kernel.start - begin > 1e-3:
            stream = f"delay of {self._stream(kernel)}"
            deps = {self.to.task(TaskKind.HOST, stream, "delay", (begin, kernel.start), deps)}
        number = self._described(kernel, deps)
        self.last[kernel.stream] = (number, kernel.end)
        self.ended.append((kernel.end, number))
        if len(self.ended) > 4096:  # the host is never that far ahead of what it waits for
            del self.ended[:2048]

    def _described(self, kernel: DeviceActivity, deps: Iterable[int]) -> int:
        """Add a kernel as what it is."""
        args, to = kernel.args, self.to
        stream, times = self._stream(kernel), (kernel.start, kernel.end)
        if kernel.category == HOST_OP:
            to.host_ops += 1
            return to.task(TaskKind.HOST, stream, kernel.name, times, deps)
        if kernel.category == "gpu_memcpy":
            size = float(args.get("bytes", np.nan))
            across = "DtoD" not in kernel.name
            kind = TaskKind.MEMORY if across else TaskKind.COMPUTE
            return to.task(kind, stream, kernel.name, times, deps, size if across else 2 * size)
        name = str(args.get("Collective name", "")).lower()
        if name or "nccl" in kernel.name.lower():
            of_group = args.get("Group size")
            ranks = ranks_of(args.get("Process Group Ranks"), of_group) or self.trace.groups.get(
                str(args.get("Process Group Name")), ()
            )
            if not ranks and of_group == to.world:
                ranks = tuple(range(to.world))
            moved = self._size(name, args)
            if name in _OPS and self.trace.rank in ranks and moved is not None:
                op = COLLECTIVES.index(_OPS[name])
                group = to.group(ranks)
                return to.task(
                    TaskKind.COLLECTIVE, stream, kernel.name, times, deps, moved, op, group
                )
            to.plain += 1
        return to.task(TaskKind.COMPUTE, stream, kernel.name, times, deps)

    @staticmethod
    def _size(name: str, args: Mapping[str, Any]) -> float | None:
        """Bytes of a collective as nccl-tests counts them, or None if the trace does not say."""
        whole = "Out" if _OPS.get(name) in {"all-gather", "gather"} else "In"
        elements, width = args.get(f"{whole} msg nelems"), _BYTES.get(str(args.get("dtype")))
        if _OPS.get(name) == "barrier":
            return 0.0
        return None if elements is None or width is None else float(elements) * width
