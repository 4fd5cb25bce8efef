"""A simulated step as an Execution of every rank, to be written as Chakra traces.

Compute tasks keep their time, arithmetic and traffic, so that the trace can be replayed as measured
or priced on another machine. A message between pipeline stages, one task of the simulation, is a
send and a receive. Tasks of a rank stand in the order in which they began.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np

from ridgeline.engine.program import Ints, Program
from ridgeline.errors import RidgelineError
from ridgeline.parallel.emit.host_launches import ISSUE
from ridgeline.parallel.lower import COLLECTIVE
from ridgeline.report.result import Result
from ridgeline.report.summary import software_text
from ridgeline.workload.execution import COLLECTIVES, FORMATS, Execution, TaskKind

MAX_TASKS = 50_000_000
_STREAMS = ("compute", "host", "network", "send", "receive", "memory")


def as_execution(result: Result) -> Execution:
    """Return the tasks of all ranks of a simulated step.

    Raises
    ------
    RidgelineError
        If ranks were folded (simulate with ``fold=False``), there are more than `MAX_TASKS`, or
        keys and values go round a ring, which is none of the collectives of a trace.
    """
    lowered = result.details.lowered
    if any(len(ranks) > 1 for ranks in lowered.classes):
        raise RidgelineError(
            "a trace has the tasks of every rank, but equal ranks were simulated once; use"
            " simulate(..., fold=False)"
        )
    if any(talk.op in {"send-recv", "halo"} for talk in lowered.talks.values()):
        raise RidgelineError(
            "a trace has no collective in which every rank sends to the next, as ring attention"
            " does; use cp_comm_type=all-gather"
        )
    return _Writer(result).write()


class _Message(NamedTuple):
    """Simulated ranks of both ends."""

    source: int
    target: int


class _Writer:
    """Collects the columns of an Execution, rank by rank."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.program: Program = result.details.lowered.program
        self.real = [ranks[0] for ranks in result.details.lowered.classes]
        self.columns = _columns(result)
        self.messages = self._messages()
        self.streams = dict(zip(_STREAMS, range(len(_STREAMS)), strict=True))
        self.groups: dict[tuple[int, ...], int] = {}

    def write(self) -> Execution:
        tasks = self._tasks()
        total = sum(map(len, tasks))
        if total > MAX_TASKS:
            raise RidgelineError(
                f"the trace would have {total} tasks; at most {MAX_TASKS} are written"
            )
        parts: dict[str, list[Any]] = defaultdict(list)
        ptr, order = [0], sorted(range(len(self.real)), key=self.real.__getitem__)
        for rank in order:
            for name, values in self._rank(rank, tasks[rank], ptr[-1]).items():
                parts[name].append(values)
            ptr.append(ptr[-1] + len(tasks[rank]))
        whole = {name: np.concatenate(values) for name, values in parts.items()}
        counts = whole.pop("dep_count")
        members = [np.array(group, np.int32) for group in self.groups]
        sizes = [len(group) for group in members]
        return Execution(
            name=self.result.manifest["model"]["name"],
            ranks=np.array([self.real[rank] for rank in order], np.int32),
            world=len(order),
            task_ptr=np.array(ptr, np.int64),
            dep_ptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            group_ptr=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            group_rank=np.concatenate([*members, np.zeros(0, np.int32)]).astype(np.int32),
            group_names=tuple(f"group{number}" for number in range(len(members))),
            stream_names=tuple(self.streams),
            label_names=self.program.label_names,
            notes=(
                f"a step simulated by ridgeline {self.result.manifest['ridgeline']}",
                software_text(self.result),
            ),
            **whole,
        )

    def _messages(self) -> dict[int, _Message]:
        """Tasks that send to another rank: it is where those that wait for them are."""
        program = self.program
        sends = self.columns["kind"] == TaskKind.SEND
        owner = np.repeat(np.arange(program.n_tasks), np.diff(program.dep_ptr))
        rank_of = program.stream_rank[program.stream]
        met = sends[program.dep_index]
        return {
            int(task): _Message(int(rank_of[task]), int(rank_of[user]))
            for task, user in zip(program.dep_index[met], owner[met], strict=True)
        }

    def _tasks(self) -> list[Ints]:
        """Tasks of each simulated rank, its own and those that it receives, as they begin."""
        program = self.program
        found: list[list[Ints]] = [[] for _ in self.real]
        rank_of = program.stream_rank[program.stream]
        alone = program.group < 0
        sizes = np.diff(program.group_ptr)
        of_group = np.split(program.stream_rank[program.group_stream], np.cumsum(sizes)[:-1])
        together: list[list[int]] = [[] for _ in self.real]
        for group, ranks in enumerate(of_group if len(sizes) else ()):
            for rank in set(ranks.tolist()):
                together[rank].append(group)
        received: list[list[int]] = [[] for _ in self.real]
        for task, message in self.messages.items():
            received[message.target].append(task)
        start_s = self.columns["start_s"]
        for rank in range(len(self.real)):
            mine = (alone & (rank_of == rank)) | np.isin(program.group, together[rank])
            found[rank] += [np.flatnonzero(mine), np.array(received[rank], np.int64)]
        joined = [np.concatenate(parts) for parts in found]
        return [tasks[np.lexsort((tasks, start_s[tasks]))] for tasks in joined]

    def _rank(self, rank: int, tasks: Ints, first: int) -> dict[str, Any]:
        """Columns of one rank; `first` is the number of its first task."""
        program = self.program
        columns = {name: values[tasks] for name, values in self.columns.items()}
        place = np.full(program.n_tasks, -1, np.int64)
        place[tasks] = np.arange(len(tasks))
        receives = np.array(
            [int(t) in self.messages and self.messages[int(t)].target == rank for t in tasks], bool
        )
        counts = np.where(receives, 0, np.diff(program.dep_ptr)[tasks])
        starts = np.repeat(program.dep_ptr[tasks] - (np.cumsum(counts) - counts), counts)
        deps = place[program.dep_index[starts + np.arange(counts.sum())]]
        known = deps >= 0  # a predecessor on another rank is met through a collective
        owner = np.repeat(np.arange(len(tasks)), counts)[known]
        columns["kind"][receives] = TaskKind.RECEIVE
        peers = np.full(len(tasks), -1, np.int32)
        for i in np.flatnonzero(columns["kind"] == TaskKind.SEND):
            peers[i] = self.real[self.messages[int(tasks[i])].target]
        for i in np.flatnonzero(receives):
            peers[i] = self.real[self.messages[int(tasks[i])].source]
        talks = np.isin(columns["kind"], (TaskKind.SEND, TaskKind.RECEIVE))
        return {
            **columns,
            "id": np.arange(len(tasks)),
            "stream": self._queues(tasks, receives),
            "group": self._members(tasks, columns["kind"]),
            "peer": peers,
            "tag": np.where(talks, tasks, 0).astype(np.int32),
            "dep_count": np.bincount(owner, minlength=len(tasks)),
            "dep_index": (deps[known] + first).astype(np.int32),
        }

    def _queues(self, tasks: Ints, receives: Any) -> Any:
        """Queue of each task: one for each stream of a rank, and for each it receives from."""
        program = self.program
        found = np.zeros(len(tasks), np.int32)
        for i, stream in enumerate(program.stream[tasks].tolist()):
            name = program.stream_names[stream].rpartition("/")[2]
            if receives[i]:
                rank = self.real[int(program.stream_rank[stream])]
                name = f"receive-from-{rank}-{name}"
            found[i] = self.streams.setdefault(name, len(self.streams))
        return found

    def _members(self, tasks: Ints, kinds: Any) -> Any:
        """Group of each collective; -1 where it is all ranks."""
        program = self.program
        found = np.full(len(tasks), -1, np.int32)
        for i in np.flatnonzero(kinds == TaskKind.COLLECTIVE):
            group = int(program.group[tasks[i]])
            streams = program.group_stream[program.group_ptr[group] : program.group_ptr[group + 1]]
            ranks = tuple(sorted(self.real[rank] for rank in program.stream_rank[streams].tolist()))
            if len(ranks) < len(self.real):
                found[i] = self.groups.setdefault(ranks, len(self.groups))
        return found


