"""Completion times of a traffic pattern under a transport, over seeds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.network.levels import KNOWN_ERROR
from ridgeline.network.multipath import collisions, flow_completions_s
from ridgeline.network.topology import Floats, Topology
from ridgeline.network.traffic import Flows
from ridgeline.network.transport import Transport, play_transport

Level = Literal["flows", "packets"]
_PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Completions:
    """When messages arrive.

    Attributes
    ----------
    level, transport, known_error
        How the network was simulated, and what is known of the error of that.
    messages, draws
        How many messages, and how often the seed was drawn.
    p50_s, p95_s, p99_s
        Of all messages of all draws.
    quantiles_s
        The same for each hundredth, from the first message to the last.
    last_s
        When the last message of a draw arrives: median, and 95th percentile.
    ideal_s
        When the last would arrive if nothing but the ports of devices held it up.
    collisions
        Of hashed ways: mean share of the rate alone, of all messages and of the slowest, and most
        connections on a link that some could avoid, as median.
    counters
        Of packets, of all draws: played, marked, notices, pauses, longest queue, most that a switch
        held of a link, and longest pause.
    """

    level: str
    transport: str
    known_error: str
    messages: int
    draws: int
    p50_s: float
    p95_s: float
    p99_s: float
    quantiles_s: tuple[float, ...]
    last_s: tuple[float, float]
    ideal_s: float
    collisions: dict[str, float]
    counters: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {**asdict(self), "last_s": dict(zip(("p50", "p95"), self.last_s, strict=True))}


def completions(
    topology: Topology, flows: Flows, transport: Transport, level: Level = "flows", draws: int = 1
) -> Completions:
    """Send messages, so many times with seeds one after the other.

    Raises
    ------
    RidgelineError
        If there are too many packets, or draws are no whole number above 0.
    """
    if draws < 1:
        raise RidgelineError(f"at least one draw, found {draws}")
    counters: dict[str, float] = {}
    times = np.empty((draws, flows.n))
    for number in range(draws):
        drawn = replace(transport, seed=transport.seed + number)
        if level == "flows":
            times[number] = flow_completions_s(
                topology, flows, drawn.routing, queue_pairs=drawn.queue_pairs, seed=drawn.seed
            )
            continue
        found = play_transport(topology, flows, drawn)
        times[number] = found.done_s
        for name, value, join in (
            ("packets", found.packets, _sum),
            ("marked", found.marked, _sum),
            ("notices", found.notices, _sum),
            ("pauses", found.pauses, _sum),
            ("longest_queue_bytes", float(found.most_queued_bytes.max(initial=0.0)), max),
            ("most_held_bytes", float(found.most_held_bytes.max(initial=0.0)), max),
            ("longest_pause_s", float(found.paused_s.max(initial=0.0)), max),
        ):
            counters[name] = join(counters.get(name, 0), value)
    hashed: dict[str, float] = {}
    if transport.routing == "ecmp":
        collided = collisions(
            topology, flows, queue_pairs=transport.queue_pairs, draws=draws, seed=transport.seed
        )
        hashed = {
            "mean_share": float(collided.share.mean()),
            "slowest_share": float(collided.share.min(axis=1).mean()),
            "most_on_a_link": float(np.median(collided.most)),
        }
    last = times.max(axis=1)
    p50, p95, p99 = (float(x) for x in np.percentile(times, _PERCENTILES))
    return Completions(
        level,
        transport.text if level == "packets" else transport.routing_text,
        KNOWN_ERROR[level],
        flows.n,
        draws,
        p50,
        p95,
        p99,
        tuple(np.percentile(times, np.arange(101)).tolist()),
        (float(np.median(last)), float(np.percentile(last, 95))),
        ideal_s(topology, flows),
        hashed,
        counters,
    )


def _sum(a: float, b: float) -> float:
    return a + b


def ideal_s(topology: Topology, flows: Flows) -> float:
    """Return when the last message arrives if nothing but the ports of devices holds it up."""
    start, end = flows.vertices(topology)
    bandwidth = topology.bandwidth_bytes_per_s
    out = np.bincount(topology.source, bandwidth, topology.n_vertices)
    into = np.bincount(topology.target, bandwidth, topology.n_vertices)
    sent = np.bincount(start, flows.size_bytes, topology.n_vertices)
    got = np.bincount(end, flows.size_bytes, topology.n_vertices)
    busy: Floats = np.maximum(
        np.divide(sent, out, out=np.zeros_like(sent), where=sent > 0),
        np.divide(got, into, out=np.zeros_like(got), where=got > 0),
    )
    return float(busy.max(initial=0.0))
