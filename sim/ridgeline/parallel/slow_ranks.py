"""Slow ranks: the tasks of some simulated ranks take longer than those of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ridgeline.engine.stochastic import with_slow_tasks
from ridgeline.errors import ConfigError
from ridgeline.kernels import OpCost
from ridgeline.parallel.lower import COLLECTIVE, Lowered


def with_slow_ranks(lowered: Lowered, slow: Sequence[tuple[int, float]]) -> Lowered:
    """Return a step in which the ops of some ranks take so many times as long.

    Parameters
    ----------
    slow
        Rank, and how many times as long its ops take; collectives are as fast as ever, and wait.

    Raises
    ------
    ConfigError
        If there is no such rank.
    """
    simulated = {rank: i for i, members in enumerate(lowered.classes) for rank in members}
    for rank, factor in slow:
        if rank not in simulated:
            raise ConfigError(
                f"rank {rank}: the job has ranks 0 to {len(simulated) - 1}", field="faults"
            )
        program = lowered.program
        computes = np.array([name != COLLECTIVE for name in program.kind_names])
        mine = program.stream_rank[program.stream] == simulated[rank]
        tasks = np.flatnonzero(mine & computes[program.kind])
        program, rows = with_slow_tasks(program, tasks, factor)
        costs = dict(lowered.cost_of_row)
        costs |= {
            new: _slower(costs[old], factor) for old, new in rows.items() if old in costs
        }  # fmt: skip
        lowered = replace(lowered, program=program, cost_of_row=costs)
    return lowered


def _slower(cost: OpCost, factor: float) -> OpCost:
    parts = cost.latency_parts
    return replace(
        cost,
        latency_s=cost.latency_s * factor,
        latency_parts=None if parts is None else parts.times(factor),
        engine_work={name: work * factor for name, work in cost.engine_work.items()},
        level_work={name: work * factor for name, work in cost.level_work.items()},
    )
