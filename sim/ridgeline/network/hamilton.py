"""Rings and chains over direct links of many devices: heuristic searches of bounded effort.

`ridgeline.network.packing` tries all Hamiltonian cycles of a few devices; their number grows like
(n-1)!, so that larger sets are searched here. Nothing that is found is proven to be the best, and a
ring that exists may be missed. Efforts are counted in steps, not in time, and the choices that are
left to chance are drawn from a generator of fixed seed, so that the same links give the same rings.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
Order = tuple[int, ...]

STEPS_PER_DEVICE = 24
"""Steps of one depth-first search; without dead ends it needs one per device."""
STARTS = 4
"""Devices from which a cycle is looked for."""
SWAPS_PER_COVER = 192
"""Exchanges between cycle covers that are tried, per cover."""
COVERS_TRIED = 48
"""Covers that are joined in all attempts together: few links allow many attempts."""
PAIRS_PER_DEVICE = 4
"""Pairs of ends between which a path is looked for."""
LEVELS = 4
"""Bandwidths for which links are tried that are at least as wide, besides the least of all."""


def disjoint_rings(count: Counts, bandwidth: npt.NDArray[np.float64]) -> list[Order]:
    """Find many link-disjoint directed Hamiltonian cycles.

    Two ways are tried, each on all links at once and on the widest links first, and the largest
    total bandwidth is kept: taking one ring after the other (`_greedy`), and splitting the links
    into cycle covers that are then joined to rings (`_covers`).

    Parameters
    ----------
    count
        [n, n] physical links from device i to device j.
    bandwidth
        [n, n] bytes per second of one physical link.
    """
    least = int(min(count.sum(axis=0).min(), count.sum(axis=1).min()))
    best: list[Order] = []
    best_total = 0.0
    levels = widest_first(bandwidth[count > 0])
    for steps in (levels[-1:], levels) if len(levels) > 1 else (levels,):
        for method in (_greedy, _covers):
            left = count.copy()
            rings: list[Order] = []
            for level in steps:
                rings += method(left, np.where(bandwidth >= level, left, 0))
            total = sum(min(bandwidth[hop] for hop in hops(ring)) for ring in rings)
            if total > best_total * (1 + 1e-12):
                best, best_total = rings, total
            if len(levels) == 1 and len(best) == least:
                return best  # a ring takes a link into and out of every device: there are no more
    return best


def widest_first(bandwidth: npt.NDArray[np.float64]) -> list[float]:
    """Return a few different bandwidths, descending, the least always among them."""
    levels = sorted(set(bandwidth.tolist()), reverse=True)
    return levels[:LEVELS] + levels[LEVELS:][-1:]


def hops(ring: Order) -> Iterator[tuple[int, int]]:
    """Yield the pairs of devices that a ring joins."""
    return pairwise((*ring, ring[0]))


def find_path(linked: npt.NDArray[np.bool_], first: int, last: Sequence[int]) -> Order | None:
    """Find a Hamiltonian path from `first` to one of the devices `last`, depth first.

    The next device is the one with the fewest ways on (Warnsdorff's rule). A step is taken back if
    it leaves a device that can no longer be entered or left.

    Returns
    -------
    tuple or None
        The devices in order; None if there is no path or the search was cut short.
    """
    n = len(linked)
    bits = [1 << i for i in range(n)]
    after = [sum(bits[j] for j in np.flatnonzero(row)) for row in linked]
    before = [sum(bits[i] for i in np.flatnonzero(column)) for column in linked.T]
    following = [np.flatnonzero(row).tolist() for row in linked]
    ends = sum(bits[i] for i in last)

    def ways_on(here: int, open_: int) -> Iterator[int]:
        """Devices to go to next; the one with the fewest ways on is yielded first."""
        ways = [j for j in following[here] if open_ & bits[j]]
        if open_ & (open_ - 1) == 0:
            return iter([j for j in ways if ends & bits[j]])
        return iter(sorted(ways, key=lambda j: ((after[j] & open_).bit_count(), j)))

    def dead(here: int, open_: int) -> bool:
        """Tell whether some open device has no way in or no way out, or no end is left."""
        if open_ and not open_ & ends:
            return True
        reach, rest = open_ | bits[here], open_
        while rest:
            bit = rest & -rest
            device = bit.bit_length() - 1
            rest ^= bit
            others = reach ^ bit
            if not before[device] & others or not (after[device] & open_ or ends & bit):
                return True
        return False

    open_ = (1 << n) - 1 - bits[first]
    path, choices = [first], [ways_on(first, open_)]
    for _ in range(STEPS_PER_DEVICE * n):
        if not open_:
            return tuple(path)
        device = next(choices[-1], None)
        if device is None:
            choices.pop()
            open_ |= bits[path.pop()]
            if not path:
                return None
        elif not dead(device, open_ ^ bits[device]):
            open_ ^= bits[device]
            path.append(device)
            choices.append(ways_on(device, open_))
    return None if open_ else tuple(path)


def wide_path(width: npt.NDArray[np.float64], pairs: Sequence[tuple[int, int]]) -> Order | None:
    """Find a Hamiltonian path between the first pair of ends that has one, over wide links.

    Parameters
    ----------
    width
        [n, n] bytes per second from device i to device j; 0 where there is no link.
    pairs
        (first, last) in the order of preference; `PAIRS_PER_DEVICE` times n of them are tried.
    """
    if not width.any():
        return None
    levels = widest_first(width[width > 0])
    for first, last in pairs[: PAIRS_PER_DEVICE * len(width)]:
        if find_path(width > 0, first, (last,)) is not None:
            found = (find_path(width >= level, first, (last,)) for level in levels)
            return next(path for path in found if path is not None)
    return None


def _find_ring(linked: npt.NDArray[np.bool_]) -> Order | None:
    """Find a Hamiltonian cycle that begins with device 0."""
    if not (linked.any(axis=0).all() and linked.any(axis=1).all()):
        return None
    n = len(linked)
    for start in sorted({n * i // STARTS for i in range(STARTS)}):
        path = find_path(linked, start, np.flatnonzero(linked[:, start]).tolist())
        if path is not None:
            zero = path.index(0)
            return path[zero:] + path[:zero]
    return None


def _take(ring: Order, *counts: Counts) -> None:
    for count in counts:
        for hop in hops(ring):
            count[hop] -= 1


def _fits(ring: Order, count: Counts) -> bool:
    return all(count[hop] > 0 for hop in hops(ring))


def _greedy(left: Counts, usable: Counts) -> list[Order]:
    """Take rotations i -> i + k, then what a search finds, each ring also backwards if it fits.

    The links are taken from both counts.
    """
    n = len(left)
    rings: list[Order] = []

    def take_all(ring: Order) -> None:
        while _fits(ring, usable):
            _take(ring, left, usable)
            rings.append(ring)

    for k in range(1, n):
        if math.gcd(k, n) == 1:
            take_all(tuple(k * i % n for i in range(n)))
    while (found := _find_ring(usable > 0)) is not None:
        take_all(found)
        take_all((0, *found[:0:-1]))
    return rings


def _covers(left: Counts, usable: Counts) -> list[Order]:
    """Split the links into covers of cycles, join these to rings, and search what is left over.

    A cover gives every device one successor. Two covers may exchange the successors of a set of
    devices that both send to the same devices, which joins or parts their cycles; exchanges that do
    not make more cycles are kept. The links are taken from both counts.
    """
    n = len(left)
    chance = random.Random(0)
    rings: list[Order] = []
    covers = _split(usable, chance)
    for attempt in range(max(1, COVERS_TRIED // max(1, len(covers)))):
        if attempt:
            covers = _split(usable, chance)
        found = [ring for cover in _joined(covers, chance) if len(ring := _cycle(cover)) == n]
        rings = max(rings, found, key=len)
        if len(rings) == len(covers):
            break
    for ring in rings:
        _take(ring, left, usable)
    return rings + _greedy(left, usable)


def _split(usable: Counts, chance: random.Random) -> list[list[int]]:
    """Take link-disjoint cycle covers, drawn at random, until no further one exists."""
    rest = usable.copy()
    covers: list[list[int]] = []
    while (cover := _perfect_matching(rest > 0, chance)) is not None:
        rest[np.arange(len(cover)), cover] -= 1
        covers.append(cover)
    return covers


def _joined(covers: list[list[int]], chance: random.Random) -> list[list[int]]:
    """Exchange successors between covers until each is one ring, or the effort is spent."""
    cycles = [_n_cycles(cover) for cover in covers]
    for _ in range(SWAPS_PER_COVER * len(covers)):
        apart = [i for i, number in enumerate(cycles) if number > 1]
        if not apart or len(covers) == 1:
            break
        a = chance.choice(apart)
        b = chance.choice([i for i in range(len(covers)) if i != a])
        one, other = covers[a].copy(), covers[b].copy()
        sender = {target: source for source, target in enumerate(one)}
        device = start = chance.randrange(len(one))
        while True:
            one[device], other[device] = other[device], one[device]
            device = sender[one[device]]
            if device == start:
                break
        found = _n_cycles(one), _n_cycles(other)
        if sum(found) <= cycles[a] + cycles[b]:
            covers[a], covers[b] = one, other
            cycles[a], cycles[b] = found
    return covers


def _cycle(cover: Sequence[int]) -> Order:
    """Follow a cover from device 0."""
    cycle = [0]
    while after := cover[cycle[-1]]:
        cycle.append(after)
    return tuple(cycle)


def _n_cycles(cover: Sequence[int]) -> int:
    seen = [False] * len(cover)
    number = 0
    for start in range(len(cover)):
        number += not seen[start]
        device = start
        while not seen[device]:
            seen[device] = True
            device = cover[device]
    return number


def _perfect_matching(linked: npt.NDArray[np.bool_], chance: random.Random) -> list[int] | None:
    """Give every device a successor of its own, by augmenting paths; None if there is no way."""
    following = [np.flatnonzero(row).tolist() for row in linked]
    for targets in following:
        chance.shuffle(targets)
    cover = [-1] * len(linked)
    sender: dict[int, int] = {}

    def augment(root: int) -> bool:
        came_from: dict[int, int] = {}  # the source from which a target was reached
        queue = [root]
        for source in queue:  # grows while it is read
            for target in following[source]:
                if target in came_from:
                    continue
                came_from[target] = source
                if target in sender:
                    queue.append(sender[target])
                    continue
                free = target
                while free >= 0:  # each source on the way hands its target to the one before
                    giver = came_from[free]
                    sender[free] = giver
                    free, cover[giver] = cover[giver], free
                return True
        return False

    return cover if all(augment(source) for source in range(len(linked))) else None
