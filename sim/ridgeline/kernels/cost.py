"""What one op costs on one device, before anything is scheduled."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from ridgeline.hardware.device import Device
from ridgeline.hardware.dies import DIE_LINKS
from ridgeline.hardware.host_processor import HOST, HOST_LINK, HOST_MEMORY
from ridgeline.kernels.latency_parts import BUSY_THROUGHOUT, LatencyParts, LazyShares, TileChoice
from ridgeline.kernels.overlap import PartialOverlap

if TYPE_CHECKING:
    from ridgeline.kernels.mapping.machine import MappingMachine
    from ridgeline.kernels.mapping.mapped_contraction import Mapped


class OperandBytes(NamedTuple):
    """Bytes of a contraction that pass one memory level, by operand.

    Attributes
    ----------
    a, b
        Of the first two inputs.
    rest
        Of everything else that the op reads and writes, each as often as it says.
    partial
        Of sums that are not finished, written and read back.
    """

    a: float
    b: float
    rest: float
    partial: float = 0.0

    @property
    def total(self) -> float:
        """Bytes of all operands."""
        return math.fsum(self)

    def less(self, other: OperandBytes) -> OperandBytes:
        """Return the bytes without others, none of them below zero."""
        if other is NOTHING:
            return self
        return OperandBytes(
            *(max(size - less, 0.0) for size, less in zip(self, other, strict=True))
        )


NOTHING = OperandBytes(0.0, 0.0, 0.0)


@dataclass(slots=True)  # frozen, it would take three times as long to make, for every op and device
class OpCost:
    """Latency, work per bounding resource, and countable events of one op; never changed once made.

    Attributes
    ----------
    latency_s
        Fixed time: all of `latency_parts`.
    engine_work
        Engine and format (``"tensor-cores.fp16"``) -> FLOP at the engine's *peak* rate that take as
        long as this op's arithmetic takes.
    level_work
        Memory level -> bytes at its *peak* bandwidth that take as long as this op's traffic.
    flops
        Engine and format -> FLOPs done.
    traffic_bytes
        Memory level -> bytes moved.
    moved
        The same by operand, where the engine's model of a contraction tells them apart, or a level
        has kept some of them.
    useful, issued
        Shares of a contraction's mathematical FLOPs that meet no zero, and that take time.
    stored
        Bytes of the first two inputs, compressed with their index, over those when dense.
    notes
        What a reader must know of this op.
    waiting_s
        Part of the latency in which the engine waits for memory: stalls of a mapping.
    overlap
        What `waiting_s` follows from at any clock, where arithmetic and memory hide each other in
        part; all of it in proportion.
    calibrated
        Whether the achievable share of the peak is known for this op.
    mapping
        Which loops run where, where the engine's model lays them out.
    mapped
        The mapping that a search has found, and the machine that it was found for.
    latency_parts
        What the latency consists of; None: of launches alone.
    engine_shares
        Shares of the engine's time in which it does not multiply.
    tile
        Of a product on processors that share output tiles: the tile.
    kept_bytes
        Memory level -> bytes of operands that it has kept from other ops, so that they pass no
        level behind it (`cache_residency`).
    saved_j
        Component of the energy -> joules by which its events take less than by the energy table,
        since clock and voltage are below full ones under a power limit (`clock`).
    parts
        Of fused layers: the events of each of them, without its time (`fusion.fused_cost`).
    """

    latency_s: float
    engine_work: dict[str, float] = field(default_factory=dict)
    level_work: dict[str, float] = field(default_factory=dict)
    flops: dict[str, float] = field(default_factory=dict)
    traffic_bytes: dict[str, float] = field(default_factory=dict)
    moved: dict[str, OperandBytes] = field(default_factory=dict)
    useful: float = 1.0
    issued: float = 1.0
    stored: tuple[float, float] = (1.0, 1.0)
    notes: tuple[str, ...] = ()
    waiting_s: float = 0.0
    overlap: PartialOverlap | None = None
    calibrated: bool = True
    mapping: str = ""
    mapped: tuple[Mapped, MappingMachine] | None = None
    latency_parts: LatencyParts | None = None
    engine_shares: LazyShares = BUSY_THROUGHOUT
    tile: TileChoice | None = None
    kept_bytes: Mapping[str, float] = field(default_factory=dict)
    saved_j: Mapping[str, float] = field(default_factory=dict)
    parts: tuple[OpCost, ...] = ()

    def times(self, count: int) -> OpCost:
        """Return the price of so many equal ops, one after the other."""

        def all_of(amounts: dict[str, float]) -> dict[str, float]:
            return {name: count * amount for name, amount in amounts.items()}

        return replace(
            self,
            latency_s=count * self.latency_s,
            engine_work=all_of(self.engine_work),
            level_work=all_of(self.level_work),
            flops=all_of(self.flops),
            traffic_bytes=all_of(self.traffic_bytes),
            moved={n: OperandBytes(*(count * size for size in by)) for n, by in self.moved.items()},
            waiting_s=count * self.waiting_s,
            latency_parts=self.latency_parts and self.latency_parts.times(count),
            kept_bytes=all_of(dict(self.kept_bytes)),
            saved_j=all_of(dict(self.saved_j)),
            parts=tuple(part.times(count) for part in self.parts),
        )

    @property
    def port_wait_share(self) -> float:
        """Share of the engine's time in which it waits for the ports that it reads and writes."""
        if self.mapped is None or self.mapped[0].compute_s <= 0.0:
            return 0.0
        return max(0.0, 1.0 - self.mapped[0].cycles_s / self.mapped[0].compute_s)

    def compute_s(self, device: Device) -> float:
        """Time of the arithmetic alone."""
        return self.spans(peak_rates(device)).compute_s

    def memory_s(self, device: Device) -> dict[str, float]:
        """Time of the traffic at each level alone."""
        return self.spans(peak_rates(device)).memory_s

    def time_s(self, device: Device) -> float:
        """Time of the op: latency plus the slowest of the arithmetic and each memory level."""
        return self.spans(peak_rates(device)).time_s

    def spans(self, rates: Mapping[str, float]) -> OpSpans:
        """Divide the work by the peak rates of a device (`peak_rates`)."""
        compute_s = 0.0
        for name, work in self.engine_work.items():
            compute_s = max(compute_s, work / rates[name])
        memory_s, longest = {}, compute_s
        for name, work in self.level_work.items():
            if name in rates:
                memory_s[name] = time_s = work / rates[name]
                longest = max(longest, time_s)
        return OpSpans(compute_s, memory_s, self.latency_s + longest)


