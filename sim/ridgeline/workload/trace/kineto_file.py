"""What is kept of a Kineto file: kernels, the calls that launched them, waits and groups."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import ConfigError
from ridgeline.workload.trace.json_stream import MAX_HEAD, JsonStream

MAX_EVENTS = 5_000_000
_KERNELS = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_CALLS = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime", "runtime", "driver"})
WAITS = re.compile(r"(cuda|hip)(Device|Stream|Event)Synchronize")
_LAUNCH = re.compile(r"Launch|Memcpy|Memset", re.IGNORECASE)


@dataclass(slots=True)
class DeviceActivity:
    """What a device did, and when."""

    name: str
    category: str
    stream: int
    start: float  # microseconds, from the first event
    end: float
    correlation: int
    args: Mapping[str, Any]


@dataclass
class Trace:
    """What is kept of one file."""

    file: str
    rank: int = 0
    world: int = 1
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    kernels: list[DeviceActivity] = field(default_factory=list)
    calls: list[tuple[float, float, str, int]] = field(default_factory=list)
    waits: list[tuple[float, int, int]] = field(default_factory=list)


def read(path: Path) -> Trace:
    """Read the trace of one rank, event by event."""
    trace = Trace(str(path))
    events = 0
    with JsonStream(path) as stream:
        for key in stream.object():
            if key == "traceEvents":
                for event in stream.items():
                    events += 1
                    if events > MAX_EVENTS:
                        raise stream.fail(f"more than {MAX_EVENTS} events")
                    if isinstance(event, dict) and event.get("ph") == "X":
                        try:
                            _keep(trace, event)
                        except (KeyError, TypeError, ValueError, OverflowError) as error:
                            raise stream.fail(
                                f"an event {str(event.get('name'))!r:.60} lacks or misstates"
                                f" {error!s:.60}"
                            ) from error
            else:
                value = stream.value(MAX_HEAD)
                if key == "distributedInfo" and isinstance(value, dict):
                    _distributed(trace, value)
    if not trace.kernels:
        raise ConfigError(
            f"no kernels among {events} events: profile with ProfilerActivity.CUDA", file=str(path)
        )
    return trace


def _distributed(trace: Trace, info: Mapping[str, Any]) -> None:
    rank, world = info.get("rank", 0), info.get("world_size", 1)
    if not (type(rank) is int and type(world) is int and 0 <= rank < world <= 10**6):
        raise ConfigError(f"rank {rank!r} of {world!r}", file=trace.file, field="distributedInfo")
    trace.rank, trace.world = rank, world
    configs = info.get("pg_config")
    for one in configs if isinstance(configs, list) else ():
        if isinstance(one, dict) and (ranks := ranks_of(one.get("ranks"))):
            trace.groups[str(one.get("pg_name"))] = ranks


def ranks_of(value: object) -> tuple[int, ...]:
    """Read "[0, 1]" or a list; empty if it is neither or was cut short."""
    if isinstance(value, str):
        if not re.fullmatch(r"\[[\d,\s]*\]", value):
            return ()
        value = [int(part) for part in re.findall(r"\d+", value)]
    if isinstance(value, list) and all(type(rank) is int for rank in value):
        return tuple(value)
    return ()


def _keep(trace: Trace, event: Mapping[str, Any]) -> None:
    category = str(event.get("cat", "")).lower()
    args = event.get("args") or {}
    if not isinstance(args, Mapping):
        raise ValueError("its args")
    if category in _KERNELS:
        start, duration = float(event["ts"]), float(event["dur"])
        if not (np.isfinite(start) and np.isfinite(duration) and duration >= 0):
            raise ValueError("its time")
        stream = int(args["stream"])
        for name in ("In msg nelems", "Out msg nelems"):
            if not 0 <= float(args.get(name) or 0) < np.inf:
                raise ValueError(f"its {name}")
        trace.kernels.append(
            DeviceActivity(
                str(event["name"]),
                category,
                stream,
                start,
                start + duration,
                int(args.get("correlation", -1)),
                args,
            )
        )
    elif category in _CALLS:
        name = str(event["name"])
        if WAITS.fullmatch(name) or _LAUNCH.search(name):
            start = float(event["ts"])
            trace.calls.append(
                (start, start + float(event["dur"]), name, int(args.get("correlation", -1)))
            )
    elif category == "cuda_sync" and "wait_on_stream" in args and "stream" in args:
        trace.waits.append((float(event["ts"]), int(args["stream"]), int(args["wait_on_stream"])))
