"""Topologies from inline text: ``"Ring(16, 50 GB/s, 500 ns)"``, ``"Torus(4x8, 50 GB/s, 1 us)"``.

Bandwidth is that of one link in one direction, latency that of one link. An inline topology has no
cost besides these: energy and the time of starting a collective are zero by definition.

A product is written as ASTRA-sim does, innermost dimension first and each with its own links:
``"Ring(8, 200 GB/s, 500 ns)_Switch(16, 25 GB/s, 1 us)"``. Rank i + 8j is device i of ring j; the 16
devices of equal i are joined by a switch. The same holds for any blocks (`BLOCKS`).

Names may say the number of dimensions, and a grid's extents may stand apart:
``"Torus2D(4, 8, 50 GB/s, 1 us)"``; ``Dragonfly+`` is ``DragonflyPlus``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import product, takewhile

from ridgeline import units
from ridgeline.errors import ConfigError
from ridgeline.network.registry import Registry
from ridgeline.network.topology import DEVICE, MAX_DEVICES, Drawing, LinkKind, Topology

INLINE: Registry[str, Callable[[Sequence[str]], Topology]] = Registry(
    "inline topology", "ridgeline.network.topologies"
)
"""Makes a topology of the arguments between the parentheses; by the name before them."""

BLOCKS: Registry[str, Callable[[Drawing, Sequence[int], LinkKind], float]] = Registry(
    "block of a product", "ridgeline.network.topologies"
)
"""Joins some vertices along one dimension; by the name in inline text.

