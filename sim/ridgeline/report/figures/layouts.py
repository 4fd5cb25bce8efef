"""Where the vertices of a network stand in its picture."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ridgeline.network.topology import DEVICE, Floats, Topology


class Layout(NamedTuple):
    """Places of vertices, [V, 2], and how far each link leaves the straight line, [L]."""

    xy: Floats
    bent: Floats


def layout(topology: Topology) -> Layout:
    """Choose places by what the network is made of.

    A product of lines, rings and complete graphs is a grid (a third dimension goes back at an
    angle), whose links between vertices that are no neighbours are bent. Devices that are joined by
    switches alone stand in a row below levels of switches, or, if switches of one level are joined
    with each other, as in a dragonfly, in a circle around them. Anything else is a circle of
    devices, and what is not a device stands inside or outside of it.
    """
    devices = _is_device(topology)
    direct = devices[topology.source] & devices[topology.target]
    if topology.devices_forward and devices.all() and 1 < len(_extents(topology)) <= 3:
        return _grid(topology)
    if direct.any():
        return Layout(_rings(topology, _levels(topology)), _inside(topology, direct))
    levels = _levels(topology)
    flat = levels[topology.source] == levels[topology.target]
    if flat.any() and levels.max() == 1:
        return Layout(_around(topology), np.zeros(topology.n_links))
    return Layout(_rows(topology, levels), 0.12 * flat * np.sign(
        topology.target - topology.source))  # fmt: skip


def _is_device(topology: Topology) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.array([kind == DEVICE for kind in topology.vertex_kinds])


def _extents(topology: Topology) -> list[int]:
    return [extent for extent in topology.shape if extent > 1]


def _grid(topology: Topology) -> Layout:
    extents = _extents(topology)
    turned = len(extents) == 2 and extents[0] < extents[1]  # the longer dimension goes across
    number = np.arange(topology.n_devices)
    places = []
    for extent in extents:
        places.append(number % extent)
        number = number // extent
    if turned:
        places = places[::-1]
    x, y = places[0].astype(float), -places[1].astype(float)
    if len(places) == 3:
        x, y = x + 0.37 * places[2], y + 0.29 * places[2]
        wide = max(extents[2] * 0.37, 1.0)
        x, y = places[0] * wide * 1.15 + 0.37 * places[2], -places[1] * 1.0 * max(
            extents[2] * 0.29, 1.0) * 1.15 + 0.29 * places[2]  # fmt: skip
    xy = np.empty((topology.n_vertices, 2))
    xy[topology.devices] = np.stack((x, y), axis=1)
    far = np.zeros(topology.n_links)
    for place in places:
        spread = np.zeros(topology.n_vertices)
        spread[topology.devices] = place
        step = np.abs(spread[topology.source] - spread[topology.target])
        far = np.maximum(far, step)
    side = np.where(topology.source < topology.target, 1.0, -1.0)
    return Layout(xy, np.where(far > 1, 0.11 * side, 0.0))


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
