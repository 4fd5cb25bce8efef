"""What tasks of an execution cost on a machine: resources, cost rows and ledger accounts.

One resource of a kind stands for that of all ranks, since a private resource bounds each task by
itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.engine.program import Account
from ridgeline.errors import RidgelineError
from ridgeline.hardware.device import Device
from ridgeline.network.schedule import CollectiveSchedule
from ridgeline.network.topology import Topology

Works = dict[int, float]
"""Work by resource, or counts by account."""


class Rows:
    """Cost rows as growing arrays; the names are those of a Program."""

    def __init__(self) -> None:
        self.phase_ptr: list[int] = [0]
        self.latency_s: list[float] = []
        self.repeat: list[int] = []
        self.work_ptr: list[int] = [0]
        self.resource: list[int] = []
        self.amount: list[float] = []
        self.event_ptr: list[int] = [0]
        self.account: list[int] = []
        self.count: list[float] = []

    def add(
        self,
        phases: Sequence[tuple[float, int, Works]],
        events: Works,
    ) -> int:
        """Add phases of latency, repetitions and works, and what is counted; return the row."""
        for latency_s, repeat, works in phases:
            self.latency_s.append(latency_s)
            self.repeat.append(repeat)
            self.resource += works
            self.amount += works.values()
            self.work_ptr.append(len(self.resource))
        self.phase_ptr.append(len(self.latency_s))
        self.account += events
        self.count += events.values()
        self.event_ptr.append(len(self.account))
        return len(self.phase_ptr) - 2


class Costs:
    """Collects the resources, cost rows and accounts of one machine."""

    def __init__(self, device: Device, topology: Topology) -> None:
        self.device, self.topology = device, topology
        self.rows = Rows()
        self.resources: dict[str, tuple[int, float, bool]] = {}
        self.accounts: dict[Account, int] = {}

    def roofline(
        self, flops: float, size_bytes: float, format_: str
    ) -> tuple[tuple[float, int, Works], Works]:
        """Return the phase and the events of a compute task."""
        works: Works = {}
        events: Works = {}
        if flops:
            engine, share = fastest_engine(self.device, format_)
            place = f"{engine}.{format_}"
            rate = self.device.engines[engine].rates[format_].value
            works[self.resource(place, rate)] = flops / share
            price_j = self.device.prices.price_j(
                self.device.engines[engine].energy[format_], "J/FLOP"
            )
            events[self.account("compute", place, "FLOP", price_j)] = flops
        if size_bytes:
            works |= self.far(size_bytes)
            events |= self.far_events(size_bytes)
        return (self.device.launch_latency.value, 1, works), events

    def far(self, size_bytes: float) -> Works:
        """Work of traffic at the farthest memory."""
        level = self.device.memory[self.device.far_memory]
        assert level.bandwidth is not None  # the schema demands it of the farthest level
        resource = self.resource(self.device.far_memory, level.bandwidth.value)
        return {resource: size_bytes / level.achievable.value}

    def far_events(self, size_bytes: float) -> Works:
        """Events of traffic at the farthest memory."""
        level = self.device.memory[self.device.far_memory]
        price_j = self.device.prices.price_j(level.energy, "J/B")
        return {self.account(level.kind, self.device.far_memory, "B", price_j): size_bytes}

    def comm_events(self, schedule: CollectiveSchedule, size: float, op: float, *_: float) -> Works:
        """Count bytes on links; in memory, members read what they give and write what they get."""
        events = self.wire_events(schedule.bytes_on_wire())
        touched = (2.0 if op >= 0 else 1.0) * size * schedule.n_ranks
        return events | self.far_events(touched)

    def wire_events(self, loads: Works) -> Works:
        """Events of bytes by link, by class of link."""
        events: Works = {}
        top = self.topology
        for link, size in loads.items():
            price_j = float(top.energy_j_per_byte[link])
            account = self.account("network", top.link_class[link], "B", price_j)
            events[account] = events.get(account, 0.0) + size
        return events

    def resource(self, name: str, capacity: float, link: int = -1) -> int:
        """Return the number of a resource; one with a link may be shared."""
        found = self.resources.setdefault(name, (len(self.resources), capacity, link >= 0))
        return found[0]

    def account(self, component: str, place: str, unit: str, price_j: float) -> int:
        """Return the number of a line of the ledger."""
        account = Account(component, place, unit, price_j)
        return self.accounts.setdefault(account, len(self.accounts))


def usual_format(device: Device) -> str:
    """Return the number format that a trace without formats most likely means."""
    able = [name for e in device.engines.values() if "matrix" in e.runs for name in e.rates]
    for name in ("bf16", "fp16", "fp32", "fp64"):
        if name in able:
            return name
    return able[0] if able else "fp32"


def fastest_engine(device: Device, format_: str) -> tuple[str, float]:
    """Return the fastest engine for matrices in a format, and the share of its peak reached."""
    able = {
        name: engine.rates[format_].value
        for name, engine in device.engines.items()
        if format_ in engine.rates
    }
    if not able:
        known = sorted({f for e in device.engines.values() for f in e.rates})
        raise RidgelineError(
            f"{device.name} has no engine for {format_} (it has: {', '.join(known)});"
            " name another number format"
        )
    best = max(able, key=lambda name: able[name])
    shares = [
        row.fraction.value
        for row in device.achievable
        if (row.engine, row.format, row.op, row.stored) == (best, format_, "gemm", None)
    ]
    return best, shares[0] if shares else 1.0


def to_host(topology: Topology, device: int) -> list[int]:
    """Return the links of the shortest way from a device to a host of its node (breadth first)."""
    came: dict[int, int] = {device: -1}
    queue = [device]
    for vertex in queue:
        if topology.vertex_kinds[vertex] == "host":
            links, at = [], vertex
            while came[at] >= 0:
                links.append(came[at])
                at = int(topology.source[came[at]])
            return links[::-1]
        for link in range(topology.out_ptr[vertex], topology.out_ptr[vertex + 1]):
            target = int(topology.target[link])
            passes = topology.vertex_kinds[target] in {"host", "switch"}
            if target not in came and passes:
                came[target] = link
                queue.append(target)
    raise RidgelineError(
        f"{topology.name}: no links lead from a device to a host, so transfers to its memory"
        " cannot be priced"
    )
