"""Fields of Chakra's nodes, written in the wire format that `chakra_wire` reads."""

from __future__ import annotations

from typing import Any

import numpy as np


def varint(value: int) -> bytes:
    """Write a number as the wire format does."""
    value &= 2**64 - 1
    parts = bytearray()
    while value >= 128:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def field(number: int, payload: bytes | int) -> bytes:
    """Write one field: a number as a varint, bytes with their length."""
    if isinstance(payload, int):
        return varint(number << 3) + varint(payload)
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def message(payload: bytes) -> bytes:
    """Write a message of a stream: its length and its fields."""
    return varint(len(payload)) + payload


def attribute(name: str, value: bool | int | float | str) -> bytes:
    """Write an attribute of a node, as its field."""
    head = field(1, name.encode())
    if isinstance(value, bool):
        head += field(27, int(value))
    elif isinstance(value, str):
        head += field(29, value.encode())
    elif isinstance(value, float):
        head += varint(3 << 3 | 1) + np.array(value, "<f8").tobytes()
    else:
        head += field(_INTEGER_FIELD.get(name, 9), value)
    return field(10, head)


_INTEGER_FIELD: dict[str, Any] = {
    # What ASTRA-sim's reader expects: uint64 for sizes of tensors, int32 for ends and tags.
    "tensor_size": 13,
    "comm_src": 7,
    "comm_dst": 7,
    "comm_tag": 7,
}
