"""Traffic lower bounds: compulsory bytes, and what a small buffer costs.

Every element that an operand has has to move once. With room for S elements more is needed.
Cut the work into phases of 2 S words moved. In a phase at most 3 S elements can be at hand, S from
before and 2 S moved; by the Loomis-Whitney inequality x elements of a, y of b and z of c allow for
at most sqrt(x y z) multiply-accumulates of a matrix product, that is S sqrt(S). So at least

    2 macs / sqrt(S) - 2 S

words move (Hong and Kung, STOC 1981; with this constant: Smith, Lowery, Langou and van de Geijn,
2019). An element of a convolution's image stands in for at most R elements of the matrix that the
product is made with, so that there it is 2 macs / sqrt(R S) - 2 S.
"""

from __future__ import annotations

import math

from ridgeline.kernels.mapping.footprint import count_points
from ridgeline.kernels.mapping.nest import ContractionNest
from ridgeline.kernels.mapping.traffic import elements_of, pack_axes


def lower_bound_bytes(
    nest: ContractionNest, capacity: float, widths: tuple[float, float, float]
) -> float:
    """Bytes that have to cross the border of a memory of `capacity` bytes, whatever the mapping.

    Parameters
    ----------
    widths
        Bytes of an element of a, b and c.
    """
    width = min(widths)
    room = capacity / width
    reuse, macs = 1, 1.0
    sizes = dict(nest.size)
    table, _ = pack_axes(nest)
    axes = [axis for operand in nest.operands for axis in operand.axes]
    for axis, row in zip(axes, table, strict=True):
        if axis.window is not None:
            p, r = sizes.pop(axis.dim), sizes.pop(axis.window)
            step = axis.stride // math.gcd(axis.stride, axis.dilation)
            reuse *= -(-r // step)
            macs *= count_points(p, r, row)
    macs *= math.prod(sizes.values())
    words = 2 * macs / math.sqrt(reuse * room) - 2 * room
    return max(compulsory_bytes(nest, widths), words * width)


def compulsory_bytes(nest: ContractionNest, widths: tuple[float, float, float]) -> float:
    """Bytes of all elements that the nest touches, each moved once."""
    return math.fsum(
        elements * width for elements, width in zip(elements_of(nest), widths, strict=True)
    )
