"""Parts of an op's latency and of its engine's time, as each engine model states them.

Launch, fill, copies, exchange, barrier, drain and stalls are quantities of their own; nothing here
is what is left over. `breakdown` puts them together. See ``docs/breakdown.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ridgeline.workload.graph import Gemm

ARRAY = "array"
"""Stands for a level in stalls: a systolic array waits for its own stationary operands."""


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
