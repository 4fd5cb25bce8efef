"""Messages between ranks: the task that sends each, and the first one that reads it elsewhere."""

from __future__ import annotations

import numpy as np

from ridgeline.engine.program import Ints
from ridgeline.engine.timeline import Timeline
from ridgeline.parallel.lower import COLLECTIVE


def messages(timeline: Timeline) -> tuple[Ints, Ints]:
    """Return sending and reading task of every message between ranks, [n] each.

    A message is on a stream of its sender alone; collectives are none. Of the tasks of one rank
    that read it, the first to start counts.
    """
    program = timeline.program
    if COLLECTIVE not in program.kind_names:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    sends = program.kind == program.kind_names.index(COLLECTIVE)
    rank_of = program.stream_rank[program.stream]
    readers = np.repeat(np.arange(program.n_tasks), np.diff(program.dep_ptr))
    sent = program.dep_index
    mine = np.flatnonzero(
        sends[sent] & (program.group[sent] < 0) & (rank_of[sent] != rank_of[readers])
    )
    start_s = timeline.start_s
    order = mine[np.lexsort((start_s[readers[mine]], rank_of[readers[mine]], sent[mine]))]
    ends = np.stack((sent[order], rank_of[readers[order]]), axis=1)
    first = order[np.unique(ends, axis=0, return_index=True)[1]]
    return sent[first].astype(np.int64), readers[first].astype(np.int64)
