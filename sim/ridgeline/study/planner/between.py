"""What messages between replicas take at least, of all groups of ranks at once."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.network.topology import Topology
from ridgeline.parallel.lower import FEW
from ridgeline.parallel.wires import Wires
from ridgeline.study.planner.group import Floats
from ridgeline.study.planner.large import Wire

_TRIED = 3  # sizes, each a quarter of the one before, of which another algorithm may be the best


class Between:
    """Bounds messages between ranks that hold the same weights."""

    def __init__(self, wires: Wires, topology: Topology, devices: int) -> None:
        self.wires, self.topology, self.devices = wires, topology, devices
        self._lines: dict[tuple[str, int, int, float], list[tuple[float, float]]] = {}
        self._known: dict[tuple[str, int, int, float, tuple[float, ...]], Wire] = {}

    def crossing_byte_s(self, data: int, tensor: int) -> float:
        """Return the least seconds a byte of any collective of `data` ranks, so many apart.

        Of all groups at once: what a node has not of a payload has to come in from others.
        """
        least, inward = np.inf, self._inward
        for start in self._starts(data * tensor) if data > 1 else ():
            node = self.wires.node[start : start + data * tensor].reshape(data, tensor)
            needed: dict[int, float] = {}
            for members in node.T:
                for number, n in zip(*np.unique(members, return_counts=True), strict=True):
                    needed[int(number)] = needed.get(int(number), 0.0) + 1 - n / data
            least = min(least, *(part / inward[number] for number, part in needed.items()))
        return least if np.isfinite(least) else 0.0

    def _starts(self, ranks: int) -> list[int]:
        """Return the first rank of stages of so many ranks that lie unlike in their nodes."""
        starts = np.arange(0, self.devices - ranks + 1, ranks)
        _, unlike = np.unique(self.wires.place[starts], return_index=True)
        return [int(starts[i]) for i in unlike]

    def _together_s(
        self, op: str, data: int, tensor: int, size_bytes: float
    ) -> list[tuple[float, float]]:
        """Return seconds of latency and of bandwidth of a collective of all groups at once.

        Of each kind of stage that there is. Where these differ, any group may be simulated.
        """
        starts = self._starts(data * tensor)
        found = []
        for start in starts:
            groups = (start + np.arange(data * tensor)).reshape(data, tensor).T
            for first in range(tensor if len(starts) > 1 else 1):
                turned = np.roll(groups, -first, axis=0)
                with suppress(RidgelineError):  # others have no such algorithm: not played, either
                    found.append(self.wires.together_s(op, turned, size_bytes))
        return found

    @cached_property
    def _inward(self) -> Floats:
        """[N] bytes a second that can come into every node."""
        ends = [self.topology.node_of[end] for end in (self.topology.source, self.topology.target)]
        comes = (ends[0] != ends[1]) & (ends[1] >= 0)
        total = np.zeros(int(self.wires.node.max()) + 1)
        np.add.at(total, ends[1][comes], self.topology.bandwidth_bytes_per_s[comes])
        return np.where(total > 0, total, np.inf)

    def wire(
        self, op: str, data: int, tensor: int, most_bytes: float, sizes: tuple[float, ...]
    ) -> Wire:
        """Return what messages of `data` ranks, so many apart, take at least; see `Wire`.

        Of all groups at once, as the engine plays it, for at most so many bytes; of the algorithms
        that are the best for some size, since a larger message may take another one.
        """
        known = (op, data, tensor, most_bytes, sizes)
        if known not in self._known:
            tried = [most_bytes / 4**k for k in range(_TRIED)]
            several = self.devices > FEW  # else groups may not all be at it at the same time
            lines = self._line(op, data, tensor, [*tried, *(sizes if several else ())])
            slope_s = min((slope for _, slope in lines), default=0.0)
            longer = np.zeros(len(sizes))
            if several and lines:
                alone = [min(late + slope * size for late, slope in lines) for size in sizes]
                longer = np.maximum(np.array(alone) - np.array(sizes) * slope_s, 0.0)
            # an algorithm that is the best for less has no lower latency here than there
            byte_s = min((late / most_bytes + slope for late, slope in lines), default=0.0)
            self._known[known] = Wire(byte_s, slope_s, longer)
        return self._known[known]

    def _line(
        self, op: str, data: int, tensor: int, sizes: list[float]
    ) -> list[tuple[float, float]]:
        """Return latency and seconds a byte of the algorithms that are taken for these sizes."""
        found = []
        for size in sizes:
            known = (op, data, tensor, size)
            if known not in self._lines:
                self._lines[known] = [
                    (late, busy / size) for late, busy in self._together_s(op, data, tensor, size)
                ]
            found += self._lines[known]
        return found
