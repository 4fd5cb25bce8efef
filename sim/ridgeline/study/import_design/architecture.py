"""What the tools' hardware files have in common, and which part of a device each storage becomes.

A hierarchy of storages, from the memory that tensors live in to the multipliers, with fan-outs
between them. Two kinds of engines take such a hierarchy:

* ``spatial``: elements with registers of their own, one buffer, one memory behind it;
* ``systolic``: cells that hand operands on, any number of buffers, one memory behind them.

Elements with storage of their own are ``spatial``, unless the file calls them systolic or all that
they hold is a word or two of one operand, which is what a systolic cell has.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from ridgeline.study.import_design.documents import DesignDocument
from ridgeline.study.import_design.loops import Operand
from ridgeline.yaml_nodes import Location

Kind = Literal["dram", "sram", "registers"]
Axis = tuple[str, int]
"""Name and size of one axis of a fan-out."""
OPERANDS: tuple[Operand, ...] = ("a", "b", "c")
SMALL_BITS = 32 * 1024
"""Of a storage that says by no name what it is made of: registers up to here."""
_MADE_OF = (
    ("dram", re.compile(r"dram|ddr|hbm|main_?memory|off_?chip", re.IGNORECASE)),
    ("registers", re.compile(r"reg|(^|_)rf|spad|latch|flip|ff$|accum|psum", re.IGNORECASE)),
    ("sram", re.compile(r"sram|buf|cache|glb|l[123]$|scratch|mem", re.IGNORECASE)),
)
_FEW_WORDS = 2


@dataclass(frozen=True)
class ImportedStorage:
    """One storage of a file; rates are of one instance, in bits a cycle, None where unlimited.

    Attributes
    ----------
    bits
        Capacity of one instance; inf where the file states none.
    axes
        Fan-outs above it: there are as many instances as their product.
    holds
        Operands that it may hold.
    read_bits, write_bits
        A cycle; `shared` if both go through one port.
    read_j, write_j
        Joules a bit.
    """

    name: str
    at: Location
    kind: Kind
    bits: float
    word_bits: int
    axes: tuple[Axis, ...] = ()
    holds: frozenset[Operand] = frozenset(OPERANDS)
    read_bits: float | None = None
    write_bits: float | None = None
    shared: bool = False
    read_j: float | None = None
    write_j: float | None = None
    latency_cycles: float | None = None
    leak_w: float | None = None
    area_m2: float | None = None

    @property
    def instances(self) -> int:
        """How many there are."""
        return math.prod(size for _, size in self.axes)


@dataclass(frozen=True)
class Compute:
    """The multipliers: bits of their operands and sums, joules of a multiply-accumulate."""

    name: str
    at: Location
    bits: int | None
    floating: bool = False
    sum_bits: int | None = None
    axes: tuple[Axis, ...] = ()
    mac_j: float | None = None
    leak_w: float | None = None
    area_m2: float | None = None

    @property
    def instances(self) -> int:
        """How many there are."""
        return math.prod(size for _, size in self.axes)


@dataclass(frozen=True)
class Architecture:
    """A hardware file: storages from far to near, multipliers, the clock if it is stated."""

    name: str
    tool: str
    source: DesignDocument
    storages: tuple[ImportedStorage, ...]
    compute: Compute
    clock_hz: float | None = None
    systolic: bool = False
    node_m: float | None = None


@dataclass(frozen=True)
class Target:
    """Which part of a device each storage becomes.

    Attributes
    ----------
    far
        The memory that tensors live in.
    shared
        Buffers, from far to near; of a spatial engine those that its one buffer is made of.
    element
        Storages of single elements.
    dropped
        Storages without a place.
    rows, columns, extra
        Axes of the fan-out down the array, across it, and those that neither has room for.
    """

    kind: Literal["spatial", "systolic"]
    far: ImportedStorage
    shared: tuple[ImportedStorage, ...]
    element: tuple[ImportedStorage, ...]
    dropped: tuple[ImportedStorage, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    extra: tuple[Axis, ...]
    names: dict[str, str] = field(default_factory=dict)
    """Memory level of the device by the name of a storage."""
    multicast: frozenset[Operand] = frozenset(OPERANDS)

    @property
    def levels(self) -> list[str]:
        """Memory levels that loops may have, from far to near."""
        inner = self.element if self.kind == "spatial" else ()
        return list(dict.fromkeys(self.names[s.name] for s in (self.far, *self.shared, *inner)))


def kind_of(words: Iterable[str], bits: float) -> Kind:
    """Tell what a storage is made of, by its class and name, else by its size."""
    for word in words:
        for kind, pattern in _MADE_OF:
            if word and pattern.search(word):
                return kind  # type: ignore[return-value]
    return "registers" if bits <= SMALL_BITS else "sram"


def level_name(name: str) -> str:
    """Return a storage's name as that of a memory level."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_") or "level"


