"""Ring channels: in which orders, and over which links, a set of ranks sends round in circles.

How the channels are chosen
---------------------------
*One node, direct links.* If the devices can be joined by rings of direct links alone, those
link-disjoint directed rings are taken that have the largest total bandwidth (`packing.pack_rings`).
Each takes one physical link per hop, so that no channel slows another; both directions of a link
serve different rings. This is what collective libraries do on a hybrid cube mesh: four rings on a
DGX-1 of P100, six on one of V100. More than `packing.MAX_DEVICES` devices are searched by a
heuristic (`hamilton.disjoint_rings`) that may miss rings. Where links of several classes join two
devices, the widest are packed first and what is left of all classes next, until no ring is left.

*One node, otherwise* (devices behind switches, links missing, or direct links that carry less):
rings in rank order whose hops are routes,
one for every rail (`ridgeline.network.rail_routes`): devices
with a link to each of four switches have four. Behind a switch rank order is as good as any, since
every device's way in and way out are both in use all the time.

*Several nodes.* Each NIC that is nearest to one of the devices gets a ring in each direction. In
every node the ring comes in at a device near its NIC, passes all devices on a chain, and goes out
through the same NIC at another device near it. Where every NIC is near to one device alone, it goes
out through the NIC of the next device instead, and every second node is passed the other way round,
so that no ring leaves its rail. The chain is a Hamiltonian path over direct links
(`packing.pack_chains`), or the devices in rank order over routes if none is found. A NIC sends and
receives at once, so the two directions share it, but on the chains they use opposite ways of the
links. If nodes differ in the number of NICs, the least number counts.

*Single-channel topologies* (inline ones): one ring in rank order, in one direction.

The payload is divided between the channels in proportion to their bandwidths. Where links of
unequal speed are packed, a parallel link that is left over may help a channel beyond what the
packing counted on; only there can a faster link change the choice for the worse.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ridgeline.errors import RidgelineError
from ridgeline.network import hamilton, packing
from ridgeline.network.nic_paths import MAX_SEARCHED, Passage, passages
from ridgeline.network.paths import Ints, Routes
from ridgeline.network.rail_routes import rails
from ridgeline.network.routing import Route, routes
from ridgeline.network.schedule import LinkLoads, loads_of_links
from ridgeline.network.topology import Floats, Topology


@dataclass(frozen=True, slots=True, eq=False)
class Channel:
    """One ring.

    Attributes
    ----------
    ranks
        In the order of sending; the last sends to the first.
    ways
        Links of each hop: way i leads from ``ranks[i]`` to the next.
    bandwidth_bytes_per_s
        Of the narrowest link, shared evenly by all hops of all channels that pass it.
    share
        Of the payload.
    """

    ranks: tuple[int, ...]
    ways: Routes
    bandwidth_bytes_per_s: float
    share: float

    @property
    def routes(self) -> tuple[Route, ...]:
        """`ways` as tuples."""
        ptr, links = self.ways.ptr.tolist(), self.ways.links.tolist()
        return tuple(tuple(links[a:b]) for a, b in pairwise(ptr))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Channel) and (self.ranks, self.routes, self.share) == (
            *(other.ranks, other.routes, other.share),
        )

    def __hash__(self) -> int:
        return hash((self.ranks, self.share))


@dataclass(frozen=True, slots=True)
class Channels:
    """All rings of a set of ranks; they run at the same time.

    Attributes
    ----------
    channels
        The rings; none if there is a single rank.
    method
        How they were chosen: ``single``, ``packed``, ``packed, search cut short``, ``packed by
        heuristic``, ``routed``, ``routed, per rail`` or ``per NIC``.
    load
        By link, the sum of the shares of the hops that pass it.
    latency_s
        Of the slowest hop.
    """

    channels: tuple[Channel, ...]
    method: str
    load: LinkLoads
    latency_s: float

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Of all channels together."""
        return sum(channel.bandwidth_bytes_per_s for channel in self.channels)


class _Ring(NamedTuple):
    """A channel before its share is known."""

    ranks: tuple[int, ...]
    ways: Routes


def hops_s(topology: Topology, ways: Routes) -> Floats:
    """Return the latency of every hop of a ring."""
    n = len(ways.ptr) - 1
    hop = np.repeat(np.arange(n), np.diff(ways.ptr))
    each: Floats = np.bincount(hop, topology.latency_s[ways.links], n).astype(np.float64)
    return each


