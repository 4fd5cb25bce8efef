"""Where the time of one op goes: launch, fill, arithmetic, stalls, exchange, barrier, drain.

Each engine model states its own parts (`LatencyParts`, `EngineShares`); nothing here is what is
left over. An op takes

    time = launch + fill + copy + exchange + barrier + drain + stalls + max(arithmetic, memory)

and its longest memory level, where it takes longer than the engine, is a stall on that level: so
the parts of a `TimeBreakdown` sum to the op's time. See ``docs/breakdown.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ridgeline.workload.graph import Gemm

if TYPE_CHECKING:
    from ridgeline.hardware.device import Device
    from ridgeline.kernels.cost import OpCost

ARRAY = "array"
"""Stands for a level in stalls: a systolic array waits for its own stationary operands."""
_ROUNDING = 1e-12  # of the time: two ways to sum the same parts


class LatencyParts(NamedTuple):
    """What an op's latency consists of, as its engine's model states it, in seconds.

    Attributes
    ----------
    launch_s
        Every launch of a kernel, at the device's `launch_latency` or what a measured row states.
    fill_s
        First loads, before anything can be multiplied.
    copy_s
        Operands are rearranged in memory before the arithmetic.
    exchange_s
        Operands and partial sums travel between tiles or cores.
    barrier_s
        All wait for the last one.
    drain_s
        Last stores, after everything is multiplied.
    stall_s
        Memory levels that the engine waits for meanwhile, with the time.
    streamed_s
        Of fill, drain and stalls, what the longest memory level takes beyond the arithmetic: it is
        no part of the latency. Only of mappings, whose tiles were played.
    """

    launch_s: float = 0.0
    fill_s: float = 0.0
    copy_s: float = 0.0
    exchange_s: float = 0.0
    barrier_s: float = 0.0
    drain_s: float = 0.0
    stall_s: tuple[tuple[str, float], ...] = ()
    streamed_s: float = 0.0

    def launched(self, launch_s: float) -> LatencyParts:
        """Return the parts after one more launch."""
        return LatencyParts(launch_s + self.launch_s, *self[1:])

    @property
    def largest(self) -> str:
        """Name the largest part, as what limits an op."""
        named = {
            "launch latency": self.launch_s,
            "fill": self.fill_s,
            "copy": self.copy_s,
            "exchange": self.exchange_s,
            "barrier": self.barrier_s,
            "drain": self.drain_s,
            **{f"{level} stall": time_s for level, time_s in self.stall_s},
        }
        return max(named, key=named.__getitem__)

    def times(self, count: float) -> LatencyParts:
        """Return the parts of so many equal ops, one after the other."""
        return LatencyParts(
            launch_s=count * self.launch_s,
            fill_s=count * self.fill_s,
            copy_s=count * self.copy_s,
            exchange_s=count * self.exchange_s,
            barrier_s=count * self.barrier_s,
            drain_s=count * self.drain_s,
            stall_s=tuple((level, count * time_s) for level, time_s in self.stall_s),
            streamed_s=count * self.streamed_s,
        )

    def plus(self, more: LatencyParts) -> LatencyParts:
        """Return the parts of an op and of something before or after it."""
        return LatencyParts(
            launch_s=self.launch_s + more.launch_s,
            fill_s=self.fill_s + more.fill_s,
            copy_s=self.copy_s + more.copy_s,
            exchange_s=self.exchange_s + more.exchange_s,
            barrier_s=self.barrier_s + more.barrier_s,
            drain_s=self.drain_s + more.drain_s,
            stall_s=(*self.stall_s, *more.stall_s),
            streamed_s=self.streamed_s + more.streamed_s,
        )

    def with_stall(self, level: str, time_s: float) -> LatencyParts:
        """Return the parts with one more stall."""
        return self._replace(stall_s=(*self.stall_s, (level, time_s)))


class EngineShares(NamedTuple):
    """Shares of an engine's time in which it does not multiply, though it is busy.

    Attributes
    ----------
    fill
        Operands enter an empty array.
    drain
        Results leave it, and nothing enters.
    copy
        Operands are copied into buffers.
    exchange
        Partial sums travel between arrays.
    stall
        The level that the engine waits for within its own schedule, and the share.
    """

    fill: float = 0.0
    drain: float = 0.0
    copy: float = 0.0
    exchange: float = 0.0
    stall: tuple[str, float] = (ARRAY, 0.0)


BUSY_THROUGHOUT, NO_PARTS = EngineShares(), LatencyParts()
LazyShares = EngineShares | Callable[[], EngineShares]
"""Those of a mapping take longer to count than steps have time for."""


class TileChoice(NamedTuple):
    """The output tile of a matrix product on a processor, and where the menu comes from.

    Attributes
    ----------
    gemm
        The product of one kernel.
    rows, columns, split
        The tile, and parts of a sum.
    processors
        That share the tiles.
    filled
        Share of a processor's rate with the accumulators that are in flight.
    kernels
        Share of the peak that full tiles reach (`achievable`); 1 where none is stated.
    padded
        Work with padded channels over work.
    menu
        Who says which tiles there are, in words.
    """

    gemm: Gemm
    rows: int
    columns: int
    split: int
    processors: int
    filled: float
    kernels: float
    padded: float
    menu: str

    @property
    def waves(self) -> int:
        """Rounds of tiles over the processors."""
        return -(-self._blocks // self.processors)

    @property
    def _blocks(self) -> int:
        gemm = self.gemm
        tiles = -(-gemm.m // self.rows) * -(-gemm.n // self.columns)
        return gemm.batch * tiles * self.split

    @property
    def tile_share(self) -> float:
        """Tile quantisation: elements of the product over those of all tiles."""
        gemm = self.gemm
        down, across = -(-gemm.m // self.rows), -(-gemm.n // self.columns)
        k = self.split * -(-gemm.k // self.split)
        return gemm.m * gemm.n * gemm.k / (down * self.rows * across * self.columns * k)

    @property
    def wave_share(self) -> float:
        """Wave quantisation: tiles over the places that all waves have for them."""
        return self._blocks / (self.waves * self.processors)

    @property
    def peak_share(self) -> float:
        """Share of the engine's peak while it multiplies; useful work alone."""
        quantised = self.tile_share * self.wave_share * self.filled
        return quantised * self.kernels / self.padded

    def to_dict(self) -> dict[str, Any]:
        """Return the tile and all shares as plain values."""
        return {
            "rows": self.rows,
            "columns": self.columns,
            "split": self.split,
            "menu": self.menu,
            "waves": self.waves,
            "tile_quantisation": self.tile_share,
            "wave_quantisation": self.wave_share,
            "filled": self.filled,
            "padding": 1 / self.padded,
            "kernels": self.kernels,
            "peak_share": self.peak_share,
        }

    def __str__(self) -> str:
        """Say what limits the arithmetic, and by how much."""
        split = f", sums in {self.split} parts" if self.split > 1 else ""
        quantised = self.tile_share * self.wave_share
        waves = "1 wave" if self.waves == 1 else f"{self.waves} waves"
        more = [f"tiles {self.tile_share:.0%}", f"{waves} {self.wave_share:.0%}"]
        if self.filled < 1:
            more.append(f"accumulators in flight {self.filled:.0%}")
        if self.padded > 1:
            more.append(f"padded channels {1 / self.padded:.0%}")
        if self.kernels != 1:
            more.append(f"kernels reach {self.kernels:.0%} of the peak with full tiles")
        return (
            f"tiles: {self.rows}x{self.columns}{split} from {self.menu}: {quantised:.0%} of peak by"
            f" tile and wave quantisation, {self.peak_share:.0%} in all ({', '.join(more)})"
        )


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
    from ridgeline.kernels.cost import peak_rates  # which needs this module

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
