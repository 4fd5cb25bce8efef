"""AccelForge's files: ``arch``, ``workload`` and ``mapping``.

Format: https://accelergy-project.github.io/accelforge and the examples of
github.com/Accelergy-Project/accelforge. Sizes are bits, energies joules and latencies seconds of an
action of `bits_per_action` bits; a `tile_shape` is what is left of a dimension inside its loop.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ridgeline.errors import ConfigError
from ridgeline.study.import_design.architecture import (
    OPERANDS,
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
from ridgeline.study.import_design.mappings import Loop, StorageLoops, ToolMapping
from ridgeline.yaml_nodes import Location

TOOL = "AccelForge"
_ROLES: Mapping[str, Operand] = {"input": "a", "weight": "b", "output": "c"}
_BOUND = re.compile(r"\s*0\s*<=\s*(\w+)\s*<\s*([\w*+/ ()]+?)\s*")
_EINSUM = re.compile(
    r"\s*(\w+)\s*\[([^\]]*)\]\s*=\s*(\w+)\s*\[([^\]]*)\]\s*\*\s*(\w+)\s*\[([^\]]*)\]\s*"
)
_ACTIONS = ("read_actions", "write_actions", "compute_actions", "read_latency", "write_latency")
_GROUPS = frozenset({"Hierarchical", "Array", "Fork", "Parallel"})


class _Walk:
    """Storages and multipliers on the way from the outermost node to the innermost."""

    def __init__(self, source: DesignDocument) -> None:
        self.source = source
        self.storages: list[tuple[ImportedStorage, dict[str, tuple[float | None, float]]]] = []
        self.computes: list[tuple[Compute, float | None]] = []

    def nodes(self, raw: Any, at: Location, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        """Walk through nodes, each inside the one before."""
        for position, item in enumerate(self.source.items(raw, at)):
            here = (*at, position)
            node, tag = self.source.mapping(item, here), self.source.tag(here)
            if tag in _GROUPS:
                inner = self.nodes(node.get("nodes"), (*here, "nodes"), axes)
                axes = axes if tag in {"Fork", "Parallel"} else inner
                continue
            name = self.source.word(node.get("name"), (*here, "name"))
            inside = (*axes, *self._axes(node, name, here))
            match tag:
                case "Memory":
                    axes = inside
                    self._memory(node, name, here, axes)
                case "Compute":
                    self._compute(node, name, here, inside)
                case "Container" | "Fanout":
                    axes = inside
                case _:
                    axes = inside
                    self.source.remark(
                        "left out",
                        f"{name!r}: !{tag or 'no tag'} stores and computes nothing",
                        here,
                    )
        return axes

    def _axes(self, node: Mapping[str, Any], name: str, at: Location) -> tuple[Axis, ...]:
        found: list[Axis] = []
        here = (*at, "spatial")
        for i, raw in enumerate(self.source.items(node.get("spatial"), here)):
            fields = self.source.mapping(raw, (*here, i))
            size = self.source.whole(fields.get("fanout", 1), (*here, i, "fanout"))
            title = str(fields.get("name", f"{name}.{i}"))
            if size > 1:
                found.append((title, size))
            if more := [key for key in fields if key not in {"name", "fanout"}]:
                self.source.remark(
                    "left out",
                    f"{', '.join(more)} of {title}: constraints of AccelForge's mapper",
                    (*here, i),
                )
        return tuple(found)

    def _actions(
        self, node: Mapping[str, Any], at: Location
    ) -> dict[str, tuple[float | None, float | None, float]]:
        """Return joules, seconds and bits of every action."""
        found: dict[str, tuple[float | None, float | None, float]] = {}
        here = (*at, "actions")
        for i, raw in enumerate(self.source.items(node.get("actions"), here)):
            place = (*here, i)
            fields = self.source.mapping(raw, place)
            name = self.source.word(fields.get("name"), (*place, "name"))
            bits = self.source.stated(fields, ("bits_per_action",), place)
            energy = self.source.stated(fields, ("energy",), place)
            latency = self.source.stated(fields, ("latency",), place)
            rate = self.source.stated(fields, ("throughput",), place, endless=True)
            seconds = latency[0] if latency and latency[0] else None
            if seconds is None and rate and rate[0] and math.isfinite(rate[0]):
                seconds = 1 / rate[0]
            found[name] = (
                energy[0] if energy else None, seconds, bits[0] if bits and bits[0] else 1.0
            )  # fmt: skip
        return found

    def _total(self, node: Mapping[str, Any], at: Location) -> tuple[float, float, bool] | None:
        """Return seconds of a read, of a write, and whether they add up."""
        raw = node.get("total_latency")
        if raw is None:
            return None
        here = (*at, "total_latency")

        def seconds(reads: float, writes: float) -> float:
            values = (reads, writes, reads, reads, writes)
            return self.source.number(raw, here, dict(zip(_ACTIONS, values, strict=True)))

        try:
            read, write, both = seconds(1, 0), seconds(0, 1), seconds(1, 1)
        except ConfigError as error:
            self.source.remark("left out", error.message, here)
            return None
        return read, write, both > max(read, write)

    def _memory(
        self, node: Mapping[str, Any], name: str, at: Location, axes: tuple[Axis, ...]
    ) -> None:
        actions = self._actions(node, at)
        total = self._total(node, at)
        stated = self.source.stated(node, ("size",), at, endless=True)
        bits = stated[0] if stated and stated[0] else math.inf
        rates: dict[str, tuple[float | None, float]] = {}
        joules: dict[str, float | None] = {}
        shared = False
        for i, key in enumerate(("read", "write")):
            energy, seconds, wide = actions.get(key, (None, None, 1.0))
            if total is not None and "latency" not in str(node.get("total_latency")):
                seconds = total[i] or None
                shared = total[2]
            elif total is not None:
                shared = total[2]
            rates[key] = (seconds, wide)
            joules[key] = None if energy is None else energy / wide
        made_of = str(node.get("component_class", ""))
        leak, area = (self.source.stated(node, (key,), at) for key in ("leak_power", "area"))
        kind = "dram" if not self.storages else kind_of((made_of, name), bits)
        storage = ImportedStorage(
            name=name, at=at, kind="sram" if kind == "dram" and self.storages else kind, bits=bits,
            word_bits=1, axes=axes, holds=self._holds(node, at), shared=shared,
            read_j=joules["read"], write_j=joules["write"],
            leak_w=leak[0] if leak else None, area_m2=area[0] if area else None,
        )  # fmt: skip
        self.storages.append((storage, rates))

    def _holds(self, node: Mapping[str, Any], at: Location) -> frozenset[Operand]:
        tensors = self.source.mapping(node.get("tensors"), (*at, "tensors"))
        for key in ("may_keep", "keep"):
            text = str(tensors.get(key, ""))
            words = re.findall(r"[A-Za-z_]\w*", text)
            plain = not set(text) & set("~&-()") and words
            if plain and all(word in _ROLES for word in words):
                return frozenset(_ROLES[word] for word in words)
            if text:
                break
        return frozenset(OPERANDS)

    def _compute(
        self, node: Mapping[str, Any], name: str, at: Location, axes: tuple[Axis, ...]
    ) -> None:
        energy, seconds, _ = self._actions(node, at).get("compute", (None, None, 1.0))
        raw = node.get("total_latency")
        if raw is not None and "latency" not in str(raw):
            here = (*at, "total_latency")
            try:
                values = dict.fromkeys(_ACTIONS, 1.0)
                seconds = self.source.number(raw, here, values) or None
            except ConfigError as error:
                self.source.remark("left out", error.message, here)
        leak, area = (self.source.stated(node, (key,), at) for key in ("leak_power", "area"))
        made_of = str(node.get("component_class", ""))
        compute = Compute(
            name, at, None, bool(re.search("fp|float", made_of, re.IGNORECASE)), axes=axes,
            mac_j=energy, leak_w=leak[0] if leak else None, area_m2=area[0] if area else None,
        )  # fmt: skip
        self.computes.append((compute, seconds))


def architecture(source: DesignDocument, word_bits: Mapping[Operand, int]) -> Architecture:
    """Read an ``arch``; `word_bits` are those of the workload's tensors.

    Raises
    ------
    ConfigError
        If it has no storage or no multipliers, or a field cannot be read.
    """
    at: Location = ("arch",)
    data = source.mapping(source.document.data["arch"], at)
    _variables(source)
    walk = _Walk(source)
    walk.nodes(data.get("nodes"), (*at, "nodes"), ())
    if not walk.computes:
        raise source.error("the architecture has no !Compute", at)
    compute, seconds = walk.computes[-1]
    for other, _ in walk.computes[:-1]:
        source.remark(
            "left out", f"{other.name!r}: an engine has one kind of multipliers", other.at
        )
    clock_hz = 1 / seconds if seconds and 1e-15 <= seconds <= 1 else None
    cycle_s = 1 / (clock_hz or 1e9)
    storages = []
    for storage, rates in walk.storages:
        held = [word_bits[operand] for operand in storage.holds if operand in word_bits]
        read, write = (
            None if rate is None or rate <= 0 else wide / rate * cycle_s
            for rate, wide in (rates["read"], rates["write"])
        )
        storages.append(
            replace(
                storage, word_bits=max(held, default=16), read_bits=read, write_bits=write,
            )
        )  # fmt: skip
    names = [storage.name for storage in storages]
    for storage in storages:
        if names.count(storage.name) > 1:
            raise source.error(f"the storage {storage.name!r} stands twice", storage.at)
    more = source.mapping(data.get("extra_attributes_for_all_component_models"), at)
    node = source.stated(more, ("tech_node",), (*at, "extra_attributes_for_all_component_models"))
    node_m = node[0] if node and 1e-10 <= node[0] <= 1e-3 else None
    return Architecture(
        source.stem, TOOL, source, tuple(storages), compute, clock_hz, node_m=node_m
    )


def _variables(source: DesignDocument) -> None:
    """Keep the numbers that a file names, so that arithmetic may use them."""
    raw = source.document.data.get("variables")
    for name, value in source.mapping(raw, ("variables",)).items():
        try:
            source.variables[name] = source.number(value, ("variables", name))
        except ConfigError:
            continue  # a word, such as the technology


def einsums(source: DesignDocument) -> list[Einsum]:
    """Read a ``workload``: a list of einsums.

    Raises
    ------
    ConfigError
        If one cannot be read.
    """
    at: Location = ("workload",)
    data = source.mapping(source.document.data["workload"], at)
    _variables(source)
    bits = data.get("bits_per_value")
    found = []
    for i, raw in enumerate(source.items(data.get("einsums"), (*at, "einsums"))):
        here: Location = (*at, "einsums", i)
        fields = {"einsum": raw} if isinstance(raw, str) else source.mapping(raw, here)
        if isinstance(fields.get("einsum"), str):
            fields = {"name": f"einsum{i}"} | fields | _of_text(source, fields["einsum"], here)
        name = source.word(fields.get("name"), (*here, "name"))
        ranks: dict[str, str] = {}
        accesses = tuple(
            _access(source, item, (*here, "tensor_accesses", n), ranks, bits)
            for n, item in enumerate(
                source.items(fields.get("tensor_accesses"), (*here, "tensor_accesses"))
            )
        )
        dims = dict.fromkeys(
            dim for access in accesses for index in access.axes for dim, _ in index
        )
        sizes = _sizes(source, (data, fields), (at, here), ranks, list(dims))
        found.append(Einsum(name, sizes, accesses, source, here))
    return found


def _of_text(source: DesignDocument, text: str, at: Location) -> dict[str, Any]:
    """Read ``C[m, n] = A[m, k] * B[k, n]``."""
    read = _EINSUM.fullmatch(text) if len(text) <= 300 else None
    if read is None:
        raise source.error(f"cannot read the einsum {text!r:.80}", (*at, "einsum"))
    return {
        "tensor_accesses": [
            {"name": name, "projection": [part.strip() for part in axes.split(",") if part.strip()],
             "output": output}
            for name, axes, output in (
                (read[3], read[4], False), (read[5], read[6], False), (read[1], read[2], True)
            )
        ]
    }  # fmt: skip


def _access(
    source: DesignDocument, raw: Any, at: Location, ranks: dict[str, str], bits: Any
) -> Access:
    fields = source.mapping(raw, at)
    name = source.word(fields.get("name"), (*at, "name"))
    projection = fields.get("projection")
    here = (*at, "projection")
    axes: list[Index] = []
    if isinstance(projection, dict):
        pairs = [(rank, str(value)) for rank, value in projection.items()]
    else:
        words = [source.word(value, here) for value in source.items(projection, here)]
        pairs = [(word.upper(), word) for word in words]
    for rank, text in pairs:
        try:
            index = parse_index(text)
        except NotALayerError as error:
            raise source.error(str(error), here) from error
        if len(index) == 1 and index[0][1] == 1:
            ranks.setdefault(index[0][0], rank)
        axes.append(index)
    wide = fields.get("bits_per_value")
    if wide is None and isinstance(bits, dict):
        wide = bits.get(name, bits.get("All"))
    number = None if wide is None else source.whole(wide, (*at, "bits_per_value"))
    if number is not None and number > 4096:
        raise source.error(f"{number} bits are no width", (*at, "bits_per_value"))
    return Access(name, tuple(axes), fields.get("output") is True, number)


def _sizes(
    source: DesignDocument, parts: tuple[Mapping[str, Any], ...], places: tuple[Location, ...],
    ranks: Mapping[str, str], dims: list[str],
) -> dict[str, int]:  # fmt: skip
    """Return the size of every rank variable."""
    found: dict[str, int] = {}
    for part, at in zip(parts, places, strict=True):
        sizes = source.mapping(part.get("rank_sizes"), (*at, "rank_sizes"))
        for dim in dims:
            if (rank := ranks.get(dim, dim.upper())) in sizes:
                found[dim] = source.whole(sizes[rank], (*at, "rank_sizes", rank))
        here = (*at, "iteration_space_shape")
        shape = part.get("iteration_space_shape")
        bounds = list(shape.values()) if isinstance(shape, dict) else source.items(shape, here)
        for bound in bounds:
            for one in str(bound).split(" and "):
                read = _BOUND.fullmatch(one) if len(one) <= 200 else None
                if read is None:
                    raise source.error(f"cannot read the bound {one!r:.60}, 0 <= m < 128", here)
                if read[1] in dims:
                    found[read[1]] = source.whole(read[2], here)
    for dim in dims:
        if dim not in found:
            raise source.error(f"the rank variable {dim!r} has no size", places[-1])
    return {dim: found[dim] for dim in dims}


def mapping(source: DesignDocument, layers: Mapping[str, Mapping[str, int]]) -> list[ToolMapping]:
    """Read a ``mapping``; `layers` are the sizes of every einsum's rank variables.

    Raises
    ------
    ConfigError
        If a node cannot be read.
    """
    at: Location = ("mapping", "nodes")
    data = source.mapping(source.document.data["mapping"], ("mapping",))
    return _nest(source, source.items(data.get("nodes"), at), at, [], layers)


def _nest(
    source: DesignDocument, nodes: list[Any], at: Location,
    above: list[tuple[Location, Mapping[str, Any], str]],
    layers: Mapping[str, Mapping[str, int]],
) -> list[ToolMapping]:  # fmt: skip
    path, found = list(above), []
    for i, raw in enumerate(nodes):
        here = (*at, i)
        node, tag = source.mapping(raw, here), source.tag(here)
        if tag in {"Sequential", "Pipeline", "Split"}:
            source.remark(
                "left out", f"einsums under !{tag} are mapped one by one; tensors between them are "
                "not kept in a buffer", here,
            )  # fmt: skip
            for j, part in enumerate(source.items(node.get("nodes"), (*here, "nodes"))):
                place = (*here, "nodes", j)
                inner = source.mapping(part, place)
                found += _nest(
                    source, source.items(inner.get("nodes"), (*place, "nodes")), (*place, "nodes"),
                    path, layers,
                )  # fmt: skip
            return found
        if tag in {"Nested", "Hierarchical"}:
            below = source.items(node.get("nodes"), (*here, "nodes"))
            found += _nest(source, below, (*here, "nodes"), path, layers)
            continue
        path.append((here, node, tag))
        if tag == "Compute":
            name = source.word(node.get("einsum"), (*here, "einsum"))
            found.append(_steps(source, path, name, here, layers.get(name, {})))
    return found


def _steps(
    source: DesignDocument, path: list[tuple[Location, Mapping[str, Any], str]], name: str,
    at: Location,
    sizes: Mapping[str, int],
) -> ToolMapping:  # fmt: skip
    """Turn storages and loops on the way to a compute node into steps."""
    left = dict(sizes)
    steps: list[StorageLoops] = []
    component, temporal, place = "", list[Loop](), at
    spatial: list[tuple[str, Loop]] = []
    looped: set[str] = set()
    keeps: dict[str, set[str]] = {}
    for here, node, tag in path:
        match tag:
            case "Storage":
                new = source.word(node.get("component"), (*here, "component"))
                for tensor in source.items(node.get("tensors"), (*here, "tensors")):
                    keeps.setdefault(new, set()).add(str(tensor))
                if new in looped:
                    source.remark(
                        "changed",
                        f"{new!r} takes up another tensor inside its loops; here a level takes up "
                        "all operands at once",
                        here,
                    )
                if new != component and (temporal or spatial):
                    looped.add(component)
                    steps.append(StorageLoops(component, place, tuple(temporal), tuple(spatial)))
                    temporal, spatial = [], []
                component, place = new, here
            case "Temporal" | "Spatial":
                dim = source.word(node.get("rank_variable"), (*here, "rank_variable"))
                if sizes and dim not in sizes:
                    raise source.error(
                        f"{name} has no rank variable {dim!r} (it has: {', '.join(sizes)})", here
                    )
                raw = node.get("tile_shape", node.get("initial_tile_shape"))
                if raw is None:
                    raise source.error("a loop needs 'tile_shape'", here)
                tile = source.whole(raw, (*here, "tile_shape"))
                factor = min(-(-left.get(dim, tile) // tile), LARGEST)
                left[dim] = tile
                if tag == "Temporal":
                    temporal.append((dim, factor))
                    looped.add(component)
                else:
                    spatial.append((str(node.get("name", "")), (dim, factor)))
            case "Compute":
                pass
            case _:
                source.remark("left out", f"!{tag or 'no tag'} of a mapping is not read", here)
    steps.append(StorageLoops(component, place, tuple(temporal), tuple(spatial)))
    kept = {level: frozenset(tensors) for level, tensors in keeps.items()}
    return ToolMapping(source, at, (name,), tuple(steps), kept)
