"""Builds a Program task by task or block by block; equal cost rows and names are stored once."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ridgeline.engine.blocks import Block, TaskArrays, copies, joined, lengths
from ridgeline.engine.program import Account, Ints, Program
from ridgeline.errors import RidgelineError


@dataclass(frozen=True, slots=True)
class WorkPhase:
    """A latency followed by work on resources, `repeat` times over.

    Attributes
    ----------
    latency_s
        Fixed seconds before the work of each repetition.
    works
        Units of work by resource number, for one repetition.
    repeat
        How many times latency and work follow each other.
    weight
        How many equal flows the phase stands for on its shared resources.
    """

    latency_s: float = 0.0
    works: Mapping[int, float] = field(default_factory=dict)
    repeat: int = 1
    weight: float = 1.0


MemoryEntry = tuple[int, str, int, int]
"""(rank, memory kind, bytes taken at the start of the task, at its end; negative gives back)."""


class ProgramBuilder:
    """Collects resources, accounts, cost rows, ranks, streams, groups and tasks.

    Every ``add_`` method returns the number by which the thing is known from then on. A task may
    depend on earlier tasks only, so a built program has no cycles.
    """

    def __init__(self) -> None:
        self._resources: list[tuple[str, float, bool]] = []
        self._accounts: dict[Account, int] = {}
        self._costs: dict[Hashable, int] = {}
        self._latency_s, self._repeat, self._weight = array("d"), array("q"), array("d")
        self._work_resource, self._work_amount = array("i"), array("d")
        self._event_account, self._event_count = array("i"), array("d")
        self._phase_ptr, self._work_ptr, self._event_ptr = _pointer(), _pointer(), _pointer()
        self._rank_multiplicity = array("i")
        self._streams: list[tuple[str, int]] = []
        self._groups: dict[tuple[int, ...], int] = {}
        self._group_lead = array("i")
        self._kinds: dict[str, int] = {}
        self._labels: dict[str, int] = {}
        self._kind, self._label = array("B"), array("i")
        self._stream, self._group, self._cost = array("i"), array("i"), array("i")
        self._priority, self._multiplicity = array("i"), array("i")
        self._dep_ptr, self._dep_index = _pointer(), array("i")
        self._memory_ptr = _pointer()
        self._memory_rank, self._memory_kind = array("i"), array("i")
        self._memory_start, self._memory_end = array("q"), array("q")
        self._memory_kinds: dict[str, int] = {}
        self._copies: list[TaskArrays] = []
        self._before = 0  # tasks in `_copies`
        self._memory_initial: dict[tuple[int, int], int] = {}

    def add_resource(self, name: str, capacity: float, shared: bool = False) -> int:
        """Add something with `capacity` units a second, shared by max-min or private."""
        self._resources.append((name, capacity, shared))
        return len(self._resources) - 1

    def add_account(self, component: str, place: str, unit: str, price_j: float) -> int:
        """Add a line of the ledger; an equal line has an equal number."""
        account = Account(component, place, unit, price_j)
        return self._accounts.setdefault(account, len(self._accounts))

    def add_cost(
        self, phases: Sequence[WorkPhase], events: Mapping[int, float] | None = None
    ) -> int:
        """Add what a task does and what it counts, for the whole task, by account.

        An equal row has an equal number.
        """
        counts = () if events is None else tuple(sorted(events.items()))
        row = tuple(
            (phase.latency_s, tuple(sorted(phase.works.items())), phase.repeat, phase.weight)
            for phase in phases
        )
        number = self._costs.setdefault((row, counts), len(self._costs))
        if number < len(self._phase_ptr) - 1:
            return number
        for latency_s, works, repeat, weight in row:
            self._latency_s.append(latency_s)
            self._repeat.append(repeat)
            self._weight.append(weight)
            for resource, amount in works:
                self._work_resource.append(resource)
                self._work_amount.append(amount)
            self._work_ptr.append(len(self._work_resource))
        for account, count in counts:
            self._event_account.append(account)
            self._event_count.append(count)
        self._phase_ptr.append(len(self._latency_s))
        self._event_ptr.append(len(self._event_account))
        return number

    def add_open_cost(self) -> int:
        """Add a row of one phase that is like no other and is priced later (`late_pricing`)."""
        number = len(self._costs)
        self._costs[number] = number
        self._latency_s.append(0.0)
        self._repeat.append(1)
        self._weight.append(1.0)
        self._work_ptr.append(len(self._work_resource))
        self._phase_ptr.append(len(self._latency_s))
        self._event_ptr.append(len(self._event_account))
        return number

    def add_rank(self, multiplicity: int = 1) -> int:
        """Add a rank that stands for `multiplicity` real ones."""
        self._rank_multiplicity.append(multiplicity)
        return len(self._rank_multiplicity) - 1

    def add_stream(self, name: str, rank: int) -> int:
        """Add a queue of `rank` that plays one task at a time."""
        self._streams.append((name, rank))
        return len(self._streams) - 1

    def add_group(self, streams: Iterable[int]) -> int:
        """Add streams that a task occupies together; the first leads; equal groups are one."""
        members = tuple(streams)
        if not members:
            raise RidgelineError("program: a group needs at least one stream")
        number = self._groups.setdefault(members, len(self._groups))
        if number == len(self._group_lead):
            self._group_lead.append(members[0])
        return number

    def set_initial_memory(self, rank: int, kind: str, size_bytes: int) -> None:
        """Say what a rank holds from the beginning."""
        number = self._memory_kinds.setdefault(kind, len(self._memory_kinds))
        self._memory_initial[rank, number] = size_bytes

    def add_task(
        self,
        kind: str,
        label: str,
        *,
        cost: int,
        stream: int = -1,
        group: int = -1,
        deps: Sequence[int] = (),
        priority: int = 0,
        multiplicity: int = 1,
        memory: Iterable[MemoryEntry] = (),
    ) -> int:
        """Add a task to a stream or to a group of streams.

        Parameters
        ----------
        kind, label
            What to call it.
        cost
            Number of its cost row.
        stream, group
            Where it runs; exactly one of the two.
        deps
            Numbers of the earlier tasks that must have ended.
        priority
            Least first among the ready tasks of a stream, then by number.
        multiplicity
            How many equal tasks of the real machine it stands for.
        memory
            What it takes and gives back.

        Raises
        ------
        RidgelineError
            If a dependency is not an earlier task, or both or neither of stream and group is given.
        """
        task = self.n_tasks
        if (stream < 0) == (group < 0):
            raise RidgelineError(f"task {label!r}: give either a stream or a group")
        if deps:
            if max(deps) >= task or min(deps) < 0:
                raise RidgelineError(
                    f"task {label!r}: dependencies {deps} must be from 0 to {task - 1}"
                )
            self._dep_index.extend(deps)
        self._dep_ptr.append(len(self._dep_index))
        self._kind.append(self._kinds.setdefault(kind, len(self._kinds)))
        self._label.append(self._labels.setdefault(label, len(self._labels)))
        self._stream.append(stream if group < 0 else self._group_lead[group])
        self._group.append(group)
        self._cost.append(cost)
        self._priority.append(priority)
        self._multiplicity.append(multiplicity)
        for rank, memory_kind, at_start, at_end in memory:
            self._memory_rank.append(rank)
            self._memory_kind.append(
                self._memory_kinds.setdefault(memory_kind, len(self._memory_kinds))
            )
            self._memory_start.append(at_start)
            self._memory_end.append(at_end)
        self._memory_ptr.append(len(self._memory_rank))
        return task

    @property
    def n_tasks(self) -> int:
        """Number of tasks so far, which is the number of the next one."""
        return self._before + len(self._kind)

    def add_to_block(
        self,
        block: Block,
        kind: str,
        label: str,
        *,
        cost: int,
        stream: int = -1,
        group: int = -1,
        deps: Sequence[int] = (),
        multiplicity: int = 1,
        memory: Iterable[MemoryEntry] = (),
    ) -> int:
        """Add a task to a block and return its place there; as `add_task`.

        Parameters
        ----------
        deps
            Places of earlier tasks in the block, and ports (`ridgeline.engine.blocks.port`).
        """
        if (stream < 0) == (group < 0):
            raise RidgelineError(f"task {label!r}: give either a stream or a group")
        block.tasks.append(
            (
                self._kinds.setdefault(kind, len(self._kinds)),
                self.label(label),
                stream if group < 0 else self._group_lead[group],
                group,
                cost,
                0,
                multiplicity,
            )
        )
        block.deps.append(tuple(deps))
        block.memory.append(
            tuple(
                (rank, self._memory_kinds.setdefault(name, len(self._memory_kinds)), start, end)
                for rank, name, start, end in memory
            )
        )
        return len(block) - 1

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels, by number."""
        return tuple(self._labels)

    def label(self, text: str) -> int:
        """Return the number of a label."""
        return self._labels.setdefault(text, len(self._labels))

    def add_copies(self, blocks: Sequence[Block], order: Ints, first: Ints, ports: Ints) -> None:
        """Add copies of blocks; see `ridgeline.engine.blocks.copies`.

        Ports may name tasks that are added later.

        Raises
        ------
        RidgelineError
            If the copies do not follow the tasks that are there without a gap.
        """
        if len(first) and first[0] != self.n_tasks:
            raise RidgelineError(f"the next task is {self.n_tasks}, not {first[0]}")
        self._flush()
        until = np.cumsum(lengths(blocks)[order])
        n_tasks = int(until[-1]) if len(until) else 0
        cuts = np.searchsorted(until, np.arange(_AT_ONCE, n_tasks, _AT_ONCE))
        for part in np.split(np.arange(len(order)), cuts):
            self._copies.append(copies(blocks, order[part], first[part], ports[part]))
        self._before += n_tasks

    def _flush(self) -> None:
        """Turn the tasks that were added one by one into columns."""
        if not self._kind:
            return
        self._copies.append(
            TaskArrays(
                kind=np.array(self._kind),
                label=np.array(self._label),
                stream=np.array(self._stream),
                group=np.array(self._group),
                cost=np.array(self._cost),
                priority=np.array(self._priority),
                multiplicity=np.array(self._multiplicity),
                dep_count=np.diff(np.array(self._dep_ptr)),
                dep_index=np.array(self._dep_index),
                memory_count=np.diff(np.array(self._memory_ptr)),
                memory_rank=np.array(self._memory_rank),
                memory_kind=np.array(self._memory_kind),
                memory_start=np.array(self._memory_start),
                memory_end=np.array(self._memory_end),
            )
        )
        self._before += len(self._kind)
        self._kind, self._label = array("B"), array("i")
        self._stream, self._group, self._cost = array("i"), array("i"), array("i")
        self._priority, self._multiplicity = array("i"), array("i")
        self._dep_ptr, self._dep_index = _pointer(), array("i")
        self._memory_ptr = _pointer()
        self._memory_rank, self._memory_kind = array("i"), array("i")
        self._memory_start, self._memory_end = array("q"), array("q")

    def build(self) -> Program:
        """Return the Program; the builder may be added to afterwards without changing it."""
        initial = np.zeros((len(self._rank_multiplicity), len(self._memory_kinds)), np.int64)
        for (rank, kind), size_bytes in self._memory_initial.items():
            initial[rank, kind] = size_bytes
        groups = list(self._groups)
        self._flush()
        tasks = joined(self._copies) if self._copies else copies([], *_NO_COPIES)
        self._copies = [tasks] if len(tasks.kind) else []
        return Program(
            resource_names=tuple(name for name, _, _ in self._resources),
            capacity=np.array([capacity for _, capacity, _ in self._resources], np.float64),
            shared=np.array([shared for _, _, shared in self._resources], np.bool_),
            phase_ptr=np.array(self._phase_ptr),
            latency_s=np.array(self._latency_s),
            repeat=np.array(self._repeat),
            weight=np.array(self._weight),
            work_ptr=np.array(self._work_ptr),
            work_resource=np.array(self._work_resource),
            work_amount=np.array(self._work_amount),
            event_ptr=np.array(self._event_ptr),
            event_account=np.array(self._event_account),
            event_count=np.array(self._event_count),
            accounts=tuple(self._accounts),
            kind=tasks.kind,
            stream=tasks.stream,
            group=tasks.group,
            cost=tasks.cost,
            priority=tasks.priority,
            multiplicity=tasks.multiplicity,
            label=tasks.label,
            dep_ptr=_pointers(tasks.dep_count),
            dep_index=tasks.dep_index,
            kind_names=tuple(self._kinds),
            label_names=tuple(self._labels),
            group_ptr=np.cumsum([0, *map(len, groups)], dtype=np.int64),
            group_stream=np.array([s for members in groups for s in members], np.int32),
            stream_names=tuple(name for name, _ in self._streams),
            stream_rank=np.array([rank for _, rank in self._streams], np.int32),
            rank_multiplicity=np.array(self._rank_multiplicity),
            memory_ptr=_pointers(tasks.memory_count),
            memory_rank=tasks.memory_rank,
            memory_kind=tasks.memory_kind,
            memory_start=tasks.memory_start,
            memory_end=tasks.memory_end,
            memory_kinds=tuple(self._memory_kinds),
            memory_initial=initial,
        )


_AT_ONCE = 2**20
"""Tasks that are copied at a time: what it takes to copy them is several times as large."""
_NO_COPIES = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 0), np.int64))


def _pointers(counts: Ints) -> Ints:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))


def _pointer() -> array[Any]:
    return array("q", [0])
