"""Grids: ``Line``, ``Mesh(4x4, ...)``, ``Torus(4x8, ...)``, ``Hypercube(6, ...)``, ``HyperX``.

A mesh is a product of lines, a torus one of rings, a hypercube one of pairs, and a HyperX one of
complete graphs (Ahn et al., SC'09) with one device at every switch, which is drawn as one vertex.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ridgeline.network.inline import BLOCKS, Blocks, dimensions, read_inline, read_shape
from ridgeline.network.topology import LinkKind, TopologyBuilder


@BLOCKS.register("Line")
def line_block(drawing: TopologyBuilder, members: Sequence[int], link: LinkKind) -> float:
    """Join neighbours; the ends are not joined."""
    for a, b in pairwise(members):
        drawing.join(a, b, link)
    return min(1, len(members) - 1)


@dimensions("Line")
def line(arguments: Sequence[str]) -> Blocks:
    """Read the one dimension of a line."""
    return [("Line", *read_inline("Line", arguments))]


@dimensions("Mesh")
def mesh(arguments: Sequence[str]) -> Blocks:
    """Read the lines of a mesh of some dimensions, as on a wafer."""
    return _grid("Mesh", "Line", arguments)


@dimensions("Torus")
def torus(arguments: Sequence[str]) -> Blocks:
    """Read the rings of a torus of some dimensions."""
    return _grid("Torus", "Ring", arguments)


@dimensions("HyperX")
def hyperx(arguments: Sequence[str]) -> Blocks:
    """Read a HyperX: any two devices that differ in one coordinate are linked."""
    return _grid("HyperX", "FullyConnected", arguments)


@dimensions("Hypercube")
def hypercube(arguments: Sequence[str]) -> Blocks:
    """Read the pairs of a hypercube of 2^d devices; the first argument is d."""
    d, link = read_inline("Hypercube", arguments, what="dimensions", most=16)
    return [("Ring", 2, link)] * d


def _grid(name: str, block: str, arguments: Sequence[str]) -> Blocks:
    shape, link = read_shape(name, arguments)
    return [(block, n, link) for n in shape]