def ring_channels(topology: Topology, ranks: tuple[int, ...]) -> Channels:
    """Choose the ring channels of some ranks, as the head of this module describes.

    Parameters
    ----------
    ranks
        Distinct ranks; "rank order" is the order in which they are given.

    Raises
    ------
    RidgelineError
        If a rank is unknown or stands twice, or two ranks have no route between them.
    """
    known = _few_ranks if len(ranks) <= _FEW else _many_ranks
    return known(topology, ranks)


def _chosen(topology: Topology, ranks: tuple[int, ...]) -> Channels:
    check_ranks(topology, ranks)
    if len(ranks) == 1:
        return Channels((), "single", loads_of_links([], [], topology.n_links), 0.0)
    if topology.single_channel:
        return _routed(topology, ranks, "single")
    if len({int(topology.node_of[topology.devices[rank]]) for rank in ranks}) > 1:
        return _per_nic(topology, ranks)
    return _of_one_node(topology, ranks)


_FEW = 8
_few_ranks = lru_cache(maxsize=2048)(_chosen)  # the groups inside all nodes of a large machine
_many_ranks = lru_cache(maxsize=256)(_chosen)  # rings of a thousand devices take 400 kB


def _of_one_node(topology: Topology, ranks: tuple[int, ...]) -> Channels:
    """Pack direct links, or take rails in rank order where they can and do carry more."""
    packed = _packed(topology, ranks)
    if packed is not None and _railed_bound(topology, ranks) <= packed.bandwidth_bytes_per_s:
        return packed
    try:
        railed = _railed(topology, ranks)
    except RidgelineError as error:
        if packed is not None:
            return packed
        if not len(_direct_links(topology, ranks)[0]):
            raise
        raise RidgelineError(
            f"no ring over direct links was found through the {len(ranks)} devices, and in rank "
            f"order {error}"
        ) from error
    if packed is None or railed.bandwidth_bytes_per_s > packed.bandwidth_bytes_per_s * (1 + 1e-9):
        return railed
    return packed


def check_ranks(topology: Topology, ranks: Sequence[int]) -> None:
    """Raise RidgelineError unless the ranks are distinct, at least one, and all exist."""
    if not ranks:
        raise RidgelineError("a collective needs at least one rank")
    unknown = [rank for rank in ranks if not 0 <= rank < topology.n_devices]
    if unknown:
        raise RidgelineError(
            f"rank {unknown[0]} does not exist: {topology.name!r} has ranks 0 to "
            f"{topology.n_devices - 1}"
        )
    twice = [rank for rank, times in Counter(ranks).items() if times > 1]
    if twice:
        raise RidgelineError(f"rank {twice[0]} stands twice in the list of ranks")


def _routed(topology: Topology, ranks: tuple[int, ...], method: str) -> Channels:
    """One ring in rank order."""
    vertices = topology.devices[list(ranks)].astype(np.int64)
    rings = [_Ring(ranks, routes(topology, vertices, np.roll(vertices, -1)))]
    return _channels(topology, rings, _fair_rates(topology, rings), method)


def _railed(topology: Topology, ranks: tuple[int, ...]) -> Channels:
    """One ring in rank order for every rail of a node."""
    vertices = topology.devices[list(ranks)].astype(np.int64)
    found = list(rails(topology, vertices, np.roll(vertices, -1)))
    rings = [_Ring(ranks, ways) for ways, _ in found]
    method = "routed" if len(found) == 1 else "routed, per rail"
    return _channels(topology, rings, [rate for _, rate in found], method)


def _railed_bound(topology: Topology, ranks: tuple[int, ...]) -> float:
    """Bandwidth that rails in rank order cannot exceed, at the cost of no routing.

    What a hop carries leaves its first device either on a link to the second or on a link to
    something that passes it on.
    """
    vertices = topology.devices[list(ranks)]
    bandwidth, source, target = topology.bandwidth_bytes_per_s, topology.source, topology.target
    onward = topology.forwards[target]
    outward = np.bincount(source, bandwidth * onward, topology.n_vertices)
    return min(
        float(outward[a] + bandwidth[(source == a) & (target == b) & ~onward].sum())
        for a, b in zip(vertices, np.roll(vertices, -1), strict=True)
    )


