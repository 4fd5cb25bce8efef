"""Collectives packet by packet: the rounds of an algorithm's script, each played to its end.

A round begins when the slowest message of the last one has arrived, as at the level of flows; equal
rounds are played once. What a collective library does besides (protocols, kernels) is not in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.network.algorithm import Algorithm, DoesNotApplyError
from ridgeline.network.levels import KNOWN_ERROR
from ridgeline.network.paths import take
from ridgeline.network.routed import Sizes, round_latency_s, routed
from ridgeline.network.topology import Floats, Topology
from ridgeline.network.traffic import Flows
from ridgeline.network.transport import Transport, TransportResult, play_transport

MOST_PACKETS = 20_000_000
"""Packets of all rounds that are played at most: a minute or so."""


@dataclass(frozen=True)
class PacketCollective:
    """A collective that was played packet by packet.

    Attributes
    ----------
    time_s
        Of all rounds.
    network
        The level, the transport, what is known of its error, and what happened to packets.
    """

    time_s: float
    network: dict[str, Any]


def play_collective(
    algorithm: Algorithm,
    topology: Topology,
    group: tuple[int, ...],
    size_bytes: float,
    transport: Transport,
    parts: Floats | None = None,
) -> PacketCollective:
    """Play an algorithm packet by packet; at least two ranks.

    Raises
    ------
    DoesNotApplyError
        If the algorithm is not made for this topology, or switches take part in it.
    RidgelineError
        If there are too many packets; nothing has been played then.
    """
    of_group = algorithm.group(topology, group, size_bytes, parts)
    script = algorithm.write(of_group)
    if script.vertices or any(step.wave.any() for step in script.steps):
        raise DoesNotApplyError(
            f"{algorithm.name!r} adds in switches, or streams through ranks, which the packet level"
            " does not know"
        )
    sizes = Sizes(script.slot_bytes)
    rounds = [(part, sizes.of(part)) for step in script.steps for part in sizes.rounds(step)]
    packets = sum(float(np.ceil(size / transport.payload_bytes).sum()) for _, size in rounds)
    if packets > MOST_PACKETS:
        raise RidgelineError(
            f"{algorithm.name}: {packets:,.0f} packets; at most {MOST_PACKETS:,} are played one by "
            "one: larger packets (payload=64kB), a smaller size, fewer ranks, or --network flows"
        )
    ranks = np.array(group, np.int64)
    time_s = topology.collective_latency_s
    played: list[TransportResult] = []
    for part, size in rounds:
        some = size > 0
        if not some.any():  # a barrier: nothing but latencies
            (ways,) = routed(topology, of_group.vertex, [part])
            time_s += part.repeat * round_latency_s(topology, part, ways)
            continue
        flows = Flows(ranks[part.source[some]], ranks[part.target[some]], size[some])
        given = part.routes
        if given is not None and not some.all():
            given = take(given, np.flatnonzero(some))
        found = play_transport(topology, flows, transport, ways=given)
        time_s += part.repeat * float(found.done_s.max())
        played.append(found)
    return PacketCollective(
        time_s,
        {
            "level": "packets",
            "transport": transport.text,
            "known_error": KNOWN_ERROR["packets"],
            "packets_played": sum(one.packets for one in played),
            "marked": sum(one.marked for one in played),
            "pauses": sum(one.pauses for one in played),
            "longest_queue_bytes": max(
                (float(one.most_queued_bytes.max(initial=0.0)) for one in played), default=0.0
            ),
        },
    )
