"""All-reduce of serving frameworks: one-shot and two-shot kernels that read their peers directly.

One shot: after a barrier every device reads the whole buffers of all others, and adds them up. Two
shots: it reads a part of each, adds up, and after a second barrier reads the sums of the others.

    one shot    start + (n - 1) S / rate
    two shots   start + barrier + 2 (n - 1)/n S / rate

Which of them, and up to what size, is the framework's (``frameworks.yaml``); start, barrier and
rate are the link's (``link_types.*.library.one_shot``). Larger payloads go by NCCL. A call that is
launched eagerly, not in a CUDA graph, takes at least as long as the host to launch one, and copies
what it sums up.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from ridgeline import units
from ridgeline.config import Strict, read_yaml, validate
from ridgeline.errors import RidgelineError, nearest
from ridgeline.network import nccl
from ridgeline.network.library import OneShotFigures
from ridgeline.network.schedule import (
    CollectiveSchedule,
    LinkLoads,
    SchedulePhase,
    closed_form_time_s,
)
from ridgeline.network.topology import Topology

Launch = Literal["queued", "stream", "eager"]
"""queued: the host is ahead of the device, or a CUDA graph is replayed; stream: calls of a
benchmark, which take the node's ``collective_latency`` at least; eager: one by one from PyTorch."""
ONE_SHOT, TWO_SHOT = "one-shot", "two-shot"


class FrameworkAllReduce(Strict):
    """All-reduce of one framework."""

    start: float
    """Multiples of the link's own start."""
    reached: float
    """Share of the links' peak at which a device reads its peers."""
    kernel_rate: units.BytesPerSecond | None
    """What the kernel's blocks load at most."""
    two_shot_from: dict[str, units.Bytes]
    """Payload from which two shots are taken, by the largest number of devices that it is for."""
    most: units.Bytes
    """Largest payload of these kernels."""
    picks: bool
    """Whether the fastest of these kernels and NCCL is taken, rather than these up to `most`."""


class _Frameworks(Strict):
    sources: dict[str, str]
    frameworks: dict[str, FrameworkAllReduce]


@lru_cache(maxsize=1)
def frameworks() -> dict[str, FrameworkAllReduce]:
    """Return the all-reduce of every known framework by name."""
    file = Path(__file__).with_name("frameworks.yaml")
    return validate(read_yaml(file), _Frameworks).frameworks


def framework_named(name: str) -> FrameworkAllReduce:
    """Return the all-reduce of a framework, or raise RidgelineError with the nearest name."""
    known = frameworks()
    if name not in known:
        names = ("nccl", *known)
        raise RidgelineError(
            f"no library of collectives is called {name!r}{nearest(name, names)} "
            f"(known: {', '.join(names)})"
        )
    return known[name]


class _Way(NamedTuple):
    """Links of a node that the devices read over, and the framework's figures on them."""

    link: str
    one_shot: OneShotFigures


def framework_schedule(
    name: str,
    topology: Topology,
    ranks: tuple[int, ...],
    size_bytes: float,
    number_format: str | None = None,
) -> CollectiveSchedule:
    """Return the all-reduce that a framework takes: its own kernels, or NCCL.

    Raises
    ------
    RidgelineError
        If there is no such framework, or no figures of its kernels on these links.
    """
    of = framework_named(name)
    way = _way(topology, name)
    library = nccl.choice("all-reduce", topology, ranks, size_bytes, number_format)
    assert library is not None  # links with one-shot figures have a library
    nodes = len(np.unique(topology.node_of[topology.devices[list(ranks)]]))
    if size_bytes > of.most or nodes > 1:
        return library
    own = _kernel(of, way, topology, ranks, size_bytes)
    if of.picks and closed_form_time_s(library, topology) < closed_form_time_s(own, topology):
        return library
    return own


def has_one_shot(topology: Topology) -> bool:
    """Tell whether the links state figures of kernels that read their peers."""
    return any(
        of.one_shot is not None and link in topology.link_classes
        for link, of in topology.library.items()
    )


def _way(topology: Topology, name: str) -> _Way:
    for link, of in topology.library.items():
        if of.one_shot is not None and link in topology.link_classes:
            return _Way(link, of.one_shot)
    raise RidgelineError(
        f"{topology.name!r} states no figures of all-reduce kernels such as those of {name} "
        "(link_types.*.library.one_shot)"
    )


def _kernel(
    of: FrameworkAllReduce,
    way: _Way,
    topology: Topology,
    ranks: tuple[int, ...],
    size_bytes: float,
) -> CollectiveSchedule:
    n = len(ranks)
    least = {int(most): size for most, size in of.two_shot_from.items()}
    fits = [most for most in sorted(least) if n <= most]
    two = n > 2 and bool(fits) and size_bytes >= least[fits[0]]
    read = (2 * (n - 1) / n if two else n - 1) * size_bytes
    latency_s = of.start * way.one_shot.start_s + (way.one_shot.barrier_s if two else 0.0)
    members = topology.devices[list(ranks)]
    ends = np.isin(topology.source, members) | np.isin(topology.target, members)
    links = np.flatnonzero(topology.of_class(way.link) & ends)
    # every device reads over all its links at once, those to its peers or to the switches
    into = np.isin(topology.target[links], members)
    width = topology.bandwidth_bytes_per_s[links]
    per_device = width[into].sum() / n
    reached = of.reached * topology.library[way.link].of_payload
    if of.kernel_rate is not None:
        reached = min(reached, of.kernel_rate / per_device)
    loads = LinkLoads(links.astype(np.int32), read * width / per_device / reached)
    phase = SchedulePhase(latency_s, 1, loads if size_bytes else {})
    return CollectiveSchedule(
        "all-reduce", TWO_SHOT if two else ONE_SHOT, n, float(size_bytes), (phase,)
    )


_SKEW = 1.3


def eager_time_s(schedule: CollectiveSchedule, topology: Topology, *, is_framework: bool) -> float:
    """Return the time of a call that is launched call by call.

    Between two calls the host launches a kernel (``library.one_shot.eager``); a call of
    a framework's own copies what it sums up, and one of NCCL waits for the slowest rank's launch.

    Raises
    ------
    RidgelineError
        If the links state no time of an eager launch.
    """
    way = _way(topology, "an eager call")
    time_s = closed_form_time_s(schedule, topology)
    if is_framework:
        time_s += 2 * schedule.size_bytes / topology.memory_bytes_per_s
        return max(time_s, way.one_shot.eager_s)
    return max(time_s, _SKEW * way.one_shot.eager_s)
