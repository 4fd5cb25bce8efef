"""Mappings of the tools as mapping files: loops over levels, down the array and across it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ridgeline.kernels.mapping.mapping_file import LevelSchema
from ridgeline.kernels.spatial.nest import OF_GEMM, SUMMED, nest_of
from ridgeline.study.import_design.architecture import Axis, Target
from ridgeline.study.import_design.documents import DesignDocument
from ridgeline.study.import_design.loops import ImportedLayer, Operand
from ridgeline.workload.graph import Gemm
from ridgeline.yaml_nodes import Location

Loop = tuple[str, int]
"""A dimension of the file and its factor."""

_CLASS = {"n": "m", "p": "m", "q": "m", "k": "n", "c": "k", "r": "k", "s": "k", "g": "b"}
"""Of a convolution's loops: which part of a product they are."""
FLOWS = {"os": ("m", "n"), "ws": ("k", "n"), "is": ("k", "m")}
"""What lies down and across a systolic array, as `kernels.systolic.closed_form.layout` has it."""


@dataclass(frozen=True)
class StorageLoops:
    """Loops of one storage.

    Attributes
    ----------
    storage
        Its name in the hardware file.
    temporal
        From the outermost to the innermost.
    spatial
        By the axis of the fan-out below it; "" where the file does not say which.
    """

    storage: str
    at: Location
    temporal: tuple[Loop, ...] = ()
    spatial: tuple[tuple[str, Loop], ...] = ()


@dataclass(frozen=True)
class ToolMapping:
    """A mapping as a file states it.

    Attributes
    ----------
    layers
        Names or kinds of the layers that it is for; empty: all.
    steps
        From far to near.
    keeps
        Tensors that a storage keeps, where the file says so; by the name of the storage.
    order
        Of a tool that splits loops over storages itself: dimensions, the outermost first.
    """

    source: DesignDocument
    at: Location
    layers: tuple[str, ...] = ()
    steps: tuple[StorageLoops, ...] = ()
    keeps: Mapping[str, frozenset[str]] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    lenient: bool = False
    """Whether dimensions that a layer does not have are passed over."""


class NotAMappingError(ValueError):
    """A mapping that our loops cannot say; with the place in its file."""

    def __init__(self, message: str, at: Location) -> None:
        super().__init__(message)
        self.at = at


def class_of(layer: ImportedLayer, letter: str) -> str:
    """Return which part of a product a loop is: b, m, n or k."""
    return letter if isinstance(layer.loops, Gemm) else _CLASS[letter]


def oriented(target: Target, mappings: Sequence[tuple[ToolMapping, ImportedLayer]]) -> Target:
    """Turn a systolic array by a quarter where its mappings only go with it that way."""
    if target.kind != "systolic" or not target.rows + target.columns:
        return target
    turned = replace(target, rows=target.columns, columns=target.rows)
    able = [
        all(
            fits is not None for fits in (_flow(one, mapping, layer) for mapping, layer in mappings)
        )
        for one in (target, turned)
    ]
    return turned if able == [False, True] else target


def _flow(target: Target, mapping: ToolMapping, layer: ImportedLayer) -> str | None:
    """Return a dataflow that a mapping's spatial loops go with."""
    try:
        rows, columns, _ = _space(target, mapping, layer)
    except NotAMappingError:
        return None
    kinds = [{class_of(layer, letter) for letter in axis} for axis in (rows, columns)]
    return next(
        (
            flow for flow, laid in FLOWS.items()
            if all(kind <= {along} for kind, along in zip(kinds, laid, strict=True))
        ),
        None,
    )  # fmt: skip


def dataflows(target: Target, mappings: Sequence[tuple[ToolMapping, ImportedLayer]]) -> list[str]:
    """Name the dataflows of a systolic array: of what stays in its cells, or of its mappings."""
    held = {operand for storage in target.element for operand in storage.holds}
    found = {"b": ["ws"], "c": ["os"], "a": ["is"]}.get("".join(sorted(held)))
    if found is None and "b" in held and "a" not in held:
        found = ["ws"]
    wanted = {_flow(target, mapping, layer) for mapping, layer in mappings} - {None}
    return [flow for flow in FLOWS if found is None or flow in found or flow in wanted]


