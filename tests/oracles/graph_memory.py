"""Memory of a graph by asking of every storage, at every op, whether anybody still needs it."""

from __future__ import annotations

from ridgeline.workload.graph import Graph, Role

STATIC = {Role.WEIGHT, Role.WEIGHT_COPY, Role.BUFFER, Role.STATE}


def storages(graph: Graph) -> list[set[str]]:
    """Sets of tensors that share their bytes: chains of ops that work in place."""
    sets = {name: {name} for op in graph.ops for name in (*op.inputs, *op.outputs)}
    for op in graph.ops:
        if op.in_place:
            merged = sets[op.inputs[0]] | sets[op.outputs[0]]
            for name in merged:
                sets[name] = merged
    return list({id(group): group for group in sets.values()}.values())


def profile(graph: Graph) -> list[int]:
    """Bytes held while each op runs."""
    static = sum(t.bytes for t in graph.tensors.values() if t.role in STATIC)
    moving = []
    for group in storages(graph):
        tensors = [graph.tensors[name] for name in group]
        if all(t.role not in {*STATIC, Role.HOST} for t in tensors):
            assert len({t.bytes for t in tensors}) == 1
            touched = [
                i
                for i, op in enumerate(graph.ops)
                if not group.isdisjoint((*op.inputs, *op.outputs))
            ]
            moving.append((touched, tensors[0].bytes))
    held = []
    for now in range(len(graph.ops)):
        total = static
        for touched, size in moving:
            born, needed = any(i <= now for i in touched), any(i >= now for i in touched)
            total += size if born and needed else 0
        held.append(total)
    return held
