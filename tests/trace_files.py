"""Nodes of Chakra traces in the wire format."""

from __future__ import annotations

from ridgeline.workload.trace import chakra_encode as encode

HEAD = encode.varint(7) + encode.field(1, b"0.0.4")


def node(number, kind, deps=(), name="n", **attributes):
    content = encode.field(1, number) if number else b""
    content += encode.field(2, name.encode()) + encode.field(3, kind)
    if deps:
        content += encode.field(5, b"".join(map(encode.varint, deps)))
    for key, value in attributes.items():
        content += encode.attribute(key, value)
    return encode.varint(len(content)) + content
