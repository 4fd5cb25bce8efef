"""Writes an Execution as Chakra execution traces, one file a rank, and its groups as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from ridgeline.workload.execution import FORMATS, Execution, TaskKind
from ridgeline.workload.trace import chakra_encode as encode
from ridgeline.workload.trace.chakra import COMM_TYPES, OF_ONE_RANK, STREAM_OF, VERSION

_TYPE_OF = {TaskKind.MARK: 1, TaskKind.MEMORY: 2, TaskKind.COMPUTE: 4, TaskKind.HOST: 4,
            TaskKind.SEND: 5, TaskKind.RECEIVE: 6, TaskKind.COLLECTIVE: 7}  # fmt: skip


def rank_bytes(execution: Execution, index: int) -> bytes:
    """Return the trace of ``execution.ranks[index]`` as the content of its file."""
    e = execution
    parts = [encode.message(encode.field(1, VERSION.encode()))]
    first, last = int(e.task_ptr[index]), int(e.task_ptr[index + 1])
    for task in range(first, last):
        kind = TaskKind(int(e.kind[task]))
        node = b""
        if e.id[task]:
            node += encode.field(1, int(e.id[task]))
        node += encode.field(2, e.label_names[e.label[task]].encode())
        node += encode.field(3, _TYPE_OF[kind])
        deps = e.id[e.dep_index[e.dep_ptr[task] : e.dep_ptr[task + 1]]]
        if len(deps):
            node += encode.field(5, b"".join(encode.varint(int(dep)) for dep in deps))
        for number, seconds in ((6, e.start_s[task]), (7, e.duration_s[task])):
            if seconds > 0:
                node += encode.field(number, round(seconds * 1e6))
        for name, value in _attributes(e, task, kind, int(e.ranks[index])):
            node += encode.attribute(name, value)
        parts.append(encode.message(node))
    return b"".join(parts)


def _attributes(
    e: Execution, task: int, kind: TaskKind, rank: int
) -> Iterator[tuple[str, bool | int | float | str]]:
    yield "is_cpu_op", kind in {TaskKind.HOST, TaskKind.MARK}
    if not np.isnan(e.flops[task]):
        yield "num_ops", _whole_or_real(e.flops[task])
    size = float(e.size_bytes[task])
    if kind in {TaskKind.COLLECTIVE, TaskKind.SEND, TaskKind.RECEIVE}:
        if e.op[task] in OF_ONE_RANK:
            size /= len(e.members(int(e.group[task])))
        yield "comm_size", _whole_or_real(size)
    elif not np.isnan(size):
        yield "tensor_size", _whole_or_real(size)
    if kind is TaskKind.COLLECTIVE:
        comm_type = next(number for number, op in COMM_TYPES.items() if op == e.op[task])
        yield "comm_type", comm_type
        if e.group[task] >= 0:
            yield "pg_name", e.group_names[e.group[task]]
    if kind in {TaskKind.SEND, TaskKind.RECEIVE}:
        ends = (rank, int(e.peer[task]))
        yield "comm_src", ends[kind is TaskKind.RECEIVE]
        yield "comm_dst", ends[kind is TaskKind.SEND]
        yield "comm_tag", int(e.tag[task])
    if not np.isnan(e.start_s[task]):
        yield "ridgeline_start_s", float(e.start_s[task])
    if not np.isnan(e.duration_s[task]):
        yield "ridgeline_duration_s", float(e.duration_s[task])
    if e.format[task] >= 0:
        yield "ridgeline_format", FORMATS[e.format[task]]
    if e.stream[task] != STREAM_OF[kind]:
        yield "ridgeline_stream", e.stream_names[e.stream[task]]


def _whole_or_real(value: float) -> int | float:
    return int(value) if float(value).is_integer() and value < 2**63 else float(value)


def groups_text(execution: Execution) -> str:
    """Return the groups as the JSON file that ASTRA-sim reads."""
    groups = {
        name: execution.members(number).tolist()
        for number, name in enumerate(execution.group_names)
    }
    return json.dumps(groups, indent=1) + "\n"
