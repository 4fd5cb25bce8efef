"""Collectives packet by packet: the rounds of an algorithm's script, each played to its end.

A round begins when the slowest message of the last one has arrived, as at the level of flows; equal
rounds are played once. What a collective library does besides (protocols, kernels) is not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.network.algorithm import Algorithm, DoesNotApplyError
from ridgeline.network.levels import KNOWN_ERROR
from ridgeline.network.paths import Routes, take
from ridgeline.network.routed import RunSizes, round_latency_s, routed
from ridgeline.network.topology import Floats, Topology
from ridgeline.network.traffic import Flows
from ridgeline.network.transport import Transport, TransportResult, play_transport
from ridgeline.network.user_collectives import UserCollective

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


class Round(NamedTuple):
    """Messages that are sent at once, and how often.

    Attributes
    ----------
    flows
        The messages; None of a barrier, which has latencies alone.
    ways
        Links of each; None: those of the topology's routing.
    latency_s
        Of the slowest message.
    repeat
        How many equal rounds follow each other.
    """

    flows: Flows | None
    ways: Routes | None
    latency_s: float
    repeat: int


def rounds_of(
    algorithm: Algorithm | UserCollective,
    topology: Topology,
    group: tuple[int, ...],
    size_bytes: float,
    parts: Floats | None = None,
) -> list[Round]:
    """Return the rounds of an algorithm's script, or of a file's; at least two ranks.

    Raises
    ------
    DoesNotApplyError
        If the algorithm is not made for this topology, or switches take part in it.
    """
    if isinstance(algorithm, UserCollective):
        script = algorithm.script(group, size_bytes)
    else:
        script = algorithm.script(topology, group, size_bytes, parts)
    if script.vertices or any(step.wave.any() for step in script.steps):
        raise DoesNotApplyError(
            f"{algorithm.name!r} adds in switches, or streams through ranks, which the packet level"
            " does not know"
        )
    sizes, ranks = RunSizes(script.slot_bytes), np.array(group, np.int64)
    vertex = topology.devices[ranks].astype(np.int64)
    found = []
    for step in script.steps:
        (ways,) = routed(topology, vertex, [step])
        latency_s = round_latency_s(topology, step, ways)
        for part in sizes.rounds(step):
            size = sizes.of(part)
            some = np.flatnonzero(size > 0)
            if not len(some):
                found.append(Round(None, None, latency_s, part.repeat))
                continue
            flows = Flows(ranks[part.source[some]], ranks[part.target[some]], size[some])
            given = None if part.routes is None else take(part.routes, some)
            found.append(Round(flows, given, latency_s, part.repeat))
    return found


def packets_in(rounds: Sequence[Round], transport: Transport) -> float:
    """Return how many packets are played of some rounds."""
    sizes = [one.flows.size_bytes for one in rounds if one.flows is not None]
    return sum(float(np.ceil(size / transport.payload_bytes).sum()) for size in sizes)


def play_collective(
    algorithm: Algorithm | UserCollective,
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
    rounds = rounds_of(algorithm, topology, group, size_bytes, parts)
    packets = packets_in(rounds, transport)
    if packets > MOST_PACKETS:
        raise RidgelineError(
            f"{algorithm.name}: {packets:,.0f} packets; at most {MOST_PACKETS:,} are played one by "
            "one: a smaller size, fewer ranks, --network flows, or larger packets, which switches "
            "store longer"
        )
    time_s = topology.collective_latency_s
    played: list[TransportResult] = []
    for one in rounds:
        if one.flows is None:
            time_s += one.repeat * one.latency_s
            continue
        found = play_transport(topology, one.flows, transport, ways=one.ways)
        time_s += one.repeat * float(found.done_s.max())
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
