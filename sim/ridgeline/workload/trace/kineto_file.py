"""What is kept of a Kineto file: kernels, the calls that launched them, waits, groups, host ops.

Categories are those of libkineto's activity types, of every kind of device: kernels of MTIA are
``kernel`` and ``mtia_ccp_events``, launched by ``mtia_runtime``; of Intel's ``xpu_runtime``.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import ConfigError
from ridgeline.workload.trace.json_stream import MAX_HEAD, JsonStream

MAX_EVENTS = 5_000_000
MAX_WORLD = 10**6
HOST_OP = "cpu_op"
Stream = tuple[str, str]
"""Device and queue."""
_KERNELS = frozenset({"kernel", "concurrent_kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events"})
_CALLS = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime", "runtime", "driver",
                    "mtia_runtime", "xpu_runtime", "privateuse1_runtime",
                    "privateuse1_driver"})  # fmt: skip
WAITS = re.compile(r"(cuda|hip)(Device|Stream|Event)Synchronize")
_LAUNCH = re.compile(r"Launch|Memcpy|Memset|submit_for_execution", re.IGNORECASE)


@dataclass(slots=True)
class DeviceActivity:
    """What a device did, and when."""

    name: str
    category: str
    stream: Stream
    start: float  # microseconds, from the first event
    end: float
    correlation: int
    args: Mapping[str, Any]


class HostOps:
    """Ops of the host, each on one of its threads; ops that it calls lie within it.

    Kept as arrays: a file has its ops before the kernels that make them superfluous.
    """

    def __init__(self) -> None:
        self.start, self.end = array("d"), array("d")  # microseconds, from the first event
        self.name, self.thread = array("q"), array("q")
        self.names: dict[str, int] = {}
        self.threads: dict[str, int] = {}

    def add(self, start: float, end: float, name: str, thread: str) -> None:
        """Keep an op."""
        self.start.append(start)
        self.end.append(end)
        self.name.append(self.names.setdefault(name, len(self.names)))
        self.thread.append(self.threads.setdefault(thread, len(self.threads)))

    def activities(self) -> list[DeviceActivity]:
        """Return what every thread did at every moment: the innermost op, and when it began.

        An op that calls others is what is left of it between them, so that the times of a thread
        add up to the time that it was busy.
        """
        names, threads = list(self.names), list(self.threads)
        by_thread: dict[int, list[tuple[float, float, int]]] = {}
        for start, end, name, thread in zip(
            self.start, self.end, self.name, self.thread, strict=True
        ):
            by_thread.setdefault(thread, []).append((start, -end, name))
        found = []
        for thread, ops in by_thread.items():
            ops.sort(key=lambda op: op[:2])  # of equal ones the outer one stands first
            for start, end, name in _innermost(ops):
                stream = ("", threads[thread])
                found.append(DeviceActivity(names[name], HOST_OP, stream, start, end, -1, {}))
        return found


def _innermost(ops: Sequence[tuple[float, float, int]]) -> Iterator[tuple[float, float, int]]:
    """Yield pieces of time and the innermost op in each, of (start, -end, op) in order."""
    open_: list[tuple[float, int]] = []  # ends and ops, the innermost last
    at = 0.0
    for start, minus_end, op in [*ops, (np.inf, -np.inf, -1)]:
        while open_ and open_[-1][0] <= start:
            end, inner = open_.pop()
            if end > at:
                yield at, end, inner
                at = end
        if open_ and start > at:
            yield at, start, open_[-1][1]
        at = max(at, start)
        end = min(-minus_end, open_[-1][0]) if open_ else -minus_end  # ends are rounded
        open_.append((end, op))


@dataclass
class Trace:
    """What is kept of one file."""

    file: str
    rank: int = 0
    world: int | None = None
    """Ranks of the job, if the file says."""
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    kernels: list[DeviceActivity] = field(default_factory=list)
    calls: list[tuple[float, float, str, int]] = field(default_factory=list)
    waits: list[tuple[float, Stream, Stream]] = field(default_factory=list)
    ops: HostOps = field(default_factory=HostOps)
    """Of a run without a device; else empty."""
    unfinished: int = 0
    """Kernels that had not ended when the recording did."""


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
    if trace.kernels:
        trace.ops = HostOps()
    elif any(_LAUNCH.search(name) for _, _, name, _ in trace.calls):
        raise ConfigError(
            f"{len(trace.calls)} calls of a device and no kernel are among its {events} events:"
            " profile with the device's activity, too (ProfilerActivity.CUDA)",
            file=str(path),
        )
    elif not trace.ops.start:
        raise ConfigError(
            f"no kernels and no ops of the host among {events} events: profile with"
            " ProfilerActivity.CPU, and with ProfilerActivity.CUDA if there is a device",
            file=str(path),
        )
    return trace


def _distributed(trace: Trace, info: Mapping[str, Any]) -> None:
    rank, world = info.get("rank", 0), info.get("world_size")  # older files have the rank alone
    most = MAX_WORLD if world is None else world
    if not (type(rank) is int and type(most) is int and 0 <= rank < most <= MAX_WORLD):
        raise ConfigError(
            f"rank {rank!r:.30} of {world!r:.30}; allowed: whole numbers, the rank below the"
            f" world_size, which is at most {MAX_WORLD}",
            file=trace.file,
            field="distributedInfo",
        )
    trace.rank, trace.world = rank, world
    configs = info.get("pg_config")
    for one in configs if isinstance(configs, list) else ():
        if isinstance(one, dict) and (ranks := ranks_of(one.get("ranks"), one.get("pg_size"))):
            trace.groups[str(one.get("pg_name"))] = ranks


def ranks_of(value: object, size: object = None) -> tuple[int, ...]:
    """Read "[0, 1]" or a list; empty if it is neither, or was cut short and does not say the rest.

    PyTorch writes of a long list the beginning and the end, "[0, 8, 16, ..., 120]". Equal steps
    that make exactly the stated `size` are filled in.
    """
    if isinstance(value, str):
        match = re.fullmatch(r"\[([\d,\s]*?)(?:,?\s*\.\.\.\s*(?:,\s*(\d{1,9})\s*)?)?\]", value)
        if match is None:
            return ()
        listed = [int(part) for part in re.findall(r"\d+", match[1])]
        if "..." in value:
            return _filled(listed, None if match[2] is None else int(match[2]), size)
        value = listed
    if isinstance(value, list) and all(type(rank) is int for rank in value):
        return tuple(value)
    return ()


def _filled(listed: list[int], last: int | None, size: object) -> tuple[int, ...]:
    """Return the ranks of a list that was cut short, if its steps and the size determine them."""
    if len(listed) < 2 or type(size) is not int or not len(listed) < size <= MAX_WORLD:
        return ()
    step = listed[1] - listed[0]
    ranks = tuple(listed[0] + step * i for i in range(size))
    fits = step > 0 and list(ranks[: len(listed)]) == listed
    return ranks if fits and (last is None or ranks[-1] == last) else ()


def _keep(trace: Trace, event: Mapping[str, Any]) -> None:
    category = str(event.get("cat", "")).lower()
    args = event.get("args") or {}
    if not isinstance(args, Mapping):
        raise ValueError("its args")
    if category in _KERNELS:
        if event.get("dur") is None and np.isfinite(float(event["ts"])):
            trace.unfinished += 1
            return
        start, end = _times(event)
        for name in ("In msg nelems", "Out msg nelems"):
            if not 0 <= float(args.get(name) or 0) < np.inf:
                raise ValueError(f"its {name}")
        trace.kernels.append(
            DeviceActivity(
                str(event["name"]),
                category,
                _stream(event, args, "stream"),
                start,
                end,
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
        on, by = _stream(event, args, "stream"), _stream(event, args, "wait_on_stream")
        trace.waits.append((float(event["ts"]), on, by))
    elif category == HOST_OP and not trace.kernels and event.get("dur") is not None:
        start, end = _times(event)
        trace.ops.add(start, end, str(event["name"]), f"thread {event.get('tid', 0)}")


def _times(event: Mapping[str, Any]) -> tuple[float, float]:
    start, duration = float(event["ts"]), float(event["dur"])
    if not (np.isfinite(start) and np.isfinite(duration) and duration >= 0):
        raise ValueError("its time")
    return start, start + duration


def _stream(event: Mapping[str, Any], args: Mapping[str, Any], name: str) -> Stream:
    """Return device and stream; where the arguments do not say, they are the place in the view."""
    stream = args.get(name, event.get("tid"))
    if stream is None:
        raise KeyError(name)
    return str(args.get("device", event.get("pid", 0))), f"stream {int(stream)}"
