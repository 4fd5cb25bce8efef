"""Timeloop's files: architecture (versions 0.2 to 0.4), problem and mapping.

Format: https://timeloop.csail.mit.edu/v4 and the files of
github.com/Accelergy-Project/timeloop-accelergy-exercises. An architecture is a list of nodes that
stand inside each other (0.4), or a tree of ``subtree`` and ``local`` with instances in the name,
``PE[0..15]`` (0.2, 0.3). Factors of a mapping are ``K=16``, ``K16`` or a list; a permutation goes
from the innermost loop outwards.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ridgeline.study.import_design.architecture import (
    Architecture,
    Axis,
    Compute,
    ImportedStorage,
    kind_of,
)
from ridgeline.study.import_design.documents import LARGEST, DesignDocument
from ridgeline.study.import_design.loops import Access, Einsum, Index, Operand
from ridgeline.study.import_design.mappings import Loop, StorageLoops, ToolMapping
from ridgeline.yaml_nodes import Location

TOOL = "Timeloop"
_INSTANCES = re.compile(r"(.+?)\[\s*(\d{1,9})\s*\.\.\s*(\d{1,9})\s*\]")
_FACTOR = re.compile(r"([A-Za-z_][A-Za-z_]*)\s*(<=|>=|==|=)?\s*(\d{1,13})")
_COMPUTES = re.compile(r"mac|alu|mult|compute|fpu", re.IGNORECASE)
_FLOATS = re.compile(r"fp|float|bf16", re.IGNORECASE)
_NODE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*nm\s*", re.IGNORECASE)
_ROLES: Mapping[str, Operand] = {
    "inputs": "a", "input": "a", "ifmap": "a", "a": "a", "i": "a",
    "weights": "b", "weight": "b", "filters": "b", "b": "b", "w": "b",
    "outputs": "c", "output": "c", "psums": "c", "psum": "c", "z": "c", "o": "c", "c": "c",
}  # fmt: skip
_READ = frozenset({
    "width", "depth", "datawidth", "word-bits", "word_bits", "memory_width", "memory_depth",
    "entries", "sizekb", "block-size", "block_size", "cluster-size", "cluster_size", "meshx",
    "meshy", "instances", "read_bandwidth", "write_bandwidth", "shared_bandwidth", "technology",
    "global_cycle_seconds", "cycle_seconds", "multiplier_width", "adder_width", "type", "latency",
})  # fmt: skip
"""Attributes that are used, in lower case."""
_NAMED: Mapping[Operand, re.Pattern[str]] = {
    "a": re.compile(r"ifmap|input|iact", re.IGNORECASE),
    "b": re.compile(r"weight|filter", re.IGNORECASE),
    "c": re.compile(r"psum|ofmap|output|accum", re.IGNORECASE),
}
Roles = Mapping[str, Operand]


class _Walk:
    """Storages and multipliers on the way from the outermost node to the innermost."""

    def __init__(
        self, source: DesignDocument, roles: Roles, kept: Mapping[str, frozenset[Operand]]
    ) -> None:
        self.source, self.roles, self.kept = source, roles, kept
        self.storages: list[ImportedStorage] = []
        self.computes: list[Compute] = []
        self.clock_hz: float | None = None
        self.node_m: float | None = None
        self.name = ""

    def nodes(
        self, nodes: list[Any], at: Location, axes: tuple[Axis, ...], inherited: Mapping[str, Any]
    ) -> None:
        """Walk through nodes of version 0.4, each inside the one before."""
        for position, raw in enumerate(nodes):
            here = (*at, position)
            node, tag = self.source.mapping(raw, here), self.source.tag(here)
            if node.get("enabled") is False:
                continue
            match tag:
                case "Container":
                    inherited, axes = self._container(node, here, axes, inherited)
                case "Component" | "":
                    axes = self._component(node, here, axes, inherited)
                case "Parallel" | "Pipelined" | "Hierarchical":
                    inner = self.source.items(node.get("nodes"), (*here, "nodes"))
                    self.nodes(inner, (*here, "nodes"), axes, inherited)
                case _:
                    self.source.remark(
                        "left out", f"!{tag} is not a kind of node that is read", here
                    )

    def tree(
        self, raw: Any, at: Location, axes: tuple[Axis, ...], inherited: Mapping[str, Any]
    ) -> None:
        """Walk through a node of version 0.2 or 0.3, with local parts and subtrees."""
        node = self.source.mapping(raw, at)
        title, count = self._named(node, at)
        self.name = self.name or title
        attributes = self._attributes(node, at, inherited)
        self._technology(attributes, (*at, "attributes"))
        if count > 1 and "meshX" not in attributes:
            attributes |= self._row_of(node, at)
        own = _counted(axes, title, count, attributes, self.source, at)
        for position, part in enumerate(self.source.items(node.get("local"), (*at, "local"))):
            here = (*at, "local", position)
            fields = self.source.mapping(part, here)
            if fields.get("enabled") is not False:
                self._part(fields, here, own, attributes)
        subtree = node.get("subtree")
        if isinstance(subtree, dict):
            subtree = [subtree]
        parts = self.source.items(subtree, (*at, "subtree"))
        if len(parts) > 1:
            self.source.remark(
                "left out", f"{len(parts)} subtrees side by side; the first is read",
                (*at, "subtree"),
            )  # fmt: skip
        for position, part in enumerate(parts[:1]):
            self.tree(part, (*at, "subtree", position), own, attributes)

    def _row_of(self, node: Mapping[str, Any], at: Location) -> dict[str, Any]:
        """Return how many stand in a row, which the parts of a node say."""
        for i, part in enumerate(self.source.items(node.get("local"), (*at, "local"))):
            place: Location = (*at, "local", i)
            fields = self.source.mapping(part, place)
            stated = self.source.mapping(fields.get("attributes"), (*place, "attributes"))
            if "meshX" in stated:
                return {"meshX": stated["meshX"]}
        return {}

    def _container(
        self,
        node: dict[str, Any],
        at: Location,
        axes: tuple[Axis, ...],
        inherited: Mapping[str, Any],
    ) -> tuple[Mapping[str, Any], tuple[Axis, ...]]:
        title, _ = self._named(node, at)
        self.name = self.name or title
        attributes = self._attributes(node, at, inherited)
        self._technology(attributes, (*at, "attributes"))
        self._constraints(node, at)
        return attributes, (*axes, *self._mesh(node, title, at))

    def _component(
        self,
        node: dict[str, Any],
        at: Location,
        axes: tuple[Axis, ...],
        inherited: Mapping[str, Any],
    ) -> tuple[Axis, ...]:
        title, count = self._named(node, at)
        attributes = self._attributes(node, at, inherited)
        self._technology(attributes, (*at, "attributes"))
        axes = (*axes, *self._mesh(node, title, at))
        if count > 1 and count != math.prod(size for _, size in axes):
            axes = _counted(axes, title, count, attributes, self.source, at)
        self._part(node | {"name": title}, at, axes, attributes)
        self._constraints(node, at)
        return axes

    def _mesh(self, node: Mapping[str, Any], title: str, at: Location) -> tuple[Axis, ...]:
        spatial = self.source.mapping(node.get("spatial"), (*at, "spatial"))
        found: list[Axis] = []
        for axis in ("meshX", "meshY"):
            if axis in spatial:
                size = self.source.whole(spatial[axis], (*at, "spatial", axis))
                if size > 1:
                    found.append((f"{title}.{axis[-1]}", size))
        return tuple(found)

    def _named(self, node: Mapping[str, Any], at: Location) -> tuple[str, int]:
        """Read a name with its instances, ``PE[0..15]`` or ``PE[1..16]``."""
        name = self.source.word(node.get("name"), (*at, "name"))
        found = _INSTANCES.fullmatch(name.strip())
        if found is None:
            return name.strip(), 1
        count = int(found[3]) - int(found[2]) + 1
        if not 1 <= count <= LARGEST:
            raise self.source.error(f"{name!r} has no instances", (*at, "name"))
        return found[1], count

    def _attributes(
        self, node: Mapping[str, Any], at: Location, inherited: Mapping[str, Any]
    ) -> dict[str, Any]:
        own = self.source.mapping(node.get("attributes"), (*at, "attributes"))
        kept = {
            key: inherited[key]
            for key in ("technology", "global_cycle_seconds")
            if key in inherited
        }
        return kept | own

    def _technology(self, attributes: Mapping[str, Any], at: Location) -> None:
        technology = attributes.get("technology")
        if (
            self.node_m is None
            and isinstance(technology, str)
            and (found := _NODE.fullmatch(technology))
        ):
            self.node_m = round(float(found[1]) * 1e-9, 15) or None
        cycle = self.source.stated(attributes, ("global_cycle_seconds", "cycle_seconds"), at)
        if self.clock_hz is None and cycle and 1e-15 <= cycle[0] <= 1:
            self.clock_hz = 1 / cycle[0]

    def _constraints(self, node: Mapping[str, Any], at: Location) -> None:
        constraints = self.source.mapping(node.get("constraints"), (*at, "constraints"))
        for key in constraints:
            if key not in {"dataspace", "datatype", "bypass"}:
                self.source.remark(
                    "left out",
                    f"what mappings may have here ({key}) is a constraint of Timeloop's mapper; a "
                    "device has none but its dataflows, a mapping file settles what it names",
                    (*at, "constraints", key),
                )

    def _part(
        self, node: Mapping[str, Any], at: Location, axes: tuple[Axis, ...],
        inherited: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Read a storage or the multipliers."""
        title, count = self._named(node, at)
        attributes = self._attributes(node, at, inherited)
        here = (*at, "attributes")
        word = node.get("class", "")
        made_of = str(word) if isinstance(word, str) else ""
        axes = _counted(axes, title, count, attributes, self.source, at)
        unused = [key for key in attributes if key.lower() not in _READ]
        if unused:
            self.source.remark("left out", f"of {title!r}: {', '.join(unused)}", here)
        if _COMPUTES.search(made_of) and not re.search("ram|mem|buf|reg", made_of, re.IGNORECASE):
            self._compute(title, made_of, attributes, at, axes)
            return
        if made_of == "dummy_storage":
            return
        if (
            made_of in {"storage", "network", "XY_NoC", "noc"}
            and "depth" not in attributes
            and ("memory_depth" not in attributes and "entries" not in attributes and self.storages)
        ):
            self.source.remark("left out", f"{title!r} of class {made_of} stores nothing", at)
            return
        self.storages.append(self._storage(title, made_of, node, attributes, at, axes))

    def _compute(
        self, title: str, made_of: str, attributes: Mapping[str, Any], at: Location,
        axes: tuple[Axis, ...],
    ) -> None:  # fmt: skip
        here = (*at, "attributes")
        bits = self.source.stated(
            attributes, ("multiplier_width", "datawidth", "word-bits", "word_bits", "width"), here
        )
        sums = self.source.stated(attributes, ("adder_width",), here)
        self.computes.append(
            Compute(
                title, at, _bits(self.source, bits), bool(_FLOATS.search(made_of)),
                _bits(self.source, sums), axes,
            )
        )  # fmt: skip

    def _storage(
        self, title: str, made_of: str, node: Mapping[str, Any], attributes: Mapping[str, Any],
        at: Location, axes: tuple[Axis, ...],
    ) -> ImportedStorage:  # fmt: skip
        source, here = self.source, (*at, "attributes")
        word = _bits(
            source, source.stated(attributes, ("datawidth", "word-bits", "word_bits"), here)
        )
        width = source.stated(attributes, ("width", "memory_width"), here)
        depth = source.stated(attributes, ("depth", "memory_depth"), here, endless=True)
        entries = source.stated(attributes, ("entries",), here, endless=True)
        kilobytes = source.stated(attributes, ("sizeKB",), here, endless=True)
        blocks = source.stated(attributes, ("block-size", "block_size"), here)
        word = word or (_bits(source, width) if width and not blocks else None) or 16
        line = width[0] if width else word * (blocks[0] if blocks else 1)
        bits = math.inf
        if depth:
            bits = depth[0] * line
        elif kilobytes:
            bits = kilobytes[0] * 8192
        elif entries:
            bits = entries[0] * word
        bits = bits or math.inf
        kind = "dram" if not self.storages else kind_of((made_of, title), bits)
        if kind == "dram" and self.storages:
            kind = "sram"
        rates = [
            None if (found := source.stated(attributes, (key,), here)) is None or not found[0]
            else found[0] * word
            for key in ("read_bandwidth", "write_bandwidth", "shared_bandwidth")
        ]  # fmt: skip
        return ImportedStorage(
            name=title, at=at, kind=kind, bits=bits, word_bits=word, axes=axes,
            holds=self._holds(node, at),
            read_bits=rates[2] or rates[0], write_bits=rates[2] or rates[1],
            shared=rates[2] is not None,
        )  # fmt: skip

    def _holds(self, node: Mapping[str, Any], at: Location) -> frozenset[Operand]:
        constraints = self.source.mapping(node.get("constraints"), (*at, "constraints"))
        for key in ("dataspace", "datatype", "bypass"):
            if key not in constraints:
                continue
            here = (*at, "constraints", key)
            stated = self.source.mapping(constraints[key], here)
            keep, bypass = (
                {
                    self.operand(self.source.word(name, here), here)
                    for name in self.source.items(stated.get(part), (*here, part))
                } - {None}
                for part in ("keep", "bypass")
            )  # fmt: skip
            if keep and "bypass" not in stated:
                return frozenset(o for o in keep if o is not None)
            return frozenset(o for o in ("a", "b", "c") if o not in bypass)
        name = str(node.get("name", ""))
        if name in self.kept:
            return self.kept[name]
        for operand, pattern in _NAMED.items():
            if pattern.search(name.partition("[")[0]):
                self.source.remark("changed", f"{name!r} holds what its name says", at)
                return frozenset((operand,))
        return frozenset(("a", "b", "c"))

    def operand(self, name: str, at: Location) -> Operand | None:
        """Return which operand a data space is; None, and a remark, if it is not known."""
        found = self.roles.get(name) or _ROLES.get(name.lower())
        if found is None:
            self.source.remark("left out", f"no problem has a data space {name!r}", at)
        return found


