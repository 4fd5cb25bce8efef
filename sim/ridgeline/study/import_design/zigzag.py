"""ZigZag's files (3.x): hardware, workload and mapping; a core of Stream is such hardware, too.

Format: https://kuleuven-micas.github.io/zigzag and the inputs of github.com/KULeuven-MICAS/zigzag.
Sizes are bits, costs picojoules for an access of `bandwidth_max` bits, times cycles; memories are
listed from near to far, and stand once for every value of the dimensions that they do not serve.
An ordering goes from the innermost loop outwards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ridgeline.study.import_design.architecture import (
    Architecture,
    Axis,
    Compute,
    ImportedStorage,
    kind_of,
)
from ridgeline.study.import_design.documents import LARGEST, DesignDocument
from ridgeline.study.import_design.loops import (
    Access,
    Einsum,
    Index,
    NotALayerError,
    Operand,
    parse_index,
)
from ridgeline.study.import_design.mappings import StorageLoops, ToolMapping
from ridgeline.yaml_nodes import Location

TOOL = "ZigZag"
_EQUATION = re.compile(
    r"\s*(\w+)((?:\[\w+\])+)\s*\+?=\s*(\w+)((?:\[\w*\])+)\s*([*+])\s*(\w+)((?:\[\w*\])+)\s*"
)
_ROLES: Mapping[str, Operand] = {"I1": "a", "I2": "b", "O": "c"}
_UNROLLED = re.compile(r"\s*([A-Za-z_]\w*)\s*,\s*(\d{1,9})\s*")


def is_hardware(data: Any) -> bool:
    """Tell whether a document is hardware."""
    return isinstance(data, dict) and "memories" in data


def is_workload(data: Any) -> bool:
    """Tell whether a document is a list of layers."""
    return _lists(data, {"equation", "loop_dims", "loop_sizes"})


def is_mapping(data: Any) -> bool:
    """Tell whether a document is a list of mappings."""
    return _lists(data, {"spatial_mapping", "temporal_ordering", "memory_operand_links"})


def _lists(data: Any, keys: set[str]) -> bool:
    return isinstance(data, list) and any(isinstance(row, dict) and keys & set(row) for row in data)


def architecture(source: DesignDocument, roles: Mapping[str, Operand]) -> Architecture:
    """Read hardware; `roles` says which operand I1, I2 and O are.

    Raises
    ------
    ConfigError
        If a field is missing or cannot be read.
    """
    data = source.document.data
    raw = source.mapping(data.get("operational_array", data.get("multiplier_array")), ())
    key = "operational_array" if "operational_array" in data else "multiplier_array"
    at: Location = (key,)
    if not raw:
        raise source.error("the hardware needs 'operational_array'")
    names = [
        source.word(dim, (*at, "dimensions")) for dim in source.items(raw.get("dimensions"), at)
    ]
    sizes = source.items(raw.get("sizes"), at)
    if len(names) != len(sizes) or len(set(names)) < len(names):
        raise source.error("needs as many sizes as dimensions, each named once", at)
    axes = tuple(
        (name, source.whole(size, (*at, "sizes", i)))
        for i, (name, size) in enumerate(zip(names, sizes, strict=True))
    )
    if raw.get("is_imc"):
        source.remark(
            "left out", "memory that computes (imc) is read as multipliers", (*at, "is_imc")
        )
    mac = source.stated(raw, ("unit_energy",), at)
    if "unit_area" in raw:
        source.remark("left out", "areas of ZigZag have no unit", (*at, "unit_area"))
    precision = raw.get("input_precision")
    bits = None
    if isinstance(precision, list) and precision:
        bits = max(source.whole(b, (*at, "input_precision", i)) for i, b in enumerate(precision))
    systolic = bool(source.items(raw.get("systolic_dimensions"), (*at, "systolic_dimensions")))
    compute = Compute("multipliers", at, bits, axes=axes, mac_j=mac[0] * 1e-12 if mac else None)
    memories = source.mapping(data["memories"], ("memories",))
    storages = [
        _storage(source, name, source.mapping(fields, ("memories", name)), axes, roles)
        for name, fields in memories.items()
    ]
    if not storages:
        raise source.error("there are no memories", ("memories",))
    far = storages[-1]
    storages[-1] = replace(far, kind="dram")
    if data.get("dataflows"):
        source.remark(
            "left out", "dataflows of the hardware are hints for ZigZag's mapper", ("dataflows",)
        )
    title = data.get("name")
    name = title if isinstance(title, str) and title else source.stem
    return Architecture(name, TOOL, source, tuple(reversed(storages)), compute, systolic=systolic)


def _storage(
    source: DesignDocument, name: str, fields: Mapping[str, Any], axes: tuple[Axis, ...],
    roles: Mapping[str, Operand],
) -> ImportedStorage:  # fmt: skip
    at: Location = ("memories", name)
    if "size" not in fields:
        raise source.error("a memory needs 'size'", at)
    bits = float(source.whole(fields["size"], (*at, "size")))
    served = {
        source.word(dim, (*at, "served_dimensions"))
        for dim in source.items(fields.get("served_dimensions"), (*at, "served_dimensions"))
    }
    if unknown := served - {dim for dim, _ in axes}:
        raise source.error(
            f"serves {', '.join(sorted(unknown))}; the array has {', '.join(d for d, _ in axes)}",
            (*at, "served_dimensions"),
        )
    operands = frozenset(
        _operand(source, source.word(raw, (*at, "operands")), (*at, "operands"), roles)
        for raw in source.items(fields.get("operands"), (*at, "operands"))
    )
    if not operands:
        raise source.error("a memory needs 'operands'", at)
    read, write, shared = _ports(source, fields, at)
    costs = [source.stated(fields, (key,), at) for key in ("r_cost", "w_cost")]
    if fields.get("auto_cost_extraction"):
        source.remark("left out", f"costs of {name!r} from CACTI: the file does not state them", at)
        costs = [None, None]
    joules = [
        None if cost is None or not rate else cost[0] * 1e-12 / rate
        for cost, rate in zip(costs, (read, write), strict=True)
    ]
    if fields.get("area"):
        source.remark("left out", "areas of ZigZag have no unit", (*at, "area"))
    latency = source.stated(fields, ("latency",), at)
    return ImportedStorage(
        name=name, at=at, kind=kind_of((name, str(fields.get("mem_type", ""))), bits), bits=bits,
        word_bits=_word(read, write, bits),
        axes=tuple(axis for axis in axes if axis[0] not in served),
        holds=operands, read_bits=read, write_bits=write, shared=shared,
        read_j=joules[0], write_j=joules[1],
        # A latency of a cycle is that of every register.
        latency_cycles=latency[0] if latency and latency[0] > 1 else None,
    )  # fmt: skip


def _word(read: float | None, write: float | None, bits: float) -> int:
    """Return the bits of a word: no port of a register is wider; at most 64."""
    rates = [rate for rate in (read, write) if rate]
    return int(max(1, min([*rates, bits, 64])))


def _operand(
    source: DesignDocument, name: str, at: Location, roles: Mapping[str, Operand]
) -> Operand:
    found = roles.get(name) or _ROLES.get(name)
    if found is None:
        raise source.error(f"operands are I1, I2 and O, found {name!r}", at)
    return found


def _ports(
    source: DesignDocument, fields: Mapping[str, Any], at: Location
) -> tuple[float | None, float | None, bool]:
    """Return bits a cycle that are read and written, and whether ports are shared."""
    here = (*at, "ports")
    rates: dict[str, list[float]] = {"read": [], "write": [], "read_write": []}
    for i, raw in enumerate(source.items(fields.get("ports"), here)):
        port = source.mapping(raw, (*here, i))
        kind = str(port.get("type"))
        if kind not in rates:
            raise source.error(
                f"a port is read, write or read_write, found {kind!r:.40}", (*here, i, "type")
            )
        if "bandwidth_max" not in port:
            raise source.error("a port needs 'bandwidth_max'", (*here, i))
        rates[kind].append(source.whole(port["bandwidth_max"], (*here, i, "bandwidth_max")))
        least = port.get("bandwidth_min")
        if least is not None and least != port["bandwidth_max"]:
            source.remark(
                "left out",
                "accesses narrower than bandwidth_max: every bit takes the same energy",
                here,
            )
    old = [source.stated(fields, (key,), at) for key in ("r_bw", "w_bw")]
    both = sum(rates["read_write"])
    read, write = sum(rates["read"]) + both, sum(rates["write"]) + both
    if not read and old[0]:
        read = old[0][0]
    if not write and old[1]:
        write = old[1][0]
    return read or None, write or None, bool(both) and not rates["read"] + rates["write"]


def einsums(source: DesignDocument) -> list[Einsum]:
    """Read a workload: a list of layers.

    Layers that are not two operands multiplied (pooling, addition) are left out and named.

    Raises
    ------
    ConfigError
        If a layer cannot be read.
    """
    found = []
    for i, raw in enumerate(source.items(source.document.data, ())):
        at: Location = (i,)
        fields = source.mapping(raw, at)
        name = fields.get("name")
        number = str(fields.get("id", i))
        title = name if isinstance(name, str) and name else f"layer{number}"
        equation = source.word(fields.get("equation"), (*at, "equation"))
        read = _EQUATION.fullmatch(equation) if len(equation) <= 300 else None
        if read is None:
            raise source.error(f"cannot read the equation {equation!r:.80}", (*at, "equation"))
        if read[5] == "+" or "[]" in equation:
            source.remark(
                "left out", f"{title!r} adds or has one operand; only products are read",
                (*at, "equation"),
            )  # fmt: skip
            continue
        found.append(_layer(source, at, title, fields, read))
    return found


def _layer(
    source: DesignDocument, at: Location, title: str, fields: Mapping[str, Any], read: re.Match[str]
) -> Einsum:
    dims = source.items(fields.get("loop_dims"), (*at, "loop_dims"))
    raw = source.items(fields.get("loop_sizes"), (*at, "loop_sizes"))
    if len(dims) != len(raw):
        raise source.error("needs as many loop_sizes as loop_dims", (*at, "loop_sizes"))
    sizes = {
        source.word(dim, (*at, "loop_dims", n)).upper(): source.whole(size, (*at, "loop_sizes", n))
        for n, (dim, size) in enumerate(zip(dims, raw, strict=True))
    }
    relations: dict[str, Index] = {}
    for n, relation in enumerate(
        source.items(fields.get("dimension_relations"), (*at, "dimension_relations"))
    ):
        left, equals, right = str(relation).partition("=")
        try:
            if not equals:
                raise NotALayerError("it has no '='")
            relations[left.strip().upper()] = tuple(
                (dim.upper(), factor) for dim, factor in parse_index(right.strip())
            )
        except NotALayerError as error:
            raise source.error(
                f"cannot read the relation {str(relation)!r:.60}: {error}",
                (*at, "dimension_relations", n),
            ) from error
    bits = source.mapping(fields.get("operand_precision"), (*at, "operand_precision"))

    def access(name: str, axes: str, *, output: bool) -> Access:
        indices = tuple(
            relations.get(dim.upper(), ((dim.upper(), 1),))
            for dim in re.findall(r"\[(\w+)\]", axes)
        )
        own = bits.get(name)
        wide = None if own is None else source.whole(own, (*at, "operand_precision", name))
        return Access(name, indices, output, wide if wide and wide <= 4096 else None)

    accesses = (
        access(read[3], read[4], output=False), access(read[6], read[7], output=False),
        access(read[1], read[2], output=True),
    )  # fmt: skip
    padding, kind = _padding(source, at, fields, relations), str(fields.get("operator_type", ""))
    return Einsum(title, sizes, accesses, source, at, padding, kind)


def _padding(
    source: DesignDocument, at: Location, fields: Mapping[str, Any], relations: Mapping[str, Index]
) -> dict[str, tuple[int, int]]:
    """Return zeros before and after the images, by the axis of the output."""
    found: dict[str, tuple[int, int]] = {}
    dims = source.items(fields.get("pr_loop_dims"), (*at, "pr_loop_dims"))
    padding = source.items(fields.get("padding"), (*at, "padding"))
    for n, (dim, pair) in enumerate(zip(dims, padding, strict=False)):
        here = (*at, "padding", n)
        ends = source.items(pair, here)
        if len(ends) != 2:
            raise source.error("padding is a pair: before and after", here)
        before, after = (
            int(min(source.number(end, (*here, i)), LARGEST)) for i, end in enumerate(ends)
        )
        for out, _ in relations.get(str(dim).upper(), ())[:1]:
            found[out] = before, after
    return found


def mappings(source: DesignDocument) -> list[ToolMapping]:
    """Read mappings: of named layers or kinds of layers, and the default.

    Raises
    ------
    ConfigError
        If one cannot be read.
    """
    found = []
    for i, raw in enumerate(source.items(source.document.data, ())):
        at: Location = (i,)
        fields = source.mapping(raw, at)
        name = source.word(fields.get("name"), (*at, "name"))
        here = (*at, "spatial_mapping")
        spatial = []
        for axis, loops in source.mapping(fields.get("spatial_mapping"), here).items():
            for n, loop in enumerate(source.items(loops, (*here, axis))):
                text = ", ".join(map(str, loop)) if isinstance(loop, list) else str(loop)
                read = _UNROLLED.fullmatch(text)
                if read is None or int(read[2]) < 1:
                    raise source.error(
                        f"cannot read {text!r:.40} as a loop with its factor, K, 32",
                        (*here, axis, n),
                    )
                spatial.append((axis, (read[1].upper(), int(read[2]))))
        order = []
        place = (*at, "temporal_ordering")
        for n, loop in enumerate(source.items(fields.get("temporal_ordering"), place)):
            pair = source.items(loop, (*place, n))
            if len(pair) != 2:
                raise source.error("a loop is a pair: dimension and factor", (*place, n))
            order.append(source.word(pair[0], (*place, n)).upper())
        for key in fields:
            if key not in {"name", "spatial_mapping", "temporal_ordering", "memory_operand_links"}:
                source.remark("left out", f"{key} is a hint for ZigZag's mapper", (*at, key))
        found.append(
            ToolMapping(
                source, at, () if name == "default" else (name,),
                (StorageLoops("", here, (), tuple(spatial)),), order=tuple(reversed(order)),
                lenient=True,
            )
        )  # fmt: skip
    return found


def roles(source: DesignDocument) -> dict[str, Operand]:
    """Return which operand I1, I2 and O are, by the links of a mapping file."""
    found: dict[str, Operand] = {}
    for i, raw in enumerate(source.items(source.document.data, ())):
        fields = source.mapping(raw, (i,))
        here = (i, "memory_operand_links")
        links = source.mapping(fields.get("memory_operand_links"), here)
        for name, own in (("I", "a"), ("W", "b"), ("O", "c")):
            memory = links.get(name)
            if memory is None:
                continue
            if found.setdefault(str(memory), own) != own:  # type: ignore[arg-type]
                source.remark(
                    "left out", f"{memory} holds other operands for other layers; the first counts",
                    here,
                )  # fmt: skip
    return found