def _columns(result: Result) -> dict[str, Any]:
    """[T] What each task of the program is, as columns of an Execution."""
    lowered, timeline = result.details.lowered, result.details.timeline
    program = lowered.program
    n = program.n_tasks
    flops, size = np.full(n, np.nan), np.full(n, np.nan)
    format_, op = np.full(n, -1, np.int8), np.full(n, -1, np.int8)
    kind = np.full(n, TaskKind.COMPUTE, np.uint8)
    kind[program.kind == _kind(program, ISSUE)] = TaskKind.HOST
    far = result.details.cluster.device.far_memory
    for row, cost in lowered.cost_of_row.items():
        mine = program.cost == row
        flops[mine] = sum(cost.flops.values())
        size[mine] = cost.traffic_bytes.get(far, 0.0)
        formats = {name.rpartition(".")[2]: done for name, done in cost.flops.items()}
        if formats and (name := max(formats, key=lambda f: formats[f])) in FORMATS:
            format_[mine] = FORMATS.index(name)
    kinds = {"send": TaskKind.SEND, "copy": TaskKind.MEMORY}
    for task in np.flatnonzero(program.kind == _kind(program, COLLECTIVE)):
        label = program.label_names[int(program.label[task])]
        talk = lowered.talks.get((int(program.cost[task]), label))
        flops[task] = size[task] = np.nan
        if talk is None or (talk.op in COLLECTIVES and program.group[task] < 0):
            kind[task] = TaskKind.MARK  # between chunks of one stage, or of a group of one
            continue
        kind[task], size[task] = kinds.get(talk.op, TaskKind.COLLECTIVE), talk.size_bytes
        op[task] = COLLECTIVES.index(talk.op) if talk.op in COLLECTIVES else -1
    return {
        "kind": kind,
        "label": program.label,
        "start_s": timeline.start_s,
        "duration_s": timeline.end_s - timeline.start_s,
        "flops": flops,
        "size_bytes": size,
        "format": format_,
        "op": op,
    }


def _kind(program: Program, name: str) -> int:
    return program.kind_names.index(name) if name in program.kind_names else -1
