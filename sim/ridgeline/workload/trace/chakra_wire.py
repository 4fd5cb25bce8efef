"""The wire format of Chakra execution traces, read at compiled speed.

A trace is a stream of length-prefixed protobuf messages: one GlobalMetadata, then Nodes (MLCommons
Chakra, schema/protobuf/et_def.proto; the numbers of fields and enumerations below are facts of that
schema). Of a node's attributes only those in `ATTRIBUTES` are read; everything else is checked for
its length and passed over, so that unknown fields of later versions do no harm.
"""

# ruff: noqa: PLR1714, PLR0911, PLR0915 (kernels: the compiler knows no sets, and a part no calls)

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ridgeline._jit import kernel, kernel_part

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

NUMBERS = (
    "is_cpu_op",
    "num_ops",
    "tensor_size",
    "comm_type",
    "comm_size",
    "comm_src",
    "comm_dst",
    "comm_tag",
    "ridgeline_start_s",
    "ridgeline_duration_s",
)
TEXTS = ("pg_name", "ridgeline_format", "ridgeline_stream")
"""Attributes that are read: those that ASTRA-sim reads, and four that keep what the schema has no
field for (its times are whole microseconds)."""

ID, NAME_AT, NAME_SIZE, NAME_HASH, TYPE, START_US, DURATION_US = range(7)  # columns of `nodes`
N_COLUMNS = 7
AT, SIZE, HASH = range(3)  # columns of a node's attribute in `texts`
ABSENT, WHOLE = -1, -2  # in SIZE: no such attribute; it is the number in AT

_OFFSET, _PRIME = -3750763034362895579, 1099511628211  # FNV-1a, 64 bit, as int64
PROBLEMS = {
    1: "the file ends in the middle of a node",
    2: "a number is longer than 64 bits",
    3: "a field runs beyond the end of its message",
    4: "a field has an unknown wire type",
    5: "an attribute has a value of another type than expected",
    6: "a field has another wire type than the schema says",
}


class Wire(NamedTuple):
    """What stands in some files; N nodes, S files, D dependencies."""

    nodes: Ints  # [N_COLUMNS, N]
    file_ptr: Ints  # [S+1] nodes of every file
    dep_ptr: Ints  # [N+1]
    deps: Ints  # [D] ids of the nodes waited for
    numbers: Floats  # [len(NUMBERS), N] NaN: no such attribute
    texts: Ints  # [len(TEXTS), 3, N]


def text_hash(text: bytes) -> int:
    """Hash as the kernels do: FNV-1a over words of eight bytes, and what is left as one word.

    A product carries upwards only, so that the last bytes of two words could make up for each
    other: after each word its upper half is folded into the lower one.
    """
    words = [int.from_bytes(text[i : i + 8], "little") for i in range(0, len(text) or 1, 8)]
    value = _OFFSET
    for word in (*words, len(text)):
        value = ((value ^ word) * _PRIME) % 2**64
        value = value - 2**64 if value >= 2**63 else value
        value ^= value >> 32
    return value


_KEYS = np.array([text_hash(name.encode()) for name in (*NUMBERS, *TEXTS)], np.int64)


def parse(raw: Bytes, ends: Ints) -> tuple[Wire, int, int]:
    """Read all nodes of some files that lie one after the other.

    Parameters
    ----------
    ends
        [S] Where each file ends.

    Returns
    -------
    wire
        What was read.
    problem, place
        0, or a key of `PROBLEMS` and the byte at which it was met.
    """
    limits = np.zeros(4, np.int64)  # nodes, dependencies, problem, place
    _count(raw, ends, limits)
    n, d = int(limits[0]), int(limits[1])
    wire = Wire(
        np.zeros((N_COLUMNS, n), np.int64),
        np.zeros(len(ends) + 1, np.int64),
        np.zeros(n + 1, np.int64),
        np.zeros(d, np.int64),
        np.full((len(NUMBERS), n), np.nan),
        np.full((len(TEXTS), 3, n), ABSENT, np.int64),
    )
    if limits[2] == 0:
        box = np.zeros(1, np.int64)  # by its views bits become numbers, on little-endian machines
        views = (box, box.view(np.float64), box.view(np.float32))
        _fill(raw, ends, _KEYS, len(NUMBERS), *wire, limits, *views)
    return wire, int(limits[2]), int(limits[3])


