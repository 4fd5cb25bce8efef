"""Export of a timeline as Chrome trace events, which Perfetto and chrome://tracing open.

Format: "Trace Event Format" of the Catapult project (JSON object format): complete events ``X``
with microseconds, metadata events ``M`` that name processes and threads, counter events ``C``.
A simulated rank is a process and its streams are the threads. Arrows (flow events ``s`` and ``f``)
lead from every message between ranks to the task of its receiver that reads it. The critical path
is a process of its own, with arrows along it from stream to stream.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.engine.program import Program
from ridgeline.engine.timeline import Timeline
from ridgeline.report.accounting import limiting
from ridgeline.report.figures.style import stamp_text
from ridgeline.report.files import replacing, write_text
from ridgeline.report.messages import messages
from ridgeline.report.power_track import power_track

if TYPE_CHECKING:
    from ridgeline.report.result import Details, Result

_US = 1e6


def write_trace(result: Result, path: str | Path) -> None:
    """Write the timeline of a result as a Chrome trace; gzipped if the path ends in ``.gz``.

    Raises
    ------
    ConfigError
        If the file cannot be written.
    """
    text = json.dumps(trace(result), separators=(",", ":")) + "\n"
    if Path(path).suffix == ".gz":
        with replacing(path) as temporary:
            # No time in the header: equal results make equal bytes.
            temporary.write_bytes(gzip.compress(text.encode(), mtime=0))
    else:
        write_text(path, text)


def trace(result: Result) -> dict[str, Any]:
    """Return the timeline of a result as a Chrome trace object.

    A task that occupies several streams together is there once on each of them.
    """
    details = result.details
    return {
        "displayTimeUnit": "ms",
        "otherData": {"title": stamp_text(result), "manifest_hash": result.manifest["hash"]},
        "traceEvents": [
            *_names(details.timeline.program),
            *_tasks(details),
            *_messages(details.timeline),
            *_critical_path(details.timeline),
            *_memory(details.timeline),
            *_power(details),
        ],
    }


def _names(program: Program) -> Iterator[dict[str, Any]]:
    """Name ranks and streams; a rank that stands for others says so."""
    for rank, alike in enumerate(program.rank_multiplicity.tolist()):
        streams = [
            n for n, r in zip(program.stream_names, program.stream_rank, strict=True) if r == rank
        ]
        device = streams[0].partition("/")[0]
        name = device if alike == 1 else f"{device} (one of {alike} alike)"
        yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": name}}
    for stream, (name, rank) in enumerate(
        zip(program.stream_names, program.stream_rank.tolist(), strict=True)
    ):
        args = {"name": name.rpartition("/")[2]}
        yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": stream, "args": args}


def _tasks(details: Details) -> Iterator[dict[str, Any]]:
    timeline, program = details.timeline, details.timeline.program
    about_op = {
        op.name: {"op": op.kind, "layer": op.layer, "pass": op.pass_.value}
        for op in details.lowered.ops
    }
    about_row = [_about_row(details, row) for row in range(len(program.event_ptr) - 1)]
    for stream, rank in enumerate(program.stream_rank.tolist()):
        tasks = timeline.tasks_of(stream)
        rows = program.cost[tasks].tolist()
        for task, row in zip(timeline.rows(tasks), rows, strict=True):
            about = {**about_op.get(task.label, {}), **about_row[row]}
            yield {
                "ph": "X",
                "name": task.label,
                "cat": task.kind,
                "pid": rank,
                "tid": stream,
                "ts": task.start_s * _US,
                "dur": (task.end_s - task.start_s) * _US,
                "args": {**about, "stands for": task.multiplicity},
            }


def _messages(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Draw an arrow from the beginning of each message to the first task that reads it."""
    program = timeline.program
    rank_of = program.stream_rank[program.stream]
    sent, read = messages(timeline)
    for number, ends in enumerate(zip(sent.tolist(), read.tolist(), strict=True)):
        arrow = {"name": "message", "cat": "message", "id": number}
        for phase, task in zip("sf", ends, strict=True):
            yield {
                **arrow,
                "ph": phase,
                **({"bp": "e"} if phase == "f" else {}),
                "pid": int(rank_of[task]),
                "tid": int(program.stream[task]),
                "ts": float(timeline.start_s[task]) * _US,
            }


