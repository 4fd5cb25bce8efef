"""Where the vertices of a network stand in its picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ridgeline.network.message_schedule import Ints
from ridgeline.network.topology import DEVICE, Floats, Topology

_AROUND = 0.2
"""Of a grid, from the place of a node to its vertices around it."""


class VertexPlaces(NamedTuple):
    """Places of vertices, [V, 2], and how far each link leaves the straight line, [L]."""

    xy: Floats
    bent: Floats


def layout(topology: Topology) -> VertexPlaces:
    """Choose places by what the network is made of.

    A product of lines, rings and complete graphs, of devices or of nodes, is a grid (a third
    dimension goes back at an angle), whose links between places that are no neighbours are bent.
    Devices that are joined by switches alone stand in a row below levels of switches, or, if
    switches of one level are joined with each other, as in a dragonfly, in a circle around them.
    Anything else is a circle of devices, and what is not a device stands inside or outside of it.
    """
    devices = _is_device(topology)
    direct = devices[topology.source] & devices[topology.target]
    if topology.devices_forward and devices.all() and 1 < len(_long(topology.shape)) <= 3:
        cell = np.empty(topology.n_vertices, np.int64)
        cell[topology.devices] = np.arange(topology.n_devices)
        return _grid(topology, cell, _long(topology.shape))
    if (topology.node_of >= 0).all() and 1 < len(_long(topology.shape[1:])) <= 3:
        return _grid(topology, topology.node_of.astype(np.int64), _long(topology.shape[1:]))
    if direct.any():
        return VertexPlaces(_rings(topology, _levels(topology)), _inside(topology, direct))
    levels = _levels(topology)
    flat = levels[topology.source] == levels[topology.target]
    if flat.any() and levels.max() == 1:
        return VertexPlaces(_around(topology), np.zeros(topology.n_links))
    return VertexPlaces(_rows(topology, levels), 0.12 * flat * np.sign(
        topology.target - topology.source))  # fmt: skip


def _is_device(topology: Topology) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.array([kind == DEVICE for kind in topology.vertex_kinds])


def _long(shape: Sequence[int]) -> list[int]:
    return [extent for extent in shape if extent > 1]


def _grid(topology: Topology, cell: Ints, extents: list[int]) -> VertexPlaces:
    """Place vertices by their cell, [V], of a grid; those of one cell stand around its place."""
    turned = len(extents) == 2 and extents[0] < extents[1]  # the longer dimension goes across
    number = cell.copy()
    places = []
    for extent in extents:
        places.append(number % extent)
        number = number // extent
    if turned:
        places = places[::-1]
    x, y = places[0].astype(float), -places[1].astype(float)
    if len(places) == 3:
        wide, high = (max(extents[2] * step, 1.0) * 1.15 for step in (0.37, 0.29))
        x, y = x * wide + 0.37 * places[2], y * high + 0.29 * places[2]
    far = np.zeros(topology.n_links)
    for place in places:
        far = np.maximum(far, np.abs(place[topology.source] - place[topology.target]))
    side = np.where(topology.source < topology.target, 1.0, -1.0)
    xy = np.stack((x, y), axis=1) + _within(topology, cell)
    return VertexPlaces(xy, np.where(far > 1, 0.11 * side, 0.0))


def _within(topology: Topology, cell: Ints) -> Floats:
    """Return how far vertices stand from the place of their cell, [V, 2].

    The only one with links to other cells stands there, the others of the cell around it.
    """
    away: Floats = np.zeros((topology.n_vertices, 2))
    between = cell[topology.source] != cell[topology.target]
    outward = np.isin(np.arange(topology.n_vertices), topology.source[between])
    for members in np.split(np.argsort(cell, kind="stable"), np.cumsum(np.bincount(cell))[:-1]):
        around = members[~outward[members]] if outward[members].sum() == 1 else members
        if len(members) == 1:
            continue
        angle = 0.72 * np.pi + 2 * np.pi * np.arange(len(around)) / len(around)
        away[around] = _AROUND * np.stack((np.cos(angle), np.sin(angle)), axis=1)
    return away


def _levels(topology: Topology) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Links from every vertex to the nearest device."""
    level = np.where(_is_device(topology), 0, -1)
    while (level < 0).any():
        reached = (level[topology.source] >= 0) & (level[topology.target] < 0)
        if not reached.any():
            level[level < 0] = 0  # joined to nothing
            break
        level[topology.target[reached]] = level.max() + 1
    return level


