"""Placement: which devices of a fabric a job gets, and the fabric as that job sees it.

A job gets whole nodes where its devices fill some, and single devices otherwise. These *units* are

*packed*   in the order of the machine: those that are free, one after the other;
*striped*  one below each leaf switch in turn, as a scheduler does that spreads a job;
*random*   in an order drawn by a seed;

or they are named. Ranks follow the order in which units are given out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import zip_longest

import numpy as np

from ridgeline.errors import ConfigError, nearest
from ridgeline.network.routing import OF_ANY_NETWORK
from ridgeline.network.topology import Topology

PLACEMENTS = ("packed", "striped", "random")


def check_placement(found: str) -> None:
    """Refuse a placement that is none.

    Raises
    ------
    ConfigError
        With what is allowed.
    """
    if found not in PLACEMENTS:
        raise ConfigError(
            f"no placement is called {found!r}{nearest(found, PLACEMENTS)} "
            f"(allowed: {', '.join(PLACEMENTS)})",
            field="placement",
        )


class Free:
    """The devices of a fabric that no job has yet.

    Parameters
    ----------
    topology
        The fabric, with all devices that jobs may have.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._free = np.ones(topology.n_devices, np.bool_)
        node = topology.node_of[topology.devices].astype(np.int64)
        single = np.arange(topology.n_devices) + int(node.max()) + 1  # of devices in no node
        self._node = np.where(node >= 0, node, single)
        self._leaf = leaves_of(topology)

    @property
    def n_free(self) -> int:
        """Number of devices that are left."""
        return int(self._free.sum())

    def take(self, how: str, n_devices: int, seed: int = 0) -> tuple[int, ...]:
        """Give out devices, as ranks of the fabric.

        Raises
        ------
        ConfigError
            If too few are free, or no placement has that name.
        """
        check_placement(how)
        if n_devices > self.n_free:
            raise ConfigError(
                f"{n_devices} devices are needed, and {self.n_free} of {self.topology.n_devices} "
                f"of {self.topology.name} are free"
            )
        units = self._units(n_devices)
        if how == "striped":
            units = _striped(units, self._leaf)
        elif how == "random":
            order = np.random.default_rng(seed).permutation(len(units))
            units = [units[i] for i in order.tolist()]
        return self._given([rank for unit in units for rank in unit][:n_devices])

    def take_named(self, names: Sequence[str | int]) -> tuple[int, ...]:
        """Give out devices by rank, by name or by the name of their node, in this order.

        Raises
        ------
        ConfigError
            If there is none of a name, or it is not free.
        """
        ranks = [rank for name in names for rank in self._named(name)]
        for rank in ranks:
            if not self._free[rank] or ranks.count(rank) > 1:
                device = self.topology.vertex_names[self.topology.devices[rank]]
                raise ConfigError(f"device {rank} ({device}) is given out twice")
        return self._given(ranks)

    def _given(self, ranks: list[int]) -> tuple[int, ...]:
        self._free[ranks] = False
        return tuple(ranks)

    def _units(self, n_devices: int) -> list[list[int]]:
        """Return what is free: whole nodes if the devices fill some of them, single ones if not."""
        free = np.flatnonzero(self._free)
        nodes: dict[int, list[int]] = {}
        for rank in free.tolist():
            nodes.setdefault(int(self._node[rank]), []).append(rank)
        size = int(np.bincount(self._node).max())
        whole = [members for members in nodes.values() if len(members) == size]
        if size > 1 and n_devices % size == 0 and len(whole) * size >= n_devices:
            return whole
        return [[rank] for rank in free.tolist()]

    def _named(self, name: str | int) -> list[int]:
        names = [self.topology.vertex_names[v] for v in self.topology.devices.tolist()]
        if isinstance(name, int) or name.isdecimal():
            if int(name) >= len(names):
                raise ConfigError(f"there is no device {name}; there are 0 to {len(names) - 1}")
            return [int(name)]
        found = [i for i, known in enumerate(names) if fnmatchcase(known, name)]
        found = found or [i for i, known in enumerate(names) if known.startswith(f"{name}.")]
        if not found:
            nodes = list(dict.fromkeys(known.partition(".")[0] for known in names))
            raise ConfigError(
                f"{self.topology.name} has no device and no node {name!r}"
                f"{nearest(name, [*names, *nodes])} (such as {names[0]}, {nodes[-1]})"
            )
        return found


def _striped(units: list[list[int]], leaf: Sequence[int]) -> list[list[int]]:
    below: dict[int, list[list[int]]] = {}
    for unit in units:
        below.setdefault(leaf[unit[0]], []).append(unit)
    rows = zip_longest(*below.values())
    return [unit for row in rows for unit in row if unit is not None]


def leaves_of(topology: Topology) -> list[int]:
    """Return the leaf switches that each device is below, as a number of that set of switches.

    They are the first switches outside nodes that a device meets.
    """
    inside = topology.node_of >= 0
    kinds = np.array(topology.vertex_kinds)
    out: list[list[int]] = [[] for _ in range(topology.n_vertices)]
    for a, b in zip(topology.source.tolist(), topology.target.tolist(), strict=True):
        out[a].append(b)
    sets: dict[frozenset[int], int] = {}
    of_start: dict[int, int] = {}
    found = []
    for start in topology.devices.tolist():
        node = int(topology.node_of[start])
        key = node if node >= 0 else -1 - start
        if key not in of_start:
            seen, edge, switches = {start}, [start], set()
            while edge:
                reached = {b for a in edge for b in out[a]} - seen
                seen |= reached
                switches |= {v for v in reached if not inside[v] and kinds[v] == "switch"}
                edge = [v for v in reached if inside[v] and topology.node_of[v] == node]
            of_start[key] = sets.setdefault(frozenset(switches or {-1 - start}), len(sets))
        found.append(of_start[key])
    return found


def seen_by(topology: Topology, ranks: Sequence[int]) -> Topology:
    """Return a fabric in which the devices of one job alone are in use, in the order of its ranks.

    What names devices by their places in a regular network does not hold of it.
    """
    if list(ranks) == list(range(topology.n_devices)):
        return topology
    devices = topology.devices[list(ranks)].copy()
    devices.setflags(write=False)
    names = topology.device_names
    return replace(
        topology,
        devices=devices,
        device_names=tuple(names[rank] for rank in ranks) if names else (),
        shape=(),
        blocks=(),
        bisection_bytes_per_s=None,
        routing=topology.routing if topology.routing in OF_ANY_NETWORK else "shortest",
    )