def _bits(source: DesignDocument, stated: tuple[float, Location] | None) -> int | None:
    if stated is None:
        return None
    value, at = stated
    if not (1 <= value <= 4096 and value == int(value)):
        source.remark("left out", f"{value:g} bits are no width", at)
        return None
    return int(value)


def _counted(
    axes: tuple[Axis, ...], title: str, count: int, attributes: Mapping[str, Any],
    source: DesignDocument,
    at: Location,
) -> tuple[Axis, ...]:  # fmt: skip
    """Add the axes of so many instances; meshX says how many stand in a row."""
    above = math.prod(size for _, size in axes)
    stated = source.stated(attributes, ("meshX",), (*at, "attributes"))
    mesh = int(stated[0]) if stated and 1 <= stated[0] <= LARGEST else 0
    if "subtree" in at or "local" in at:
        total = count
        if at[-2:-1] == ("local",) and above > 1 and total in {1, above}:
            return axes  # one for each of the nodes around it, or all of them counted
        if total == 1:
            return axes
        # In the tree counts are of all instances when the name counts on from those above.
        if at[-2:-1] == ("local",) and total % above == 0 and above > 1:
            total //= above
        if 1 < mesh < total and total % mesh == 0:
            return (*axes, (f"{title}.X", mesh), (f"{title}.Y", total // mesh))
        return (*axes, (f"{title}.X", total))
    if count == 1:
        return axes
    return (*axes, (f"{title}.X", count))


def kept(source: DesignDocument, roles: Roles) -> dict[str, frozenset[Operand]]:
    """Return what storages hold by the constraints of an architecture, by the names of storages."""
    found: dict[str, frozenset[Operand]] = {}
    at: Location = ("architecture_constraints",)
    data = source.mapping(source.document.data.get("architecture_constraints"), at)
    here = (*at, "targets")
    for i, raw in enumerate(source.items(data.get("targets"), here)):
        fields = source.mapping(raw, (*here, i))
        target, kind = str(fields.get("target", "")), fields.get("type")
        if kind not in {"bypass", "datatype", "dataspace"}:
            source.remark(
                "left out", f"what mappings may have at {target!r} is a constraint of Timeloop's "
                "mapper", (*here, i),
            )  # fmt: skip
            continue
        keep, passing = (
            {roles.get(str(name)) or _ROLES.get(str(name).lower()) for name in
             source.items(fields.get(key), (*here, i, key))}
            for key in ("keep", "bypass")
        )  # fmt: skip
        operands: tuple[Operand, ...] = ("a", "b", "c")
        left = frozenset(o for o in operands if o not in passing and (o in keep or not keep))
        found[target] = left or frozenset(operands)
    return found


def architecture(
    source: DesignDocument, roles: Roles, kept: Mapping[str, frozenset[Operand]]
) -> Architecture:
    """Read an architecture; `kept` says what some of its storages hold.

    Raises
    ------
    ConfigError
        If it has no multipliers or no storage, or a name or number cannot be read.
    """
    at: Location = ("architecture",)
    data = source.mapping(source.document.data["architecture"], at)
    walk = _Walk(source, roles, kept)
    if "nodes" in data:
        walk.nodes(source.items(data["nodes"], (*at, "nodes")), (*at, "nodes"), (), {})
    elif "subtree" in data or "local" in data:
        top: dict[str, Any] = {"name": "system"}
        top |= {key: data[key] for key in ("subtree", "local") if key in data}
        walk.tree(top, at, (), {})
        walk.name = "" if walk.name == "system" else walk.name
    elif isinstance(data.get("storage"), list):
        _first_version(walk, data, at)
    else:
        raise source.error("an architecture has 'nodes' (0.4) or 'subtree' (0.3)", at)
    if not walk.computes:
        raise source.error("the architecture has no multipliers (a class with mac, alu, ...)", at)
    compute = walk.computes[-1]
    for other in walk.computes[:-1]:
        source.remark(
            "left out", f"{other.name!r}: an engine has one kind of multipliers", other.at
        )
    names = [storage.name for storage in walk.storages]
    for storage in walk.storages:
        if names.count(storage.name) > 1:
            raise source.error(f"the storage {storage.name!r} stands twice", storage.at)
    return Architecture(
        source.stem, TOOL, source, tuple(walk.storages), compute, walk.clock_hz,
        node_m=walk.node_m,
    )  # fmt: skip


def _first_version(walk: _Walk, data: Mapping[str, Any], at: Location) -> None:
    """Read version 0.1: a list of storages from near to far, and the arithmetic."""
    source = walk.source
    raw = source.items(data["storage"], (*at, "storage"))
    compute = source.mapping(data.get("arithmetic"), (*at, "arithmetic"))
    parts: list[tuple[Mapping[str, Any], Location]] = [
        (source.mapping(part, (*at, "storage", i)), (*at, "storage", i))
        for i, part in enumerate(raw)
    ]
    for fields, here in reversed(parts):
        name = source.word(fields.get("name"), (*here, "name"))
        word = str(fields.get("technology", ""))
        axes = _of(fields, name, source, here)
        inner = {"name": name, "class": word, "attributes": fields}
        walk.storages.append(walk._storage(name, word, inner, fields, here, axes))
    name = str(compute.get("name", "MAC"))
    here = (*at, "arithmetic")
    axes = _of(compute, name, source, here)
    bits = _bits(source, source.stated(compute, ("word-bits", "datawidth"), here))
    walk.computes.append(Compute(name, here, bits, axes=axes))


def _of(
    fields: Mapping[str, Any], name: str, source: DesignDocument, at: Location
) -> tuple[Axis, ...]:
    count = source.whole(fields.get("instances", 1), (*at, "instances"))
    mesh = source.whole(fields.get("meshX", count), (*at, "meshX"))
    if count == 1:
        return ()
    if 1 < mesh < count and count % mesh == 0:
        return (("mesh.X", mesh), ("mesh.Y", count // mesh))
    return (("mesh.X", count),)


def einsums(source: DesignDocument) -> list[Einsum]:
    """Read a problem: one operation.

    Raises
    ------
    ConfigError
        If it has no shape or no sizes.
    """
    at: Location = ("problem",)
    problem = source.mapping(source.document.data["problem"], at)
    if isinstance(problem.get("layers"), list) or isinstance(problem.get("shape"), str):
        raise source.error(
            "the shape is a name that Timeloop knows by itself; give the file with its "
            "'dimensions' and 'data_spaces'", (*at, "shape"),
        )  # fmt: skip
    shape = source.mapping(problem.get("shape", problem), (*at, "shape"))
    spaces = shape.get("data_spaces", shape.get("data-spaces"))
    if spaces is None or "dimensions" not in shape:
        raise source.error("the shape needs 'dimensions' and 'data_spaces'", (*at, "shape"))
    here = (*at, "shape", "data_spaces" if "data_spaces" in shape else "data-spaces")
    instance = source.mapping(problem.get("instance", problem), (*at, "instance"))
    coefficients: dict[str, int] = {}
    for i, raw in enumerate(
        source.items(shape.get("coefficients"), (*at, "shape", "coefficients"))
    ):
        place: Location = (*at, "shape", "coefficients", i)
        fields = source.mapping(raw, place)
        name = source.word(fields.get("name"), (*place, "name"))
        value = instance.get(name, fields.get("default", 1))
        coefficients[name] = source.whole(value, place)
    sizes: dict[str, int] = {}
    for i, raw in enumerate(source.items(shape["dimensions"], (*at, "shape", "dimensions"))):
        dim = source.word(raw, (*at, "shape", "dimensions", i))
        if dim not in instance:
            raise source.error(f"the instance has no size of {dim!r}", (*at, "instance"))
        sizes[dim] = source.whole(instance[dim], (*at, "instance", dim))
    if instance.get("densities"):
        source.remark(
            "left out", "densities: give zeros with --sparsity", (*at, "instance", "densities")
        )
    accesses = []
    for i, raw in enumerate(source.items(spaces, here)):
        place = (*here, i)
        fields = source.mapping(raw, place)
        name = source.word(fields.get("name"), (*place, "name"))
        axes = tuple(
            _index(source, raw_axis, (*place, "projection", j), coefficients, sizes)
            for j, raw_axis in enumerate(
                source.items(fields.get("projection"), (*place, "projection"))
            )
        )
        output = bool(fields.get("read_write", fields.get("read-write", False)))
        accesses.append(Access(name, axes, output))
    return [Einsum(source.stem, sizes, tuple(accesses), source, at)]


def _index(
    source: DesignDocument, raw: Any, at: Location, coefficients: Mapping[str, int],
    sizes: Mapping[str, int],
) -> Index:  # fmt: skip
    """Read a sum of products: ``[[C]]``, ``[[P, Wstride], [R]]``, or ``[P]`` for one dimension."""
    terms = source.items(raw, at) if isinstance(raw, list) else [raw]
    found: list[tuple[str, int]] = []
    for term in terms:
        words = [source.word(word, at) for word in (term if isinstance(term, list) else [term])]
        dims = [word for word in words if word in sizes]
        rest = [word for word in words if word not in sizes]
        if len(dims) != 1 or any(word not in coefficients for word in rest):
            raise source.error(
                f"the term {words} is not a dimension with its coefficient (dimensions: "
                f"{', '.join(sizes)}; coefficients: {', '.join(coefficients) or 'none'})",
                at,
            )
        found.append((dims[0], math.prod(coefficients[word] for word in rest)))
    return tuple(found)


def mapping(source: DesignDocument, order: Sequence[str], sizes: Mapping[str, int]) -> ToolMapping:
    """Read a mapping; `order` names the storages from far to near, `sizes` the dimensions.

    Raises
    ------
    ConfigError
        If a target, a factor or a permutation cannot be read.
    """
    at: Location = ("mapping",)
    raw = source.items(source.document.data["mapping"], at)
    temporal: dict[str, tuple[Location, list[Loop]]] = {}
    spatial: dict[str, tuple[Location, list[tuple[str, Loop]]]] = {}
    keeps: dict[str, frozenset[str]] = {}
    targets: list[str] = []
    for i, item in enumerate(raw):
        here: Location = (*at, i)
        fields = source.mapping(item, here)
        target = source.word(fields.get("target"), (*here, "target"))
        if target not in targets:
            targets.append(target)
        kind = fields.get("type")
        if kind in {"bypass", "datatype", "dataspace"}:
            keep = source.items(fields.get("keep"), (*here, "keep"))
            passing = source.items(fields.get("bypass"), (*here, "bypass"))
            if keep or passing:
                keeps[target] = frozenset(str(name) for name in keep)
            continue
        if kind not in {"temporal", "spatial"}:
            raise source.error(
                f"the type must be temporal, spatial or bypass, found {str(kind)!r:.40}",
                (*here, "type"),
            )
        loops = _loops(source, fields, here, sizes)
        if kind == "temporal":
            temporal[target] = here, loops
        else:
            spatial[target] = here, _sides(source, fields, here, loops, target)
    return _assembled(source, at, targets, order, temporal, spatial, keeps, sizes)


def _loops(
    source: DesignDocument, fields: Mapping[str, Any], at: Location, sizes: Mapping[str, int]
) -> list[Loop]:
    """Read factors and permutation: loops from the outermost to the innermost."""
    factors = dict(_factors(source, fields.get("factors"), (*at, "factors")))
    for dim in factors:
        if sizes and dim not in sizes:
            raise source.error(
                f"the problem has no dimension {dim!r} (it has: {', '.join(sizes)})",
                (*at, "factors"),
            )
    raw = fields.get("permutation")
    here = (*at, "permutation")
    if raw is None:
        named: list[str] = []
    elif isinstance(raw, list):
        named = [source.word(dim, here) for dim in raw]
    else:
        text = source.word(raw, here)
        pieces = re.split(r"[\s,]+", text.strip())
        named = pieces if len(pieces) > 1 or text in factors else list(text)
    if len(set(named)) < len(named):
        raise source.error("a dimension stands twice in the permutation", here)
    inward = [dim for dim in named if dim in factors]
    inward += [dim for dim in factors if dim not in inward]
    return [(dim, factors[dim]) for dim in reversed(inward)]


def _factors(source: DesignDocument, raw: Any, at: Location) -> Iterator[Loop]:
    """Read ``R=1,P=16``, ``R1 P16``, or a list or a mapping of the same."""
    if raw is None:
        return
    if isinstance(raw, dict):
        raw = [f"{dim}={factor}" for dim, factor in raw.items()]
    items = raw if isinstance(raw, list) else re.split(r"[\s,]+", str(raw).strip())
    seen: set[str] = set()
    for item in items:
        found = _FACTOR.fullmatch(str(item).strip())
        if found is None or found[2] not in {None, "=", "=="}:
            raise source.error(f"cannot read {str(item)!r:.60} as a factor, K=16", at)
        if found[1] in seen:
            raise source.error(f"the factor of {found[1]} stands twice", at)
        seen.add(found[1])
        factor = int(found[3])
        if not 0 <= factor <= LARGEST:
            raise source.error(f"the factor of {found[1]} must be at most 2**40", at)
        yield found[1], factor


def _sides(
    source: DesignDocument, fields: Mapping[str, Any], at: Location, loops: list[Loop], target: str
) -> list[tuple[str, Loop]]:
    """Tell which loops in space go along X: the `split` innermost ones; others go along Y."""
    split = fields.get("split")
    if split is None:
        return [("", loop) for loop in loops]
    if isinstance(split, bool) or not isinstance(split, int) or split < 0:
        raise source.error(
            f"the split must be a whole number, found {str(split)!r:.40}", (*at, "split")
        )
    inward = list(reversed(loops))
    return [("X" if i < split else "Y", loop) for i, loop in enumerate(inward)]


def _assembled(
    source: DesignDocument, at: Location, targets: list[str], order: Sequence[str],
    temporal: Mapping[str, tuple[Location, list[Loop]]],
    spatial: Mapping[str, tuple[Location, list[tuple[str, Loop]]]],
    keeps: Mapping[str, frozenset[str]], sizes: Mapping[str, int],
) -> ToolMapping:  # fmt: skip
    """Put the steps from far to near, and give a factor 0 what the others leave."""
    known = [name for name in order if name in targets]
    others = [name for name in targets if name not in order]
    for name in others:
        if not name.startswith("inter_") and order:
            near = ", ".join(order)
            raise source.error(f"the architecture has no target {name!r} (it has: {near})", at)
    placed: list[str] = list(known) if order else list(targets)
    loops = [loop for _, own in temporal.values() for loop in own]
    loops += [loop for _, own in spatial.values() for _, loop in own]
    left: dict[str, int] = {}
    for dim, size in sizes.items():
        covered = math.prod(factor for name, factor in loops if name == dim and factor)
        left[dim] = -(-size // covered)
    steps = []
    for name in [*placed, *(others if order else [])]:
        here, own = temporal.get(name, (at, []))
        there, sides = spatial.get(name, (at, []))
        steps.append(
            StorageLoops(
                name, here if name in temporal else there,
                tuple((dim, factor or left.get(dim, 1)) for dim, factor in own),
                tuple((side, (dim, factor or left.get(dim, 1))) for side, (dim, factor) in sides),
            )
        )  # fmt: skip
    return ToolMapping(source, at, steps=tuple(steps), keeps=dict(keeps))
