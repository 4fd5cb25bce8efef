"""Sharding rules of ops that the lowering inserts: collectives, halos and slices.

They stand in no network, so that they are no op kinds; on another level of "tensor", or in a grid,
they are divided like the ops around them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from ridgeline.workload.graph import Op, Role
from ridgeline.workload.ops.shape import cut_sharding
from ridgeline.workload.sharding_axes import (
    EXPERT_ROWS,
    OpAxes,
    ShardingRule,
    Tensors,
    whole,
)
from ridgeline.workload.sharding_rules import plain_labels, shapes_of

GRID = ("tensor.columns", "tensor.rows")
"""Dimensions of a grid of tensor-parallel devices: along a row, and along a column."""
HALO = "halo"
"""Kind of the ops that fetch rows of neighbours; attribute of an op: how many of its last inputs
are such rows, each of another of its inputs."""
_WITHOUT_SAMPLES = frozenset(
    {Role.WEIGHT, Role.WEIGHT_COPY, Role.WEIGHT_GRADIENT, Role.STATE, Role.BUFFER}
)


def _collective_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Move along other dimensions of the plan; dimensions that stay as they are can be divided.

    So can samples that move on another level of "tensor": which of them a device has, is the same
    on both sides; and in a grid all dimensions, of whose parts there each has a part.
    """
    if len(op.inputs) != 1 or len(op.outputs) != 1:
        return whole(op, tensors)
    of, found = tensors[op.inputs[0]], cut_sharding(op, tensors)
    dimension = str(dict(op.attrs)["dimension"])
    if dimension == "expert":  # of the rows that each rank has, each of its devices moves a part
        rows = ("", EXPERT_ROWS, "f")
        return OpAxes((rows,), (rows,), padded=frozenset({EXPERT_ROWS}))
    if dimension in GRID:
        labels = plain_labels(len(of.shape))
        sizes = zip(labels, of.shape, tensors[op.outputs[0]].shape, strict=True)
        return OpAxes((labels,), (labels,), {d: math.gcd(a, b) for d, a, b in sizes if a != b})
    on_level = dimension.startswith("tensor.")
    if not on_level or found.inputs[0][:1] != ("",) or of.role in _WITHOUT_SAMPLES:
        return found
    labels = ("d0", *found.inputs[0][1:])
    few = math.gcd(of.shape[0], tensors[op.outputs[0]].shape[0])
    return OpAxes((labels,), (labels,), {"d0": few})


def _halo_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Fetch rows of neighbours, of one tensor or several: other dimensions can be divided."""
    inputs, outputs = shapes_of(op, tensors)
    labels = tuple(
        tuple(f"d{i}" if a == b else "" for i, (a, b) in enumerate(zip(x, y, strict=True)))
        for x, y in zip(inputs, outputs, strict=True)
    )
    return OpAxes(labels, labels)


INSERTED: Mapping[str, ShardingRule] = MappingProxyType(
    {
        "all-reduce": _collective_sharding,
        "reduce-scatter": _collective_sharding,
        "all-gather": _collective_sharding,
        "all-to-all": _collective_sharding,
        "send-recv": _collective_sharding,
        HALO: _halo_sharding,
        "slice": cut_sharding,
    }
)
"""Rules by kind of op."""
