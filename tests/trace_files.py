"""Nodes of Chakra traces in the wire format."""

from __future__ import annotations

from ridgeline.workload.trace import chakra_wire as wire

HEAD = wire.varint(7) + wire.field(1, b"0.0.4")


def node(number, kind, deps=(), name="n", **attributes):
    content = wire.field(1, number) if number else b""
    content += wire.field(2, name.encode()) + wire.field(3, kind)
    if deps:
        content += wire.field(5, b"".join(map(wire.varint, deps)))
    for key, value in attributes.items():
        content += wire.attribute(key, value)
    return wire.varint(len(content)) + content