def mapping_document(
    mapping: ToolMapping, layer: ImportedLayer, target: Target
) -> tuple[dict[str, Any], dict[str, int]]:
    """Return a mapping file as plain values, and the factors inside an element.

    Raises
    ------
    NotAMappingError
        If it cannot be said so.
    """
    rows, columns, side = _space(target, mapping, layer)
    levels: dict[str, dict[str, int]] = {level: {} for level in target.levels}
    inside: dict[str, int] = {}
    _check_space(target, mapping, layer, rows, columns)
    document: list[dict[str, Any]] = []
    if mapping.order:
        document = _ordered(mapping, layer, target, levels)
    elif mapping.lenient:  # loops in time are left to the search
        pass
    else:
        _place(target, mapping, layer, levels)
        nearest = levels[target.levels[-1]]
        for letter, factor in side.items():
            nearest[letter] = nearest.get(letter, 1) * factor
        for letter, size in _sizes(layer).items():
            covered = math.prod(loops.get(letter, 1) for loops in (*levels.values(), rows, columns))
            if covered < size:
                raise NotAMappingError(
                    f"its factors cover {covered} of {size} points of {letter} "
                    f"({', '.join(d for d, own in layer.letters.items() if own == letter)})",
                    mapping.at,
                )
        document = [{"level": level, "loops": _written(loops)} for level, loops in levels.items()]
        if target.kind == "spatial":
            inside = levels[target.levels[-1]]
    _bypasses(mapping, layer, target, document)
    made: dict[str, Any] = {"kind": "mapping", "name": level_safe(layer.name)}
    if document:
        made["levels"] = document
    made["rows"], made["columns"] = _written(rows), _written(columns)
    return made, inside


def level_safe(name: str) -> str:
    """Return a name that can be that of a file."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in name)
    return kept.strip("-")[:60] or "layer"


def element_words(layer: ImportedLayer, inside: Mapping[str, int]) -> dict[Operand, int]:
    """Words of each operand in an element's tile."""
    nest = nest_of(layer.loops)
    tile = {_own(layer, letter): factor for letter, factor in inside.items()}
    return {"a": nest.words("x", tile), "b": nest.words("w", tile), "c": nest.words("y", tile)}


def _own(layer: ImportedLayer, letter: str) -> str:
    return OF_GEMM[letter] if isinstance(layer.loops, Gemm) else letter


def _sizes(layer: ImportedLayer) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for dim, letter in layer.letters.items():
        sizes[letter] = sizes.get(letter, 1) * layer.sizes[dim]
    return sizes


def _written(loops: Mapping[str, int]) -> list[str]:
    return [f"{letter}={factor}" for letter, factor in loops.items() if factor > 1]


def _letter(mapping: ToolMapping, layer: ImportedLayer, dim: str, at: Location) -> str | None:
    """Return the loop of a dimension; None if it has one point."""
    if dim not in layer.sizes:
        if mapping.lenient:
            return None
        raise NotAMappingError(
            f"there is no dimension {dim!r} (there are: {', '.join(layer.sizes)})", at
        )
    return layer.letters.get(dim)


