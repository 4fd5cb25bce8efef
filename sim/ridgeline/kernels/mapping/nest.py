"""A contraction as a loop nest: dimensions, and which of them index which operand.

Each operand is an array whose index along one axis is a dimension of the nest, or, for the images
of a convolution, ``stride * dim + dilation * window - padding``. What a tile of the nest touches of
an operand is then a product over its axes, each of which can be counted by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ridgeline.workload.graph import Conv, Gemm, Pass


@dataclass(frozen=True, slots=True)
class OperandAxis:
    """One index of an operand: ``stride * dim + dilation * window - padding``.

    Attributes
    ----------
    dim, window
        Names of dimensions; without a window the index is that of `dim`.
    extent
        Length of the operand along this axis; indices outside [0, extent) are padding, which is
        never moved.
    """

    dim: str
    extent: int
    window: str | None = None
    stride: int = 1
    dilation: int = 1
    padding: int = 0


@dataclass(frozen=True, slots=True)
class Operand:
    """An array that the nest reads or writes; its name says its part: "a", "b" or "c"."""

    name: str
    axes: tuple[OperandAxis, ...]

    @property
    def dims(self) -> frozenset[str]:
        """Dimensions that this operand depends on."""
        found = {axis.dim for axis in self.axes}
        return frozenset(found | {axis.window for axis in self.axes if axis.window is not None})


@dataclass(frozen=True)
class ContractionNest:
    """``c[...] += a[...] * b[...]`` for every point of the dimensions.

    Attributes
    ----------
    dims, sizes
        Names and sizes of the dimensions.
    operands
        The two inputs and the result: a, b, c.
    """

    dims: tuple[str, ...]
    sizes: tuple[int, ...]
    operands: tuple[Operand, Operand, Operand]

    @cached_property
    def size(self) -> dict[str, int]:
        """Size of each dimension."""
        return dict(zip(self.dims, self.sizes, strict=True))

    @property
    def macs(self) -> int:
        """Points of the nest, padding counted as work."""
        product = 1
        for size in self.sizes:
            product *= size
        return product


def nest_of(loops: Gemm | Conv, pass_: Pass = Pass.FORWARD) -> ContractionNest:
    """Return the loop nest of one pass over a contraction.

    A matrix product has the dimensions b (batch), m, n, k; a convolution g (groups), n (images),
    k and c (channels of a group), p and q (rows and columns of the output), r and s (those of the
    filter). The three passes over a convolution are one nest: they differ in which of images x,
    filters w and outputs y is the result.
    """
    if isinstance(loops, Gemm):
        return _gemm(loops)
    g = OperandAxis("g", loops.groups)
    n, k = OperandAxis("n", loops.batch), OperandAxis("k", loops.c_out // loops.groups)
    c = OperandAxis("c", loops.c_in // loops.groups)
    p, q = OperandAxis("p", loops.h_out), OperandAxis("q", loops.w_out)
    r, s = OperandAxis("r", loops.r), OperandAxis("s", loops.s)
    height, width = (
        OperandAxis(dim, extent, window, loops.stride[i], loops.dilation[i], loops.padding[i])
        for i, (dim, extent, window) in enumerate([("p", loops.h_in, "r"), ("q", loops.w_in, "s")])
    )
    x, w, y = (g, n, c, height, width), (g, k, c, r, s), (g, n, k, p, q)
    match pass_:
        case Pass.INPUT_GRADIENT:
            operands = (Operand("a", y), Operand("b", w), Operand("c", x))
        case Pass.WEIGHT_GRADIENT:
            operands = (Operand("a", y), Operand("b", x), Operand("c", w))
        case _:
            operands = (Operand("a", x), Operand("b", w), Operand("c", y))
    axes = (g, n, k, c, p, q, r, s)
    return ContractionNest(
        tuple(axis.dim for axis in axes), tuple(axis.extent for axis in axes), operands
    )


def _gemm(loops: Gemm) -> ContractionNest:
    b, m, n, k = (
        OperandAxis(dim, size)
        for dim, size in zip("bmnk", (loops.batch, loops.m, loops.n, loops.k), strict=True)
    )
    operands = (Operand("a", (b, m, k)), Operand("b", (b, k, n)), Operand("c", (b, m, n)))
    return ContractionNest(("b", "m", "n", "k"), (loops.batch, loops.m, loops.n, loops.k), operands)
