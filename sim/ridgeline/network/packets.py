"""Packet by packet: the small cases that the flow level is checked against.

Every message is cut into packets that follow its route. A link carries one packet at a time, and a
packet moves on when

*store-and-forward*  it has arrived as a whole, or
*cut-through*        its header has, as long as its tail cannot be overtaken: at the next link it
                     begins no earlier than its header arrives, and ends no earlier than its tail.

Buffers are finite and lossless: a packet is sent only if there is room for it behind the link
(credits, returned as soon as the packet has left). What a link sends next is settled by its
*arbiter*:

*round-robin*  one packet of each message in turn; every message has its own buffer at every switch.
               With hop-by-hop windows this divides links max-min fairly (Hahne, IEEE JSAC 9(7),
               1991), which is what the flow level assumes.
*fifo*         in order of arrival; one buffer for each link, whose first packet blocks the others.
               At their source messages take turns. On rings and tori such buffers can lock each
               other; that is found and said.
*priority*     as round-robin, but of the waiting messages those of the least priority number
               alone: a message is pre-empted at the next border between packets.

With packets as long as the messages this is the model of links that serve whole messages, first
come, first served, or by priority.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ridgeline._jit import kernel
from ridgeline.errors import RidgelineError, nearest
from ridgeline.network.packet_queues import (
    grown,
    grown_ints,
    join_round,
    pop_event,
    push_event,
)
from ridgeline.network.paths import Ints, Routes
from ridgeline.network.routing import routes
from ridgeline.network.topology import Floats, Indices, Topology
from ridgeline.network.traffic import Flows

Switching = Literal["store-and-forward", "cut-through"]
Arbiter = Literal["round-robin", "fifo", "priority"]

MOST_HOPS = 200_000_000
"""Packets times links that are played at most: a minute or so."""


@dataclass(frozen=True, slots=True)
class PacketNetwork:
    """How packets are made and moved.

    Attributes
    ----------
    payload_bytes
        Of a full packet; the last of a message may be shorter.
    header_bytes
        Of every packet, besides its payload.
    switching, arbiter
        See the head of this module.
    buffer_packets
        Room behind each link, for every message with a round-robin or priority arbiter, for all
        together with FIFO. None: just enough that a lone message is never held up.
    """

    payload_bytes: float = 4096.0
    header_bytes: float = 0.0
    switching: Switching = "store-and-forward"
    arbiter: Arbiter = "round-robin"
    buffer_packets: int | None = None

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("switching", self.switching, get_args(Switching)),
            ("arbiter", self.arbiter, get_args(Arbiter)),
        ):
            if value not in allowed:
                raise RidgelineError(
                    f"packets: no {name} is called {value!r}{nearest(value, allowed)} "
                    f"(known: {', '.join(allowed)})"
                )
        if not (self.payload_bytes > 0 and 0 <= self.header_bytes < math.inf):
            raise RidgelineError(
                "packets: the payload must be more than 0 B and the header at least 0 B; found "
                f"{self.payload_bytes} and {self.header_bytes}"
            )
        if self.buffer_packets is not None and self.buffer_packets < 1:
            raise RidgelineError(
                f"packets: a buffer holds at least one packet, found {self.buffer_packets}"
            )

    @property
    def efficiency(self) -> float:
        """Share of a full packet that is payload."""
        return self.payload_bytes / (self.payload_bytes + self.header_bytes)


def play_packets(
    topology: Topology,
    flows: Flows,
    network: PacketNetwork,
    *,
    ways: Routes | None = None,
    priority: Indices | None = None,
) -> Floats:
    """Play messages packet by packet.

    Parameters
    ----------
    ways
        Links of every message; by default those of the topology's routing.
    priority
        [F] least first, for the priority arbiter; all equal by default.

    Returns
    -------
    [F] seconds at which the last byte of each message has arrived.

    Raises
    ------
    RidgelineError
        If there are too many packets, or if packets wait for each other's buffers in a circle.
    """
    if ways is None:
        ways = routes(topology, *flows.vertices(topology))
    hops = np.diff(ways.ptr)
    packets = np.ceil(flows.size_bytes / network.payload_bytes)
    if (packets * hops).sum() > MOST_HOPS:
        raise RidgelineError(
            f"{int(packets.sum())} packets over {int(hops.max())} links and more are too many for "
            "the packet level; use larger packets, or the flow level"
        )
    n_packets = packets.astype(np.int64)
    last = flows.size_bytes - (n_packets - 1) * network.payload_bytes
    room = network.buffer_packets
    if room is None:
        packets_in_one = n_packets.sum() if network.arbiter == "fifo" else n_packets.max(initial=1)
        room = _room(topology, network, int(packets_in_one))
    arrived = np.full(flows.n, math.nan)
    n_queued = int(ways.ptr[-1]) if network.arbiter != "fifo" else topology.n_links
    if n_queued * room > MOST_HOPS:
        raise RidgelineError(f"packets: buffers of {room} packets are too large for this network")
    _play(
        ways.ptr,
        ways.links.astype(np.int64),
        n_packets,
        np.full(flows.n, network.payload_bytes + network.header_bytes),
        last + network.header_bytes,
        network.header_bytes,
        np.zeros(flows.n, np.int64) if priority is None else priority.astype(np.int64),
        topology.bandwidth_bytes_per_s,
        topology.latency_s,
        network.switching == "cut-through",
        network.arbiter == "fifo",
        network.arbiter == "priority",
        room,
        arrived,
    )
    stuck = np.flatnonzero(np.isnan(arrived))
    if len(stuck):
        raise RidgelineError(
            f"{len(stuck)} of {flows.n} messages never arrive: packets wait for each other's "
            f"buffers in a circle, among them those from rank {flows.source[stuck[0]]} to rank "
            f"{flows.target[stuck[0]]}; use up-down routing, larger buffers or another arbiter"
        )
    return arrived


def _room(topology: Topology, network: PacketNetwork, most: int) -> int:
    """Packets that are on their way over a link, in both directions, and two to work on."""
    size = network.payload_bytes + network.header_bytes
    flying = float((topology.latency_s * topology.bandwidth_bytes_per_s).max(initial=0.0)) / size
    fastest = float(topology.bandwidth_bytes_per_s.max(initial=1.0))
    skew = fastest / float(topology.bandwidth_bytes_per_s.min(initial=fastest))
    return int(min(math.ceil(2 * flying + min(skew, 8.0)) + 3, most + 1))


# Queues. An *entry* is one hop of one message, numbered as in the routes. Every link has a round of
# the entries that may send now (a linked list; `following`), and, with FIFO, a ring of the entries
# whose packets have arrived, in order.


@kernel
def _play(  # noqa: PLR0915 - one loop over events, written out
    ptr: Ints,
    link_of: Ints,
    n_packets: Ints,
    full_bytes: Floats,
    last_bytes: Floats,
    header_bytes: float,
    priority: Ints,
    bandwidth: Floats,
    latency_s: Floats,
    cut_through: bool,
    fifo: bool,
    by_priority: bool,
    room: int,
    arrived: Floats,
) -> None:
    n_flows, n_links, n_entries = len(n_packets), len(bandwidth), len(link_of)
    flow_of = np.empty(n_entries, np.int64)
    for flow in range(n_flows):
        for entry in range(ptr[flow], ptr[flow + 1]):
            flow_of[entry] = flow
    waiting = np.zeros(n_entries, np.int64)  # packets that have come to this hop
    sent = np.zeros(n_entries, np.int64)
    held = np.zeros(n_links if fifo else n_entries, np.int64)  # room taken, or promised
    busy = np.zeros(n_links, np.bool_)
    # rounds of entries
    head = np.full(n_links, -1, np.int64)
    tail = np.full(n_links, -1, np.int64)
    following = np.full(n_entries, -1, np.int64)
    in_round = np.zeros(n_entries, np.bool_)
    # FIFO: rings of entries, and links that wait for room behind them
    ring = np.empty(n_links * room if fifo else 1, np.int64)
    ring_first = np.zeros(n_links, np.int64)
    ring_size = np.zeros(n_links, np.int64)
    own_turn = np.zeros(n_links, np.bool_)  # FIFO: what begins here takes turns with what passes
    feeding = np.full(n_links, -1, np.int64)  # with FIFO: list of the links waiting for this one's
    next_feeding = np.full(n_links, -1, np.int64)  # room, by the link that lacks it
    is_feeding = np.zeros(n_links, np.bool_)
    # events: (time, number): a link becomes free, or a packet comes to an entry
    times = np.empty(1024)
    what = np.empty(1024, np.int64)
    keys = np.empty(1024, np.int64)
    size = 0
    serial = 0
    awake = np.empty(n_links, np.int64)  # links to look at
    is_awake = np.zeros(n_links, np.bool_)
    n_awake = 0
    for flow in range(n_flows):
        if ptr[flow] == ptr[flow + 1]:
            arrived[flow] = 0.0
            continue
        entry = ptr[flow]
        waiting[entry] = n_packets[flow]
        join_round(entry, link_of[entry], priority, flow_of, by_priority, head, tail, following,
              in_round)  # fmt: skip
    for link in range(n_links):
        awake[n_awake] = link
        is_awake[link] = True
        n_awake += 1
    now = 0.0
    while True:
        while n_awake > 0:
            n_awake -= 1
            link = awake[n_awake]
            is_awake[link] = False
            if busy[link]:
                continue
            # --- what does the link send?
            entry = -1
            passing = fifo and ring_size[link] > 0
            for attempt in range(2):
                own = fifo and (own_turn[link] == (attempt == 0))
                if not fifo or own:
                    candidate = head[link]
                    if candidate == -1:
                        if not fifo:
                            break
                        continue
                elif passing:
                    candidate = ring[link * room + ring_first[link]]
                else:
                    continue
                last_hop = candidate + 1 == ptr[flow_of[candidate] + 1]
                if last_hop:
                    entry = candidate
                elif fifo:
                    beyond = link_of[candidate + 1]
                    if held[beyond] < room:
                        entry = candidate
                    elif not is_feeding[link]:
                        is_feeding[link] = True
                        next_feeding[link] = feeding[beyond]
                        feeding[beyond] = link
                elif held[candidate + 1] < room:
                    entry = candidate
                if entry != -1 or not fifo:
                    break
            if entry == -1:
                if not fifo and head[link] != -1:
                    # no room behind: out of the round until there is
                    blocked = head[link]
                    head[link] = following[blocked]
                    if head[link] == -1:
                        tail[link] = -1
                    in_round[blocked] = False
                    is_awake[link] = True
                    awake[n_awake] = link
                    n_awake += 1
                continue
            flow = flow_of[entry]
            if fifo and entry != ptr[flow]:
                ring_first[link] = (ring_first[link] + 1) % room
                ring_size[link] -= 1
                own_turn[link] = True
            else:
                head[link] = following[entry]
                if head[link] == -1:
                    tail[link] = -1
                in_round[entry] = False
                own_turn[link] = False
            # --- send it
            number = sent[entry]
            sent[entry] += 1
            waiting[entry] -= 1
            length = full_bytes[flow] if number + 1 < n_packets[flow] else last_bytes[flow]
            end = now + length / bandwidth[link]
            busy[link] = True
            if size + 2 > len(times):
                times, what, keys = grown(times), grown_ints(what), grown_ints(keys)
            push_event(times, what, keys, size, end, -1 - entry, serial)
            size += 1
            serial += 1
            if entry + 1 == ptr[flow + 1]:
                if number + 1 == n_packets[flow]:
                    arrived[flow] = end + latency_s[link]
            else:
                beyond = link_of[entry + 1]
                held[beyond if fifo else entry + 1] += 1
                comes = end
                if cut_through:
                    comes = max(
                        now + header_bytes / bandwidth[link], end - length / bandwidth[beyond]
                    )
                push_event(times, what, keys, size, comes + latency_s[link], entry + 1, serial)
                size += 1
                serial += 1
        if size == 0:
            return
        # --- the next event
        now = times[0]
        event = what[0]
        size -= 1
        pop_event(times, what, keys, size)
        if event < 0:
            entry = -1 - event
            flow, link = flow_of[entry], link_of[entry]
            busy[link] = False
            if waiting[entry] > 0 and not in_round[entry] and (not fifo or entry == ptr[flow]):
                join_round(
                    entry, link, priority, flow_of, by_priority, head, tail, following, in_round
                )
            if not is_awake[link]:
                is_awake[link] = True
                awake[n_awake] = link
                n_awake += 1
            if entry > ptr[flow]:  # its room is free again
                if fifo:
                    held[link] -= 1
                    one = feeding[link]
                    feeding[link] = -1
                    while one != -1:
                        is_feeding[one] = False
                        if not is_awake[one]:
                            is_awake[one] = True
                            awake[n_awake] = one
                            n_awake += 1
                        one = next_feeding[one]
                else:
                    held[entry] -= 1
                    before = entry - 1
                    if waiting[before] > 0 and not in_round[before]:
                        join_round(
                            before, link_of[before], priority, flow_of, by_priority, head, tail,
                            following, in_round,
                        )  # fmt: skip
                        if not is_awake[link_of[before]]:
                            is_awake[link_of[before]] = True
                            awake[n_awake] = link_of[before]
                            n_awake += 1
        else:
            link = link_of[event]
            waiting[event] += 1
            if fifo:
                ring[link * room + (ring_first[link] + ring_size[link]) % room] = event
                ring_size[link] += 1
            elif not in_round[event]:
                join_round(
                    event, link, priority, flow_of, by_priority, head, tail, following, in_round
                )
            if not is_awake[link]:
                is_awake[link] = True
                awake[n_awake] = link
                n_awake += 1
