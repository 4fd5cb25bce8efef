"""Grids: ``Line``, ``Mesh(4x4, ...)``, ``Torus(4x8, ...)``, ``Hypercube(6, ...)``, ``HyperX``.

A mesh is a product of lines, a torus one of rings, a hypercube one of pairs, and a HyperX one of
complete graphs (Ahn et al., SC'09) with one device at every switch, which is drawn as one vertex.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ridgeline.errors import ConfigError
from ridgeline.network.inline import BLOCKS, INLINE, product_of, read_inline, read_shape
from ridgeline.network.topology import Drawing, LinkKind, Topology


@BLOCKS.register("Line")
def line_block(drawing: Drawing, members: Sequence[int], link: LinkKind) -> float:
    """Join neighbours; the ends are not joined."""
    for a, b in pairwise(members):
        drawing.join(a, b, link)
    return min(1, len(members) - 1)


def _grid(name: str, block: str, arguments: Sequence[str]) -> Topology:
    shape, link = read_shape(name, arguments)
    return product_of(f"{name}({', '.join(arguments)})", [(block, n, link) for n in shape])


@INLINE.register("Mesh")
def mesh(arguments: Sequence[str]) -> Topology:
    """Make a mesh of some dimensions, as on a wafer."""
    return _grid("Mesh", "Line", arguments)


@INLINE.register("Torus")
def torus(arguments: Sequence[str]) -> Topology:
    """Make a torus of some dimensions."""
    return _grid("Torus", "Ring", arguments)


@INLINE.register("HyperX")
def hyperx(arguments: Sequence[str]) -> Topology:
    """Make a HyperX: any two devices that differ in one coordinate are linked."""
    return _grid("HyperX", "FullyConnected", arguments)


@INLINE.register("Hypercube")
def hypercube(arguments: Sequence[str]) -> Topology:
    """Make a hypercube of 2^d devices; the first argument is d."""
    d, link = read_inline("Hypercube", arguments)
    if d > 16:
        raise ConfigError(f"Hypercube: the dimension must be 1 to 16, found {d}")
    return product_of(f"Hypercube({', '.join(arguments)})", [("Ring", 2, link)] * d)
