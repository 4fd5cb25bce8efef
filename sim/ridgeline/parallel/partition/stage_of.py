"""Stage of every op of a training graph, from the stage of every layer."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.workload.graph import Graph, Op, Pass, Role

HELD = frozenset({Role.WEIGHT, Role.WEIGHT_COPY, Role.BUFFER, Role.STATE, Role.INPUT})
"""Roles of tensors that every stage has for itself."""


def copies(op: Op, graph: Graph) -> bool:
    """Whether an op copies a weight, or for its update a part of one."""
    if op.pass_ is Pass.UPDATE and op.kind == "slice":
        return graph.tensors[op.inputs[0]].role in HELD
    return bool(op.outputs) and graph.tensors[op.outputs[0]].role is Role.WEIGHT_COPY


def places(graph: Graph, home: Sequence[int]) -> list[int]:
    """Return the place of every op, of ops whose layers are at `home`.

    Updates are done where the gradients of weights are that they read; so are gradients of copies
    of weights in the weights' format, whose layer may be at the end of the place before. Copies of
    weights are made where they are read, the first place of which is returned. A sum of gradients
    of several places is taken apart by `partition`: its first part counts.
    """
    found, made = list(home), dict[str, int]()
    waiting: dict[str, int] = {}  # copies that nothing has read yet: the op that makes each

    def done(i: int) -> None:
        for name in graph.ops[i].outputs:
            if graph.tensors[name].role not in HELD:
                made.setdefault(name, found[i])

    for i, op in enumerate(graph.ops):
        if copies(op, graph):
            waiting[op.outputs[0]] = i
            continue
        if op.pass_ in {Pass.UPDATE, Pass.WEIGHT_GRADIENT}:
            at = [name for name in op.inputs if name in made]
            sums = [n for n in at if graph.tensors[n].role is Role.WEIGHT_GRADIENT]
            if op.pass_ is Pass.UPDATE:
                sums += at
            if sums:
                found[i] = made[sums[0]]
        read = list(op.inputs)
        while read:
            copy = waiting.pop(read.pop(), None)
            if copy is not None:
                found[copy] = found[i]
                done(copy)
                read += graph.ops[copy].inputs
        done(i)
    return found
