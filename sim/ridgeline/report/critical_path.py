"""Critical path of a step, by name: tasks that may not take longer."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from ridgeline.engine.program import Ints
from ridgeline.parallel.emit.host_launches import ISSUE
from ridgeline.parallel.lower import COLLECTIVE
from ridgeline.parallel.plan.mesh import Mesh

if TYPE_CHECKING:
    from ridgeline.report.result import Result

_SHOWN = 5


def critical_path_s(result: Result) -> dict[str, float]:
    """Split the step time by what the tasks of its critical path do, the longest first.

    The path begins at 0 and has no gap (`Timeline.critical_path`), so that its parts add up to the
    step time. A part is a pass of the network, an update, communication along a dimension of the
    plan or issuing by the host; in a pipeline on one of its stages, counted from 1. `input` is what
    the step waits for its data afterwards.

    Returns
    -------
    Seconds by part.
    """
    program, timeline = result.details.lowered.program, result.details.timeline
    path = timeline.critical_path()
    stage = _stage_of_rank(result)[program.stream_rank[_streams(result, path)]]
    what = np.column_stack((stage, program.kind[path], program.cost[path]))
    seconds: dict[str, list[float]] = defaultdict(list)
    of_what, which = np.unique(what, axis=0, return_inverse=True)
    which = which.ravel()  # numpy 2.0 shapes it like its input
    ordered = timeline.durations_s[path[np.argsort(which, kind="stable")]]
    of_each = np.split(ordered, np.cumsum(np.bincount(which, minlength=len(of_what)))[:-1])
    for (number, kind, row), durations in zip(of_what.tolist(), of_each, strict=True):
        name = _name(result, program.kind_names[kind], row)
        name = f"stage {number + 1}: {name}" if number >= 0 else name
        seconds[name].extend(durations.tolist())
    parts = {name: math.fsum(its) for name, its in seconds.items()}
    if result.time_s["input"] > 0:
        parts["input"] = result.time_s["input"]
    return dict(sorted(parts.items(), key=lambda part: -part[1]))


def path_text(result: Result) -> str:
    """Say in one line what the critical path does, with shares of the step time."""
    parts = {name: time_s for name, time_s in result.critical_path_s.items() if time_s > 0}
    shown = [f"{name} {time_s / result.step_time_s:.0%}" for name, time_s in parts.items()]
    rest = 1 - math.fsum(list(parts.values())[:_SHOWN]) / result.step_time_s
    others = [f"other {rest:.0%}"] if len(shown) > _SHOWN else []
    return "critical path: " + ", ".join([*shown[:_SHOWN], *others])


def _streams(result: Result, path: Ints) -> Ints:
    """Return a stream of each task: of a gang, the first."""
    program = result.details.lowered.program
    group = program.group[path]
    found = program.stream[path].astype(np.int64)
    found[group >= 0] = program.group_stream[program.group_ptr[group[group >= 0]]]
    return found


def _stage_of_rank(result: Result) -> Ints:
    """Return the stage of each simulated rank; -1 in plans of one stage."""
    classes, plan = result.details.lowered.classes, result.details.plan
    stages = np.full(len(classes), -1)
    mesh = Mesh.of(plan)
    for stage in range(plan.pipeline if plan.pipeline > 1 else 0):
        ranks = set(mesh.stage(stage).ravel().tolist())
        stages[[i for i, alike in enumerate(classes) if alike[0] in ranks]] = stage
    return stages


def _name(result: Result, kind: str, row: int) -> str:
    if kind == ISSUE:
        return "host issue"
    if kind != COLLECTIVE:
        return kind
    return f"communication ({result.details.lowered.dimension_of_row.get(row, 'other')})"
