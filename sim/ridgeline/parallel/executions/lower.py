"""Lowering of an Execution: its tasks become a Program, without a Plan.

Compute tasks are replayed as measured or priced by their stated work, as a roofline: launch latency
plus the longer of arithmetic (at the share of the peak that matrix products reach) and traffic.
Collectives and messages go over the machine's links. One resource of a kind stands for that of all
ranks, since a private resource bounds each task by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ridgeline.engine.program import Program, no_memory
from ridgeline.errors import RidgelineError
from ridgeline.hardware.cluster import Cluster
from ridgeline.network.collectives import fastest_schedule
from ridgeline.network.schedule import CollectiveSchedule
from ridgeline.network.topology import Topology
from ridgeline.parallel.executions.costs import Costs, to_host, usual_format
from ridgeline.parallel.executions.links import Links
from ridgeline.parallel.executions.matching import Units, match
from ridgeline.workload.execution import (
    COLLECTIVES,
    FORMATS,
    Execution,
    Floats,
    Ints,
    TaskKind,
    check_execution,
)

Times = Literal["modelled", "measured"]
KIND_NAMES = tuple(kind.name.lower() for kind in TaskKind)
_COMM = (TaskKind.COLLECTIVE, TaskKind.SEND, TaskKind.RECEIVE)


@dataclass(frozen=True)
class LoweredExecution:
    """A Program and what a reader needs to explain its Timeline.

    Attributes
    ----------
    times
        Whether compute tasks are "modelled" or "measured".
    format
        Number format of the compute tasks that state none.
    n_measured
        Units that are replayed as measured.
    n_uncounted
        Of these, those on a device or a link whose energy events nobody knows.
    """

    program: Program
    execution: Execution
    units: Units
    topology: Topology
    times: Times
    format: str
    n_measured: int
    n_uncounted: int


def lower_execution(
    execution: Execution,
    cluster: Cluster,
    topology: Topology,
    *,
    times: Times | None = None,
    format: str | None = None,
) -> LoweredExecution:
    """Turn an execution into a program for one machine.

    Parameters
    ----------
    times
        "measured": what has a measured time takes it, collectives included (of the ranks that
        meet, the one that waited least says how long it took). "modelled": everything is priced by
        its stated work. None: measured if all compute tasks have measured times.
    format
        Number format of the compute tasks that state none; None: the widest of bf16, fp16, fp32
        and fp64 that an engine for matrices has, in this order.

    Raises
    ------
    RidgelineError
        If the tasks do not fit together, or some state neither work nor time.
    """
    check_execution(execution)
    if times is None:
        times = "measured" if execution.measured else "modelled"
    if times not in {"modelled", "measured"}:
        raise RidgelineError(f'times must be "modelled" or "measured", found {times!r}')
    return _Lowering(execution, cluster, topology, times, format).lowered()


class _Lowering:
    def __init__(
        self,
        execution: Execution,
        cluster: Cluster,
        topology: Topology,
        times: Times,
        format_: str | None,
    ) -> None:
        self.e, self.device, self.topology = execution, cluster.device, topology
        self.times: Times = times
        self.units = match(execution)
        self.format = format_ or usual_format(self.device)
        self.costs = Costs(self.device, topology)
        self.lead = self.units.first
        self.kind = execution.kind[self.lead]
        self.cost = np.full(len(self.lead), -1, np.int32)
        self.streams, self.group_ptr, self.group_stream, self.group = self._crews()
        self.n_uncounted = 0
        self.schedules: dict[tuple[float, ...], CollectiveSchedule | None] = {}
        self.links = Links(
            self.costs, topology, self.streams, self.group, self.group_ptr, self.group_stream
        )

    def lowered(self) -> LoweredExecution:
        duration = self._measured()
        replayed = ~np.isnan(duration)
        self._put_measured(np.flatnonzero(replayed), duration)
        left = self.cost < 0
        self._put_compute(np.flatnonzero(left & (self.kind == TaskKind.COMPUTE)))
        self._put_memory(np.flatnonzero(left & (self.kind == TaskKind.MEMORY)))
        quiet = left & ((self.kind == TaskKind.MARK) | (self.kind == TaskKind.HOST))
        self.cost[quiet] = self.costs.rows.add([], {})
        self._put_comm(np.flatnonzero(self.cost < 0))
        return LoweredExecution(
            self._program(),
            self.e,
            self.units,
            self.topology,
            self.times,
            self.format,
            int((replayed & (self.kind != TaskKind.MARK)).sum()),
            self.n_uncounted,
        )

    def _measured(self) -> Floats:
        """[U] Times to replay, NaN where a unit is to be priced.

        A collective's time on a rank includes waiting for the others, so the least counts.
        """
        e, units = self.e, self.units
        duration = e.duration_s.copy()
        if self.times == "modelled":
            duration[e.kind != TaskKind.HOST] = np.nan
        duration[e.kind == TaskKind.MARK] = 0.0
        ordered = duration[units.order]
        least = np.full(len(self.lead), np.nan)
        if len(ordered):
            least = np.minimum.reduceat(ordered, units.ptr[:-1])  # NaN if any is not measured
        return least

    def _crews(self) -> tuple[Any, Any, Any, Any]:
        """Streams of every unit: [U] the first one, the groups, and [U] which group or -1."""
        e, units = self.e, self.units
        of_task = e.rank_of_task().astype(np.int64) * len(e.stream_names) + e.stream
        first = of_task[self.lead]
        group = np.full(len(self.lead), -1, np.int32)
        ptr, members = [0], []
        for size in np.unique(units.size[units.size > 1]):
            chosen = np.flatnonzero(units.size == size)
            places = units.ptr[chosen][:, None] + np.arange(size)
            crews = np.sort(of_task[units.order[places]], axis=1)
            twice = (crews[:, 1:] == crews[:, :-1]).any(axis=1)
            if twice.any():
                task = int(self.lead[chosen[int(np.argmax(twice))]])
                raise RidgelineError(
                    f"{e.name}: node {e.id[task]} of rank {e.ranks[0]} meets itself"
                )
            different, which = np.unique(crews, axis=0, return_inverse=True)
            group[chosen] = which.reshape(-1) + len(ptr) - 1
            members += different.reshape(-1).tolist()
            ptr += (ptr[-1] + size * np.arange(1, len(different) + 1)).tolist()
        return (
            first.astype(np.int32),
            np.array(ptr, np.int64),
            np.array(members, np.int32),
            group,
        )

    def _put_measured(self, units: Ints, duration: Floats) -> None:
        """Give units their measured times; what they are known to do is still counted."""
        e, lead = self.e, self.lead
        work = (e.flops[lead], e.size_bytes[lead], e.format[lead])
        talk = self._talk()
        for some, (seconds, kind, flops, size, format_, *who) in self._distinct(
            units, duration, self.kind, *work, *talk
        ):
            events: dict[int, float] = {}
            if kind in _COMM:
                schedule = self._schedule(size, *who)
                events = self.costs.comm_events(schedule, size, *who) if schedule else {}
            elif kind == TaskKind.COMPUTE and not (math.isnan(flops) and math.isnan(size)):
                events = self.costs.roofline(_or_none(flops), _or_none(size), self._name(format_))[
                    1
                ]
            elif kind not in {TaskKind.MARK, TaskKind.HOST}:
                self.n_uncounted += len(some)
            self.cost[some] = self.costs.rows.add([(seconds, 1, {})], events)

    def _name(self, format_: float) -> str:
        return self.format if format_ < 0 else FORMATS[int(format_)]

    def _distinct(self, units: Ints, *columns: Any) -> Iterator[tuple[Ints, list[float]]]:
        """Yield units of which all columns [U] are equal, and what they are."""
        if not len(units):
            return
        key = np.zeros(len(units), np.int64)
        for column in columns:  # one key of all columns, kept small on the way
            _, inverse = np.unique(column[units], return_inverse=True)
            key = key * (int(inverse.max()) + 1) + inverse.reshape(-1)
            key = np.unique(key, return_inverse=True)[1].reshape(-1)
        order = np.argsort(key, kind="stable")
        for some in np.split(units[order], np.cumsum(np.bincount(key))[:-1]):
            yield some, [float(column[some[0]]) for column in columns]

    def _put_compute(self, units: Ints) -> None:
        e = self.e
        self._check_known(units)
        stated = (e.flops[self.lead], e.size_bytes[self.lead], e.format[self.lead])
        for some, (flops, size, format_) in self._distinct(units, *stated):
            phases, events = self.costs.roofline(
                _or_none(flops), _or_none(size), self._name(format_)
            )
            self.cost[some] = self.costs.rows.add([phases], events)

    def _check_known(self, units: Ints) -> None:
        """Raise RidgelineError if a compute task cannot be given a time."""
        e, lead = self.e, self.lead[units]
        silent = np.isnan(e.flops[lead]) & np.isnan(e.size_bytes[lead])
        what = "state neither arithmetic nor traffic, and cannot be priced"
        if self.times == "measured":
            silent, what = np.ones(len(units), np.bool_), "have no measured time"
        if silent.any():
            first = e.label_names[e.label[lead[int(np.argmax(silent))]]]
            total = int((self.kind == TaskKind.COMPUTE).sum())
            raise RidgelineError(
                f"{e.name}: {int(silent.sum())} of {total} compute tasks {what}, first {first!r}"
                f' (times="{"modelled" if self.times == "measured" else "measured"}" may do)'
            )

    def _put_memory(self, units: Ints) -> None:
        """Transfers to and from a memory behind the device: over its links to the host."""
        if not len(units):
            return
        e, top = self.e, self.topology
        silent = units[np.isnan(e.size_bytes[self.lead[units]])]
        if len(silent):
            label = e.label_names[e.label[self.lead[silent[0]]]]
            raise RidgelineError(f"{e.name}: the transfer {label!r} does not say how many bytes")
        rank = e.ranks[e.rank_of_task()[self.lead]]
        for some, (size, number) in self._distinct(units, e.size_bytes[self.lead], rank):
            links = to_host(top, int(top.devices[int(number)]))
            crew = self.links.crew(some)
            works = {self.links.resource(link, crew): size for link in links}
            latency_s = float(sum(top.latency_s[link] for link in links))
            events = self.costs.wire_events(dict.fromkeys(links, size)) | self.costs.far_events(
                size
            )
            self.cost[some] = self.costs.rows.add([(latency_s, 1, works)], events)

    def _talk(self) -> tuple[Any, ...]:
        """[U] Of a collective, which and whose; of a message, from and to whom; else -1."""
        e, lead = self.e, self.lead
        sends = self.kind == TaskKind.SEND
        message = sends | (self.kind == TaskKind.RECEIVE)
        own, peer = e.ranks[e.rank_of_task()[lead]], e.peer[lead]
        source = np.where(message, np.where(sends, own, peer), -1)
        target = np.where(message, np.where(sends, peer, own), -1)
        return e.op[lead], e.group[lead], source, target

    def _put_comm(self, units: Ints) -> None:
        columns = (self.e.size_bytes[self.lead], *self._talk())
        for some, (size, *who) in self._distinct(units, *columns):
            schedule = self._schedule(size, *who)
            if schedule is None:
                self.cost[some] = self.costs.rows.add([], {})
                continue
            crew = self.links.crew(some)
            phases = [self.links.phase(phase, crew) for phase in schedule.phases]
            self.cost[some] = self.costs.rows.add(
                phases, self.costs.comm_events(schedule, size, *who)
            )

    def _schedule(
        self, size: float, op: float, group: float, source: float, target: float
    ) -> CollectiveSchedule | None:
        """Return what goes over the links; None for a group of one."""
        key = (size, op, group, source, target)
        if key not in self.schedules:
            ranks: tuple[int, ...] = (int(source), int(target))
            if op >= 0:
                ranks = tuple(self.e.members(int(group)).tolist())
            name = COLLECTIVES[int(op)] if op >= 0 else "send"
            self.schedules[key] = (
                None if len(ranks) < 2 else fastest_schedule(name, self.topology, ranks, size)
            )
        return self.schedules[key]

    def _program(self) -> Program:
        e, rows = self.e, self.costs.rows
        n, n_ranks = len(self.lead), len(e.ranks)
        shared = self.links.shared()
        dep_ptr, dep_index = self._dependencies()
        return Program(
            resource_names=tuple(self.costs.resources),
            capacity=np.array([c for _, c, _ in self.costs.resources.values()], np.float64),
            shared=shared,
            phase_ptr=np.array(rows.phase_ptr, np.int64),
            latency_s=np.array(rows.latency_s, np.float64),
            repeat=np.array(rows.repeat, np.int64),
            weight=np.ones(len(rows.repeat)),
            work_ptr=np.array(rows.work_ptr, np.int64),
            work_resource=np.array(rows.resource, np.int32),
            work_amount=np.array(rows.amount, np.float64),
            event_ptr=np.array(rows.event_ptr, np.int64),
            event_account=np.array(rows.account, np.int32),
            event_count=np.array(rows.count, np.float64),
            accounts=tuple(self.costs.accounts),
            kind=self.kind,
            stream=self._leads(),
            group=self.group,
            cost=self.cost,
            priority=np.zeros(n, np.int32),
            multiplicity=np.ones(n, np.int32),
            label=e.label[self.lead],
            dep_ptr=dep_ptr,
            dep_index=dep_index,
            kind_names=KIND_NAMES,
            label_names=e.label_names,
            group_ptr=self.group_ptr,
            group_stream=self.group_stream,
            stream_names=tuple(
                f"rank{rank}/{stream}" for rank in e.ranks.tolist() for stream in e.stream_names
            ),
            stream_rank=np.repeat(np.arange(n_ranks, dtype=np.int32), len(e.stream_names)),
            rank_multiplicity=np.ones(n_ranks, np.int32),
            **no_memory(n, n_ranks),
        )

    def _leads(self) -> Any:
        """[U] The stream of a unit, or the first of its group's."""
        grouped = self.group >= 0
        stream = self.streams.copy()
        stream[grouped] = self.group_stream[self.group_ptr[self.group[grouped]]]
        return stream

    def _dependencies(self) -> tuple[Any, Any]:
        """Predecessors of units: those of all their tasks, each once."""
        e, units = self.e, self.units
        after = np.repeat(units.of_task, np.diff(e.dep_ptr))
        before = units.of_task[e.dep_index]
        if bool((units.size > 1).any()):
            n = len(self.lead)
            pairs = np.sort(after * n + before)  # several times as fast here as np.unique
            pairs = pairs[np.diff(pairs, prepend=-1) > 0]
            after, before = pairs // n, pairs % n
        else:
            order = np.argsort(after, kind="stable")
            after, before = after[order], before[order]
        counts = np.bincount(after, minlength=len(self.lead))
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), before.astype(np.int32)


def _or_none(work: float) -> float:
    """Work that a task does not state while it states another is none."""
    return 0.0 if math.isnan(work) else work