def target_of(architecture: Architecture) -> Target:
    """Find a place for every storage.

    Raises
    ------
    ConfigError
        If there is no storage that tensors could live in.
    """
    source, compute = architecture.source, architecture.compute
    if not architecture.storages:
        raise source.error("the hardware has no storage that tensors could live in")
    far, *rest = architecture.storages
    if far.instances > 1:
        source.remark(
            "changed",
            f"the {far.instances} instances of {far.name!r}, the farthest storage, are one memory",
            far.at,
        )
    if missing := set(OPERANDS) - far.holds:
        source.remark(
            "changed",
            f"holds no {', '.join(sorted(missing))}; the memory of a device holds all operands",
            far.at,
        )
    element, shared = _split(rest, compute)
    for i, storage in enumerate(element):
        if math.isinf(storage.bits):
            source.remark(
                "assumed",
                f"a word for each operand in {storage.name!r}: the file states no size",
                storage.at,
            )
            size = float(storage.word_bits * len(storage.holds))
            element[i] = replace(storage, bits=size)
    systolic = architecture.systolic or not element or _cells_only(element)
    if element and not shared and not systolic:
        first, *element = element
        shared, systolic = [first], not element
        source.remark(
            "changed",
            f"{first.name!r} is read as the buffer before the array: there is no other",
            first.at,
        )
    if not systolic:
        kept = _largest(shared)
        dropped = [storage for storage in shared if storage not in kept]
        nearest, far_ones = _nearest(element)
        dropped += far_ones
        target = _axes(architecture, "spatial", far, kept, nearest, dropped)
    else:
        target = _axes(architecture, "systolic", far, shared, element, [])
    for storage in target.dropped:
        source.remark(
            "left out",
            f"{storage.name!r}: a spatial array has one buffer and one storage in an element for "
            "each operand; its loops count at the next farther one",
            storage.at,
        )
    return target


def _split(
    storages: list[ImportedStorage], compute: Compute
) -> tuple[list[ImportedStorage], list[ImportedStorage]]:
    """Tell storages of single elements from buffers; both stay in order."""
    element: list[ImportedStorage] = []
    shared: list[ImportedStorage] = []
    taken: frozenset[Operand] = frozenset()
    for storage in reversed(storages):
        alone = storage.instances == compute.instances > 1 or storage.kind == "registers"
        inside = not shared or storage.kind == "registers"
        if alone and inside and not storage.holds & taken:
            element.insert(0, storage)
            taken |= storage.holds
        else:
            shared.insert(0, storage)
    return element, shared


def _cells_only(element: list[ImportedStorage]) -> bool:
    """Tell whether elements hold no more than cells of a systolic array do."""
    one = len(element) == 1 and len(element[0].holds) == 1
    return one and element[0].bits <= _FEW_WORDS * element[0].word_bits


def _side_by_side(shared: list[ImportedStorage]) -> list[list[ImportedStorage]]:
    """Group neighbours that hold different operands: none is behind the other."""
    groups: list[list[ImportedStorage]] = []
    for storage in shared:
        if groups and not any(storage.holds & other.holds for other in groups[-1]):
            groups[-1].append(storage)
        else:
            groups.append([storage])
    return groups