def _critical_path(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Draw the critical path once more as a track, and arrows where it changes the stream."""
    program = timeline.program
    own = len(program.rank_multiplicity)
    named = {"name": "critical path"}
    yield {"ph": "M", "name": "process_name", "cat": named["name"], "pid": own, "args": named}
    path = timeline.rows(timeline.critical_path().tolist())
    streams = program.stream.tolist()
    for row in path:
        yield {
            "ph": "X",
            "name": row.label,
            "cat": "critical path",
            "pid": own,
            "tid": 0,
            "ts": row.start_s * _US,
            "dur": (row.end_s - row.start_s) * _US,
            "args": {"on": row.stream},
        }
    for number, (one, other) in enumerate(pairwise(path)):
        ends = streams[one.task], streams[other.task]
        if ends[0] == ends[1]:
            continue
        arrow = {"name": "critical path", "cat": "critical path", "id": number}
        at = other.start_s * _US
        yield {**arrow, "ph": "s", "pid": one.rank, "tid": ends[0], "ts": at}
        yield {**arrow, "ph": "f", "bp": "e", "pid": other.rank, "tid": ends[1], "ts": at}


def _memory(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Count the bytes of each memory kind whenever they change."""
    program = timeline.program
    for rank in range(len(program.rank_multiplicity)):
        times, held = timeline.memory_profile(rank)
        for time_s, counts in zip(times.tolist(), held.tolist(), strict=True):
            args = dict(zip(program.memory_kinds, counts, strict=True))
            yield {"ph": "C", "name": "memory", "pid": rank, "ts": time_s * _US, "args": args}


def _power(details: Details) -> Iterator[dict[str, Any]]:
    """Count the power of a device of each rank whenever it changes; 0 at the end of the step."""
    timeline, idle_w = details.timeline, details.cluster.device.idle_power.value
    for rank in range(len(timeline.program.rank_multiplicity)):
        track = power_track(timeline, idle_w, 1.0, rank)
        powers_w = [*track.power_w.tolist(), 0.0]
        for time_s, power_w in zip(track.times_s.tolist(), powers_w, strict=True):
            args = {"W": power_w}
            yield {"ph": "C", "name": "power", "pid": rank, "ts": time_s * _US, "args": args}


def _about_row(details: Details, row: int) -> dict[str, Any]:
    """Return what limits a task with this cost row, and what it counts: FLOPs, bytes, joules."""
    program = details.timeline.program
    flops: dict[str, float] = {}
    moved: dict[str, float] = {}
    energy_j = 0.0
    for event in range(program.event_ptr[row], program.event_ptr[row + 1]):
        account = program.accounts[program.event_account[event]]
        count = float(program.event_count[event])
        if account.unit != "J":  # what a lower voltage saves is energy alone
            counted = flops if account.unit == "FLOP" else moved
            counted[account.place] = counted.get(account.place, 0.0) + count
        energy_j += count * account.price_j
    cost = details.lowered.cost_of_row.get(row)
    device = details.lowered.device_of_row(row, details.cluster.device)
    limit = limiting(cost, device) if cost else _collective_limit(program, row)
    return {"limited by": limit, "FLOP": flops, "B": moved, "J": energy_j}


def _collective_limit(program: Program, row: int) -> str:
    """Name what would take longest if the collective had all links to itself."""
    latency_s = 0.0
    busy_s: dict[str, float] = {}
    for phase in range(program.phase_ptr[row], program.phase_ptr[row + 1]):
        repeat = int(program.repeat[phase])
        latency_s += repeat * float(program.latency_s[phase])
        for work in range(program.work_ptr[phase], program.work_ptr[phase + 1]):
            resource = int(program.work_resource[work])
            name = program.resource_names[resource]
            time_s = float(program.work_amount[work] / program.capacity[resource])
            busy_s[name] = busy_s.get(name, 0.0) + repeat * time_s
    times = {f"{name} bandwidth": time_s for name, time_s in busy_s.items()} | {
        "latency": latency_s
    }
    return max(times, key=lambda name: times[name])