@kernel_part
def _varint(raw: Bytes, at: int, end: int) -> tuple[Any, Any]:
    """Return a number and where the next field begins, or the negative of a problem there."""
    if at < end and raw[at] < 128:  # most are short
        return np.int64(raw[at]), at + 1
    value = np.int64(0)
    for i in range(10):
        if at + i >= end:
            return 0, -3
        byte = np.int64(raw[at + i])
        value |= (byte & 127) << (7 * i)
        if byte < 128:
            return value, at + i + 1
    return 0, -2


@kernel_part
def _skip(raw: Bytes, at: int, end: int, wire_type: int) -> int:
    """Return where the field after this one begins, or the negative of a problem."""
    if wire_type == 0:
        _, at = _varint(raw, at, end)
        return at
    if wire_type == 1:
        at += 8
    elif wire_type == 5:
        at += 4
    elif wire_type == 2:
        size, at = _varint(raw, at, end)
        if at < 0:
            return at
        if size < 0 or size > end - at:
            return -3
        at += size
    else:
        return -4
    return at if at <= end else -3


@kernel
def _count(raw: Bytes, ends: Ints, limits: Ints) -> None:
    """Count nodes and dependencies; check that every message and field lies where it must."""
    at = 0
    for n_bytes in ends:
        first = True
        while at < n_bytes:
            start = at
            size, at = _varint(raw, at, n_bytes)
            if at < 0 or size < 0 or size > n_bytes - at:
                limits[2], limits[3] = 1 if at != -2 else 2, start
                return
            end = at + size
            if first and _is_metadata(raw, at, size):
                at = end
            else:
                limits[0] += 1
            first = False
            while at < end:
                field_at = at
                key, at = _varint(raw, at, end)
                field, wire_type = key >> 3, key & 7
                if at >= 0 and (field == 4 or field == 5):
                    if wire_type == 0:
                        limits[1] += 1
                    elif wire_type == 2:
                        packed, begin = _varint(raw, at, end)
                        if begin >= 0 and 0 <= packed <= end - begin:
                            for i in range(begin, begin + packed):
                                if raw[i] < 128:
                                    limits[1] += 1
                if at >= 0:
                    at = _skip(raw, at, end, wire_type)
                if at < 0:
                    limits[2], limits[3] = -at, field_at
                    return


@kernel_part
def _is_metadata(raw: Bytes, at: int, size: int) -> bool:
    """Tell whether a file's first message is the metadata: a node would begin with its id."""
    return not (size > 0 and raw[at] == 8)


@kernel_part
def _hash(raw: Bytes, at: int, end: int) -> Any:
    value = np.int64(_OFFSET)
    size = end - at
    while end - at > 8:
        value = (value ^ _word(raw, at, 8)) * np.int64(_PRIME)
        value ^= value >> 32
        at += 8
    value = (value ^ _word(raw, at, end - at)) * np.int64(_PRIME)
    value ^= value >> 32
    value = (value ^ size) * np.int64(_PRIME)
    return value ^ (value >> 32)


@kernel_part
def _word(raw: Bytes, at: int, size: int) -> Any:
    word = np.int64(0)
    for i in range(size):
        word |= np.int64(raw[at + i]) << (8 * i)
    return word


