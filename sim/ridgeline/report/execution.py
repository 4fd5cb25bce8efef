"""The answer of playing an Execution: time, energy and traffic of the traced ranks; manifest."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline import views
from ridgeline.engine.program import Floats, Ints
from ridgeline.engine.timeline import Timeline
from ridgeline.hardware.cluster import Cluster
from ridgeline.parallel.executions.lower import LoweredExecution
from ridgeline.report.accounting import (
    BUBBLE,
    EXPOSED,
    critical_rank,
    energy_account,
    overlap,
    traffic_account,
    union,
)
from ridgeline.report.manifest import cluster_fingerprint, digest, execution_fingerprint
from ridgeline.version import __version__
from ridgeline.workload.execution import TaskKind

MEASURED = "kernels as measured"
_COMM = (TaskKind.COLLECTIVE, TaskKind.SEND, TaskKind.RECEIVE, TaskKind.MEMORY)


@dataclass(frozen=True)
class ExecutionDetails:
    """What a result was computed from."""

    cluster: Cluster
    lowered: LoweredExecution
    timeline: Timeline


@dataclass(frozen=True)
class ExecutionResult:
    """Time, energy and traffic of a trace on a machine.

    ``time_s`` and ``limits_s`` split the wall clock of the rank that ends last; `rank_time_s` is
    when each traced rank ends. ``energy_j`` is None where tasks were replayed of which nobody knows
    what they do. ``flops_per_step`` is the arithmetic that the trace states, ``mfu`` that over the
    peak of the format it runs in. SI units.
    """

    step_time_s: float
    rank_time_s: tuple[float, ...]
    flops_per_step: float
    mfu: float | None
    time_s: Mapping[str, float]
    energy_j: Mapping[str, float] | None
    traffic_bytes: Mapping[str, float]
    bound: str
    limits_s: Mapping[str, float]
    manifest: Mapping[str, Any]
    details: ExecutionDetails = field(repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the details as plain values, with the keys of the JSON form."""
        values = {name: value for name, value in vars(self).items() if name != "details"}
        return json.loads(json.dumps(values))  # type: ignore[no-any-return]

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the result as JSON text, and write it to `path` if one is given."""
        text = json.dumps(self.to_dict(), indent=2) + "\n"
        if path is not None:
            from ridgeline.report.files import write_text

            write_text(path, text)
        return text

    def summary(self) -> str:
        """Return the answer as text for a terminal of 100 columns."""
        return views.view("execution_text")(self)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return (
            f"<ExecutionResult {self.manifest['execution']['name']} on "
            f"{self.manifest['cluster']['name']}: {self.step_time_s * 1e3:.4g} ms, "
            f"bound by {self.bound}>"
        )


def execution_result(
    lowered: LoweredExecution, timeline: Timeline, cluster: Cluster
) -> ExecutionResult:
    """Account for a played execution."""
    time_s, limits_s = _time(lowered, timeline)
    device, execution = cluster.device, lowered.execution
    energy = (
        None
        if lowered.n_uncounted
        else energy_account(timeline, device.idle_power.value, len(execution.ranks))
    )
    return ExecutionResult(
        step_time_s=timeline.makespan_s,
        rank_time_s=tuple(_rank_ends(lowered, timeline).tolist()),
        flops_per_step=execution.total_flops,
        mfu=_mfu(lowered, timeline, cluster),
        time_s=time_s,
        energy_j=energy,
        traffic_bytes=traffic_account(timeline),
        bound=next(iter(limits_s)),
        limits_s=limits_s,
        manifest=_manifest(lowered, cluster),
        details=ExecutionDetails(cluster, lowered, timeline),
    )


def _rank_ends(lowered: LoweredExecution, timeline: Timeline) -> Floats:
    """[N] When the last task of every traced rank ends."""
    ends = timeline.end_s[lowered.units.of_task]
    last = np.zeros(len(lowered.execution.ranks))
    np.maximum.at(last, lowered.execution.rank_of_task(), ends)
    return last


def _mfu(lowered: LoweredExecution, timeline: Timeline, cluster: Cluster) -> float | None:
    """Stated FLOPs over the peak of the engine and format that most of them run in."""
    done: dict[str, float] = {}
    for index, count in timeline.ledger().items():
        account = timeline.program.accounts[index]
        if account.unit == "FLOP":
            done[account.place] = done.get(account.place, 0.0) + count
    if not done or timeline.makespan_s == 0.0:
        return None
    engine, _, format_ = max(done, key=lambda name: done[name]).rpartition(".")
    peak = cluster.device.engines[engine].rates[format_].value
    ranks = len(lowered.execution.ranks)
    return lowered.execution.total_flops / (peak * ranks * timeline.makespan_s)


def _time(
    lowered: LoweredExecution, timeline: Timeline
) -> tuple[dict[str, float], dict[str, float]]:
    """Split the wall clock of the rank that ends last.

    While a compute task of it runs, the time is ``compute`` and what memory adds (of tasks that run
    side by side, in proportion); else ``exposed_communication`` while it communicates, and
    ``bubble`` for the rest, the host's work included.
    """
    e, units = lowered.execution, lowered.units
    rank = critical_rank(timeline)
    mine = units.of_task[e.task_ptr[rank] : e.task_ptr[rank + 1]]
    kind = timeline.program.kind[mine]
    kernels = mine[kind == TaskKind.COMPUTE]
    busy = union(timeline.start_s[kernels], timeline.end_s[kernels])
    talking = mine[np.isin(kind, _COMM)]
    network = union(timeline.start_s[talking], timeline.end_s[talking])
    total = timeline.makespan_s
    working = math.fsum(busy[:, 1] - busy[:, 0])
    exposed = math.fsum(network[:, 1] - network[:, 0]) - overlap(busy, network)
    exposed = min(max(exposed, 0.0), max(total - working, 0.0))
    limits, stall = _limits(timeline, kernels)
    played = math.fsum(limits.values())
    shrink = working / played if played else 0.0
    parts = {
        "compute": working - stall * shrink,
        "memory_stall": stall * shrink,
        "exposed_communication": exposed,
        "bubble": max(total - working - exposed, 0.0),
        "input": 0.0,
        "optimizer": 0.0,
    }
    limits = {name: seconds * shrink for name, seconds in limits.items()}
    limits |= {EXPOSED: parts["exposed_communication"], BUBBLE: parts["bubble"]}
    ordered = dict(sorted(limits.items(), key=lambda item: -item[1]))
    return {**parts, "total": total}, ordered


def _limits(timeline: Timeline, kernels: Ints) -> tuple[dict[str, float], float]:
    """Time of compute tasks by what limits each, and what memory adds to arithmetic."""
    p = timeline.program
    limits: dict[str, float] = {}
    stall = 0.0
    rows, counts = np.unique(p.cost[kernels], return_counts=True)
    for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
        first, last = int(p.phase_ptr[row]), int(p.phase_ptr[row + 1])
        if first == last:
            continue
        latency_s = float(p.latency_s[first])
        works = range(int(p.work_ptr[first]), int(p.work_ptr[first + 1]))
        times = {
            p.resource_names[p.work_resource[w]]: float(
                p.work_amount[w] / p.capacity[p.work_resource[w]]
            )
            for w in works
        }
        if not times:
            limits[MEASURED] = limits.get(MEASURED, 0.0) + count * latency_s
            continue
        arithmetic = max((t for name, t in times.items() if "." in name), default=0.0)
        memory = max((t for name, t in times.items() if "." not in name), default=0.0)
        stall += count * max(memory - arithmetic, 0.0)
        name = max(times, key=lambda name: times[name])
        what = f"{name} {'arithmetic' if '.' in name else 'bandwidth'}"
        what = "launch latency" if latency_s > times[name] else what
        limits[what] = limits.get(what, 0.0) + count * (latency_s + times[name])
    return limits, stall


def _manifest(lowered: LoweredExecution, cluster: Cluster) -> dict[str, Any]:
    """Return what is needed to repeat the result and to judge it."""
    e = lowered.execution
    content = {
        "ridgeline": __version__,
        "scope": "the traced tasks, once",
        "execution": {
            "name": e.name,
            "fingerprint": execution_fingerprint(e),
            "tasks": e.n_tasks,
            "ranks": len(e.ranks),
            "world": e.world,
        },
        "cluster": {
            "name": cluster.name,
            "fingerprint": cluster_fingerprint(cluster),
            "overrides": dict(cluster.overrides),
        },
        "device": {"name": cluster.device.name, "year": cluster.device.year},
        "times": lowered.times,
        "tasks_replayed": lowered.n_measured,
        "format_where_unstated": lowered.format,
        "compute_model": (
            "replayed as measured"
            if lowered.times == "measured"
            else "launch latency + max(stated FLOP at the rate that matrix products reach, stated"
            " bytes at the farthest memory's achievable bandwidth)"
        ),
        "energy_counted": lowered.n_uncounted == 0,
        "not_modelled": ["memory use", "input pipeline", "accuracy", "host, unless replayed"],
        "io_modelled": False,
        "accuracy_modelled": False,
        "notes": list(e.notes),
    }
    return {**content, "hash": digest(content)}
