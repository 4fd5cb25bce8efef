"""Chakra execution traces in JSON: what its ``jsonizer`` prints, or an object with ``nodes``.

The fields are those of the protobuf schema in either spelling (``dataDeps``, ``data_deps``); 64-bit
numbers may be text, as protobuf's JSON form has them. Every node is written in the wire format and
read like the binary file, so both mean the same. One file is the trace of one rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import ConfigError
from ridgeline.workload.execution import Execution
from ridgeline.workload.trace import chakra, chakra_files
from ridgeline.workload.trace import chakra_encode as encode
from ridgeline.workload.trace.json_stream import JsonStream

_TYPES = ("INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE",
          "COMM_SEND_NODE", "COMM_RECV_NODE", "COMM_COLL_NODE", "STORAGE_NODE", "BATCH_NODE",
          "CHECKPOINT_NODE")  # fmt: skip
_VALUE = re.compile(r"(double|float|u?int32|u?int64|sint32|sint64|s?fixed32|s?fixed64|bool|string)"
                    r"(_v|V)al")  # fmt: skip
_RANKED = re.compile(r"(?P<prefix>.*)\.(?P<rank>\d{1,6})\.json(\.gz)?")


def load(path: str | Path, options: Mapping[str, Any] | None = None) -> Execution:
    """Read the traces of all ranks beside ``prefix.<rank>.json``, or a single file of one rank.

    Raises
    ------
    ConfigError
        If a file is missing or damaged, or says something impossible; with file and line or node.
    """
    path = Path(path)
    match = _RANKED.fullmatch(path.name)
    files, prefix = [path], path.name.split(".")[0]
    if match:
        prefix = match["prefix"]
        files = _siblings(path, prefix)
    groups = chakra_files.groups_of(path, prefix, options or {})
    collector = chakra.Collector(prefix, groups, len(files))
    for file in files:
        raw = np.frombuffer(b"".join(_messages(file)), np.uint8)
        collector.add(raw, np.array([len(raw)]), [str(file)])
    return collector.execution()


def _siblings(path: Path, prefix: str) -> list[Path]:
    found = {}
    for file in path.parent.iterdir():
        match = _RANKED.fullmatch(file.name)
        if match and match["prefix"] == prefix:
            found[int(match["rank"])] = file
    for rank in range(len(found)):
        if rank not in found:
            raise ConfigError(
                f"the trace of rank {rank} is missing ({prefix}.{rank}.json)", file=str(path)
            )
    return [found[rank] for rank in range(len(found))]


def _messages(path: Path) -> Iterator[bytes]:
    yield _framed(encode.field(1, chakra.VERSION.encode()))
    with JsonStream(path) as stream:
        for node in _nodes(stream):
            if isinstance(node, dict) and "version" in node and "name" not in node:
                continue  # the metadata
            if not isinstance(node, dict):
                raise stream.fail(f"expected a node, found {node!r:.60}")
            try:
                yield _framed(_node(node))
            except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
                raise stream.fail(f"node {node.get('id', 0)!r:.20}: {error!s:.80}") from error


def _nodes(stream: JsonStream) -> Iterator[Any]:
    """Yield nodes: of an array, of the field ``nodes``, or objects one after the other."""
    first = stream.peek()
    if first == "[":
        yield from stream.items()
        return
    while stream.peek() == "{":
        start: dict[str, Any] = {}
        for key in stream.object():
            if key == "schema":
                raise stream.fail(
                    "this is the trace of a host by PyTorch's ExecutionTraceObserver, in which"
                    " nothing runs on a device: link it with a profile (chakra_trace_link), convert"
                    " it (chakra_converter) and give what is written, or give the profile"
                )
            if key == "nodes" and stream.peek() == "[":
                yield from stream.items()
                start["version"] = ""
            else:
                start[key] = stream.value()
        yield start
        if stream.peek() == ",":
            stream.expect(",")
    if stream.peek():
        stream.expect("{")


def _node(node: Mapping[str, Any]) -> bytes:
    def get(name: str) -> Any:
        camel = re.sub(r"_(\w)", lambda m: m[1].upper(), name)
        return node.get(name, node.get(camel))

    parts = [encode.field(1, int(get("id") or 0))] if get("id") else []
    parts.append(encode.field(2, str(get("name") or "").encode()))
    kind = get("type") or 0
    number = _TYPES.index(kind) if isinstance(kind, str) and not kind.isdigit() else int(kind)
    parts.append(encode.field(3, number))
    for place, name in ((4, "ctrl_deps"), (5, "data_deps")):
        deps = get(name) or []
        if deps:
            parts.append(encode.field(place, b"".join(encode.varint(int(dep)) for dep in deps)))
    for place, name in ((6, "start_time_micros"), (7, "duration_micros")):
        if get(name):
            parts.append(encode.field(place, int(get(name))))
    parts += [_attribute(attribute) for attribute in get("attr") or get("attrs") or []]
    return b"".join(parts)


def _attribute(raw: Mapping[str, Any]) -> bytes:
    for key, value in raw.items():
        match = _VALUE.fullmatch(key)
        if match is None:
            continue
        if match[1] == "bool":
            return encode.attribute(raw["name"], bool(value))
        if match[1] == "string":
            return encode.attribute(raw["name"], str(value))
        if match[1] in {"double", "float"}:
            return encode.attribute(raw["name"], float(value))
        return encode.attribute(raw["name"], int(value))
    return b""  # lists and bytes: none of them is read


def _framed(payload: bytes) -> bytes:
    return encode.varint(len(payload)) + payload
