"""A contraction as a batch of matrix products whose axes the search can cut.

============  =================  =============  ===============  =====
pass          m                  n              k                batch
============  =================  =============  ===============  =====
product       m                  n              k                batch
forward       pixels of y        channels of y  channels of x    group
input grad.   pixels of y        channels of x  channels of y    group
weight grad.  channels of y      channels of x  pixels of y      group
============  =================  =============  ===============  =====

Filters go with the channels of x: to an array these are channels times rows times columns of the
filter (with the channels of y for the input gradient, whose sum runs over filters and channels of
y). Images x are counted in the elements that pixels of y touch.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ridgeline.kernels.mapping.footprint import Floats, Ints
from ridgeline.kernels.mapping.nest import nest_of
from ridgeline.kernels.mapping.pipeline import BATCH, A, B, C, K, M, N
from ridgeline.kernels.mapping.tilings import (
    AXIS_FIELDS,
    COLUMNS,
    FILTER_COLUMNS,
    FILTER_ROWS,
    GRANULE,
    IMAGES,
    PIXELS,
    ROWS,
    SIZE,
    TALL,
    TIMES,
    WIDE,
)
from ridgeline.kernels.mapping.traffic import pack_axes
from ridgeline.workload.graph import Conv, Gemm, Pass

# Dimensions of the nest behind each axis: batch, m, n, k.
GEMM_DIMS = (("b",), ("m",), ("n",), ("k",))
PIXEL_DIMS = ("n", "p", "q")
CONV_DIMS = {
    Pass.FORWARD: (("g",), PIXEL_DIMS, ("k",), ("c",)),
    Pass.INPUT_GRADIENT: (("g",), PIXEL_DIMS, ("c",), ("k",)),
    Pass.WEIGHT_GRADIENT: (("g",), ("k",), ("c",), PIXEL_DIMS),
}


def dims_of(loops: Gemm | Conv, pass_: Pass) -> tuple[tuple[str, ...], ...]:
    """Dimensions of the nest behind the axes batch, m, n, k."""
    return GEMM_DIMS if isinstance(loops, Gemm) else CONV_DIMS[_kind(pass_)]


@lru_cache(maxsize=4096)
def axes_of(loops: Gemm | Conv, pass_: Pass, granule: int) -> tuple[Ints, Ints, Floats]:
    """Describe the axes of a contraction, and how its operands are counted.

    Parameters
    ----------
    granule
        Cells along the longer side of an array: tiles are multiples of it where they can.

    Returns
    -------
    axes, touches, elements
        As `tilings` and `pipeline.Shape` want them.
    """
    axes = np.zeros((4, AXIS_FIELDS), np.int64)
    axes[:, TIMES] = axes[:, GRANULE] = 1
    touches, elements = np.zeros((3, 4), np.int64), np.ones(3)
    if isinstance(loops, Gemm):
        axes[:, SIZE] = loops.batch, loops.m, loops.n, loops.k
        axes[1:, GRANULE] = granule
        return axes, touches, elements
    pass_ = _kind(pass_)
    table, begins = pack_axes(nest_of(loops))
    lines = table[begins[0] + 3 : begins[0] + 5]  # rows and columns of x
    channels = {"k": loops.c_out // loops.groups, "c": loops.c_in // loops.groups}
    window = loops.r * loops.s
    axes[BATCH, SIZE] = loops.groups
    for axis, dims in list(enumerate(CONV_DIMS[pass_]))[1:]:
        if dims == PIXEL_DIMS:
            axes[axis, PIXELS] = 1
            axes[axis, [IMAGES, ROWS, COLUMNS]] = loops.batch, loops.h_out, loops.w_out
            axes[axis, [FILTER_ROWS, FILTER_COLUMNS]] = loops.r, loops.s
            axes[axis, TALL:WIDE], axes[axis, WIDE:] = lines
        else:
            axes[axis, [SIZE, GRANULE]] = channels[dims[0]], granule
    images, filters = {
        Pass.FORWARD: ((A, M), B),
        Pass.INPUT_GRADIENT: ((C, M), B),
        Pass.WEIGHT_GRADIENT: ((B, K), C),
    }[pass_]
    touches[images] = 1
    elements[filters] = window
    axes[N if pass_ is Pass.WEIGHT_GRADIENT else K, TIMES] = window
    return axes, touches, elements


def _kind(pass_: Pass) -> Pass:
    return pass_ if pass_ in CONV_DIMS else Pass.FORWARD