def _largest(shared: list[ImportedStorage]) -> list[ImportedStorage]:
    """Return the largest storage of every operand."""
    kept: list[ImportedStorage] = []
    for operand in OPERANDS:
        able = [storage for storage in shared if operand in storage.holds]
        if able:
            best = max(able, key=lambda storage: storage.bits * storage.instances)
            if best not in kept:
                kept.append(best)
    return [storage for storage in shared if storage in kept]


def _nearest(element: list[ImportedStorage]) -> tuple[list[ImportedStorage], list[ImportedStorage]]:
    kept: list[ImportedStorage] = []
    taken: frozenset[Operand] = frozenset()
    for storage in reversed(element):
        if storage.holds & taken:
            continue
        kept.insert(0, storage)
        taken |= storage.holds
    return kept, [storage for storage in element if storage not in kept]


def _axes(
    architecture: Architecture, kind: Literal["spatial", "systolic"], far: ImportedStorage,
    shared: list[ImportedStorage], element: list[ImportedStorage], dropped: list[ImportedStorage],
) -> Target:  # fmt: skip
    """Lay the axes of the fan-out down and across the array."""
    source, compute = architecture.source, architecture.compute
    axes = [axis for axis in compute.axes if axis[1] > 1]
    tall = [axis for axis in axes if axis[0].lower().endswith(("y", "d2"))]
    if len(axes) > 2 and 0 < len(tall) < len(axes) and not axes[0][0].upper().startswith("D"):
        rows, columns, extra = tall, [axis for axis in axes if axis not in tall], []
    else:
        first = next((axis for axis in axes if axis in tall), None)
        if first is None and len(axes) > 1:
            first = axes[-2]
        flat = [axis for axis in axes if axis != first]
        across = next(iter(flat if tall else flat[::-1]), None)
        rows = [first] if first is not None else []
        columns = [across] if across is not None else []
        extra = [axis for axis in axes if axis not in (first, across)]
    if extra and kind == "spatial":
        source.remark(
            "changed",
            f"the axes {', '.join(name for name, _ in extra)} are laid along the columns: an array "
            "has rows and columns",
            compute.at,
        )
        columns, extra = [*columns, *extra], []
    elif extra:
        source.remark(
            "changed",
            f"the axes {', '.join(name for name, _ in extra)} are read as "
            f"{math.prod(size for _, size in extra)} arrays side by side: an array has rows and "
            "columns",
            compute.at,
        )
    names: dict[str, str] = {}
    for storage in (far, *shared, *element):
        wanted, number = level_name(storage.name), 1
        while (name := wanted if number == 1 else f"{wanted}-{number}") in names.values():
            number += 1
        names[storage.name] = name
    multicast = frozenset(
        operand for operand in OPERANDS
        if not any(s.instances > 1 for s in shared if operand in s.holds)
    )  # fmt: skip
    groups = [(shared, "buffer"), (element, "element")]
    if kind == "systolic":
        groups = [*((group, "buffer") for group in _side_by_side(shared)), (element, "element")]
    for group, wanted in groups:
        if len(group) < 2:
            continue
        title = wanted
        while title in names.values():
            title += "s"
        names |= dict.fromkeys((storage.name for storage in group), title)
        source.remark(
            "changed",
            f"{', '.join(storage.name for storage in group)} are one level, {title!r}"
            + (", of their joint size" if group is not element else ""),
            group[0].at,
        )
    for storage in shared:
        alone = list(names.values()).count(names[storage.name]) == 1
        missing = [name for name in OPERANDS if name not in storage.holds]
        if kind == "systolic" and alone and missing:
            source.remark(
                "changed",
                f"{storage.name!r} does not hold {', '.join(missing)} (a, b are the operands, c is "
                "the result); a memory level holds tiles of all",
                storage.at,
            )
        if storage.instances > 1:
            source.remark(
                "changed",
                f"{storage.instances} instances of {storage.name!r} are one level of their joint "
                "size: what several of them hold a copy of takes room once, and each element is "
                "fed by itself",
                storage.at,
            )
    return Target(
        kind, far, tuple(shared), tuple(element), tuple(dropped), tuple(rows), tuple(columns),
        tuple(extra), names, multicast,
    )  # fmt: skip
