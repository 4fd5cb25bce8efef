"""Topologies with dimensions: one ring after the other, or all dimensions at once.

A ring on a line goes out by every second place and comes back by the others, so that no message
passes more than two links and every link carries one each way: the bandwidth of a real ring, at
twice its latency. In the order of places the last would send to the first over the whole line.

A dimension whose places are all linked (a complete graph of q) is passed in one round, in which
everyone sends to all others: a q-th of the payload on each link, where rings of both directions
put (q - 1)/2q on two links of each place and leave the others idle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import NamedTuple

import numpy as np

from ridgeline.network.algorithm import CollectiveGroup, DoesNotApplyError, ring_algorithm
from ridgeline.network.algorithms.shares import least_shares
from ridgeline.network.line_dimensions import complete_graphs, lines
from ridgeline.network.message_schedule import MessageSchedule
from ridgeline.network.parallel_rings import Lane, lanes_script, streamed
from ridgeline.network.paths import Routes
from ridgeline.network.rings import ring_channels
from ridgeline.network.routed import routed
from ridgeline.network.topology import Floats, Topology


def _grid(group: CollectiveGroup, name: str) -> tuple[int, ...]:
    """Extents of the group, innermost first; all ranks of the topology, in order, are the group."""
    shape = tuple(n for n in group.topology.shape if n > 1)
    if len(shape) < 2 or group.ranks != tuple(range(math.prod(shape))):
        raise DoesNotApplyError(
            f"{name} needs a topology of at least two dimensions and all of its ranks in order; "
            f"{group.topology.name!r} has the shape {group.topology.shape} and {group.n} ranks of "
            f"{group.topology.n_devices} take part"
        )
    return shape


class GridPart(NamedTuple):
    """Dimensions of a group that has some places of every one, in order, innermost first.

    Attributes
    ----------
    shape
        Extents.
    line, complete
        Whether each is a line, or a complete graph.
    """

    shape: tuple[int, ...]
    line: tuple[bool, ...]
    complete: tuple[bool, ...]

    @property
    def rounds(self) -> int:
        """Rounds of passing all dimensions once."""
        pairs = zip(self.shape, self.complete, strict=True)
        return sum(1 if at_once else n - 1 for n, at_once in pairs)

    def along(self, dimension: int) -> float:
        """Share of a payload that passes each link of a dimension, with rings half of it each way.

        Of a ring of two, and of a line, both directions are on the same links.
        """
        n = self.shape[dimension]
        if self.complete[dimension]:
            return 1 / n
        shared = 2 if n == 2 or self.line[dimension] else 1
        return shared * (n - 1) / n / 2

    def lane(self, order: Sequence[int], share: float = 1.0, direction: int = 1) -> Lane:
        """Return the lane that passes the dimensions in some order, folded on lines."""
        # Rank i + shape[0] * j is at [..., j, i]: the first dimension is the last axis.
        rank = np.arange(math.prod(self.shape)).reshape(self.shape[::-1])
        axes = [len(self.shape) - 1 - d for d in order]
        for d, extent in enumerate(self.shape):
            if self.line[d]:
                there = np.arange(0, extent, 2)
                back = np.arange(1, extent, 2)[::-1]
                rank = rank.take(np.concatenate((there, back)), axis=len(self.shape) - 1 - d)
        extents = tuple(self.shape[d] for d in order)
        complete = frozenset(at for at, d in enumerate(order) if self.complete[d])
        place = rank.transpose(axes).ravel()
        return Lane(extents, place, share, direction, complete=complete)

    def lanes(self, order: Sequence[int], share: float) -> list[Lane]:
        """Return the lanes of an order: one each way, where there are rings."""
        if share <= 0:
            return []
        if all(self.complete):
            return [self.lane(order, share)]
        return [self.lane(order, share / 2, direction) for direction in (1, -1)]


def _part(group: CollectiveGroup, name: str) -> GridPart:
    """Return the dimensions of a group that is part of a torus, a mesh, or complete graphs."""
    ranks, shape = np.array(group.ranks), group.topology.shape
    if len(shape) > 1 and (ranks < math.prod(shape)).all():
        places = [np.unique(along) for along in np.unravel_index(ranks, shape[::-1])]
        filled = np.ravel_multi_index(np.meshgrid(*places, indexing="ij"), shape[::-1]).ravel()
        extents = [len(along) for along in reversed(places)]
        long = [d for d, extent in enumerate(extents) if extent > 1]
        if len(long) > 1 and np.array_equal(filled, ranks):
            line, complete = lines(group.topology), complete_graphs(group.topology)
            return GridPart(
                tuple(extents[d] for d in long),
                tuple(line[d] for d in long),
                tuple(complete[d] and extents[d] > 3 for d in long),
            )
    raise DoesNotApplyError(
        f"{name} needs a topology of at least two dimensions and ranks that fill a part of it, in"
        f" order; {group.topology.name!r} has the shape {shape} and {group.n} ranks take part"
    )


@ring_algorithm("torus")
def one_by_one(group: CollectiveGroup, op: str) -> MessageSchedule:
    """Scatter along the dimensions, innermost first, and gather back.

    Σ_i 2(p_i - 1)α_i + 2(p_i - 1)/p_i · S / Π_{j<i} p_j · β_i (Mikami et al., arXiv:1811.05233, for
    two dimensions; Cho et al., MLSys 2019, BlueConnect).
    """
    part = _part(group, "torus")
    return lanes_script(group, op, [part.lane(range(len(part.shape)))])


@ring_algorithm("multi-torus")
def all_at_once(group: CollectiveGroup, op: str) -> MessageSchedule:
    """Start a share of the payload in every dimension and direction.

    All links of a torus with equal extents are busy all the time: 2(p-1)/p S / (2D B) besides
    latencies (the ideal of Rashidi et al., "Themis", ISCA 2022). On a mesh they carry both
    directions each, 2(p-1)/p S / (D B), which is what a corner with its D links cannot beat.

    Where extents or kinds of dimensions differ, lanes get such shares that the links of all
    dimensions carry the same; and since rounds of unequal lanes do not fit each other, the payload
    is cut into pieces that stream through all rounds at once, but for the last one, which is sent
    round by round (`streamed`).
    """
    part = _part(group, "multi-torus")
    d = len(part.shape)
    uneven = any(len(set(kind)) > 1 for kind in part)
    rounds = (2 if op == "all-reduce" else 1) * sum(n - 1 for n in part.shape)
    uneven = uneven and 2 * d * rounds * group.n <= _MAX_STREAMED
    shares = balanced_shares(part) if uneven else (1 / d,) * d
    lanes = [
        lane
        for first in range(d)
        for lane in part.lanes([(first + i) % d for i in range(d)], shares[first])
    ]
    if not uneven:
        return lanes_script(group, op, lanes)
    streaming = [replace(lane, share=lane.share * (1 - 1 / _PIECES)) for lane in lanes]
    last = [replace(lane, share=lane.share / _PIECES) for lane in lanes]
    return streamed(group, op, streaming, last)


_PIECES = 32
_MAX_STREAMED = 400_000
"""Messages of a script that streams; larger ones go round by round, with equal shares."""


def balanced_shares(part: GridPart) -> tuple[float, ...]:
    """Return the share of the lanes that begin along each dimension, in cyclic order.

    The fullest link carries least (`least_shares`).
    """
    d = len(part.shape)
    load = np.zeros((d, d))  # of a link of dimension [row], by the lanes that begin at [column]
    for first in range(d):
        left = 1.0
        for i in range(d):
            at = (first + i) % d
            load[at, first] = left * part.along(at)
            left /= part.shape[at]
    return tuple(least_shares(load).tolist())


@ring_algorithm("themis")
def themis(group: CollectiveGroup, op: str) -> MessageSchedule:
    """Pass the dimensions in every order, with shares that fill all of them.

    Lanes of different orders put unlike loads on the dimensions: whichever comes first gets the
    whole payload. Shares are those with which the fullest link, by its own bandwidth, carries least
    (the aim of Rashidi et al., "Themis", ISCA 2022, which chooses orders chunk by chunk); pieces
    stream through all rounds as in `all_at_once`.
    """
    part = _part(group, "themis")
    d, shape = len(part.shape), part.shape
    rounds = (2 if op == "all-reduce" else 1) * sum(n - 1 for n in shape)
    if d > _MOST_ORDERED or 2 * d * rounds * group.n > _MAX_STREAMED:
        raise DoesNotApplyError(
            f"themis takes up to {_MOST_ORDERED} dimensions and {_MAX_STREAMED:,} messages; found"
            f" {d} dimensions and {2 * d * rounds * group.n:,} messages"
        )
    orders = list(permutations(range(d)))
    by_dimension = _times_along(group, part)
    load = np.zeros((by_dimension.shape[1], len(orders)))
    for number, order in enumerate(orders):
        left = 1.0
        for at in order:
            load[:, number] += left * (shape[at] - 1) / shape[at] * by_dimension[at]
            left /= shape[at]
    lanes = [
        lane
        for order, share in zip(orders, least_shares(load).tolist(), strict=True)
        for lane in part.lanes(order, share)
    ]
    streaming = [replace(lane, share=lane.share * (1 - 1 / _PIECES)) for lane in lanes]
    last = [replace(lane, share=lane.share / _PIECES) for lane in lanes]
    return streamed(group, op, streaming, last)


_MOST_ORDERED = 4  # dimensions: 24 orders


def _times_along(group: CollectiveGroup, part: GridPart) -> Floats:
    """Return [D, R] seconds a byte that each link is busy where all pass one dimension.

    Half of the bytes each way round a ring. Links that are alike are one.
    """
    topology, place = group.topology, group.topology.devices[list(group.ranks)].astype(np.int64)
    found = np.zeros((len(part.shape), topology.n_links))
    for dimension, extent in enumerate(part.shape):
        order = [dimension, *(d for d in range(len(part.shape)) if d != dimension)]
        for direction in (1, -1):
            step = part.lane(order, 1.0, direction).pass_along(0, 0, scatter=True)
            (ways,) = routed(topology, place, [step])
            each = np.bincount(ways.links, minlength=topology.n_links) / 2
            found[dimension] += each / (extent - 1) if part.complete[dimension] else each
    times: Floats = found / topology.bandwidth_bytes_per_s
    return np.unique(times, axis=1)


@ring_algorithm("hierarchical")
def hierarchical(group: CollectiveGroup, op: str) -> MessageSchedule:
    """Scatter inside the nodes on all of their ring channels, then across nodes, and gather back.

    BlueConnect on the real links: inside a node the channels are those of the ring algorithm; then
    each device rings with those of equal position in the other nodes.
    """
    shape = _grid(group, "hierarchical")
    lanes = _node_lanes(group.topology, shape[0], math.prod(shape[1:]))
    if lanes is None or len(shape) > 2:
        lanes = [_part(group, "hierarchical").lane(range(len(shape)))]
    return lanes_script(group, op, lanes)


def _node_lanes(topology: Topology, inside: int, nodes: int) -> list[Lane] | None:
    """Return one lane per ring channel of a node; None if there is one channel, or one node.

    Nodes are drawn alike, so the links of the first node's channels are found in every other node
    between the vertices that are as many numbers further.
    """
    if topology.single_channel or not topology.node_of.any():
        return None
    offset = topology.devices[::inside].astype(np.int64) - int(topology.devices[0])
    key = topology.source.astype(np.int64) * topology.n_vertices + topology.target
    lanes = []
    for channel in ring_channels(topology, tuple(range(inside))).channels:
        rank = np.array(channel.ranks)[:, None] + inside * np.arange(nodes)
        first = channel.ways.links.astype(np.int64)
        beside = first - np.searchsorted(key, key[first])  # of several between two vertices
        links = np.searchsorted(key, key[first] + offset[:, None] * (topology.n_vertices + 1))
        links = np.minimum(links + beside, topology.n_links - 1)
        ends = topology.source[links] - offset[:, None], topology.target[links] - offset[:, None]
        bandwidth = topology.bandwidth_bytes_per_s[links]
        if (
            (ends[0] != topology.source[first]).any()
            or (ends[1] != topology.target[first]).any()
            or (bandwidth != bandwidth[0]).any()
        ):
            return None
        length = np.repeat(np.diff(channel.ways.ptr), nodes)
        ptr = np.concatenate((np.zeros(1, np.int64), np.cumsum(length)))
        hop = np.split(links, channel.ways.ptr[1:-1], axis=1)
        ways = np.concatenate([part.ravel() for part in hop]).astype(np.int32)
        lanes.append(Lane((inside, nodes), rank.ravel(), channel.share, routes=Routes(ptr, ways)))
    return lanes