def _space(
    target: Target, mapping: ToolMapping, layer: ImportedLayer
) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Return loops down the array, across it, and those of arrays side by side."""
    axes: tuple[tuple[tuple[Axis, ...], dict[str, int]], ...] = (
        (target.rows, {}), (target.columns, {}), (target.extra, {}),
    )  # fmt: skip
    for step in mapping.steps:
        for axis, (dim, factor) in step.spatial:
            letter = _letter(mapping, layer, dim, step.at)
            if letter is None or factor == 1:
                continue
            named = [
                (sizes, loops) for sizes, loops in axes
                if axis and any(name == axis or name.endswith(f".{axis}") for name, _ in sizes)
            ]  # fmt: skip
            if not named and axis in {"", "X", "Y"}:  # a single axis has any name
                named = [(sizes, loops) for sizes, loops in (axes[1], axes[0], axes[2]) if sizes]
            able = [
                loops for sizes, loops in named
                if math.prod(loops.values()) * factor <= math.prod(n for _, n in sizes)
            ]  # fmt: skip
            if not able:
                room = " or ".join(str(math.prod(n for _, n in sizes)) for sizes, _ in named)
                raise NotAMappingError(
                    f"{factor} parts of {dim} side by side do not fit: the array has "
                    f"{room or 'no such axis'}",
                    step.at,
                )
            able[0][letter] = able[0].get(letter, 1) * factor
    return axes[0][1], axes[1][1], axes[2][1]


def _check_space(
    target: Target, mapping: ToolMapping, layer: ImportedLayer, rows: dict[str, int],
    columns: dict[str, int],
) -> None:  # fmt: skip
    if target.kind == "spatial":
        both = {letter for letter in rows.keys() & columns.keys() if _own(layer, letter) in SUMMED}
        if both:
            raise NotAMappingError(
                f"{', '.join(sorted(both))} is a sum that is spread down and across the array; "
                "here sums go along one of the two",
                mapping.at,
            )
        return
    for title, axis in (("rows", rows), ("columns", columns)):
        kinds = sorted({class_of(layer, letter) for letter in axis})
        if len(kinds) > 1 or kinds == ["b"]:
            raise NotAMappingError(
                f"{', '.join(axis)} lie along the {title}; those of a systolic array hold one of "
                "m, n and k of a product",
                mapping.at,
            )
    if _flow(target, mapping, layer) is None:
        raise NotAMappingError(
            f"{', '.join(rows) or 'nothing'} down and {', '.join(columns) or 'nothing'} across is "
            "no dataflow of a systolic array",
            mapping.at,
        )


def _place(
    target: Target, mapping: ToolMapping, layer: ImportedLayer, levels: dict[str, dict[str, int]]
) -> None:
    """Give every loop in time to a memory level of the device."""
    level, unordered = target.levels[0], target.levels[-1] if target.kind == "spatial" else ""
    for step in mapping.steps:
        own = target.names.get(step.storage, level)
        if own in levels:
            level = own  # else: what has no place counts at the next farther one
        loops = levels[level]
        for dim, factor in step.temporal:
            letter = _letter(mapping, layer, dim, step.at)
            if letter is None or factor == 1:
                continue
            if letter in loops and next(reversed(loops)) != letter and level != unordered:
                raise NotAMappingError(
                    f"the loop {letter} stands at {level} twice, with other loops between", step.at
                )
            loops[letter] = loops.get(letter, 1) * factor


def _ordered(
    mapping: ToolMapping, layer: ImportedLayer, target: Target, levels: Mapping[str, object]
) -> list[dict[str, Any]]:
    """Keep the order of the loops and leave their factors to the search."""
    order: list[str] = []
    for dim in mapping.order:
        letter = _letter(mapping, layer, dim, mapping.at)
        if letter is None:
            continue
        if letter not in order:
            order.append(letter)
        elif order[-1] != letter:
            mapping.source.remark(
                "left out",
                f"{dim} stands in the order twice, with other loops between; the outer one counts",
                mapping.at,
            )
    mapping.source.remark(
        "changed",
        "the tool splits this order over the storages of each operand by itself; here the order "
        "is settled and the factors of every level are searched for",
        mapping.at,
    )
    names = [level for level in levels if target.kind == "systolic" or level != target.levels[-1]]
    return [{"level": level, "loops": [f"{letter}=*" for letter in order]} for level in names]


def _bypasses(
    mapping: ToolMapping, layer: ImportedLayer, target: Target, document: list[dict[str, Any]]
) -> None:
    """Write which operands a level keeps if mapping files can say so, else name it."""
    able = "keeps" in LevelSchema.model_fields
    rows = {row["level"]: row for row in document}
    for storage, tensors in mapping.keeps.items():
        kept = {layer.operands[name] for name in tensors if name in layer.operands}
        level = target.names.get(storage)
        place = next(
            (
                part for part in (target.far, *target.shared, *target.element)
                if part.name == storage
            ),
            None,
        )  # fmt: skip
        if place is None or level is None:
            continue
        passing = sorted(place.holds - kept)
        if not passing:
            continue
        names = [name for name, operand in layer.operands.items() if operand in passing]
        if able and target.kind == "systolic" and place is not target.far and level in rows:
            rows[level]["keeps"] = sorted(kept)
            continue
        mapping.source.remark(
            "left out",
            f"{', '.join(names)} pass by {storage!r}; the mapping file says of no level that an "
            "operand passes by it, so a tile of it is held there",
            mapping.at,
        )
