"""Matrix products on many equal processors: output tiles, split sums, waves.

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
they are the same for all devices. Every round of tiles begins with operands and ends with results
that nothing hides: twice the latency of the farthest memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from ridgeline.workload.graph import Gemm

# Threadblock tiles of the CUTLASS profiler's SIMT and tensor-op GEMMs (CUTLASS documentation,
# "Efficient GEMM in CUDA").
TILES = (
    (256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64),
    (128, 32), (32, 128), (64, 32), (32, 64), (32, 32),
)  # fmt: skip
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_LEAST_SUM = 128  # a sum is not split into shorter ones
_RESIDENT = 2  # tiles of one processor at a time
_FULL = 128 * 128  # accumulators that keep a processor busy
_PARTIAL_BYTES = 4  # partial sums are kept in fp32


@cache
def _candidates(tiles: tuple[tuple[int, int], ...]) -> NDArray[np.float64]:
    """Return rows, columns and split of every kernel of a menu of tiles, [3, kernels]."""
    return np.array([(r, c, s) for r, c in tiles for s in _SPLITS], dtype=np.float64).T


@dataclass(frozen=True, slots=True)
class Machine:
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
    """

    processors: int
    rate_flop_per_s: float
    near_bytes_per_s: float
    round_latency_s: float
    launch_s: float
    tiles: tuple[tuple[int, int], ...] = TILES


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
    """

    rows: int
    columns: int
    split: int
    arithmetic_s: float
    latency_s: float
    partial_bytes: float


@lru_cache(maxsize=65536)
def best_blocking(
    gemm: Gemm, a_bytes: float, b_bytes: float, floor_s: float, machine: Machine
) -> Blocking:
    """Choose tile and split of a product.

    Parameters
    ----------
    a_bytes, b_bytes
        Footprints of the operands: A passes the near levels once for every column of tiles, B once
        for every row of tiles.
    floor_s
        Time that something else takes at least, the farthest memory for example.
    """
    rows, columns, split = _candidates(machine.tiles)
    down, across = np.ceil(gemm.m / rows), np.ceil(gemm.n / columns)
    waves = np.ceil(gemm.batch * down * across * split / machine.processors)
    flops = waves * 2 * rows * columns * np.ceil(gemm.k / split)
    resident = np.minimum(waves, _RESIDENT) * rows * columns
    filled = np.sqrt(np.minimum(1.0, resident / _FULL))
    arithmetic = flops / (machine.rate_flop_per_s / machine.processors * filled)
    is_split = split > 1
    partial = np.where(is_split, 2.0 * _PARTIAL_BYTES * split * gemm.batch * gemm.m * gemm.n, 0.0)
    near = (a_bytes * across + b_bytes * down + partial) / machine.near_bytes_per_s
    latency = np.ceil(waves / _RESIDENT) * machine.round_latency_s + is_split * machine.launch_s
    time = latency + np.maximum(np.maximum(arithmetic, near), floor_s)
    time[is_split & (gemm.k < _LEAST_SUM * split)] = np.inf
    best = int(np.argmin(time))
    return Blocking(
        int(rows[best]),
        int(columns[best]),
        int(split[best]),
        float(arithmetic[best]),
        float(latency[best]),
        float(partial[best]),
    )
