"""Convolutions of 3 x 3 as Winograd's minimal filtering: transforms, and fewer multiplications.

F(m x m, 3 x 3) makes m x m outputs of a tile of (m + 2) x (m + 2) inputs with (m + 2)**2
multiplications for m**2 9. Over all tiles, channels and filters these are (m + 2)**2 matrix
products; inputs, filters and products are transformed, dimension by dimension (A. Lavin, S. Gray,
"Fast Algorithms for Convolutional Neural Networks", CVPR 2016, Section 4).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ridgeline.workload.graph import Conv, Gemm, Graph, Op, Pass, Role, Tensor

_TAPS = 3


class Transforms(NamedTuple):
    """FLOP of one one-dimensional transform of inputs, of a filter, and of products."""

    inputs: int
    filters: int
    products: int


# 32, 28 and 24 FLOP a tile of F(2 x 2), 156, 72 and 90 of F(4 x 4) (Sections 4.2 and 4.3), which
# are 8, 7 and 6, and 12, 9 and 10 transforms along one dimension.
TRANSFORMS = {2: Transforms(4, 4, 4), 4: Transforms(13, 8, 9)}


def applies(op: Op) -> bool:
    """Tell whether an op is a 3 x 3 convolution, or its input gradient, that slides by 1."""
    loops = op.loops
    return (
        isinstance(loops, Conv)
        and op.priced_as is not Pass.WEIGHT_GRADIENT
        and (loops.r, loops.s) == (_TAPS, _TAPS)
        and (loops.stride, loops.dilation) == ((1, 1), (1, 1))
        and (loops.groups, loops.taps) == (1, 1)
    )


def as_products(op: Op, graph: Graph, tile: int) -> tuple[Op, Graph]:
    """Return the matrix products of F(tile x tile, 3 x 3), with the transforms beside them."""
    loops = op.loops
    assert isinstance(loops, Conv)
    is_gradient = op.priced_as is Pass.INPUT_GRADIENT
    c, k = (loops.c_out, loops.c_in) if is_gradient else (loops.c_in, loops.c_out)
    height, width = (
        (loops.h_in, loops.w_in) if is_gradient else (loops.h_out, loops.w_out)
    )  # of the result
    tiles = loops.batch * -(-height // tile) * -(-width // tile)
    side = tile + _TAPS - 1
    format_ = graph.tensors[op.inputs[0]].format
    shapes = {"inputs": (tiles, c), "filters": (c, k), "products": (tiles, k)}
    tensors = {
        name: Tensor(name, (side * side, *shape), format_, Role.ACTIVATION)
        for name, shape in shapes.items()
    }
    one = TRANSFORMS[tile]
    transforms = (
        tiles * c * 2 * side * one.inputs
        + c * k * (_TAPS + side) * one.filters
        + tiles * k * (side + tile) * one.products
    )
    products = replace(
        op,
        kind="gemm",
        pass_=Pass.FORWARD,
        inputs=("inputs", "filters"),
        outputs=("products",),
        loops=Gemm(tiles, k, c, batch=side * side),
        vector_flops=op.vector_flops + transforms,
        input_passes=(),
        output_passes=(),
    )
    return products, replace(graph, tensors=tensors, ops=(products,))
