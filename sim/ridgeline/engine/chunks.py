"""Tasks cut into chunks, between which their streams may do something more urgent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ridgeline.engine.program import Program
from ridgeline.errors import RidgelineError, nearest


def in_chunks(program: Program, kind: str, chunks: int) -> Program:
    """Cut every task of a kind into equal chunks that follow each other.

    A stream finishes the chunk that it is at and then picks the ready task with the least
    priority number (rule 1 of `program`): a large all-reduce is pre-empted at the next border by
    one of greater urgency and goes on afterwards. Every chunk does a share of each phase's work,
    with all of its latencies; events are shared out too. Memory is taken with the first chunk
    and given back with the last.

    Parameters
    ----------
    kind
        Of the tasks that are cut.
    chunks
        How many of each; 1 changes nothing.

    Raises
    ------
    RidgelineError
        If there is no such kind, or less than one chunk.
    """
    if chunks < 1:
        raise RidgelineError(f"a task is cut into one chunk or more, found {chunks}")
    if kind not in program.kind_names:
        raise RidgelineError(
            f"no task is of the kind {kind!r}{nearest(kind, program.kind_names)} "
            f"(there are: {', '.join(program.kind_names)})"
        )
    p = program
    cut = p.kind == p.kind_names.index(kind)
    size = np.where(cut, chunks, 1)
    last = np.cumsum(size) - 1  # new number of each task's last chunk
    old = np.repeat(np.arange(p.n_tasks), size)
    place = np.arange(len(old)) - (last - size + 1)[old]
    n_rows = len(p.phase_ptr) - 1
    # a first chunk waits for the last chunks of what the task waited for, others for the one before
    n_deps = np.where(place == 0, np.diff(p.dep_ptr)[old], 1)
    dep_ptr = np.concatenate((np.zeros(1, np.int64), np.cumsum(n_deps)))
    dep_index = np.empty(dep_ptr[-1], np.int32)
    owner = np.repeat(np.arange(len(old)), n_deps)
    first = place[owner] == 0
    dep_index[first] = last[p.dep_index]
    dep_index[~first] = owner[~first] - 1
    # memory entries of the start go with the first chunk, of the end with the last
    n_memory = np.diff(p.memory_ptr)
    is_end = (place == size[old] - 1) & (place > 0)
    has = np.where((place == 0) | is_end, n_memory[old], 0)
    memory_ptr = np.concatenate((np.zeros(1, np.int64), np.cumsum(has)))
    holder = np.repeat(np.arange(len(old)), has)
    entry = p.memory_ptr[old[holder]] + np.arange(len(holder)) - memory_ptr[holder]
    single = size[old[holder]] == 1
    return replace(
        p,
        phase_ptr=np.concatenate((p.phase_ptr, p.phase_ptr[-1] + p.phase_ptr[1:])),
        latency_s=np.tile(p.latency_s, 2),
        repeat=np.tile(p.repeat, 2),
        weight=np.tile(p.weight, 2),
        work_ptr=np.concatenate((p.work_ptr, p.work_ptr[-1] + p.work_ptr[1:])),
        work_resource=np.tile(p.work_resource, 2),
        work_amount=np.concatenate((p.work_amount, p.work_amount / chunks)),
        event_ptr=np.concatenate((p.event_ptr, p.event_ptr[-1] + p.event_ptr[1:])),
        event_account=np.tile(p.event_account, 2),
        event_count=np.concatenate((p.event_count, p.event_count / chunks)),
        kind=p.kind[old],
        stream=p.stream[old],
        group=p.group[old],
        cost=(p.cost[old] + np.where(cut[old], n_rows, 0)).astype(np.int32),
        priority=p.priority[old],
        multiplicity=p.multiplicity[old],
        label=p.label[old],
        dep_ptr=dep_ptr,
        dep_index=dep_index,
        memory_ptr=memory_ptr,
        memory_rank=p.memory_rank[entry],
        memory_kind=p.memory_kind[entry],
        memory_start=np.where(single | (place[holder] == 0), p.memory_start[entry], 0),
        memory_end=np.where(single | (place[holder] > 0), p.memory_end[entry], 0),
    )