Returns how many links, one way, the narrowest cut of the block into two halves crosses.
"""

_PART = re.compile(r"\s*([A-Za-z][\w-]*?\+?)\s*\(([^()]*)\)\s*")
_TEXT = re.compile(rf"{_PART.pattern}(?:_{_PART.pattern})*")
_BEGIN = re.compile(r"\s*[A-Za-z][\w+-]*\s*\(")
_DIMENSIONS = re.compile(r"(.+?)([1-6])[dD]")


def is_inline(text: str) -> bool:
    """Tell whether text is meant as an inline topology rather than as a name or a path."""
    return _BEGIN.match(text) is not None and not text.endswith((".yaml", ".yml", ".json"))


def from_text(text: str) -> Topology:
    """Make a topology of inline text, as the head of this module describes.

    Raises
    ------
    ConfigError
        If a name is unknown or arguments cannot be read.
    """
    if not _TEXT.fullmatch(text):
        raise ConfigError(
            f"{text!r} is not an inline topology; write for example 'Ring(16, 50 GB/s, 500 ns)', "
            "or of several dimensions 'Ring(8, 200 GB/s, 500 ns)_Switch(16, 25 GB/s, 1 us)'"
        )
    parts = [
        _plain(name, [part.strip() for part in arguments.split(",")])
        for name, arguments in _PART.findall(text)
    ]
    if len(parts) == 1:
        return INLINE[parts[0][0]](parts[0][1])
    blocks = []
    for name, arguments in parts:
        BLOCKS[name]  # the nearest name, if there is none, before anything else is said
        n, link = read_inline(name, arguments)
        blocks.append((name, n, link))
    return product_of(text.strip(), blocks)


def _plain(name: str, arguments: list[str]) -> tuple[str, list[str]]:
    """Return the name and the arguments as they are registered: Torus2D(4, 8, as Torus(4x8, ."""
    name = name.replace("+", "Plus")
    dimensions = _DIMENSIONS.fullmatch(name)
    if dimensions is None or name in INLINE:
        return name, arguments
    name, number = dimensions[1], int(dimensions[2])
    extents = list(takewhile(lambda argument: argument.isdecimal(), arguments))
    if len(extents) > 1:
        arguments = ["x".join(extents), *arguments[len(extents) :]]
    found = arguments[0].count("x") + 1
    if found != number and name in INLINE:
        raise ConfigError(f"{name}{number}D has {number} extents, found {arguments[0]!r}")
    return name, arguments


def read_inline(name: str, arguments: Sequence[str]) -> tuple[int, LinkKind]:
    """Read the arguments (devices, bandwidth, latency) that most inline topologies take."""
    _expect(name, arguments, "devices, bandwidth and latency", f"{name}(16, 50 GB/s, 500 ns)")
    if not (arguments[0].isdecimal() and 1 <= int(arguments[0]) <= MAX_DEVICES):
        raise ConfigError(
            f"{name}: the number of devices must be 1 to {MAX_DEVICES}, found {arguments[0]!r}"
        )
    return int(arguments[0]), read_link(name, arguments[1:])


def read_shape(name: str, arguments: Sequence[str]) -> tuple[tuple[int, ...], LinkKind]:
    """Read the arguments (extents, bandwidth, latency) of a grid of up to 6 dimensions."""
    _expect(name, arguments, "extents, bandwidth and latency", f"{name}(4x8, 50 GB/s, 500 ns)")
    extents = arguments[0].split("x")
    if not all(extent.strip().isdecimal() for extent in extents) or len(extents) > 6:
        raise ConfigError(
            f"{name}: the extents must be 1 to 6 numbers, as in 4x8; found {arguments[0]!r}"
        )
    shape = tuple(int(extent) for extent in extents)
    if min(shape) < 1 or math.prod(shape) > MAX_DEVICES:
        raise ConfigError(f"{name}: there must be 1 to {MAX_DEVICES} devices, found {arguments[0]}")
    return shape, read_link(name, arguments[1:])


def read_link(name: str, arguments: Sequence[str]) -> LinkKind:
    """Read (bandwidth, latency) of one link and one direction."""
    bandwidth = units.parse(arguments[0], "B/s")
    latency = units.parse(arguments[1], "s")
    if bandwidth <= 0 or latency < 0:
        raise ConfigError(f"{name}: the bandwidth must be more than 0, the latency at least 0")
    return LinkKind(name.lower(), bandwidth, latency, energy_j_per_byte=0.0)


def _expect(name: str, arguments: Sequence[str], what: str, example: str) -> None:
    if len(arguments) != 3:
        raise ConfigError(
            f"{name} takes {what}, as in '{example}'; found "
            f"{len(arguments)} argument{'s' * (len(arguments) != 1)}"
        )


def product_of(name: str, blocks: Sequence[tuple[str, int, LinkKind]]) -> Topology:
    """Join devices along every dimension of a grid by a copy of that dimension's block.

    Parameters
    ----------
    blocks
        Name in `BLOCKS`, extent and link of every dimension, the innermost first.
    """
    shape = tuple(n for _, n, _ in blocks)
    n_devices = math.prod(shape)
    if n_devices > MAX_DEVICES:
        raise ConfigError(f"{name}: {n_devices} devices; at most {MAX_DEVICES} can be drawn")
    drawing = Drawing()
    devices = [drawing.vertex(f"device{i}", DEVICE, node=0) for i in range(n_devices)]
    cuts = []  # of a cut across one dimension
    stride = 1
    for block, n, link in blocks:
        lines = [
            inner + outer * stride * n
            for outer, inner in product(range(n_devices // (stride * n)), range(stride))
        ]
        crossing = [
            BLOCKS[block](drawing, [devices[start + i * stride] for i in range(n)], link)
            for start in lines
        ]
        if n > 1:
            cuts.append((n, sum(crossing) * link.bandwidth_bytes_per_s))
        stride *= n
    # A half cut across one even dimension is the narrowest of a product of rings, lines or complete
    # graphs if that dimension is the longest (Azizoglu and Egecioglu, 2003, 2004).
    straight = all(n % 2 == 0 for n, _ in cuts) or len(cuts) == 1
    return drawing.finish(
        name,
        devices,
        routing="dimension-ordered" if len(blocks) > 1 else "shortest",
        single_channel=True,
        shape=shape if len(blocks) > 1 else (),
        blocks=tuple(blocks),
        devices_forward=True,
        bisection_bytes_per_s=min((cut for _, cut in cuts), default=None) if straight else None,
    )
