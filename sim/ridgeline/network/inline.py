"""Topologies from inline text: ``"Ring(16, 50 GB/s, 500 ns)"``, ``"Torus(4x8, 50 GB/s, 1 us)"``.

Bandwidth is that of one link in one direction, latency that of one link. An inline topology has no
cost besides these: energy and the time of starting a collective are zero by definition.

A product is written as ASTRA-sim does, innermost dimension first and each with its own links:
``"Ring(8, 200 GB/s, 500 ns)_Switch(16, 25 GB/s, 1 us)"``. Rank i + 8j is device i of ring j; the 16
devices of equal i are joined by a switch. The same holds for any blocks (`BLOCKS`), and for what
consists of them: ``"Torus(4x4, 50 GB/s, 1 us)_FatTree(4, 25 GB/s, 1 us)"``.

ASTRA-sim's short form ``"Ring(8)_Switch(16)"`` takes its links apart (`with_links`).

Names may say the number of dimensions, and a grid's extents may stand apart:
``"Torus2D(4, 8, 50 GB/s, 1 us)"``; ``Dragonfly+`` is ``DragonflyPlus``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import product, takewhile

from ridgeline import units
from ridgeline.errors import ConfigError, nearest
from ridgeline.network.topology import DEVICE, MAX_DEVICES, LinkKind, Topology, TopologyBuilder
from ridgeline.registry import Registry

INLINE: Registry[str, Callable[[Sequence[str]], Topology]] = Registry(
    "inline topology", "ridgeline.network.topologies", parameters=("arguments",)
)
"""Makes a topology of the arguments between the parentheses; by the name before them."""

BLOCKS: Registry[str, Callable[[TopologyBuilder, Sequence[int], LinkKind], float]] = Registry(
    "block of a product", "ridgeline.network.topologies", parameters=("drawing", "at", "link")
)
"""Joins some vertices along one dimension; by the name in inline text.

