"""Bytes that an op moves at each memory level of a device.

A contraction is looked at as a matrix product C[m, n] = A[m, k] B[k, n] whose output tile stays in
registers while panels of A and B stream by (loop order m, n, k with k innermost). Then what leaves
a memory level is (Timeloop's footprint-times-trips rule for that order)

    A * ceil(n / columns) + B * ceil(m / rows) + C

At the farthest level the tile is what all registers together hold, half of them for the tile and
half for operands in flight; at the levels between, it is the tile of one processor, which the
engine's model chooses. What the last cache before the farthest memory still holds from an earlier
tile does not pass that memory again (`panel_trips`). Footprints are the tensors' own bytes, so
that the overlap of convolution windows counts as caught by the level below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from ridgeline.hardware.device import Device, Engine, MemoryLevel
from ridgeline.kernels.cost import NOTHING, OperandBytes
from ridgeline.kernels.panel_trips import least_trips, square_trips
from ridgeline.workload.formats import bytes_of
from ridgeline.workload.graph import Conv, Gemm, Graph, Op, Pass

WAVES = frozenset({"tensor-core", "vector"})
"""Kinds of engines whose processors take output tiles in waves (`wave_quantization`)."""
_TILE_SHARE = 0.5  # of the registers: accumulators; the rest is for operands, addresses, buffers


def as_gemm(loops: Gemm | Conv, pass_: Pass) -> Gemm:
    """Return the matrix product that one pass over a contraction amounts to.

    For a convolution this is the implicit GEMM, one product per group, with the operands in the
    order of the op's inputs: forward (x, w) m = N*P*Q, n = K/g, k = C/g*R*S; input gradient (dy, w)
    m = N*P*Q, n = C/g, k = K/g*R*S, so that m*n*k is the forward's work; weight gradient (dy, x)
    m = K/g, n = C/g*R*S, k = N*P*Q.
    """
    if isinstance(loops, Gemm):
        return loops
    pixels = loops.batch * loops.h_out * loops.w_out
    c_in, c_out = loops.c_in // loops.groups, loops.c_out // loops.groups
    window = loops.r * loops.s
    match pass_:
        case Pass.INPUT_GRADIENT:
            return Gemm(m=pixels, n=c_in, k=c_out * window, batch=loops.groups)
        case Pass.WEIGHT_GRADIENT:
            return Gemm(m=c_out, n=c_in * window, k=pixels, batch=loops.groups)
        case _:
            return Gemm(m=pixels, n=c_out, k=c_in * window, batch=loops.groups)


def held_accumulators(device: Device, accumulate: str) -> int:
    """Output elements that all instances of the nearest memory level hold together."""
    nearest = next(iter(device.memory.values()))
    return int(_TILE_SHARE * nearest.capacity.value / bytes_of(accumulate))


def accumulator_of(engine: Engine, format_: str) -> str:
    """Format of an engine's sums: its accumulator's, unless the numbers themselves are wider."""
    return max((engine.accumulate, format_), key=bytes_of)


def streamed_bytes(op: Op, graph: Graph) -> int:
    """Bytes that an op reads and writes when every tensor is streamed."""
    return graph.read_bytes(op) + graph.write_bytes(op)


class SearchOptions(NamedTuple):
    """How a mapping is searched for: among few tilings or many, and what is to be least."""

    mapper: Literal["fast", "optimal"] = "fast"
    objective: Literal["time", "energy", "edp"] = "time"


FAST = SearchOptions()


@dataclass(frozen=True)
class Operands:
    """A contraction as a matrix product, with the bytes of its operands.

    Attributes
    ----------
    a_bytes, b_bytes
        Footprints of the first two inputs.
    rest_bytes
        Everything else that is read or written, once: the result, a bias.
    held
        Output elements that stay next to the engines, see `held_accumulators`.
    cache_bytes
        Of the last cache before the farthest memory.
    unheld
        Shares of a, b and the rest that the engine's own memories do not hold, where the whole
        network decides it (`cache_residency`); None: nothing is known of it.
    kept
        Bytes that do not pass the farthest memory, since a level before it has kept them from other
        ops (`cache_residency`).
    grouped
        Whether waves of tiles have the best shape and follow each other in groups (`panel_trips`).
    """

    gemm: Gemm
    a_bytes: int
    b_bytes: int
    rest_bytes: int
    held: int
    cache_bytes: float
    unheld: tuple[float, float, float] | None = None
    kept: OperandBytes = NOTHING
    grouped: bool = False

    @cached_property
    def far(self) -> OperandBytes:
        """Bytes that pass the farthest memory level."""
        return self.alone.less(self.kept)

    @cached_property
    def alone(self) -> OperandBytes:
        """Bytes that pass the farthest memory level where no level keeps what others touched."""
        gemm, a, b = self.gemm, self.a_bytes, self.b_bytes
        trips = least_trips if self.grouped else square_trips
        a_trips, b_trips = trips(
            gemm.m, gemm.n, a / gemm.batch, b / gemm.batch, self.held, self.cache_bytes
        )
        return OperandBytes(float(a * a_trips), float(b * b_trips), float(self.rest_bytes))

    def through(self, rows: int, columns: int, partial: float = 0.0) -> OperandBytes:
        """Bytes that pass a level with this output tile below it."""
        return OperandBytes(
            float(self.a_bytes * math.ceil(self.gemm.n / columns)),
            float(self.b_bytes * math.ceil(self.gemm.m / rows)),
            float(self.rest_bytes),
            partial,
        )


def cache_bytes(device: Device) -> float:
    """Capacity of the largest memory level before the farthest.

    Of a device without measured shares of its peak, the largest that all processors share: what one
    of them holds for itself is of no use to the others. The shares of a measured device hold what
    its caches did.
    """
    levels = near_levels(device).values()
    return max(
        (
            level.capacity.value
            for level in levels
            if device.achievable or not is_private(level, device)
        ),
        default=0.0,
    )


def is_private(level: MemoryLevel, device: Device) -> bool:
    """Tell whether each part of a level serves one of several processors that run in waves."""
    processors = next(iter(device.memory.values())).instances.value
    if not 1 < processors <= level.instances.value:
        return False
    return all(engine.kind in WAVES for engine in device.engines.values())


def pooled_notes(device: Device) -> tuple[str, ...]:
    """Say of memories with a part beside each array that they are counted as one memory."""
    counts = {
        engine.array.count.value for engine in device.engines.values() if engine.array is not None
    }
    return tuple(
        f"the {level.instances.value} parts of {name}, one beside each array, are counted as one "
        "memory: what several arrays read is there once"
        for name, level in device.memory.items()
        if level.kind != "registers" and level.instances.value > 1
        and level.instances.value in counts
    )  # fmt: skip


def near_levels(device: Device) -> dict[str, MemoryLevel]:
    """Memory levels between the registers and the farthest one."""
    far = device.far_memory
    return {
        name: level
        for name, level in device.memory.items()
        if level.kind != "registers" and name != far
    }
