"""Rings and chains over direct links, on the multigraph of one node.

Up to `MAX_DEVICES` devices are searched exactly, more by heuristics (`ridgeline.network.hamilton`).

A node is given as two matrices: how many physical links lead from device i to device j, and the
bandwidth of one of them. A ring that uses a link takes one physical link for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ridgeline.network import hamilton

MAX_DEVICES = 8
"""Largest set that is searched exactly: the complete graph of 8 has 5040 directed rings."""
MAX_STATES = 1000
"""States after which a search ends with the best packing so far; a fixed count, not a time."""

Counts = tuple[tuple[int, ...], ...]
Bandwidths = tuple[tuple[float, ...], ...]
Order = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Packing:
    """Link-disjoint directed rings.

    Attributes
    ----------
    rings
        Devices in the order of sending, beginning with device 0; the last sends to the first.
    bandwidths_bytes_per_s
        Of each ring: the bandwidth of its slowest link.
    proven
        No set of link-disjoint rings has a larger total bandwidth.
    """

    rings: tuple[Order, ...]
    bandwidths_bytes_per_s: tuple[float, ...]
    proven: bool


@lru_cache(maxsize=1024)
def pack_rings(count: Counts, bandwidth: Bandwidths) -> Packing:
    """Find link-disjoint directed Hamiltonian cycles with the largest total bandwidth.

    Depth-first branch and bound over all Hamiltonian cycles. In each state a device's least
    covered outgoing link is either used by one more of the cycles that still fit, or given up.
    The bound is that every cycle crosses every cut of the devices at least once, so that the
    bandwidth left on the narrowest cut bounds what may be added; as many cycles as the least
    degree have one link in every cut, so the bound is tight for the usual nodes.

    More than `MAX_DEVICES` devices have as many cycles as `hamilton.disjoint_rings` finds.

    Parameters
    ----------
    count
        [n, n] physical links from device i to device j, n >= 2.
    bandwidth
        [n, n] bytes per second of one physical link, one direction.

    Returns
    -------
    Packing
        The same for the same input; no rings if no Hamiltonian cycle is found.
    """
    left = np.array(count, dtype=np.int64)
    unit = np.array(bandwidth, dtype=np.float64)
    if len(left) > MAX_DEVICES:
        found = hamilton.disjoint_rings(left, unit)
        rates = tuple(float(min(unit[hop] for hop in hamilton.hops(ring))) for ring in found)
        return Packing(tuple(found), rates, proven=False)
    rings = [order for order in _paths(left > 0) if left[order[-1], order[0]] > 0]
    if not rings:
        return Packing((), (), proven=True)
    search = _Search(rings, left, unit)
    proven = search.run()
    chosen = search.best
    return Packing(
        tuple(rings[i] for i in chosen), tuple(float(search.rate[i]) for i in chosen), proven
    )


@lru_cache(maxsize=1024)
def pack_chains(
    bandwidth: Bandwidths, ends: tuple[tuple[tuple[int, int], ...], ...]
) -> tuple[Order, ...]:
    """Find one Hamiltonian path per chain over direct links; chains share links evenly.

    The chains are chosen one after the other. Each takes the first of its pairs of ends that a
    Hamiltonian path joins, and of those paths the one whose narrowest link is the widest, then the
    widest in sum, when every link is shared with the chains chosen before. Of more than
    `MAX_DEVICES` devices, each takes what `hamilton.wide_path` finds.

    Parameters
    ----------
    bandwidth
        [n, n] bytes per second from device i to device j, all links together; 0 where none.
    ends
        For every chain the pairs (first, last) in the order of preference.

    Returns
    -------
    tuple
        The chains; empty if for one of them no path is found.
    """
    width = np.array(bandwidth, dtype=np.float64)
    users = np.ones_like(width)
    small = len(width) <= MAX_DEVICES
    paths = {first: list(_paths(width > 0, first)) for first in range(len(width)) if small}
    chains: list[Order] = []
    for pairs in ends:
        fair = width / users
        chain = _widest_path(paths, fair, pairs) if small else hamilton.wide_path(fair, pairs)
        if chain is None:
            return ()
        forth, back = np.array(chain[:-1], dtype=np.intp), np.array(chain[1:], dtype=np.intp)
        users[forth, back] += 1
        users[back, forth] += 1  # the way back
        chains.append(chain)
    return tuple(chains)


def _widest_path(
    paths: dict[int, list[Order]], fair: npt.NDArray[np.float64], pairs: Sequence[tuple[int, int]]
) -> Order | None:
    """Choose the widest of the paths between the first pair of ends that has any."""
    for first, last in pairs:
        joining = np.array([path for path in paths[first] if path[-1] == last], dtype=np.intp)
        if len(joining):
            share = fair[joining[:, :-1], joining[:, 1:]]  # [paths, n-1]; n = 1 has no links
            best = np.lexsort((-share.sum(axis=1), -share.min(axis=1, initial=np.inf)))[0]
            return tuple(joining[best].tolist())
    return None


class _Search:
    """State of `pack_rings`: which rings use which links, and the best set of rings so far.

    At most 56 links join 8 devices, so that the links of a ring are the bits of one integer.
    """

    def __init__(
        self, rings: list[Order], count: npt.NDArray[np.int64], unit: npt.NDArray[np.float64]
    ) -> None:
        n = len(count)
        self.source, self.target = np.nonzero(count)
        link = np.zeros((n, n), dtype=np.int64)
        link[self.source, self.target] = np.arange(len(self.source))
        self.left = count[self.source, self.target]
        self.unit = unit[self.source, self.target]
        order = np.array(rings)
        self.links = link[order, np.roll(order, -1, axis=1)]  # [rings, n]
        self.uses = np.bitwise_or.reduce(np.int64(1) << self.links, axis=1)
        self.rate = self.unit[self.links].min(axis=1)
        members = (np.arange(1, 2**n - 1)[:, None] >> np.arange(n)) & 1  # every proper subset
        crosses = members[:, self.source] * (1 - members[:, self.target])
        self.cut = crosses * self.unit  # [cuts, links] bytes per second of one physical link
        self.best: list[int] = []
        self.best_total = 0.0
        self.states = 0
        self.seen: dict[bytes, float] = {}

    def run(self) -> bool:
        """Search; return whether the search was complete."""
        self._extend(self.left, np.arange(len(self.rate)), [], 0.0)
        return self.states <= MAX_STATES

    def _extend(
        self,
        left: npt.NDArray[np.int64],
        fitting: npt.NDArray[np.intp],
        chosen: list[int],
        total: float,
    ) -> None:
        if total > self.best_total * (1 + 1e-12):
            self.best, self.best_total = list(chosen), total
        if self.states > MAX_STATES:
            return
        fitting = fitting[(self.uses[fitting] & _bits(left == 0)) == 0]
        usable = np.bitwise_or.reduce(self.uses[fitting])
        left = np.where((usable >> np.arange(len(left))) & 1, left, 0)
        if total + (self.cut @ left).min() <= self.best_total * (1 + 1e-12):
            return
        key = left.tobytes()
        if self.seen.get(key, -1.0) >= total:
            return
        self.seen[key] = total
        self.states += 1
        link = self._scarcest(left, fitting)
        through = fitting[(self.uses[fitting] >> link) & 1 == 1]
        for ring in through[np.argsort(-self.rate[through], kind="stable")]:
            taken = left.copy()
            taken[self.links[ring]] -= 1
            self._extend(taken, fitting, [*chosen, int(ring)], total + float(self.rate[ring]))
        without = left.copy()
        without[link] = 0
        self._extend(without, fitting, chosen, total)

    def _scarcest(self, left: npt.NDArray[np.int64], fitting: npt.NDArray[np.intp]) -> int:
        """Of the links of the device with the fewest left, the one with fewest rings per link."""
        degree = np.bincount(self.source, weights=left)
        here = np.flatnonzero((self.source == degree.argmin()) & (left > 0))
        rings = ((self.uses[fitting, None] >> here) & 1).sum(axis=0)
        return int(here[(rings / left[here]).argmin()])


def _bits(flags: npt.NDArray[np.bool_]) -> np.int64:
    return np.int64((flags.astype(np.int64) << np.arange(len(flags))).sum())


def _paths(linked: npt.NDArray[np.bool_], start: int = 0) -> Iterator[Order]:
    """Yield every Hamiltonian path from `start` over direct links, in lexicographic order."""
    n = len(linked)
    following = [[j for j in range(n) if linked[i, j]] for i in range(n)]
    path = [start]

    def extend() -> Iterator[Order]:
        if len(path) == n:
            yield tuple(path)
            return
        for device in following[path[-1]]:
            if device not in path:
                path.append(device)
                yield from extend()
                path.pop()

    return extend()
