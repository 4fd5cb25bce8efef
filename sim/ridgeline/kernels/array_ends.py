"""Fill, drain and reductions of systolic arrays, as shares of the time that they are busy.

The cycles are those of `systolic.closed_form`. Of a mapping the first tile's way counts for all:
others follow it through arrays that are full, so that what is exposed is the first tile's fill, the
last one's drain, and a reduction after each tile whose sum is divided among arrays.
"""

from __future__ import annotations

import itertools
import math

from ridgeline.kernels.cost import OperandBytes
from ridgeline.kernels.latency_parts import ARRAY, BUSY_THROUGHOUT, EngineShares
from ridgeline.kernels.mapping.axes import axes_of, dims_of
from ridgeline.kernels.mapping.machine import MappingMachine, engine_of
from ridgeline.kernels.mapping.mapped_contraction import Mapped
from ridgeline.kernels.mapping.nest import nest_of
from ridgeline.kernels.mapping.tilings import TIMES
from ridgeline.kernels.systolic.closed_form import FoldSchedule, folds, layout, spans
from ridgeline.kernels.systolic.partition import ArrayPartition, Arrays, reduction_cycles
from ridgeline.workload.graph import Conv, Gemm, Pass


def shares_of(found: ArrayPartition) -> EngineShares:
    """Return the ends of a product that is divided among arrays once."""
    cycles, spent = found.cycles, found.spent
    return EngineShares(
        fill=spent.preload / cycles,
        drain=spent.drain / cycles,
        exchange=found.reduction_cycles / cycles,
        stall=(ARRAY, spent.wait / cycles),
    )


def mapped_shares(
    found: Mapped,
    machine: MappingMachine,
    loops: Gemm | Conv,
    pass_: Pass,
    inside: EngineShares = BUSY_THROUGHOUT,
) -> EngineShares:
    """Return the ends of a product whose tiles come through buffers, and waits for the nearest one.

    Parameters
    ----------
    inside
        Of an engine that is no systolic array: shares of its cycles.
    """
    if found.compute_s <= 0:
        return BUSY_THROUGHOUT
    nearest = _busiest_port(found, machine)
    waiting = 1 - found.cycles_s / found.compute_s
    if found.given is not None:  # any loops: where the first tile fills the arrays is not known
        return EngineShares(stall=(nearest, waiting))
    way, cycles = way_of(found, machine), 1 - waiting
    if way is None:
        fill, drain = cycles * inside.fill, cycles * inside.drain
        return EngineShares(fill=fill, drain=drain, stall=(nearest, waiting))
    how, division = way
    arrays = machine.arrays
    assert arrays is not None
    sizes = tile_axes(found, loops, pass_)
    first, last = [tiles[0][0] for tiles in sizes], [tiles[-1][0] for tiles in sizes]

    def spent_on(spans_: list[int]) -> tuple[int, int]:
        batch, m, n, k = (folds(size, parts) for size, parts in zip(spans_, division, strict=True))
        spent = spans(m, n, k, batch, arrays.rows, arrays.columns, how, max)
        return spent.preload, spent.drain

    reduction = 0
    if division[3] > 1 and arrays.network is not None:
        for tile in itertools.product(*sizes):
            batch, m, n, k = (
                folds(size, parts) for (size, _), parts in zip(tile, division, strict=True)
            )
            parts = folds(tile[3][0], k)
            once = reduction_cycles(batch * m * n, parts, arrays.network) if parts > 1 else 0
            reduction += once * math.prod(count for _, count in tile)
    counted = spent_on(first)[0], spent_on(last)[1], reduction
    shares = [n * machine.cycle_s / found.compute_s for n in counted]
    most = sum(shares) / cycles if sum(shares) > cycles else 1.0  # others may go other ways
    fill, drain, exchange = (share / most for share in shares)
    return EngineShares(fill=fill, drain=drain, exchange=exchange, stall=(nearest, waiting))


def _busiest_port(found: Mapped, machine: MappingMachine) -> str:
    """Name the level whose port is busy the longest with what arrays read and write."""
    last = machine.levels[-1]
    if last.split is None:
        return last.name
    busy_s: dict[str, float] = {}
    for port, name, size in zip(last.split.of, last.split.names, found.near_bytes, strict=True):
        busy_s[name] = busy_s.get(name, 0.0) + size * last.split.byte_s[port]
    return max(busy_s, key=busy_s.__getitem__)


