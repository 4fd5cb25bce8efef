"""Symmetric all-to-all: what links carry of an even exchange, from some of its sources.

An exchange of n ranks has n² messages, too many to route one by one when there are thousands. Where
routes go along one dimension after the other, the links of a dimension carry what the exchange of
one line puts on them, as often as there are lines' worth of ranks beside it: this is exact. Where a
network looks alike from every device otherwise, links of one class (a level of a tree, a direction)
are taken to carry the same, as adaptive routing spreads them, and the routes of a few evenly spaced
sources to all ranks give the load of the class.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ridgeline.network.line_dimensions import lines
from ridgeline.network.paths import Ints
from ridgeline.network.routing import routes
from ridgeline.network.schedule import LinkLoads, SchedulePhase
from ridgeline.network.topology import Floats, Topology

_ROUTES = 2**17
"""Routes that are asked for, about."""


def is_symmetric(topology: Topology, ranks: tuple[int, ...]) -> bool:
    """Tell whether all devices take part, and none is at the rim of a mesh."""
    if len(ranks) != topology.n_devices:
        return False
    return _is_grid(topology) or not any(lines(topology))


def exchange_phases(topology: Topology, size_bytes: float) -> tuple[SchedulePhase, ...]:
    """Return the phases of an even all-to-all of all devices, all messages at once.

    Parameters
    ----------
    size_bytes
        That every rank sends, its own part included.
    """
    n = topology.n_devices
    start_s = topology.collective_latency_s
    first = (SchedulePhase(start_s, 1, {}),) if start_s else ()
    if _is_grid(topology):
        return (*first, _by_lines(topology, size_bytes))
    vertex = topology.devices.astype(np.int64)
    sources = np.unique(np.linspace(0, n - 1, max(2, min(n, _ROUTES // n))).astype(np.int64))
    passed = np.zeros(topology.n_links)
    latency_s = 0.0
    for rank in sources.tolist():
        others = np.delete(vertex, rank)
        ways = routes(topology, np.full(n - 1, vertex[rank]), others)
        passed += np.bincount(ways.links, minlength=topology.n_links)
        each = np.add.reduceat(topology.latency_s[ways.links], ways.ptr[:-1])
        latency_s = max(latency_s, float(each.max()))
    kind = link_kinds(topology)
    used = np.flatnonzero(_used(topology, passed, kind))
    messages = np.bincount(kind, passed) * n / len(sources)
    members = np.bincount(kind[used], minlength=len(messages))
    mean = messages / np.maximum(members, 1)
    loads = LinkLoads(used.astype(np.int32), mean[kind[used]] * size_bytes / n)
    return (*first, SchedulePhase(latency_s, 1, loads if size_bytes else {}))


def _is_grid(topology: Topology) -> bool:
    """Tell whether messages between devices alone go along one dimension after the other."""
    return (
        topology.routing == "dimension-ordered"
        and topology.devices_forward
        and topology.n_vertices == topology.n_devices == math.prod(topology.shape)
    )


def _by_lines(topology: Topology, size_bytes: float) -> SchedulePhase:
    """Return the exchange as that of one line of every dimension, for all lines.

    A message moves along dimension d on the line that its source's outer and its target's inner
    coordinates tell: every pair of places of a line is on it as often as there are ranks beside.
    """
    n, vertex = topology.n_devices, topology.devices.astype(np.int64)
    carried = np.zeros(topology.n_links)
    place = np.empty(topology.n_vertices, np.int64)
    place[vertex] = np.arange(n)
    key = topology.source.astype(np.int64) * topology.n_vertices + topology.target
    latency_s, stride = 0.0, 1
    for extent in topology.shape:
        if extent > 1:
            line = stride * np.arange(extent)
            a, b = np.divmod(np.arange(extent * extent), extent)
            pairs = a != b
            ways = routes(topology, vertex[line[a[pairs]]], vertex[line[b[pairs]]])
            each = np.add.reduceat(topology.latency_s[ways.links], ways.ptr[:-1])
            latency_s += float(each.max())
            passed = np.bincount(ways.links, minlength=topology.n_links)
            used = np.flatnonzero(passed)
            corner = np.flatnonzero(np.arange(n) // stride % extent == 0)  # one of every line
            for link in used.tolist():
                ends = [int(place[v]) for v in (topology.source[link], topology.target[link])]
                source, target = (vertex[corner + end] for end in ends)
                same = np.searchsorted(key, source * topology.n_vertices + target)
                carried[same] += passed[link] * (n // extent)
        stride *= extent
    links = np.flatnonzero(carried)
    loads = LinkLoads(links.astype(np.int32), carried[links] * size_bytes / n)
    return SchedulePhase(latency_s, 1, loads if size_bytes else {})


def _used(topology: Topology, passed: Floats, kind: Ints) -> npt.NDArray[np.bool_]:
    """Tell which links carry something: of those at devices, all of a class that any carries."""
    ends = np.zeros(topology.n_vertices, bool)
    ends[topology.devices] = True
    near = ends[topology.source] | ends[topology.target]
    carrying = np.bincount(kind, passed) > 0
    few = np.bincount(kind, passed > 0) < 0.5 * np.bincount(kind)
    return carrying[kind] & ((passed > 0) | near | few[kind])


def link_kinds(topology: Topology) -> Ints:
    """[L] number of every link's class: link type, levels of both ends, dimension and direction."""
    level = _levels(topology)
    rank = np.full(topology.n_vertices, -1, np.int64)
    rank[topology.devices] = np.arange(topology.n_devices)
    source, target = topology.source, topology.target
    both = (rank[source] >= 0) & (rank[target] >= 0)
    turn = np.zeros(topology.n_links, np.int64)
    stride = 1
    for dimension, extent in enumerate(topology.shape if both.any() else ()):
        step = (rank[target] // stride % extent - rank[source] // stride % extent) % extent
        forward = np.where(step == 1, 1, np.where(step == extent - 1, 2, 3))
        turn += np.where(both & (step != 0), (3 * dimension + forward), 0)
        stride *= extent
    names = {name: i for i, name in enumerate(sorted(topology.link_classes))}
    columns = np.stack(
        [
            np.array([names[name] for name in topology.link_class]),
            level[source],
            level[target],
            turn,
        ]
    )
    _, kind = np.unique(columns, axis=1, return_inverse=True)
    return kind.ravel().astype(np.int64)


def _levels(topology: Topology) -> Ints:
    """[V] links to the nearest device."""
    level = np.full(topology.n_vertices, topology.n_vertices, np.int64)
    level[topology.devices] = 0
    while True:
        nearer = level.copy()
        np.minimum.at(nearer, topology.target, level[topology.source] + 1)
        if (nearer == level).all():
            return level
        level = nearer
