"""Reads descriptions of machines by name or path, following the names inside them.

Any field can be overridden by its dotted path (`device.memory.hbm.bandwidth`), on the way from the
file to the schema, so that an override is checked like the file itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from ridgeline import catalog
from ridgeline.config import Document, check_kind, overridden, read_yaml, validate
from ridgeline.errors import ConfigError, nearest
from ridgeline.hardware import scalesim
from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.components.design import with_components
from ridgeline.hardware.derived_fields import with_rates
from ridgeline.hardware.device import Device
from ridgeline.hardware.energy import NO_TABLE, EnergyTable
from ridgeline.hardware.inherit import with_inherited
from ridgeline.hardware.node import Node

Overrides = Mapping[str, Any]
Schema = TypeVar("Schema", bound=BaseModel)
_KIND_OF = {"devices": "device", "nodes": "node", "energy": "energy-table"}
_MOST_TABLES = 32
_INLINE = re.compile(r"[A-Z]\w*\(.+\)")  # Ring(16, 50 GB/s, 500 ns)
_OF_CLUSTERS = frozenset({"device_speed_std", "software", "faults"})
"""Fields of a cluster that one node or device may have replaced, too."""
_MADE_OF_CONFIGURATIONS = frozenset({"devices", "clusters"})
"""Where a file of SCALE-Sim may stand for the device that it describes."""
_NO_TABLE = EnergyTable(kind="energy-table", name=NO_TABLE, description="", entries={})
_INHERITING = frozenset({"device", "node"})


def load_energy_table(name: str | Path, overrides: Overrides | None = None) -> EnergyTable:
    """Load an energy table by catalogue name or path."""
    return _build(
        _document("energy", catalog.name_of(name, "energy table")), EnergyTable, overrides or {}
    )


def load_device(name: str | Path, overrides: Overrides | None = None) -> Device:
    """Load a device by catalogue name or path; `overrides` maps dotted paths to new values."""
    return _device(_document("devices", catalog.name_of(name, "device")), overrides or {})


def device_of(document: Document, overrides: Overrides | None = None) -> Device:
    """Make a device of a description that is not a file of ours, as `load_device` does."""
    return _device(document, overrides or {})


def load_node(name: str | Path, overrides: Overrides | None = None) -> Node:
    """Load a node by catalogue name or path; ``device.…`` overrides reach its devices."""
    return _node(_document("nodes", catalog.name_of(name, "node")), overrides or {})


def load_cluster(name: str | Path, overrides: Overrides | None = None) -> Cluster:
    """Load a cluster by name or path. A node or a device is the cluster of that one thing.

    Parameters
    ----------
    name
        Name in the catalogue or path of a YAML file.
    overrides
        New values by dotted path: fields of the cluster, ``node.…`` of its nodes, ``device.…`` of
        their devices. Each has an ``energy_table.…`` of its own: of the fabric's links, of the
        node's links, of what happens in a device.

    Raises
    ------
    ConfigError
        With file, line and field of the first mistake.
    """
    overrides = overrides or {}
    found = _found(catalog.name_of(name, "cluster"))
    cluster = _any_cluster(_document(*found), overrides)
    return cluster.model_copy(update={"overrides": dict(overrides)}) if overrides else cluster


def network_cluster(
    name: str,
    drawn: object,
    devices: Sequence[Device],
    per_node: int,
    overrides: Overrides | None = None,
) -> Cluster:
    """Make the cluster of devices on a network that is given whole.

    Parameters
    ----------
    drawn
        The network (`network.topology.Topology`).
    devices
        Of each rank.
    per_node
        Devices of a node; nodes have no links of their own.
    overrides
        ``device_speed_std``, ``software`` and ``node.…``.
    """
    own, node = _split(overrides or {}, "node")
    of_node = {
        "kind": "node", "name": name, "device": devices[0].name, "count": per_node,
        "description": f"devices on the network {name}", "year": devices[0].year,
    }  # fmt: skip
    nodes = _build(Document(f"network {name}", of_node, {}), Node, node, devices=devices[0])
    for path in own:
        if path.split(".")[0] not in _OF_CLUSTERS:
            allowed = ("device", "node", *sorted(_OF_CLUSTERS))
            raise ConfigError(
                f"a network has no such field{nearest(path, allowed)} (allowed: "
                f"{', '.join(allowed)}; of a file of kind topology, its own fields)",
                field=path,
            )
    data = {
        "kind": "cluster", "name": name, "node": name, "nodes": nodes,
        "max_nodes": len(devices) // per_node, "description": f"{len(devices)} devices", **own,
        "drawn": drawn,
        "drawn_devices": tuple(devices) if len({id(d) for d in devices}) > 1 else (),
    }  # fmt: skip
    return validate(Document(f"network {name}", data, {}, tuple(own)), Cluster)


def description(kind: str, name: str) -> Document:
    """Return the fields of a described machine as they stand, with those that it inherits.

    `kind` is "devices", "nodes", "clusters" or "energy".
    """
    return _document(kind, name)


def _any_cluster(document: Document, overrides: Overrides) -> Cluster:
    match document.data.get("kind"):
        case "device":
            below = {**_under(overrides, "device"), **_prefixed(overrides, "energy_table")}
            return _single(_lone_node(_device(document, below)), overrides, "device")
        case "node":
            below = {**_under(overrides, "node"), **_prefixed(overrides, "device", "energy_table")}
            return _single(_node(document, below), overrides, "node", "device")
        case _:
            return _cluster(document, overrides)


def _found(name: str) -> tuple[str, str]:
    """Return the catalogue in which a cluster, a node or a device is, and its name there."""
    kinds = ("clusters", "nodes", "devices")
    listed = any(name in catalog.names(kind) for kind in kinds)
    if not listed and _INLINE.fullmatch(name):
        raise ConfigError(
            f"{name!r} is a network, which has no devices: ridgeline collective and topology take "
            "it; here a cluster, a node or a device is due"
        )
    if not listed and catalog.is_path(name):
        return "clusters", name
    name = catalog.resolve(name, *kinds)
    return next(kind for kind in kinds if name in catalog.names(kind)), name


def _document(kind: str, name: str, *, follow: bool = True) -> Document:
    path = catalog.find(kind, name)
    if path.suffix == scalesim.SUFFIX and kind in _MADE_OF_CONFIGURATIONS:
        return scalesim.device_document(path)
    document = read_yaml(path)
    allowed = ["cluster", "node", "device"] if kind == "clusters" else [_KIND_OF[kind]]
    found = check_kind(document, *allowed)
    return with_inherited(document, _beside) if follow and found in _INHERITING else document


def _beside(document: Document, name: str, field: str) -> Document:
    """Open a machine of the same kind that a description takes something from."""
    kinds = {kind: folder for folder, kind in _KIND_OF.items()}
    return _referred(document, kinds[document.data["kind"]], name, field, follow=False)


def _build(
    document: Document, schema: type[Schema], overrides: Overrides, **parts: object
) -> Schema:
    document = overridden(document, overrides) if overrides else document
    for name in parts:
        if name in document.data:
            raise document.error(f"unknown field {name!r}", (name,))
    return validate(replace(document, data={**document.data, **parts}), schema)


def _device(document: Document, overrides: Overrides) -> Device:
    own, table = _split(overrides, "energy_table")
    document = _replaced(document, own, "energy_table")
    own = with_rates(document, own)
    prices = _prices(document, table) or _NO_TABLE
    document = overridden(document, own)
    if "parts" in document.data:
        raise document.error("unknown field 'parts'", ("parts",))
    document, parts = with_components(document)
    return _build(document, Device, {}, prices=prices, **({"parts": parts} if parts else {}))


def _node(document: Document, overrides: Overrides) -> Node:
    own, device = _split(overrides, "device")
    own, table = _split(own, "energy_table")
    document = _replaced(document, own, "device", "energy_table")
    devices = _device(
        _referred(document, "devices", _name_in(document, "device"), "device"), device
    )
    return _build(document, Node, own, devices=devices, prices=_prices(document, table))


def _cluster(document: Document, overrides: Overrides) -> Cluster:
    own, node = _split(overrides, "node")
    below = _prefixed(own, "device")
    own, table = _split({k: v for k, v in own.items() if k not in below}, "energy_table")
    document = _replaced(document, own, "node", "energy_table")
    if "groups" in document.data:
        document, groups = _grouped(document, {**node, **below})
        parts = {"nodes": groups[0], "group_nodes": groups}
        return _build(document, Cluster, own, **parts, prices=_prices(document, table))
    node_document = _referred(document, "nodes", _name_in(document, "node"), "node")
    nodes = _node(node_document, {**node, **below})
    return _build(document, Cluster, own, nodes=nodes, prices=_prices(document, table))


def _grouped(document: Document, overrides: Overrides) -> tuple[Document, tuple[Node, ...]]:
    """Load the nodes of a cluster of several kinds; equal names are one kind."""
    groups = document.data["groups"]
    for field in ("node", "max_nodes"):
        if field in document.data:
            raise document.error("the groups say which nodes there are, and how many", (field,))
    if not isinstance(groups, list) or not groups or not all(isinstance(g, dict) for g in groups):
        raise document.error(
            "expected groups, as [{node: dgx-a100, count: 2}, {node: dgx-h100, count: 2}]",
            ("groups",),
        )
    known: dict[str, Node] = {}
    for position, group in enumerate(groups):
        name = group.get("node")
        if not isinstance(name, str):
            raise document.error("the field 'node' must name a node", ("groups", position))
        if name not in known:
            known[name] = _node(_referred(document, "nodes", name, "groups"), overrides)
    counts = [group.get("count") for group in groups]
    total = sum(count for count in counts if isinstance(count, int))
    data = {**document.data, "node": groups[0]["node"], "max_nodes": max(1, total)}
    return replace(document, data=data), tuple(known[group["node"]] for group in groups)


def _prices(document: Document, overrides: Overrides) -> EnergyTable | None:
    """Load the table that prices a device, or the links of a node or of a fabric."""
    if "energy_table" not in document.data:
        if overrides:
            raise document.error("there is no energy table to override")
        return None
    name = _name_in(document, "energy_table")
    return _table(_referred(document, "energy", name, "energy_table"), overrides)


_tables: dict[str, tuple[Any, EnergyTable]] = {}


def _table(document: Document, overrides: Overrides) -> EnergyTable:
    """Check an energy table; that of a file which is read again as it was is checked once."""
    if overrides:
        return _build(document, EnergyTable, overrides)
    known = _tables.get(document.file)
    if known is None or known[0] is not document.data:  # equal text is parsed once
        if len(_tables) > _MOST_TABLES:
            _tables.clear()
        known = _tables[document.file] = document.data, _build(document, EnergyTable, {})
    return known[1]


def _lone_node(device: Device) -> Node:
    return Node(
        kind="node", name=device.name, device=device.name, count=1, devices=device,
        description=f"one {device.name}", year=device.year,
    )  # fmt: skip


def _single(node: Node, overrides: Overrides, *parts: str) -> Cluster:
    replaceable = (*parts[1:], "energy_table")  # the machine itself is named by the caller
    own = {path: value for path, value in overrides.items() if path in _OF_CLUSTERS}
    for path in overrides.keys() - own.keys():
        head = path.split(".")[0]
        if head not in (*parts, "energy_table") or (path == head and head not in replaceable):
            raise ConfigError(
                f"a single {parts[0]} has no such field{nearest(head, parts)} "
                f"(paths begin with {', '.join(f'{part}.' for part in (*parts, 'energy_table'))})",
                field=path,
            )
    data = {
        "kind": "cluster", "name": node.name, "node": node.name, "nodes": node,
        "sources": node.sources, "description": node.description, **own,
    }  # fmt: skip
    return validate(Document(f"cluster {node.name}", data, {}, tuple(own)), Cluster)


def _name_in(document: Document, field: str) -> str:
    name = document.data.get(field)
    if not isinstance(name, str):
        what = field.replace("_", " ")
        article = "an" if what[0] in "aeiou" else "a"
        raise document.error(f"the field {field!r} must name {article} {what}", (field,))
    return name


def _referred(
    document: Document, kind: str, name: str, field: str, *, follow: bool = True
) -> Document:
    """Open the file that a field refers to; a relative path counts from the file that says it."""
    if name not in catalog.names(kind) and catalog.is_path(name):
        name = str(Path(document.file).parent / name)
    try:
        path = catalog.find(kind, name)
    except ConfigError as error:
        raise document.error(error.message, (field,)) from error
    if not path.exists():
        raise document.error(f"refers to {path}, which does not exist", (field,))
    return _document(kind, str(path), follow=follow)


def _replaced(document: Document, own: dict[str, Any], *fields: str) -> Document:
    """Take overrides of references out of `own` and into the document, before they are followed."""
    found = {name: own.pop(name) for name in fields if name in own}
    if not found:
        return document
    replaced = (*document.overridden, *found)
    return replace(document, data={**document.data, **found}, overridden=replaced)


def _split(overrides: Overrides, head: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Part overrides into those of this level and those below the field `head`."""
    below = _under(overrides, head)
    own = {k: v for k, v in overrides.items() if not k.startswith(f"{head}.")}
    return own, below


def _under(overrides: Overrides, head: str) -> dict[str, Any]:
    return {k.removeprefix(f"{head}."): v for k, v in overrides.items() if k.startswith(f"{head}.")}


def _prefixed(overrides: Overrides, *heads: str) -> dict[str, Any]:
    return {k: v for k, v in overrides.items() if k.split(".")[0] in heads}
