"""Wave quantization: output tiles of a matrix product in waves over equal processors, split-K.

GPU kernels cut C[m, n] into output tiles, one for each thread block; a long sum over k may be split
among several blocks, which add up their partial tiles at the end. The processors (SMs) take the
blocks in waves, and the last wave is as long as the others however few blocks are left: tile and
wave quantisation (NVIDIA, "Matrix Multiplication Background User's Guide"). Of all tiles and splits
of a library's menu the fastest is taken.

    arithmetic = ceil(blocks / processors) * 2 * rows * columns * ceil(k / split)
                 / (rate of a processor * filled)

`filled` is what a processor does of its rate with few accumulators in flight:
sqrt(min(1, accumulators / 128**2)), at most two tiles at a time. The form, the square root and the
two tiles are one fit to DeepBench's matrix products on V100 (FP32, FP16) and P100 (FP32), 480 rows;
they are the same for all devices that were measured. On one that was not, tiles are those that its
processors have room for, and as many are resident at a time (`menu`). Every round of tiles begins
with operands and ends with results that nothing hides: twice the latency of the farthest memory.

Where the library of an engine is described (`product_library`), its kernels follow `KernelLaw`
instead: what they lose was fitted across devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.kernels.overlap import together_s
from ridgeline.workload.graph import Gemm

# Threadblock tiles of the CUTLASS profiler's SIMT and tensor-op GEMMs (CUTLASS documentation,
# "Efficient GEMM in CUDA").
TILES = (
    (256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64),
    (128, 32), (32, 128), (64, 32), (32, 64), (32, 32),
)  # fmt: skip
# Of cuBLAS 8 and older, which the Titans of Maxwell and Pascal were measured with: their menu, and
# the sums that the latter splits (hwconfigs/devices/titan-x-pascal.yaml).
EARLY_TILES, EARLY_LEAST_SUM = ((128, 128),), 2048
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
LEAST_SUM = 128
"""A sum is not split into shorter ones, by present libraries."""
_RESIDENT = 2  # tiles of one processor at a time
_FULL = 128 * 128  # accumulators that keep a processor busy
_PARTIAL_BYTES = 4  # partial sums are kept in fp32
_SIDES = (32, 64, 128, 256, 512, 1024)
_FLATTEST = 4  # longer side over shorter one
# Bytes along k of the panels that are fetched at once, two in turns: one is in use, one on its way.
# Sectors of the L2 are 32 B; kernels that have room take two or four.
_SLICE_BYTES, _STAGES = 64, 2
_SECTOR_BYTES = 32
_ACCUMULATORS = 0.5  # of the registers; the rest is for operands, addresses
_WARP = (64, 64)  # rows and columns that a warp has in registers, at least an instruction's


@dataclass(frozen=True, slots=True)
class TileDemand:
    """What a tile needs of one processor.

    Attributes
    ----------
    register_bytes
        For accumulators, operands and the rest.
    shared_bytes
        Of the memory that its threads share, for panels; inf of a device that describes none.
    accumulator_bytes
        Of one sum.
    """

    register_bytes: float
    shared_bytes: float
    accumulator_bytes: float

    def resident(self, rows: int, columns: int) -> int:
        """Count the tiles of this size that it has room for at a time; 0: not one."""
        sums = rows * columns * self.accumulator_bytes
        panels = _STAGES * (rows + columns) * _SLICE_BYTES
        by_registers = _ACCUMULATORS * self.register_bytes / sums
        return int(min(by_registers, self.shared_bytes / panels, _MOST_RESIDENT))

    def can_run(self, rows: int, columns: int) -> bool:
        """Tell whether a tile of a measured library fits: two sectors of each row of its panels.

        Its sums are not counted: processors without room for them in registers (Xeon Phi) were
        measured with what they do instead.
        """
        return _STAGES * (rows + columns) * _SECTOR_BYTES <= self.shared_bytes

    def able(self, tiles: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        """Return the tiles of a library's menu that fit; the smallest one is always there."""
        return _able(self, tiles)


_MOST_RESIDENT = 32  # thread blocks of an SM (NVIDIA, CUDA C++ Programming Guide, compute 8.0, 9.0)