@kernel
def _fill(
    raw: Bytes,
    ends: Ints,
    keys: Ints,
    n_numbers: int,
    nodes: Ints,
    file_ptr: Ints,
    dep_ptr: Ints,
    deps: Ints,
    numbers: Floats,
    texts: Ints,
    limits: Ints,
    box: Ints,
    real: Floats,
    short: npt.NDArray[np.float32],
) -> None:
    """Read the nodes of streams whose lengths have been checked."""
    at, node, dep = 0, 0, 0
    empty = _hash(raw, 0, 0)
    for file in range(len(ends)):
        first = True
        while at < ends[file]:
            size, at = _varint(raw, at, ends[file])
            end = at + size
            metadata = first and _is_metadata(raw, at, size)
            first = False
            if metadata:
                at = end
                continue
            nodes[NAME_HASH, node] = empty
            while at < end:
                key, begin = _varint(raw, at, end)
                field, wire_type = key >> 3, key & 7
                at = _skip(raw, begin, end, wire_type)
                problem = 0
                if field == 4 or field == 5:
                    if wire_type == 2:
                        _, begin = _varint(raw, begin, end)
                    elif wire_type != 0:
                        problem = 6
                    while problem == 0 and begin < at:
                        value, begin = _varint(raw, begin, at)
                        if begin < 0:
                            problem = -begin
                        else:
                            deps[dep] = value
                            dep += 1
                elif field == 10 or field == 2:
                    length, begin = _varint(raw, begin, end)
                    if wire_type != 2:
                        problem = 6
                    elif field == 2:
                        nodes[NAME_AT, node], nodes[NAME_SIZE, node] = begin, length
                        nodes[NAME_HASH, node] = _hash(raw, begin, begin + length)
                    else:
                        problem = _attribute(
                            raw,
                            begin,
                            at,
                            keys,
                            n_numbers,
                            node,
                            numbers,
                            texts,
                            box,
                            real,
                            short,
                        )
                elif field == 1 or field == 3 or field == 6 or field == 7:
                    value, _ = _varint(raw, begin, end)
                    if wire_type != 0:
                        problem = 6
                    elif field == 1:
                        nodes[ID, node] = value
                    elif field == 3:
                        nodes[TYPE, node] = value
                    elif field == 6:
                        nodes[START_US, node] = value
                    else:
                        nodes[DURATION_US, node] = value
                if problem != 0:
                    limits[2], limits[3] = problem, at
                    return
            node += 1
            dep_ptr[node] = dep
        file_ptr[file + 1] = node


@kernel_part
def _attribute(
    raw: Bytes,
    at: int,
    end: int,
    keys: Ints,
    n_numbers: int,
    node: int,
    numbers: Floats,
    texts: Ints,
    box: Ints,
    real: Floats,
    short: npt.NDArray[np.float32],
) -> int:
    """Read one attribute if it is wanted; return 0 or a problem."""
    wanted, value_field, value_type, value_at = -1, 0, 0, 0
    while at < end:
        key, begin = _varint(raw, at, end)
        if begin < 0:
            return int(-begin)
        field, wire_type = key >> 3, key & 7
        at = _skip(raw, begin, end, wire_type)
        if at < 0:
            return -at
        if field == 1:
            if wire_type != 2:
                return 6
            length, begin = _varint(raw, begin, end)
            name = _hash(raw, begin, begin + length)
            for k in range(len(keys)):
                if keys[k] == name:
                    wanted = k
        elif field >= 3:
            value_field, value_type, value_at = field, wire_type, begin
    if wanted < 0 or value_field == 0:
        return 0
    if value_field == 29:
        if value_type != 2 or wanted < n_numbers:
            return 5
        length, begin = _varint(raw, value_at, end)
        texts[wanted - n_numbers, AT, node] = begin
        texts[wanted - n_numbers, SIZE, node] = length
        texts[wanted - n_numbers, HASH, node] = _hash(raw, begin, begin + length)
        return 0
    if value_type == 0:
        whole, _ = _varint(raw, value_at, end)
        if value_field == 15 or value_field == 17:  # zigzag
            whole = ((whole >> 1) & np.int64(0x7FFFFFFFFFFFFFFF)) ^ -(whole & 1)
        if wanted < n_numbers:
            numbers[wanted, node] = whole
        else:
            texts[wanted - n_numbers, AT, node] = whole
            texts[wanted - n_numbers, SIZE, node] = WHOLE
        return 0
    if wanted >= n_numbers:
        return 5
    width = 8 if value_type == 1 else 4 if value_type == 5 else 0
    box[0] = _word(raw, value_at, width)
    if value_field == 3 and width == 8:
        numbers[wanted, node] = real[0]
    elif value_field == 5 and width == 4:
        numbers[wanted, node] = short[0]
    elif 19 <= value_field <= 25 and width > 0:
        whole = box[0]
        if value_field == 23 and whole >= 1 << 31:
            whole -= 1 << 32
        numbers[wanted, node] = whole
    else:
        return 5
    return 0
