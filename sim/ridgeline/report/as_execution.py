"""A simulated step as an Execution of every real rank, to be written as Chakra traces.

A class of equivalent ranks was simulated once; each of its members gets the tasks of the one that
was. Compute tasks keep their time, arithmetic and traffic, so that the trace can be replayed as
measured or priced on another machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ridgeline.engine.program import Program
from ridgeline.errors import RidgelineError
from ridgeline.parallel.lower import COLLECTIVE
from ridgeline.report.result import Result
from ridgeline.workload.execution import COLLECTIVES, FORMATS, Execution, TaskKind

MAX_TASKS = 50_000_000


def as_execution(result: Result) -> Execution:
    """Return the tasks of all ranks of a simulated step.

    Raises
    ------
    RidgelineError
        If there are more than `MAX_TASKS`, or the step is distributed by more than `data`.
    """
    lowered = result.details.lowered
    program = lowered.program
    tasks = [_tasks_of(program, rank) for rank in range(len(lowered.classes))]
    total = sum(len(t) * len(c) for t, c in zip(tasks, lowered.classes, strict=True))
    _check(result)
    if total > MAX_TASKS:
        raise RidgelineError(f"the trace would have {total} tasks; at most {MAX_TASKS} are written")
    simulated = {rank: i for i, ranks in enumerate(lowered.classes) for rank in ranks}
    ranks = sorted(simulated)
    columns = _columns(result)
    parts: dict[str, list[Any]] = {name: [] for name in columns}
    ptr, dep_count, dep_index, ids = [0], [], [], []
    for rank in ranks:
        mine = tasks[simulated[rank]]
        place = np.full(program.n_tasks, -1, np.int64)
        place[mine] = np.arange(len(mine))
        counts = np.diff(program.dep_ptr)[mine]
        deps = place[_of_rows(program.dep_ptr, program.dep_index, mine)]
        known = deps >= 0  # a predecessor on another rank is met through a collective
        owner = np.repeat(np.arange(len(mine)), counts)[known]
        dep_count.append(np.bincount(owner, minlength=len(mine)))
        dep_index.append(deps[known] + ptr[-1])
        ids.append(np.arange(len(mine)))
        for name, values in columns.items():
            parts[name].append(values[mine])
        ptr.append(ptr[-1] + len(mine))
    whole = {name: np.concatenate(values) for name, values in parts.items()}
    n = ptr[-1]
    return Execution(
        name=result.manifest["model"]["name"],
        ranks=np.array(ranks, np.int32),
        world=len(ranks),
        task_ptr=np.array(ptr, np.int64),
        id=np.concatenate(ids),
        group=np.full(n, -1, np.int32),
        peer=np.full(n, -1, np.int32),
        tag=np.zeros(n, np.int32),
        dep_ptr=np.concatenate([[0], np.cumsum(np.concatenate(dep_count))]).astype(np.int64),
        dep_index=np.concatenate(dep_index).astype(np.int32),
        group_ptr=np.zeros(1, np.int64),
        group_rank=np.zeros(0, np.int32),
        group_names=(),
        stream_names=("compute", "host", "network", "send", "receive", "memory"),
        label_names=program.label_names,
        notes=(f"a step simulated by ridgeline {result.manifest['ridgeline']}",),
        **whole,
    )


def _check(result: Result) -> None:
    """Check that every collective is one of all ranks, whose operation and size are known."""
    lowered, plan = result.details.lowered, result.details.plan
    program = lowered.program
    talks = int((program.kind == _kind(program, COLLECTIVE)).sum())
    if talks != len(lowered.schedules) or any(
        schedule.n_ranks != plan.devices for schedule in lowered.schedules
    ):
        raise RidgelineError(
            f"the plan {plan} cannot be written as traces: only steps that are distributed by data"
            " alone, with an all-reduce of the gradients, can"
        )


def _columns(result: Result) -> dict[str, Any]:
    """[T] What each task of the program is, as columns of an Execution."""
    lowered, timeline = result.details.lowered, result.details.timeline
    program = lowered.program
    collective = program.kind == _kind(program, COLLECTIVE)
    n = program.n_tasks
    flops, size = np.full(n, np.nan), np.full(n, np.nan)
    format_ = np.full(n, -1, np.int8)
    far = result.details.cluster.device.far_memory
    for row, cost in lowered.cost_of_row.items():
        mine = program.cost == row
        flops[mine] = sum(cost.flops.values())
        size[mine] = cost.traffic_bytes.get(far, 0.0)
        formats = {name.rpartition(".")[2]: done for name, done in cost.flops.items()}
        if formats and (name := max(formats, key=lambda f: formats[f])) in FORMATS:
            format_[mine] = FORMATS.index(name)
    op = np.full(n, -1, np.int8)
    issued = np.flatnonzero(collective)
    for task, schedule in zip(issued.tolist(), lowered.schedules, strict=True):
        op[task] = COLLECTIVES.index(schedule.op)
        size[task] = schedule.size_bytes
    kind = np.where(collective, TaskKind.COLLECTIVE, TaskKind.COMPUTE).astype(np.uint8)
    return {
        "kind": kind,
        "stream": np.where(collective, 2, 0).astype(np.int32),
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


def _tasks_of(program: Program, rank: int) -> Any:
    """Tasks that occupy a stream of a rank, by number."""
    alone = np.flatnonzero((program.group < 0) & (program.stream_rank[program.stream] == rank))
    on_rank = program.stream_rank[program.group_stream] == rank
    sizes = np.diff(program.group_ptr)
    groups = np.unique(np.repeat(np.arange(len(sizes)), sizes)[on_rank])
    together = np.flatnonzero(np.isin(program.group, groups))
    return np.sort(np.concatenate([alone, together]))


def _of_rows(ptr: Any, index: Any, rows: Any) -> Any:
    """Concatenate some rows of a CSR table."""
    counts = np.diff(ptr)[rows]
    starts = np.repeat(ptr[rows] - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
    return index[starts + np.arange(counts.sum())]