class OpSpans(NamedTuple):
    """What an op takes on a device: arithmetic alone, each memory level alone, and altogether."""

    compute_s: float
    memory_s: dict[str, float]
    time_s: float


def peak_rates(device: Device) -> dict[str, float]:
    """Peak FLOP/s of every ``"engine.format"`` and B/s of every memory level that states one.

    Likewise of the host's parts, where the device has a host.
    """
    rates = {
        **{
            f"{name}.{format_}": rate.value
            for name, engine in device.engines.items()
            for format_, rate in engine.rates.items()
        },
        **{
            name: level.bandwidth.value
            for name, level in device.memory.items()
            if level.bandwidth is not None
        },
    }
    if device.dies is not None:
        links = device.dies.paths(device.dies.count.value).links
        rates[DIE_LINKS] = max(1, links) * device.dies.link.bandwidth.value
    if (host := device.host) is not None:
        rates |= {f"{HOST}.{format_}": rate.value for format_, rate in host.rates.items()}
        rates |= {HOST_MEMORY: host.bandwidth.value, HOST_LINK: host.link.bandwidth.value}
    return rates


EXCHANGE = "exchange"
"""The place where bytes between the tiles of a bulk-synchronous engine are counted."""


def engine_rate(device: Device, engine_format: str) -> float:
    """Peak FLOP/s of ``"engine.format"``, which may be the host."""
    engine, _, format_ = engine_format.rpartition(".")
    if engine == HOST and device.host is not None:
        return device.host.rates[format_].value
    return device.engines[engine].rates[format_].value


def level_bandwidth(device: Device, level: str) -> float | None:
    """Peak B/s of a memory level, or None where the device does not state one.

    None of what is no level of the device: its host, the exchange between tiles.
    """
    if level not in device.memory:
        return None
    bandwidth = device.memory[level].bandwidth
    return None if bandwidth is None else bandwidth.value


class Price(NamedTuple):
    """What one unit at a place costs: the component of the energy it counts to, J per unit."""

    component: str
    unit: Literal["FLOP", "B"]
    price_j: float


def price_of_place(device: Device, place: str) -> Price:
    """Return the price of a FLOP on ``"engine.format"`` or of a byte at a memory level.

    Or of either in the host, of a byte over the link to it, over one between dies, and of one that
    tiles exchange.
    """
    if place in device.memory:
        level = device.memory[place]
        return Price(level.kind, "B", device.prices.price_j(level.energy, "J/B"))
    if place in (EXCHANGE, DIE_LINKS):
        entries = [e.bsp.exchange_energy for e in device.engines.values() if e.bsp is not None]
        if place == DIE_LINKS:
            entries = [] if device.dies is None else [device.dies.link.energy]
        priced = [device.prices.price_j(entry, "J/B") for entry in entries if entry is not None]
        return Price("network", "B", max(priced, default=0.0))
    engine, _, format_ = place.rpartition(".")
    if (host := device.host) is not None:
        if place == HOST_MEMORY:
            return Price("dram", "B", device.prices.price_j(host.memory_energy, "J/B"))
        if place == HOST_LINK:
            return Price("network", "B", device.prices.price_j(host.link.energy, "J/B"))
        if engine == HOST:
            return Price("compute", "FLOP", device.prices.price_j(host.energy[format_], "J/FLOP"))
    entry = device.engines[engine].energy[format_]
    return Price("compute", "FLOP", device.prices.price_j(entry, "J/FLOP"))


def places(device: Device) -> Iterator[str]:
    """Name every place of a device where events are counted: engines by format, memory levels.

    Then those of its host and the exchange between its tiles, where it has them.
    """
    for name, engine in device.engines.items():
        yield from (f"{name}.{format_}" for format_ in engine.rates)
    yield from device.memory
    if any(engine.bsp is not None for engine in device.engines.values()):
        yield EXCHANGE
    if device.dies is not None:
        yield DIE_LINKS
    if device.host is not None:
        yield from (f"{HOST}.{format_}" for format_ in device.host.rates)
        yield from (HOST_MEMORY, HOST_LINK)


def op_energy_j(cost: OpCost, device: Device) -> dict[str, float]:
    """Joules of one op by component, idle power over its time as ``static``, and their total.

    Less what a lower clock and voltage under a power limit save.
    """
    parts = dict.fromkeys(("compute", "registers", "sram", "dram"), 0.0)
    for place, count in {**cost.flops, **cost.traffic_bytes}.items():
        price = price_of_place(device, place)
        parts.setdefault(price.component, 0.0)
        parts[price.component] += count * price.price_j
    for component, saved_j in cost.saved_j.items():
        parts[component] -= saved_j
    parts["static"] = device.idle_power.value * cost.time_s(device)
    return {**parts, "total": math.fsum(parts.values())}