@cache
def _able(processor: TileDemand, tiles: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    found = tuple(tile for tile in tiles if processor.can_run(*tile))
    return found or (min(tiles, key=lambda tile: tile[0] * tile[1]),)


@cache
def menu(
    processor: TileDemand, stated: tuple[tuple[int, int], ...] | None = None
) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """Return the tiles that a processor has room for, and how many of each at a time.

    Of the tiles that a library states; None: of all whose sides are powers of two. If it has room
    for none, the smallest one, whose panels are cut thinner and whose sums are spilled, is there
    all the same.
    """
    tiles = stated or tuple(
        (r, c) for r in _SIDES for c in _SIDES if max(r, c) <= _FLATTEST * min(r, c)
    )
    able = {tile: count for tile in tiles if (count := processor.resident(*tile))}
    able = able or {min(tiles, key=lambda tile: tile[0] * tile[1]): 1}
    return tuple(able), tuple(able.values())


@cache
def _candidates(tiles: tuple[tuple[int, int], ...], splits: tuple[int, ...]) -> NDArray[np.float64]:
    """Return rows, columns and split of every kernel of a menu of tiles, [3, kernels]."""
    return np.array([(r, c, s) for r, c in tiles for s in splits], dtype=np.float64).T


@dataclass(frozen=True, slots=True)
class KernelLaw:
    """What the kernels of a described library lose (`product_library`), on one device.

    With rows r and columns c of a tile, a processor multiplies at

        1 / (1 + panel_loss * (1 / r + 1 / c))

    of its rate, since panels pass the memory that its threads share; at
    min(1, accumulators / full)**exponent of that while fewer accumulators are in flight in its last
    round. Sums are multiplied in whole slices of k. Arithmetic, the near levels and the farthest
    memory hide each other only in part: together they take

        (arithmetic**p + near**p + far**p + reread**p) ** (1 / p)

    Where a row of tiles is wider than what runs at a time, and the cache has no room for B, its
    panels come from the farthest memory again for each row of tiles (`reread`).

    Attributes
    ----------
    k_slice
        Sums are padded to multiples of it.
    panel_loss
        In rows or columns of a tile.
    full
        Accumulators that keep a processor busy.
    exponent
        Of the share of these that are in flight.
    overlap
        p above.
    reread_bytes_per_s
        Rate at which the farthest memory gives such panels; inf: they are not looked at.
    cache_bytes
        That B may have to be kept.
    element_bytes
        Of an operand.
    sustained_flop_per_s
        Rate of useful work under the design power: a bound beside tiles and waves.
    """

    k_slice: int
    panel_loss: float
    full: float
    exponent: float
    overlap: float
    reread_bytes_per_s: float
    cache_bytes: float
    element_bytes: float
    sustained_flop_per_s: float


@dataclass(frozen=True, slots=True)
class WaveMachine:
    """What the choice of a tile depends on.

    Attributes
    ----------
    processors
        Equal processors that share the work.
    rate_flop_per_s
        Rate that all of them together reach when they are full.
    near_bytes_per_s
        Bandwidth of the memory levels between registers and the farthest memory; inf without any.
    round_latency_s
        What a round of tiles loses at its two ends.
    launch_s
        A second kernel, which adds up the partial sums of a split.
    tiles
        Rows and columns of the output tiles that the library has kernels for.
    resident
        How many of each a processor has at a time; (): two.
    inner_bytes_per_s
        Bandwidth of the levels that each processor has for itself, of all together, where what
        warps read there is counted (`inner_passes`); else these are among the near levels.
    warp
        Rows and columns of a tile that one warp has in registers.
    least_sum
        Length of the parts that it splits sums into, at least.
    law
        What its kernels lose, where the library is described.
    splits
        Numbers of parts that it may split a sum into.
    """

    processors: int
    rate_flop_per_s: float
    near_bytes_per_s: float
    round_latency_s: float
    launch_s: float
    tiles: tuple[tuple[int, int], ...] = TILES
    least_sum: int = LEAST_SUM
    resident: tuple[int, ...] = ()
    inner_bytes_per_s: float = math.inf
    warp: tuple[int, int] = _WARP
    law: KernelLaw | None = None
    splits: tuple[int, ...] = _SPLITS


def warp_of(rows: int, columns: int) -> tuple[int, int]:
    """Return rows and columns that a warp has in registers, where instructions are of such size."""
    return max(_WARP[0], rows), max(_WARP[1], columns)


def inner_passes(rows: int, columns: int, warp: tuple[int, int]) -> tuple[int, int]:
    """Count how often panels of A and of B pass the memory that the threads of a tile share.

    Once when they come, and once for each of the warps beside each other that read them.
    """
    return 1 + math.ceil(columns / warp[1]), 1 + math.ceil(rows / warp[0])


@dataclass(frozen=True, slots=True)
class Blocking:
    """The fastest tiling of a product, and what it takes.

    Attributes
    ----------
    rows, columns, split
        The output tile, and in how many parts sums over k are split.
    arithmetic_s
        Time of the arithmetic.
    latency_s
        Ends of all rounds, and the second kernel of a split.
    partial_bytes
        Partial sums of a split, written and read.
    filled
        Share of a processor's rate with the accumulators that are in flight.
    rounds_s, launch_s
        Of the latency, the ends of all rounds and the second kernel.
    exposed_s
        Of memory, what arithmetic does not hide (`KernelLaw`), beyond the longest of arithmetic,
        near levels and the floor.
    near_s, reread_s
        Time of the near levels, and of the farthest memory for panels that it gives again.
    """

    rows: int
    columns: int
    split: int
    arithmetic_s: float
    latency_s: float
    partial_bytes: float
    filled: float = 1.0
    rounds_s: float = 0.0
    launch_s: float = 0.0
    exposed_s: float = 0.0
    near_s: float = 0.0
    reread_s: float = 0.0


class TileProblem(NamedTuple):
    """A product, and what the choice of its tile depends on besides.

    Attributes
    ----------
    a_bytes, b_bytes
        Footprints of the operands: A passes the near levels once for every column of tiles, B once
        for every row of tiles.
    floor_s
        Time that something else takes at least, the farthest memory for example.
    rest_bytes
        What else passes the near levels.
    """

    gemm: Gemm
    a_bytes: float
    b_bytes: float
    floor_s: float
    machine: WaveMachine
    rest_bytes: float = 0.0


_found: dict[TileProblem, Blocking] = {}
_MOST_FOUND = 16384


def best_blockings(jobs: Sequence[TileProblem]) -> list[Blocking]:
    """Choose tile and split of each of some products."""
    known = {job: _found.get(job) for job in jobs}
    missing: dict[_Kernels, list[TileProblem]] = {}
    for job, blocking in known.items():
        if blocking is None:
            missing.setdefault(_kernels_of(job.machine), []).append(job)
    new: dict[TileProblem, Blocking] = {}
    for kernels, alike in missing.items():
        new.update(zip(alike, _best(alike, kernels), strict=True))
    if len(_found) + len(new) > _MOST_FOUND:
        _found.clear()
    _found.update(new)
    return [known[job] or new[job] for job in jobs]


def best_blocking(
    gemm: Gemm, a_bytes: float, b_bytes: float, floor_s: float, machine: WaveMachine
) -> Blocking:
    """Choose tile and split of a product; see `TileProblem`."""
    return best_blockings([TileProblem(gemm, a_bytes, b_bytes, floor_s, machine)])[0]


def kernel_times(job: TileProblem) -> list[tuple[float, tuple[int, int], int]]:
    """Return the time of every kernel that can do a product: seconds, tile, parts of its sums."""
    kernels = _kernels_of(job.machine)
    (times,) = _played([job], kernels).time.tolist()
    rows, columns, split = _candidates(kernels.tiles, kernels.splits).astype(int).tolist()
    return [
        (time_s, (down, across), parts)
        for time_s, down, across, parts in zip(times, rows, columns, split, strict=True)
        if time_s < math.inf
    ]


class _Kernels(NamedTuple):
    """What is the same of machines whose products are looked at together."""

    tiles: tuple[tuple[int, int], ...]
    resident: tuple[int, ...]
    warp: tuple[int, int]
    law: KernelLaw | None
    splits: tuple[int, ...]


def _kernels_of(machine: WaveMachine) -> _Kernels:
    return _Kernels(machine.tiles, machine.resident, machine.warp, machine.law, machine.splits)


class _Played(NamedTuple):
    """What kernels take, [jobs, kernels]; see `Blocking`."""

    time: NDArray[np.float64]
    arithmetic: NDArray[np.float64]
    latency: NDArray[np.float64]
    partial: NDArray[np.float64]
    filled: NDArray[np.float64]
    rounds: NDArray[np.float64]
    launch: NDArray[np.float64]
    exposed: NDArray[np.float64]
    near: NDArray[np.float64]
    reread: NDArray[np.float64]


def _best(jobs: Sequence[TileProblem], kernels: _Kernels) -> list[Blocking]:
    """Choose among tiles and splits."""
    rows, columns, split = _candidates(kernels.tiles, kernels.splits)
    played = _played(jobs, kernels)
    best = np.argmin(played.time, axis=1)
    each = np.arange(len(jobs))
    chosen = [values[each, best].tolist() for values in played[1:]]
    return [
        Blocking(int(rows[at]), int(columns[at]), int(split[at]), *found)
        for at, *found in zip(best.tolist(), *chosen, strict=True)
    ]


def _played(jobs: Sequence[TileProblem], kernels: _Kernels) -> _Played:
    """Return what each kernel takes for each product: along the last axis of all arrays here."""
    rows, columns, split = _candidates(kernels.tiles, kernels.splits)
    at_once: NDArray[np.float64] | int = _RESIDENT
    if kernels.resident:
        at_once = np.repeat(np.array(kernels.resident, np.float64), len(kernels.splits))
    table = np.array(
        [
            (
                job.gemm.m, job.gemm.n, job.gemm.k, job.gemm.batch, job.a_bytes, job.b_bytes,
                job.floor_s, job.machine.processors, job.machine.rate_flop_per_s,
                job.machine.near_bytes_per_s, job.machine.round_latency_s, job.machine.launch_s,
                job.machine.least_sum, job.machine.inner_bytes_per_s, job.rest_bytes,
            )
            for job in jobs
        ],
        np.float64,
    )  # fmt: skip
    (
        m,
        n,
        k,
        batch,
        a,
        b,
        floor,
        processors,
        rate,
        near_rate,
        round_latency,
        launch,
        least,
        inner_rate,
        rest,
    ) = (column[:, np.newaxis] for column in table.T)
    down, across = np.ceil(m / rows), np.ceil(n / columns)
    blocks = batch * down * across * split
    waves = np.ceil(blocks / processors)
    law = kernels.law
    if law is None:
        flops = waves * 2 * rows * columns * np.ceil(k / split)
        resident = np.minimum(waves, at_once) * rows * columns
        filled = np.sqrt(np.minimum(1.0, resident / _FULL))
    else:
        flops = waves * 2 * rows * columns * np.ceil(np.ceil(k / split) / law.k_slice) * law.k_slice
        filled = _filled(law, waves, at_once, rows, columns)
    arithmetic = flops / (rate / processors * filled)
    if law is not None:
        arithmetic = np.maximum(arithmetic, 2.0 * batch * m * n * k / law.sustained_flop_per_s)
    is_split = split > 1
    partial = np.where(is_split, 2.0 * _PARTIAL_BYTES * split * batch * m * n, 0.0)
    near = (a * across + b * down + partial + rest) / near_rate
    if np.isfinite(inner_rate).any():
        a_times, b_times = (
            1 + np.ceil(columns / kernels.warp[1]),
            1 + np.ceil(rows / kernels.warp[0]),
        )
        inner = a * across * a_times + b * down * b_times + partial + rest
        near = np.maximum(near, inner / inner_rate)
    rounds = np.ceil(waves / at_once) * round_latency
    latency = rounds + is_split * launch
    busy = np.maximum(np.maximum(arithmetic, near), floor)
    exposed, reread = np.zeros_like(busy), np.zeros_like(busy)
    if law is not None:
        reread = reread + _reread_s(
            law, at_once * processors, (rows, columns), (m, n, k, batch), split
        )
        exposed = together_s(law.overlap, busy, arithmetic, near, floor, reread) - busy
    time = latency + busy + exposed
    time[is_split & (k < least * split)] = np.inf
    in_flight = flops / (arithmetic * rate / processors)
    if law is not None:  # with the slices of k that the sums are padded to
        in_flight = (
            in_flight * np.ceil(k / split) / np.maximum(flops, 1.0) * (waves * 2 * rows * columns)
        )
    return _Played(
        time, arithmetic, latency, partial, in_flight, rounds, is_split * launch, exposed, near,
        reread,
    )  # fmt: skip


def _filled(
    law: KernelLaw,
    waves: NDArray[np.float64],
    at_once: NDArray[np.float64] | int,
    rows: NDArray[np.float64],
    columns: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the share of a processor's rate that its tiles reach, over all waves.

    All rounds but the last have as many tiles at a time as there is room for.
    """
    last = waves - np.floor((waves - 1) / at_once) * at_once
    slower = np.minimum(1.0, last * rows * columns / law.full) ** law.exponent
    panels = 1.0 / (1.0 + law.panel_loss * (1.0 / rows + 1.0 / columns))
    return panels * waves / (waves - last + last / slower)


def _reread_s(
    law: KernelLaw,
    places: NDArray[np.float64] | float,
    tile: tuple[NDArray[np.float64], NDArray[np.float64]],
    size: tuple[NDArray[np.float64], ...],
    split: NDArray[np.float64],
) -> NDArray[np.float64] | float:
    """Return what the farthest memory takes for panels that no cache keeps; see `KernelLaw`."""
    if math.isinf(law.reread_bytes_per_s):
        return 0.0
    (rows, columns), (m, n, k, batch) = tile, size
    down, across = np.ceil(m / rows), np.ceil(n / columns)
    at_a_time = np.clip(places / across, 1.0, down) * rows + np.minimum(across, places) * columns
    waves = np.maximum(down * across * split / places, 1.0)
    length = np.ceil(np.ceil(k / split) / law.k_slice) * law.k_slice
    moved = waves * at_a_time * length * law.element_bytes
    whole = (batch == 1) & (n * k * law.element_bytes > law.cache_bytes)
    return np.where(whole, moved / law.reread_bytes_per_s, 0.0)
