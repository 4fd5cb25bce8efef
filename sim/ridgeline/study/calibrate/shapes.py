"""Which shapes are measured: spread evenly over the logarithms of sizes that training uses.

Points of the additive recurrence of the generalised golden ratio (Roberts, 2018; a lattice of low
discrepancy), shifted by the seed, so that any number of the first ones covers the space, from
skinny products to square ones.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ridgeline.workload.graph import Conv, Gemm

_PRODUCT = (4, 2048)  # a side of a product
_FLOPS = (1e4, 2.5e8)  # of one product: what takes a core microseconds to milliseconds
_BATCHED = (8, 256)  # a side of one of many products, as of heads of attention
_BATCHES = (4, 64)


def points(dimensions: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Yield points of the unit cube, evenly spread."""
    ratio = 2.0
    for _ in range(60):  # the root of x^(d+1) = x + 1
        ratio = (1.0 + ratio) ** (1.0 / (dimensions + 1))
    step = ratio ** -np.arange(1.0, dimensions + 1)
    point = np.random.default_rng(seed).random(dimensions)
    while True:
        point = (point + step) % 1.0
        yield point


def between(low: float, high: float, share: float) -> int:
    """Return the whole number at a share of the way between two, by their logarithms."""
    return round(float(low * (high / low) ** share))


def products(count: int, seed: int) -> list[Gemm]:
    """Products of one large matrix: layers of all widths on batches of all sizes."""
    found: list[Gemm] = []
    for x, y, z in points(3, seed):
        gemm = Gemm(*(between(*_PRODUCT, share) for share in (x, y, z)))
        if _FLOPS[0] <= 2 * gemm.macs <= _FLOPS[1]:
            found.append(gemm)
        if len(found) == count:
            return found
    raise AssertionError("unreachable: the points never end")


def batches(count: int, seed: int) -> list[Gemm]:
    """Batches of equal small products."""
    found: list[Gemm] = []
    for x, y, z, w in points(4, seed):
        m, n, k = (between(*_BATCHED, share) for share in (x, y, z))
        gemm = Gemm(m, n, k, between(*_BATCHES, w))
        if 2 * gemm.macs <= _FLOPS[1]:
            found.append(gemm)
        if len(found) == count:
            return found
    raise AssertionError("unreachable: the points never end")


def convolutions(filter_class: str, count: int, seed: int) -> list[Conv]:
    """Return convolutions of one filter class (`kernels.efficiency_table.filter_class`)."""
    window, stride = {"1x1": (1, 1), "3x3": (3, 1), "larger": (5, 1)}[filter_class]
    found: list[Conv] = []
    for x, y, z, w in points(4, seed):
        size = between(6, 40, x)
        conv = Conv(
            batch=between(1, 48, y),
            c_in=between(3, 128, z),
            h_in=size,
            w_in=size,
            c_out=between(8, 192, w),
            r=window,
            s=window,
            stride=(stride, stride),
            padding=(window // 2, window // 2),
        )
        if 10 * _FLOPS[0] <= 2 * conv.macs <= _FLOPS[1]:
            found.append(conv)
        if len(found) == count:
            return found
    raise AssertionError("unreachable: the points never end")


def recurrences(count: int, seed: int) -> list[tuple[int, int, int]]:
    """Batch, features and steps of recurrent layers."""
    found: list[tuple[int, int, int]] = []
    for x, y, z in points(3, seed):
        batch, hidden, steps = between(2, 64, x), between(16, 256, y), between(4, 32, z)
        if 2 * batch * hidden * 4 * hidden * steps <= _FLOPS[1]:
            found.append((batch, hidden, steps))
        if len(found) == count:
            return found
    raise AssertionError("unreachable: the points never end")