Returns how many links, one way, the narrowest cut of the block into two halves crosses.
"""

Blocks = Sequence[tuple[str, int, LinkKind]]
"""Name in `BLOCKS`, extent and link of every dimension, the innermost first."""

DIMENSIONS: Registry[str, Callable[[Sequence[str]], Blocks]] = Registry(
    "dimension of a product", "ridgeline.network.topologies", parameters=("arguments",)
)
"""Reads the arguments of what can stand in a product; by its name in inline text."""

_PART = re.compile(r"\s*([A-Za-z][\w-]*?\+?)\s*\(([^()]*)\)\s*")
_TEXT = re.compile(rf"{_PART.pattern}(?:_{_PART.pattern})*")
_BEGIN = re.compile(r"\s*[A-Za-z][\w+-]*\s*\(")
_DIMENSIONS = re.compile(r"(.+?)([1-6])[dD]")
_EXTENT = re.compile(r"[\d.x ]+")


def dimensions(
    name: str,
) -> Callable[[Callable[[Sequence[str]], Blocks]], Callable[[Sequence[str]], Blocks]]:
    """Register what reads the dimensions of a topology that stands alone or in products."""

    def put(read: Callable[[Sequence[str]], Blocks]) -> Callable[[Sequence[str]], Blocks]:
        def alone(arguments: Sequence[str]) -> Topology:
            return product_of(f"{name}({', '.join(arguments)})", read(arguments))

        INLINE.register(name)(alone)
        return DIMENSIONS.register(name)(read)

    return put


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
    parts = [_plain(name, arguments) for name, arguments in _split(text)]
    known = DIMENSIONS if len(parts) > 1 else INLINE
    for name, _ in parts:
        known[name]  # the nearest name, if there is none, before anything else is said
    for name, arguments in parts:
        if _linkless(arguments):
            raise ConfigError(f"{name} has no links: {_how_to_write(parts)}")
    if len(parts) == 1:
        return INLINE[parts[0][0]](parts[0][1])
    blocks = [block for name, arguments in parts for block in DIMENSIONS[name](arguments)]
    return product_of(text.strip(), blocks)


def with_links(text: str, bandwidth: str | None, latency: str | None) -> str:
    """Put links into inline text without any: ``"Ring(8)_Switch(16)"``, as ASTRA-sim writes it.

    Parameters
    ----------
    text
        Anything that names a topology; returned as it is if neither of the others is given.
    bandwidth, latency
        Of one link and one direction, for all parts or one for each, innermost first:
        ``"200 GB/s, 25 GB/s"``, ``"500 ns"``.

    Raises
    ------
    ConfigError
        If only one of them is given, `text` is not inline or has links, or their number is another.
    """
    if bandwidth is None and latency is None:
        return text
    if bandwidth is None or latency is None:
        missing = "bandwidth" if bandwidth is None else "latency"
        raise ConfigError(f"bandwidth and latency go together; {missing} is missing")
    if not is_inline(text) or not _TEXT.fullmatch(text):
        raise ConfigError(
            "bandwidth and latency are those of inline topologies without links, as "
            f"'Ring(8)_Switch(16)'; {text!r} is none"
        )
    parts = _split(text)
    columns = []
    for what, values in (("bandwidth", bandwidth), ("latency", latency)):
        found = [value.strip() for value in values.split(",")]
        if len(found) not in {1, len(parts)}:
            raise ConfigError(
                f"{what}: one for all or one for each of {len(parts)} parts of {text!r}; found "
                f"{len(found)}: {values!r}"
            )
        columns.append(found * len(parts) if len(found) == 1 else found)
    for name, arguments in parts:
        if not _linkless(arguments):
            raise ConfigError(
                f"{name}({', '.join(arguments)}) has links; give bandwidth and latency there or "
                "apart, not both"
            )
    return "_".join(
        f"{name}({', '.join([*arguments, one, other])})"
        for (name, arguments), one, other in zip(parts, *columns, strict=True)
    )


def _split(text: str) -> list[tuple[str, list[str]]]:
    """Return names and arguments of the parts of a product."""
    return [
        (name, [part.strip() for part in arguments.split(",")] if arguments.strip() else [])
        for name, arguments in _PART.findall(text)
    ]


def _linkless(arguments: Sequence[str]) -> bool:
    """Tell whether there are extents and nothing else."""
    plain = [argument for argument in arguments if "=" not in argument]
    return bool(plain) and all(_EXTENT.fullmatch(argument) for argument in plain)


def _how_to_write(parts: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Say how the links of a whole product are given."""
    whole = "_".join(
        f"{name}({', '.join([*arguments, '50 GB/s', '500 ns'])})"
        if _linkless(arguments)
        else f"{name}({', '.join(arguments)})"
        for name, arguments in parts
    )
    said = f"write for example '{whole}'"
    if all(_linkless(arguments) for _, arguments in parts):
        each = ",".join(["50GB/s"] * len(parts))
        said += f", or give them apart: --bandwidth {each} --latency 500ns"
    return said


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
    found = arguments[0].count("x") + 1 if arguments else 0
    if found != number and name in INLINE:
        raise ConfigError(f"{name}{number}D has {number} extents, found {''.join(arguments[:1])!r}")
    return name, arguments


def with_keywords(
    name: str, arguments: Sequence[str], known: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """Part arguments into plain ones and those with a name, ``oversubscription=3``."""
    plain, named = [], {}
    for argument in arguments:
        key, equals, value = (part.strip() for part in argument.partition("="))
        if not equals:
            plain.append(argument)
        elif key not in known:
            raise ConfigError(
                f"{name} has no {key!r}{nearest(key, known)} (known: {', '.join(known)})"
            )
        elif key in named:
            raise ConfigError(f"{name}: {key} is given twice")
        else:
            named[key] = value
    return plain, named


def read_inline(
    name: str, arguments: Sequence[str], what: str = "devices", most: int = MAX_DEVICES
) -> tuple[int, LinkKind]:
    """Read the arguments (devices, bandwidth, latency) that most inline topologies take."""
    _expect(name, arguments, f"{what}, bandwidth and latency", f"{name}(16, 50 GB/s, 500 ns)")
    if not (arguments[0].isdecimal() and 1 <= int(arguments[0]) <= most):
        raise ConfigError(
            f"{name}: the number of {what} must be 1 to {most}, found {arguments[0]!r}"
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


def product_of(name: str, blocks: Blocks) -> Topology:
    """Join devices along every dimension of a grid by a copy of that dimension's block.

    Parameters
    ----------
    blocks
        One for every dimension.
    """
    shape = tuple(n for _, n, _ in blocks)
    n_devices = math.prod(shape)
    if n_devices > MAX_DEVICES:
        raise ConfigError(f"{name}: {n_devices} devices; at most {MAX_DEVICES} can be drawn")
    drawing = TopologyBuilder()
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
