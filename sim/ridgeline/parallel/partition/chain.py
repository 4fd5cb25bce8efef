"""A network as a chain: what is between the places where a pipeline may cut it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ridgeline.errors import RidgelineError
from ridgeline.kernels.cache_residency import is_once
from ridgeline.parallel.checkpointing.blocks import (
    crossing_bytes,
    cut_places,
    forward_blocks,
    forward_ops,
)
from ridgeline.parallel.checkpointing.ops import once
from ridgeline.workload.graph import Graph, Op, Pass, Role

PASS_COLUMN = {Pass.FORWARD: 0, Pass.WEIGHT_GRADIENT: 2}
"""Of seconds by pass: the other passes are backward, column 1."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of a network that is not cut.

    Attributes
    ----------
    ops
        Indices of its ops in the graph: forward, and those of the same layers in other passes.
    send_bytes
        What later units read of what this one and those before it made: the bytes that a cut
        behind it sends forward, and about as many gradients back.
    """

    ops: tuple[int, ...]
    send_bytes: int


def units(graph: Graph) -> tuple[Unit, ...]:
    """Return the parts of a graph between the places where a pipeline may cut it, in order.

    An op of the backward pass or of the update is in the unit of the forward ops of its layer;
    where a layer runs several times, a gradient is with the op that it is the gradient of. A layer
    that only copies a weight (its normalised rows) is where what it makes is read first.
    """
    order, places = forward_ops(graph), set(cut_places(graph))
    ends = [at for at, i in enumerate(order) if i in places and at < len(order) - 1]
    ends.append(len(order) - 1)
    home: dict[str, list[int]] = {}  # units of a layer: several where it runs several times
    unit_of: dict[str, int] = {}
    ops: list[list[int]] = [[] for _ in ends]
    unit = 0
    for at, i in enumerate(order):
        unit += at > ends[unit]
        ops[unit].append(i)
        unit_of[graph.ops[i].name] = unit
        made = graph.tensors[graph.ops[i].outputs[0]] if graph.ops[i].outputs else None
        if made is None or made.role is not Role.WEIGHT_COPY:  # a copy is made wherever it is read
            home.setdefault(graph.ops[i].layer, []).append(unit)
    _settle_copies(graph, order, home)
    alone = {layer: its[0] for layer, its in home.items() if len(set(its)) == 1}
    made_in: dict[str, int] = {}
    later = [op for op in graph.ops if op.pass_ is not Pass.FORWARD]
    reader = {name: op for op in reversed(later) for name in op.inputs}  # the first one
    for i, op in enumerate(graph.ops):
        if op.pass_ is not Pass.FORWARD:
            if op.layer not in home:
                raise RidgelineError(f"{op.name}: its layer {op.layer!r} has no forward op")
            found = alone.get(op.layer)
            if found is None:
                found = _unit_of(op, unit_of, made_in, reader, home[op.layer][0])
            ops[found].append(i)
            for name in op.outputs:
                made_in[name] = found
    crossing = crossing_bytes(graph)
    return tuple(
        Unit(tuple(sorted(part)), crossing[end] if end < len(order) - 1 else 0)
        for part, end in zip(ops, ends, strict=True)
    )


def _settle_copies(graph: Graph, order: Sequence[int], home: dict[str, list[int]]) -> None:
    """Put layers that only copy weights into the first unit that reads what they make."""
    readers: dict[str, int] = {}
    for i in reversed(order):  # readers before makers, since copies may be made of copies
        op = graph.ops[i]
        reads = [readers[name] for name in op.outputs if name in readers]
        if op.layer not in home and reads:
            home[op.layer] = [min(reads)]
        if op.layer in home:
            first = min(home[op.layer])
            for name in op.inputs:
                readers[name] = min(first, readers.get(name, first))


def _unit_of(
    op: Op,
    forward: Mapping[str, int],
    made: Mapping[str, int],
    reader: Mapping[str, Op],
    other: int,
) -> int:
    """Return the unit of a backward op whose layer is in several.

    It is that of the op that it is the gradient of (named so by `GradientBuilder.derive`), or that
    it repeats; a sum of
    gradients is where the last of them arrives, in the first unit; what gathers a tensor of
    the forward pass is where that is read.
    """
    named = forward.get(once(op.name), forward.get(op.name.rpartition(f".{op.pass_}")[0]))
    if named is not None:
        return named
    arrived = [made[name] for name in op.inputs if name in made]
    if arrived or op.kind == "slice" or not op.outputs or op.outputs[0] not in reader:
        return min(arrived, default=other)
    return _unit_of(reader[op.outputs[0]], forward, made, {}, other)


def layers(graph: Graph, found: Sequence[Unit], *, ends: bool) -> list[tuple[int, ...]]:
    """Join units to the repeated layers of a network (`layer_starts`): ops of each, in order."""
    starts = [*layer_starts(graph, found, ends=ends), len(found)]
    return [tuple(i for unit in found[a:b] for i in unit.ops) for a, b in pairwise(starts)]


def layer_starts(graph: Graph, found: Sequence[Unit], *, ends: bool) -> list[int]:
    """Return the first unit of each repeated layer of a network (`checkpointing.blocks`).

    What is no layer goes with the one before it, and what comes before all with the first; with
    `ends`, what comes before and after all layers is as another layer at either end.
    """
    layer_of = {i: n for n, block in enumerate(forward_blocks(graph)) for i in block}
    numbers = [max((layer_of[i] for i in u.ops if i in layer_of), default=None) for u in found]
    inside = [k for k, number in enumerate(numbers) if number is not None]
    if not inside:
        return list(range(len(found)))
    starts = [0]
    at = numbers[inside[0]] if not ends else None
    for k, number in enumerate(numbers):
        behind = ends and k == inside[-1] + 1
        if k and (behind or number not in {None, at}):
            starts.append(k)
        at = at if number is None else number
    return starts


def pass_times(
    graph: Graph, time_s: Sequence[float], parts: Sequence[Sequence[int]]
) -> npt.NDArray[np.float64]:
    """Return [parts, 3] seconds of a micro-batch: forward, backward, gradients of weights."""
    found = np.zeros((len(parts), 3))
    for row, part in zip(found, parts, strict=True):
        for i in part:
            if not is_once(graph.ops[i], graph):
                row[PASS_COLUMN.get(graph.ops[i].pass_, 1)] += time_s[i]
    return found