def _packed(topology: Topology, ranks: tuple[int, ...]) -> Channels | None:
    """Link-disjoint rings of direct links, or None if no such ring is found."""
    n = len(ranks)
    between, source, target = _direct_links(topology, ranks)
    if not len(between) or n > MAX_SEARCHED:
        return None
    unit = topology.bandwidth_bytes_per_s / topology.count
    widest_last = np.lexsort((-between, unit[between]))
    between, source, target = between[widest_last], source[widest_last], target[widest_last]
    left = topology.count.astype(np.int64)
    rings: list[_Ring] = []
    rates: list[float] = []
    proven = True
    while True:
        open_ = left[between] > 0
        link = np.full((n, n), -1)
        link[source[open_], target[open_]] = between[open_]  # of several the last
        count = np.where(link >= 0, left[link], 0)
        found = packing.pack_rings(_rows(count), _rows(np.where(link >= 0, unit[link], 0.0)))
        for order in found.rings:
            hops = [int(link[hop]) for hop in hamilton.hops(order)]
            left[hops] -= 1
            ways = Routes(np.arange(n + 1), np.array(hops, np.int32))
            rings.append(_Ring(tuple(ranks[i] for i in order), ways))
        rates += found.bandwidths_bytes_per_s
        proven = proven and found.proven
        if not found.rings or np.count_nonzero(link >= 0) == len(between):
            break
    if not rings:
        return None
    method = "packed" if proven else "packed, search cut short"
    return _channels(
        topology, rings, rates, method if n <= packing.MAX_DEVICES else "packed by heuristic"
    )


def _rows(matrix: npt.NDArray[Any]) -> tuple[tuple[Any, ...], ...]:
    return tuple(map(tuple, matrix.tolist()))


def _direct_links(topology: Topology, ranks: Sequence[int]) -> tuple[Ints, Ints, Ints]:
    """All links from one of the ranks to another, and the places of both in `ranks`."""
    place = np.full(topology.n_vertices, -1)
    place[topology.devices[list(ranks)]] = np.arange(len(ranks))
    source, target = place[topology.source], place[topology.target]
    links = np.flatnonzero((source >= 0) & (target >= 0))
    return links, source[links], target[links]


def _per_nic(topology: Topology, ranks: Sequence[int]) -> Channels:
    """Two rings, one in each direction, through every NIC that is near to a device."""
    members: dict[int, list[int]] = {}
    for rank in ranks:
        members.setdefault(int(topology.node_of[topology.devices[rank]]), []).append(rank)
    ways = [passages(topology, tuple(members[node]), node) for node in sorted(members)]
    rings: list[_Ring] = []
    for way in zip(*ways, strict=False):  # nodes with more NICs leave the last ones unused
        turned = [passage.reversed if i % 2 else passage for i, passage in enumerate(way)]
        along = turned if way[0].entry != way[0].exit else list(way)
        back = [passage.reversed for passage in reversed(along)]
        rings += [_closed(topology, along), _closed(topology, back)]
    return _channels(topology, rings, _fair_rates(topology, rings), "per NIC")


def _closed(topology: Topology, way: Sequence[Passage]) -> _Ring:
    """Join the chains of the nodes, NIC to NIC, to a ring."""
    ranks = tuple(chain.from_iterable(passage.chain for passage in way))
    # between two chains a hop passes the exit of one node and the entry of the next
    chained = np.cumsum([len(passage.chain) for passage in way])
    device = np.arange(len(ranks)) + 2 * np.searchsorted(chained, np.arange(len(ranks)), "right")
    walk = np.empty(len(ranks) + 2 * len(way), np.int64)
    walk[device] = topology.devices[list(ranks)]
    last = chained + 2 * np.arange(len(way))
    walk[last] = [passage.exit for passage in way]
    walk[last + 1] = [passage.entry for passage in (*way[1:], way[0])]
    ptr, links = routes(topology, walk, np.roll(walk, -1))
    return _Ring(ranks, Routes(np.append(ptr[device], ptr[-1]), links))


def _fair_rates(topology: Topology, rings: Sequence[_Ring]) -> list[float]:
    """Bandwidth of each ring when the hops that pass a link share it evenly."""
    hops = np.bincount(np.concatenate([ring.ways.links for ring in rings]))
    links = [ring.ways.links for ring in rings]
    return [float((topology.bandwidth_bytes_per_s[one] / hops[one]).min()) for one in links]


def _channels(
    topology: Topology, rings: Sequence[_Ring], rates: Sequence[float], method: str
) -> Channels:
    """Divide the payload between the rings, and add up what each link carries of it."""
    total = sum(rates)
    passed = np.concatenate([ring.ways.links for ring in rings])
    shares = np.repeat([rate / total for rate in rates], [len(ring.ways.links) for ring in rings])
    load = loads_of_links(passed, shares, topology.n_links)
    latency_s = max(float(hops_s(topology, ring.ways).max()) for ring in rings)
    channels = tuple(
        Channel(ring.ranks, ring.ways, rate, rate / total)
        for ring, rate in zip(rings, rates, strict=True)
    )
    return Channels(channels, method, load, latency_s)