def _rows(topology: Topology, levels: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Floats:
    """Levels above each other, each spread over the width, in the order of what is below."""
    xy = np.zeros((topology.n_vertices, 2))
    bottom = np.flatnonzero(levels == 0)
    width = float(max(np.bincount(levels).max() - 1, 1))
    gap = width / 4.2 / max(levels.max(), 1) * min(levels.max(), 2)
    xy[bottom, 0] = np.linspace(0.0, width, len(bottom)) if len(bottom) > 1 else width / 2
    for level in range(1, int(levels.max()) + 1):
        members = np.flatnonzero(levels == level)
        below = levels[topology.source] < level
        links = np.isin(topology.target, members) & below
        total = np.bincount(
            topology.target[links], xy[topology.source[links], 0], topology.n_vertices
        )
        count = np.bincount(topology.target[links], minlength=topology.n_vertices)
        centre = total[members] / np.maximum(count[members], 1)
        order = members[np.lexsort((members, np.round(centre, 6)))]
        n = len(order)
        xy[order, 0] = (np.arange(n) + 0.5) * width / n
        xy[order, 1] = level * gap
    return xy


def _rings(topology: Topology, levels: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Floats:
    """Devices in a circle; what is not a device further out, behind what it is joined to."""
    xy = np.zeros((topology.n_vertices, 2))
    angle = np.zeros(topology.n_vertices)
    n = topology.n_devices
    devices = np.flatnonzero(levels == 0)
    angle[devices] = np.pi / 2 - 2 * np.pi * (np.arange(len(devices)) + 0.5) / len(devices)
    radius = np.ones(topology.n_vertices)
    for level in range(1, int(levels.max()) + 1):
        members = np.flatnonzero(levels == level)
        links = np.isin(topology.target, members) & (levels[topology.source] < level)
        towards = np.exp(1j * angle[topology.source[links]])
        east = np.bincount(topology.target[links], towards.real, topology.n_vertices)[members]
        north = np.bincount(topology.target[links], towards.imag, topology.n_vertices)[members]
        centre = np.arctan2(north, east)
        everywhere = np.hypot(east, north) < 1e-6  # joined to all: into the middle
        order = np.lexsort((members, np.round(-centre, 6)))
        least = 2 * np.pi / max(n, 2 * len(members)) * 0.8
        last = np.inf
        for i in order[~everywhere[order]]:
            angle[members[i]] = min(centre[i], last - least)
            last = angle[members[i]]
            radius[members[i]] = 1.0 + 0.42 * level
        middle = members[everywhere]
        angle[middle] = 2 * np.pi * np.arange(len(middle)) / max(len(middle), 1)
        radius[middle] = 0.25 if len(middle) > 1 else 0.0
    xy[:, 0], xy[:, 1] = 1.6 * radius * np.cos(angle), radius * np.sin(angle)
    return xy


def _inside(topology: Topology, direct: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Floats:
    """Bend direct links between devices a little, so that those along a side stay apart."""
    side = np.where(topology.source < topology.target, 1.0, -1.0)
    bent: Floats = 0.04 * side * direct * (topology.n_devices > 4)
    return bent


def _around(topology: Topology) -> Floats:
    """Switches in a circle, in their order, and the devices of each outside of it."""
    xy = np.zeros((topology.n_vertices, 2))
    is_device = _is_device(topology)
    switches = np.flatnonzero(~is_device)
    angle = np.zeros(topology.n_vertices)
    angle[switches] = np.pi / 2 - 2 * np.pi * np.arange(len(switches)) / len(switches)
    radius = np.where(is_device, 1.22, 1.0)
    slot = 2 * np.pi / len(switches)
    for switch in switches:
        ends = topology.target[topology.out_ptr[switch] : topology.out_ptr[switch + 1]]
        own = ends[is_device[ends]]
        angle[own] = angle[switch] - slot * 0.7 * ((np.arange(len(own)) + 0.5) / len(own) - 0.5)
    xy[:, 0], xy[:, 1] = radius * np.cos(angle), radius * np.sin(angle)
    return xy
