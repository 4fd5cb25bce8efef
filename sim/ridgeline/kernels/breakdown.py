"""Where the time of one op goes: launch, fill, arithmetic, stalls, exchange, barrier, drain.

Each engine model states its own parts (`LatencyParts`, `EngineShares`); nothing here is what is
left over. An op takes

    time = launch + fill + copy + exchange + barrier + drain + stalls + max(arithmetic, memory)

and its longest memory level, where it takes longer than the engine, is a stall on that level: so
the parts of a `TimeBreakdown` sum to the op's time. See ``docs/breakdown.md``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ridgeline.hardware.device import Device
from ridgeline.kernels.cost import OpCost, peak_rates
from ridgeline.kernels.latency_parts import LatencyParts

_ROUNDING = 1e-12  # of the time: two ways to sum the same parts


@dataclass(frozen=True, slots=True)
class TimeBreakdown:
    """Parts of an op's time that do not overlap; they sum to it.

    Attributes
    ----------
    launch_s, fill_s, copy_s, exchange_s, barrier_s, drain_s
        See `LatencyParts`; fill and drain with those of arrays, copies with those inside an engine.
    arithmetic_s
        The engine multiplies, whatever memory does under it.
    stall_s
        By memory level: the engine waits for it.
    """

    launch_s: float = 0.0
    fill_s: float = 0.0
    copy_s: float = 0.0
    arithmetic_s: float = 0.0
    stall_s: Mapping[str, float] = field(default_factory=dict)
    exchange_s: float = 0.0
    barrier_s: float = 0.0
    drain_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Sum of all parts."""
        return math.fsum(time_s for _, time_s in self.parts())

    def parts(self) -> Iterator[tuple[str, float]]:
        """Name every part in the order of an op's life, with its seconds."""
        yield "launch", self.launch_s
        yield "fill", self.fill_s
        yield "copy", self.copy_s
        yield "arithmetic", self.arithmetic_s
        for level, time_s in self.stall_s.items():
            yield f"stall ({level})", time_s
        yield "exchange", self.exchange_s
        yield "barrier", self.barrier_s
        yield "drain", self.drain_s

    def to_dict(self) -> dict[str, Any]:
        """Return the parts without their unit, stalls by level, and the total."""
        named = {name.removesuffix("_s"): value for name, value in asdict(self).items()}
        return {**named, "total": self.total_s}


def time_breakdown(cost: OpCost, device: Device) -> TimeBreakdown:
    """Split the time of an op into parts.

    Parameters
    ----------
    cost
        Of the op on this device.

    Returns
    -------
    TimeBreakdown
        Parts that are at least 0 and sum to ``cost.time_s(device)``.
    """
    rates = peak_rates(device)
    spans = cost.spans(rates)
    parts = cost.latency_parts or LatencyParts(cost.latency_s)
    stalls = {level: 0.0 for level, _ in parts.stall_s}
    for level, time_s in parts.stall_s:
        stalls[level] += time_s
    fill_s, drain_s = parts.fill_s, parts.drain_s
    longest, slowest_s = "", spans.compute_s
    for level, time_s in spans.memory_s.items():
        if time_s > slowest_s:
            longest, slowest_s = level, time_s
    beyond_s = slowest_s - spans.compute_s - parts.streamed_s
    if beyond_s > _ROUNDING * spans.time_s:
        stalls[longest] = stalls.get(longest, 0.0) + beyond_s
    elif parts.streamed_s:
        # Zeros leave less to move than was played with: transfers shrink alike.
        waiting_s = math.fsum((fill_s, drain_s, *stalls.values()))
        left = max(waiting_s + beyond_s, 0.0) / waiting_s if waiting_s else 0.0
        fill_s, drain_s = left * fill_s, left * drain_s
        stalls = {level: left * time_s for level, time_s in stalls.items()}
    shares = cost.engine_shares() if callable(cost.engine_shares) else cost.engine_shares
    engine_s = 0.0
    if cost.engine_work:
        place = next(iter(cost.engine_work))
        engine_s = cost.engine_work[place] / rates[place]
    inside = shares.fill + shares.drain + shares.copy + shares.exchange + shares.stall[1]
    if shares.stall[1] > 0:
        level, share = shares.stall
        stalls[level] = stalls.get(level, 0.0) + share * engine_s
    return TimeBreakdown(
        launch_s=parts.launch_s,
        fill_s=fill_s + shares.fill * engine_s,
        arithmetic_s=max(spans.compute_s - inside * engine_s, 0.0),
        copy_s=parts.copy_s + shares.copy * engine_s,
        exchange_s=parts.exchange_s + shares.exchange * engine_s,
        barrier_s=parts.barrier_s,
        drain_s=drain_s + shares.drain * engine_s,
        stall_s={level: time_s for level, time_s in stalls.items() if time_s > 0},
    )