def register_bytes(
    how: FoldSchedule, sizes: tuple[int, int, int, int], loads: float, widths: tuple[float, float],
    rows: int,
) -> OperandBytes:  # fmt: skip
    """Bytes that the registers of an array's cells read and write for a product.

    Every multiply-accumulate reads both operands and its sum and writes the sum. What moves is
    written into a register of every cell that it passes and read there: `hop_col` registers to the
    right and `hop_row` down. What stays in the cells comes, or leaves, through those of its column.

    Parameters
    ----------
    sizes
        Batch, m, n, k.
    loads
        Words that are loaded into the cells to stay (ws, is); results that leave (os).
    widths
        Bytes of an operand and of a partial sum.
    rows
        Cells along a column.
    """
    batch, m, n, k = sizes
    macs = float(batch) * m * n * k
    operand, accumulated = widths
    height, _, _ = layout(how.dataflow, m, n, k)
    stay = loads * _mean_hops(height, rows) * 2 * how.hop_row
    right, down = 2 * how.hop_col * macs, 2 * how.hop_row * macs
    if how.dataflow == "os":
        sums = (2 * macs + stay) * accumulated
        return OperandBytes(right * operand, down * operand, 0.0, sums)
    moving, staying = right * operand, (macs + stay) * operand
    a, b = (moving, staying) if how.dataflow == "ws" else (staying, moving)
    return OperandBytes(a, b, 0.0, down * accumulated)


def partition_registers(
    found: ArrayPartition, sizes: tuple[int, int, int, int], arrays: Arrays,
    widths: tuple[float, float],
) -> OperandBytes:  # fmt: skip
    """Bytes in the registers of arrays that a product is divided among; see `register_bytes`."""
    batch, m, n, k = sizes
    how = next(one for one in arrays.schedules if one.dataflow == found.dataflow)
    loads = {
        "os": batch * m * n * found.k_parts,
        "ws": batch * k * n * found.m_parts,
        "is": batch * m * k * found.n_parts,
    }[how.dataflow]
    return register_bytes(how, sizes, float(loads), widths, arrays.rows)


def mapped_registers(found: Mapped, machine: MappingMachine, gemm: Gemm) -> OperandBytes | None:
    """Bytes in the registers of the arrays that a mapping runs on; None without arrays."""
    way = way_of(found, machine)
    if way is None:
        return None
    how, division = way
    arrays = machine.arrays
    assert arrays is not None
    a, b, c = found.near_bytes
    copies = (division[1], division[2]) if arrays.multicast else (1, 1)
    loads = {
        "os": c / machine.widths[3],
        "ws": copies[0] * b / machine.widths[1],
        "is": copies[1] * a / machine.widths[0],
    }[how.dataflow]
    sizes = (gemm.batch, gemm.m, gemm.n, gemm.k)
    return register_bytes(how, sizes, loads, (machine.widths[0], machine.widths[3]), arrays.rows)


def _mean_hops(height: int, rows: int) -> float:
    """Rows that a word passes on its way to its cell, with that cell's, on average."""
    whole, rest = divmod(height, rows)
    return (whole * rows * (rows + 1) + rest * (rest + 1)) / 2 / height


def way_of(
    found: Mapped, machine: MappingMachine
) -> tuple[FoldSchedule, tuple[int, int, int, int]] | None:
    """Return schedule and division of the first tile."""
    if machine.arrays is None or found.way < 0:
        return None
    divisions = engine_of(machine).divisions
    way, division = divmod(found.way, len(divisions))
    batch, m, n, k = divisions[division].tolist()
    return machine.arrays.schedules[way], (batch, m, n, k)


def tile_axes(found: Mapped, loops: Gemm | Conv, pass_: Pass) -> list[list[tuple[int, int]]]:
    """Lengths of an array's tiles along batch, m, n and k, each with how many there are.

    Filters count to the axis that they go with, as in `mapping.axes`.
    """
    size = nest_of(loops, pass_).size
    times = axes_of(loops, pass_, 1)[0][:, TIMES].tolist()
    axes = []
    for axis, dims in enumerate(dims_of(loops, pass_)):
        pieces = [(1, 1)]
        for at, dim in enumerate(dims):
            cut = _lengths(found, size[dim], axis, at)
            pieces = [(p * q, c * d) for p, c in pieces for q, d in cut.items()]
        axes.append([(length * times[axis], count) for length, count in pieces])
    return axes


def _lengths(found: Mapped, size: int, axis: int, at: int) -> dict[int, int]:
    """Lengths of the nearest level's tiles along a dimension, with how many there are."""
    cut = {size: 1}
    for extents in (found.extents, *(level.extents for level in found.nearer)):
        inner: dict[int, int] = {}
        for length, count in cut.items():
            for part, number in _pieces(length, extents[axis][at]):
                inner[part] = inner.get(part, 0) + count * number
        cut = inner
    return cut


def _pieces(length: int, tile: int) -> list[tuple[int, int]]:
    whole, rest = divmod(length, tile)
    return [(part, count) for part, count in ((tile, whole), (rest, 1)) if part and count]
