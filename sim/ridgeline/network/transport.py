"""Transport: messages packet by packet with flow control, congestion control and multipath.

`ridgeline.network.transport_play` says how switches and senders behave. `ridgeline.network.packets`
is the plainer packet level (fair queues for each message, cut-through) that the flow level is
checked against; this one has what real fabrics have instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

import numpy as np

from ridgeline import units
from ridgeline.errors import RidgelineError, nearest
from ridgeline.network.multipath import checked_hops, choices_of
from ridgeline.network.paths import Ints, Routes, graph_of
from ridgeline.network.routing import routes
from ridgeline.network.topology import Floats, Topology
from ridgeline.network.traffic import Flows
from ridgeline.network.transport_play import MARKED, NOTICES, PACKETS, PAUSES, play

Routing = Literal["static", "ecmp", "spray", "adaptive"]
Control = Literal["none", "pfc", "credits"]
MOST_HOPS = 100_000_000
"""Packets times links that are played at most: some minutes."""
_COUNTS = 4


@dataclass(frozen=True, slots=True)
class Transport:
    """How packets are made, routed and held back.

    Attributes
    ----------
    routing
        ``static``: the ways of the topology's routing; ``ecmp``, ``spray`` or ``adaptive``
        (`ridgeline.network.multipath`).
    control
        What keeps switches from losing packets: ``none`` (queues without an end), ``pfc`` or
        ``credits``.
    dcqcn
        Whether switches mark packets and senders follow DCQCN.
    queue_pairs
        Connections of each message, each with a part of it and hashed for itself.
    payload_bytes, header_bytes
        Of a full packet, and of every packet besides.
    seed
        Of hashes and marks.
    xoff_bytes, xon_bytes
        Of PFC: what a switch holds of one entering link when it pauses and resumes the sender.
        HPCC's simulator starts from some 100 kB at 25 to 100 Gb/s.
    buffer_bytes
        Of credits: room behind every link. None: for what is on its way there and back on the
        slowest such link of the network, and four packets.
    kmin_bytes, kmax_bytes, pmax
        Of marks. The defaults of these and all that follows are those of the DCQCN paper (its
        Table and Section 5), for links of 40 Gb/s.
    cnp_interval_s, g, alpha_timer_s, rate_timer_s, byte_counter_bytes, stages, r_ai, r_hai
        Of DCQCN; rates in bytes a second.
    """

    routing: Routing = "static"
    control: Control = "none"
    dcqcn: bool = False
    queue_pairs: int = 1
    payload_bytes: float = 4096.0
    header_bytes: float = 0.0
    seed: int = 0
    xoff_bytes: float = 100e3
    xon_bytes: float = 90e3
    buffer_bytes: float | None = None
    kmin_bytes: float = 5e3
    kmax_bytes: float = 200e3
    pmax: float = 0.01
    cnp_interval_s: float = 50e-6
    g: float = 1.0 / 256.0
    alpha_timer_s: float = 55e-6
    rate_timer_s: float = 55e-6
    byte_counter_bytes: float = 10e6
    stages: int = 5
    r_ai: float = 5e6
    r_hai: float = 50e6

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("routing", self.routing, get_args(Routing)),
            ("control", self.control, get_args(Control)),
        ):
            if value not in allowed:
                raise RidgelineError(
                    f"transport: no {name} is called {value!r}{nearest(value, allowed)} "
                    f"(allowed: {', '.join(allowed)})"
                )
        if not (self.payload_bytes > 0 and self.header_bytes >= 0):
            raise RidgelineError(
                "transport: the payload must be more than 0 B and the header at least 0 B; found "
                f"{self.payload_bytes} and {self.header_bytes}"
            )
        if self.queue_pairs < 1 or self.stages < 0 or self.seed < 0:
            raise RidgelineError(
                "transport: queue_pairs is at least 1, stages and seed at least 0; found "
                f"{self.queue_pairs}, {self.stages} and {self.seed}"
            )
        if not 0 <= self.xon_bytes <= self.xoff_bytes:
            raise RidgelineError(
                f"transport: xon is at most xoff; found {self.xon_bytes} and {self.xoff_bytes} B"
            )
        if not (0 <= self.kmin_bytes < self.kmax_bytes and 0 < self.pmax <= 1 and 0 < self.g <= 1):
            raise RidgelineError(
                "transport: kmin is less than kmax, pmax and g are above 0 and at most 1; found "
                f"{self.kmin_bytes} and {self.kmax_bytes} B, {self.pmax} and {self.g}"
            )
        positive = (
            self.cnp_interval_s, self.alpha_timer_s, self.rate_timer_s, self.byte_counter_bytes,
            self.r_ai, self.r_hai,
        )  # fmt: skip
        if min(positive) <= 0:
            raise RidgelineError("transport: intervals, timers and rates of DCQCN are above 0")

    @property
    def text(self) -> str:
        """What it is, in a few words."""
        lossless = {"none": "unlimited queues", "pfc": "PFC", "credits": "credits"}[self.control]
        rate = ", DCQCN" if self.dcqcn else ""
        return f"{lossless}{rate}, {self.routing_text}"

    @property
    def routing_text(self) -> str:
        """How messages find their ways, in a few words."""
        pairs = f", {self.queue_pairs} queue pairs" if self.queue_pairs > 1 else ""
        return f"{self.routing} routing{pairs}"


PRESETS: dict[str, Transport] = {
    "plain": Transport(),
    "pfc": Transport(control="pfc", routing="ecmp"),
    "dcqcn": Transport(control="pfc", dcqcn=True, routing="ecmp"),
    "infiniband": Transport(control="credits"),
    "infiniband-adaptive": Transport(control="credits", routing="adaptive"),
    "spray": Transport(control="pfc", routing="spray"),
    "adaptive": Transport(control="pfc", routing="adaptive"),
}
"""Transports by name; fields may follow the name."""

_UNITS = {"_bytes": "B", "_s": "s"}


def transport_of(text: str) -> Transport:
    """Read a transport: a name of `PRESETS` and fields, ``dcqcn queue_pairs=4 kmin=20kB``.

    Raises
    ------
    RidgelineError
        If the name or a field is unknown, or a value cannot be read.
    """
    name, *given = text.split()
    if name not in PRESETS:
        raise RidgelineError(
            f"no transport is called {name!r}{nearest(name, PRESETS)} "
            f"(allowed: {', '.join(PRESETS)}; fields may follow, as in 'dcqcn queue_pairs=4')"
        )
    readers = _readers()
    found: dict[str, object] = {}
    for part in given:
        key, equals, value = part.partition("=")
        if key not in readers or not equals:
            raise RidgelineError(
                f"transport: cannot read {part!r}{nearest(key, readers)} "
                f"(fields: {', '.join(f'{known}=' for known in readers)})"
            )
        field, read = readers[key]
        try:
            found[field] = read(value)
        except (ValueError, RidgelineError) as error:
            raise RidgelineError(f"transport: {key}={value}: {error}") from error
    return replace(PRESETS[name], **found)  # type: ignore[arg-type]


def _readers() -> dict[str, tuple[str, Callable[[str], object]]]:
    """Return fields by the names that a text has for them, which have no unit at their end."""
    found: dict[str, tuple[str, Callable[[str], object]]] = {}
    for field in fields(Transport):
        unit = next((u for end, u in _UNITS.items() if field.name.endswith(end)), "")
        short = field.name
        for end in _UNITS:
            short = short.removesuffix(end)
        if field.name in {"r_ai", "r_hai"}:
            unit = "B/s"
        if unit:
            found[short] = field.name, _quantity(unit)
        elif field.name in {"routing", "control"}:
            found[short] = field.name, str
        elif field.name in {"queue_pairs", "stages", "seed"}:
            found[short] = field.name, int
        elif field.name == "dcqcn":
            found[short] = field.name, _yes
        else:
            found[short] = field.name, float
    return found


def _quantity(unit: str) -> Callable[[str], object]:
    return lambda value: units.parse(value, unit)


def _yes(value: str) -> bool:
    if value not in {"yes", "no"}:
        raise ValueError("yes or no")
    return value == "yes"


@dataclass(frozen=True, eq=False)
class TransportResult:
    """Messages that were played packet by packet.

    Attributes
    ----------
    done_s
        [F] when the last packet of each message has arrived.
    packets, marked, notices, pauses
        Packets sent, those of them that were marked, notices to senders, and pauses asked for.
    sent_bytes
        [L] with headers.
    paused_s
        [L] how long the sender of each link was paused.
    most_queued_bytes
        [L] longest queue at its head.
    most_held_bytes
        [L] most that the switch behind it held of it.
    bin_s, received_bytes
        [F, bins] payload that arrived in each interval of that length, if it was asked for; the
        last bin has all that came later.
    """

    done_s: Floats
    packets: int
    marked: int
    notices: int
    pauses: int
    sent_bytes: Floats
    paused_s: Floats
    most_queued_bytes: Floats
    most_held_bytes: Floats
    bin_s: float
    received_bytes: Floats


def play_transport(
    topology: Topology,
    flows: Flows,
    transport: Transport,
    *,
    begin_s: Floats | None = None,
    ways: Routes | None = None,
    bin_s: float = 0.0,
    bins: int = 0,
) -> TransportResult:
    """Play messages packet by packet.

    Parameters
    ----------
    begin_s
        [F] when each begins; at once by default.
    ways
        Of static routing: links of every message; by default those of the topology's routing.
    bin_s, bins
        Length and number of the intervals in which arrivals are counted.

    Raises
    ------
    RidgelineError
        If there are too many packets, or packets wait for each other in a circle.
    """
    start, end = flows.vertices(topology)
    pairs = transport.queue_pairs
    size = flows.size_bytes / pairs
    n_packets = np.ceil(size / transport.payload_bytes * (1.0 - 1e-12)).astype(np.int64)
    if transport.routing != "static":
        ways = None
    elif ways is None:
        ways = routes(topology, start, end)
    hops = checked_hops(topology, start, end)
    if ways is None:
        length = hops.distance[hops.row[end], start].astype(np.int64)
    else:
        length = np.diff(ways.ptr)
    total = float((n_packets * length).sum()) * pairs
    if total > MOST_HOPS:
        raise RidgelineError(
            f"{total:,.0f} packets times links; at most {MOST_HOPS:,} are played one by one: "
            "a smaller message, the flow level, or larger packets, which switches store longer"
        )
    many = np.repeat(np.arange(flows.n), pairs)
    n_links, done_s = topology.n_links, np.full(len(many), np.nan)
    counts = np.zeros(_COUNTS, np.int64)
    sent, paused, queued, held = (np.zeros(n_links) for _ in range(4))
    received = np.zeros((len(many), max(bins, 1)))
    graph = graph_of(topology)
    way_ptr, way_links = _repeated_ways(ways, many)
    begins = np.zeros(flows.n) if begin_s is None else begin_s
    play(
        graph.out_ptr, graph.target, graph.bandwidth, topology.latency_s, graph.forwards,
        hops.row, hops.distance, hops.width, hops.bandwidth, way_ptr, way_links,
        start[many], end[many], choices_of(flows.n, pairs, transport.seed),
        begins[many].astype(np.float64), n_packets[many], transport.payload_bytes,
        (size - (n_packets - 1) * transport.payload_bytes)[many], transport.header_bytes,
        get_args(Routing).index(transport.routing), get_args(Control).index(transport.control),
        transport.xoff_bytes, transport.xon_bytes, _buffer_bytes(topology, transport),
        transport.dcqcn, transport.kmin_bytes, transport.kmax_bytes, transport.pmax,
        transport.cnp_interval_s, transport.g, transport.alpha_timer_s, transport.rate_timer_s,
        transport.byte_counter_bytes, transport.stages, transport.r_ai, transport.r_hai,
        transport.seed, done_s, counts, sent, paused, queued, held,
        bin_s if bins else 0.0, received,
    )  # fmt: skip
    stuck = np.flatnonzero(np.isnan(done_s))
    if len(stuck):
        first = int(many[stuck[0]])
        raise RidgelineError(
            f"{len(stuck)} of {len(many)} connections never end: switches wait for each other's "
            f"room in a circle, among them those from rank {flows.source[first]} to rank "
            f"{flows.target[first]}; use larger buffers or control=none (tori and dragonflies have "
            "virtual channels against that, which are not modelled), or up-down routing"
        )
    return TransportResult(
        done_s.reshape(flows.n, pairs).max(axis=1),
        int(counts[PACKETS]),
        int(counts[MARKED]),
        int(counts[NOTICES]),
        int(counts[PAUSES]),
        sent, paused, queued, held, bin_s,
        received.reshape(flows.n, pairs, -1).sum(axis=1),
    )  # fmt: skip


def _repeated_ways(ways: Routes | None, many: Ints) -> tuple[Ints, Ints]:
    if ways is None:
        return np.zeros(len(many) + 1, np.int64), np.zeros(1, np.int64)
    from ridgeline.network.paths import take

    found = take(ways, many)
    return found.ptr, found.links.astype(np.int64)


def _buffer_bytes(topology: Topology, transport: Transport) -> float:
    """Return the room behind a link: what keeps the one with most on its way busy."""
    packet = transport.payload_bytes + transport.header_bytes
    if transport.buffer_bytes is not None:
        if transport.buffer_bytes < packet:
            raise RidgelineError(
                f"transport: a buffer holds at least one packet of {packet:g} B, found "
                f"{transport.buffer_bytes:g} B"
            )
        return transport.buffer_bytes
    flying = float((topology.latency_s * topology.bandwidth_bytes_per_s).max(initial=0.0))
    return 2.0 * flying + 4.0 * packet
