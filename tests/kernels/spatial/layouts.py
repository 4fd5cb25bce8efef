"""Random nests, layouts and arrays of elements."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from ridgeline.kernels.spatial.cycle_model import CycleMachine
from ridgeline.kernels.spatial.nest import (
    LOOPS,
    SUMMED,
    ConvolutionNest,
    SpatialLayout,
    TemporalLoop,
)

LIMITS = {"n": 3, "g": 2, "k": 5, "c": 5, "p": 5, "q": 6, "r": 3, "s": 3}


class Case(NamedTuple):
    nest: ConvolutionNest
    layout: SpatialLayout
    machine: CycleMachine


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any loop in an element, along rows or columns and, in up to two pieces, over tiles."""
    sizes = {d: draw(st.integers(1, limit)) for d, limit in LIMITS.items()}
    few = st.integers(1, 3)
    nest = ConvolutionNest(tuple(sizes.values()), (draw(few), draw(few)), (draw(few), draw(few)))
    element = {d: draw(st.integers(1, min(3, size))) for d, size in sizes.items()}
    spread: dict[str, dict[str, int]] = {"rows": {}, "columns": {}}
    for axis, other in (("rows", "columns"), ("columns", "rows")):
        room = draw(st.integers(1, 6))
        for d in draw(st.permutations(LOOPS))[:3]:
            if d not in SUMMED or d not in spread[other]:
                spread[axis][d] = draw(st.integers(1, room))
                room //= spread[axis][d]
    left = {
        d: -(-size // (element[d] * spread["rows"].get(d, 1) * spread["columns"].get(d, 1)))
        for d, size in sizes.items()
    }
    order = draw(st.permutations([*LOOPS, *LOOPS]))
    loops = []
    for at, d in enumerate(order):
        trips = draw(st.integers(1, left[d])) if d in order[at + 1 :] else left[d]
        left[d] = -(-left[d] // trips)
        loops.append(TemporalLoop(d, trips))
    words, flag = st.integers(1, 4), st.booleans()
    machine = CycleMachine(
        *(draw(words) for _ in range(4)),
        *(draw(flag) for _ in range(5)),
        draw(few),
        draw(st.sampled_from([0, 0, 3, 7])),
    )
    return Case(
        nest, SpatialLayout(element, spread["rows"], spread["columns"], tuple(loops)), machine
    )


def operands(nest: ConvolutionNest, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Random images, padding included, and filters."""
    n, g, k, c, p, q, r, s = nest.sizes
    height = (p - 1) * nest.stride[0] + (r - 1) * nest.dilation[0] + 1
    width = (q - 1) * nest.stride[1] + (s - 1) * nest.dilation[1] + 1
    rng = np.random.default_rng(seed)
    return (
        rng.integers(-9, 10, (n, g, c, height, width)),
        rng.integers(-9, 10, (g, k, c, r, s)),
    )


def convolution(
    x: NDArray[np.int64], w: NDArray[np.int64], nest: ConvolutionNest
) -> NDArray[np.int64]:
    """Tap by tap with NumPy."""
    n, g, k, _, p, q, r, s = nest.sizes
    y = np.zeros((n, g, k, p, q), np.int64)
    for i in range(r):
        for j in range(s):
            rows = i * nest.dilation[0] + nest.stride[0] * np.arange(p)
            columns = j * nest.dilation[1] + nest.stride[1] * np.arange(q)
            window = x[:, :, :, rows[:, None], columns[None, :]]
            y += np.einsum("ngcpq,gkc->ngkpq", window, w[:, :, :, i, j])
    return y
