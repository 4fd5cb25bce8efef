"""The loop nest that a spatial array plays, and how it is laid out on the array.

A convolution is eight loops; a matrix product is the same nest with four of them:

====  =======================  ==================
loop  convolution              C[m, n] = A B
====  =======================  ==================
n     images                   m, rows of A and C
g     groups                   b, products of a batch
k     filters of a group       n, columns of B, C
c     channels of a group      k, the sum
p, q  rows, columns of output
r, s  rows, columns of filter
====  =======================  ==================

x[n, g, c, p stride + r dilation, q stride + s dilation] times w[g, k, c, r, s] is added to
y[n, g, k, p, q].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from ridgeline.workload.graph import Conv, Gemm

LOOPS = ("n", "g", "k", "c", "p", "q", "r", "s")
OF_GEMM: Mapping[str, str] = MappingProxyType({"b": "g", "m": "n", "n": "k", "k": "c"})
"""The loops of a matrix product by their names in this module."""

Operand = Literal["x", "w", "y"]
DEPENDS: Mapping[Operand, frozenset[str]] = MappingProxyType(
    {"x": frozenset("ngcpqrs"), "w": frozenset("gkcrs"), "y": frozenset("ngkpq")}
)
SUMMED = frozenset("crs")
"""The loops over which products are added up."""

Factors = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ConvolutionNest:
    """Trip counts of the eight loops, with the steps of the window.

    Attributes
    ----------
    sizes
        By loop, in the order of `LOOPS`.
    stride, dilation
        Along the height and the width.
    is_gemm
        Whether people call the loops b, m, n and k.
    """

    sizes: tuple[int, ...]
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    is_gemm: bool = False

    def size(self, loop: str) -> int:
        """Trip count of a loop."""
        return self.sizes[LOOPS.index(loop)]

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return math.prod(self.sizes)

    @property
    def names(self) -> dict[str, str]:
        """The loops as people call them, each with its name here."""
        return dict(OF_GEMM) if self.is_gemm else {loop: loop for loop in LOOPS}

    def words(self, operand: Operand, tile: Factors | None = None) -> int:
        """Elements of an operand that a tile of the loops touches; all of it without a tile."""
        size = dict(zip(LOOPS, self.sizes, strict=True))
        at = size if tile is None else {d: min(tile.get(d, 1), size[d]) for d in LOOPS}
        if operand != "x":
            return math.prod(at[d] for d in DEPENDS[operand])
        spans = (
            _reach(at[out], at[tap], stride, dilation)
            for out, tap, stride, dilation in zip(
                "pq", "rs", self.stride, self.dilation, strict=True
            )
        )
        return at["n"] * at["g"] * at["c"] * math.prod(spans)


def _reach(outputs: int, taps: int, stride: int, dilation: int) -> int:
    """Distinct positions i stride + j dilation of `outputs` and `taps`."""
    if taps == 1 or outputs == 1:
        return outputs * taps
    if stride == 1 and dilation <= outputs:
        return outputs + (taps - 1) * dilation
    if dilation == 1 and stride <= taps:
        return (outputs - 1) * stride + taps
    return len({i * stride + j * dilation for i in range(outputs) for j in range(taps)})


def nest_of(loops: Gemm | Conv) -> ConvolutionNest:
    """Return the nest of a product, or of the forward pass over a convolution."""
    if isinstance(loops, Gemm):
        return ConvolutionNest((loops.m, loops.batch, loops.n, loops.k, 1, 1, 1, 1), is_gemm=True)
    c, k = loops.c_in // loops.groups, loops.c_out // loops.groups
    sizes = (loops.batch, loops.groups, k, c, loops.h_out, loops.w_out, loops.r, loops.s)
    return ConvolutionNest(sizes, loops.stride, loops.dilation)


@dataclass(frozen=True, slots=True)
class TemporalLoop:
    """A temporal loop: over which of the nest's loops, and how often."""

    of: str
    trips: int


@dataclass(frozen=True)
class SpatialLayout:
    """How a nest is laid out in space and time.

    Attributes
    ----------
    element
        What one element does by itself between two exchanges of operands: a tile of the loops.
    rows, columns
        In how many parts a loop is spread along an axis of the array.
    buffer
        Loops over tiles of the whole array, the outermost first: operands come from the buffer.
    memory
        Loops outside of those: their tiles come from the memory behind the buffer.
    """

    element: Factors
    rows: Factors
    columns: Factors
    buffer: tuple[TemporalLoop, ...]
    memory: tuple[TemporalLoop, ...] = field(default=())

    @property
    def array_tile(self) -> dict[str, int]:
        """Iterations of each loop that the array does between two exchanges."""
        return {
            d: self.element.get(d, 1) * self.rows.get(d, 1) * self.columns.get(d, 1) for d in LOOPS
        }

    @property
    def buffer_tile(self) -> dict[str, int]:
        """Iterations of each loop whose operands the buffer holds."""
        tile = self.array_tile
        for loop in self.buffer:
            tile[loop.of] *= loop.trips
        return tile

    def shown(self, nest: ConvolutionNest) -> str:
        """Say in a line which loops run where, by the names that people use."""
        name = {own: name for name, own in nest.names.items()}
        places = {
            "memory": [(loop.of, loop.trips) for loop in self.memory],
            "buffer": [(loop.of, loop.trips) for loop in self.buffer],
            "rows": self.rows.items(),
            "columns": self.columns.items(),
            "element": self.element.items(),
        }
        return "; ".join(
            f"{place}: {' '.join(f'{name[d]}={n}' for d, n in loops if n > 1) or '-'}"
            for place, loops in places.items()
        )

    @property
    def loops(self) -> tuple[TemporalLoop, ...]:
        """All temporal loops above the elements, the outermost first."""
        return (*self.memory, *self.buffer)
