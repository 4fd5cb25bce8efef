"""Kinds of dimensions of a topology: lines, whose ends are not linked, and complete graphs."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline.network.topology import Topology


@lru_cache(maxsize=64)
def lines(topology: Topology) -> tuple[bool, ...]:
    """Tell of every dimension of `Topology.shape` whether it is a line, as all of a mesh are.

    Seen by the links at the first corner: between devices that pass on messages, or, of a machine
    of several nodes, between nodes. Rings, complete graphs and what is behind switches are none.
    """
    nodes = int(topology.node_of.max(initial=0)) > 0
    if not nodes and not topology.devices_forward:
        return (False,) * len(topology.shape)
    joined = _joined(topology, topology.node_of if nodes else _rank_of(topology))
    found, stride = [], 1
    for dimension, extent in enumerate(topology.shape):
        inside = nodes and dimension == 0  # of a node: its places are no cells
        line = (
            not inside and extent > 2 and stride in joined and (extent - 1) * stride not in joined
        )
        found.append(line)
        stride *= 1 if inside else extent
    return tuple(found)


@lru_cache(maxsize=64)
def complete_graphs(topology: Topology) -> tuple[bool, ...]:
    """Tell of every dimension of `Topology.shape` whether all of its places are linked.

    Seen by the links at the first corner, from device to device: what is behind switches is none.
    Two places, and three in a ring, are what rings are as fast on.
    """
    if not topology.shape or int(topology.node_of.max(initial=0)) > 0:
        return (False,) * len(topology.shape)
    joined = _joined(topology, _rank_of(topology))
    found, stride = [], 1
    for extent in topology.shape:
        found.append(extent > 3 and all(k * stride in joined for k in range(1, extent)))
        stride *= extent
    return tuple(found)


def _rank_of(topology: Topology) -> npt.NDArray[np.int64]:
    """Return the rank at every vertex; -1 where there is none."""
    rank = np.full(topology.n_vertices, -1, np.int64)
    rank[topology.devices] = np.arange(topology.n_devices)
    return rank


def _joined(topology: Topology, cell: npt.NDArray[Any]) -> set[int]:
    """Return the cells that are linked to the first one."""
    return set(cell[topology.target[cell[topology.source] == 0]].tolist())


@lru_cache(maxsize=64)
def with_shape(topology: Topology) -> Topology:
    """Return a topology with the extents of its torus or mesh, where its links show them.

    Devices that pass on messages are a grid in rank order if their links are exactly those between
    neighbours of some extents, with or without the links that close the rows.
    """
    n = topology.n_devices
    if topology.shape or not topology.devices_forward or n > _MOST or n != topology.n_vertices:
        return topology
    place = np.empty(topology.n_vertices, np.int64)
    place[topology.devices] = np.arange(n)
    pairs = set(zip(place[topology.source].tolist(), place[topology.target].tolist(), strict=True))
    for shape in _factorings(n):
        if len(shape) > 1 and _neighbours(shape, pairs):
            return replace(topology, shape=shape)
    return topology


_MOST = 65536


def _factorings(n: int, most: int = 4) -> list[tuple[int, ...]]:
    """Return all ordered ways to write n as a product of up to `most` numbers above 1."""
    found: list[tuple[int, ...]] = [(n,)] if n > 1 else []
    if most > 1:
        for first in range(2, n // 2 + 1):
            if n % first == 0:
                found += [(first, *rest) for rest in _factorings(n // first, most - 1)]
    return found


def _neighbours(shape: tuple[int, ...], pairs: set[tuple[int, int]]) -> bool:
    """Tell whether links are those of a grid of these extents, each dimension closed or not."""
    rank = np.arange(int(np.prod(shape))).reshape(shape[::-1])
    expected = 0
    for dimension, extent in enumerate(shape):
        axis = len(shape) - 1 - dimension
        after = np.roll(rank, -1, axis)
        inner = np.ones(rank.shape, bool)
        inner[tuple([slice(None)] * axis + [extent - 1])] = False
        ends = list(zip(rank[inner].tolist(), after[inner].tolist(), strict=True))
        if not all(pair in pairs and pair[::-1] in pairs for pair in ends):
            return False
        expected += 2 * len(ends)
        if extent > 2:
            ends = list(zip(rank[~inner].tolist(), after[~inner].tolist(), strict=True))
            there = [pair in pairs and pair[::-1] in pairs for pair in ends]
            if any(there) and not all(there):
                return False
            expected += 2 * sum(there)
    return expected == len(pairs)
