"""Updates with whole matrices under ZeRO: each rank does those of some weights, for all ranks.

A rank of so many that share an optimizer's state cannot do a part of a Newton-Schulz step, so that
whole matrices are shared: of equally large ones each rank has equally many, but for one more
(Megatron-Core, core/optimizer/layer_wise_optimizer.py; here the fullest rank is written). What is
done element by element is shared as ever. Where gradients are scattered element by element, too
(stages 2 and 3), as many matrices as there are ranks are exchanged at once: every rank sends its
part of each to the rank that does it, and gets its part of what that has made back (Ahn et al.,
Dion: Distributed orthonormalized updates, 2025, arXiv:2504.05295, whose Muon for FSDP does so).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from fractions import Fraction

from ridgeline.workload.graph import Gemm, Graph, Op, Pass, Role, Tensor
from ridgeline.workload.ops.matrix_update import APPLY, OF, ORTHOGONALISE, STEPS

_HELD = frozenset({Role.WEIGHT, Role.STATE})


def share_matrices(
    graph: Graph, ranks: int, dimension: str, *, exchanged: bool, without: Collection[str] = ()
) -> Graph:
    """Leave a rank the whole matrices that it does.

    Parameters
    ----------
    ranks
        How many share.
    dimension
        Of the plan, along which the ranks lie.
    exchanged
        Whether every rank has only a part of each gradient.
    without
        Weights that are not shared so.
    """
    done = {
        op.inputs[0]: index
        for index, op in enumerate(graph.ops)
        if op.kind == APPLY.name and op.inputs[0] not in without
    }
    if not done:
        return graph
    owned = _owned(graph, done, ranks)
    direction = _directions(graph)
    tensors, ops = dict(graph.tensors), list[Op]()
    dead, begun = set[str](), set[str]()  # made of what another rank has; begun here
    for op in graph.ops:
        weight = _weight_of(op)
        if weight in done and op.kind == ORTHOGONALISE.name:
            if weight not in owned:
                dead.update(n for n in op.outputs if tensors[n].role is not Role.STATE)
                continue
            if exchanged and weight not in begun:
                ops.append(_exchange(op, direction[weight], tensors, dimension))
            begun.add(weight)
            ops.append(_of_share(op, owned[weight]))
            continue
        if weight in done and op.kind == APPLY.name:
            if weight in owned and exchanged:
                ops.append(_exchange(op, op.inputs[1], tensors, dimension))
            made = op.inputs[1] if weight in owned else direction[weight]
            ops.append(replace(op, inputs=(op.inputs[0], made)))
            continue
        if op.pass_ is Pass.UPDATE and op.inputs and dead.issuperset(op.inputs):
            dead.update(op.outputs)
            continue
        ops.append(op)
    gathered = _unread(ops, set(direction.values()))
    return replace(graph, tensors=tensors, ops=tuple(op for op in ops if op.name not in gathered))


def of_matrices(graph: Graph) -> frozenset[str]:
    """Name the ops on whole matrices, and those that bring matrices to them and from them."""
    made = set[str]()
    found = set[str]()
    for op in graph.ops:
        if op.kind == "optimizer":
            made.update(n for n in op.outputs if graph.tensors[n].role not in _HELD)
        elif op.pass_ is Pass.UPDATE and op.kind != APPLY.name and not made.isdisjoint(op.inputs):
            made.update(n for n in op.outputs if graph.tensors[n].role not in _HELD)
            found.add(op.name)
    return frozenset(found)


def _weight_of(op: Op) -> str:
    return next((str(value) for name, value in op.attrs if name == OF), "")


def _directions(graph: Graph) -> dict[str, str]:
    """Return what the update of each weight begins with: the result of its elementwise part."""
    return {
        op.inputs[0]: op.outputs[0]
        for op in graph.ops
        if op.kind == "optimizer" and graph.tensors[op.outputs[0]].role is not Role.WEIGHT
    }


def _owned(graph: Graph, done: Collection[str], ranks: int) -> dict[str, Fraction]:
    """Return the weights that the fullest rank does, and what share of the matrices of each."""
    alike = defaultdict[tuple[object, ...], list[tuple[str, int]]](list)
    steps = Counter[str]()
    for op in graph.ops:
        if op.kind == ORTHOGONALISE.name and (weight := _weight_of(op)) in done:
            assert isinstance(op.loops, Gemm)
            steps[weight] += 1
            if steps[weight] == 1:
                count = op.loops.batch // int(dict(op.attrs)[STEPS])
                alike[op.loops.m, op.loops.n, op.loops.k].append((weight, count))
    found: dict[str, Fraction] = {}
    for weights in alike.values():
        left = -(-sum(count for _, count in weights) // ranks)
        for weight, count in weights:
            mine = min(count, left)
            left -= mine
            if mine:
                found[weight] = Fraction(mine, count)
    return found


def _of_share(op: Op, share: Fraction) -> Op:
    """Return an op on some of the matrices of a stack."""
    assert isinstance(op.loops, Gemm)
    if share == 1:
        return op
    return replace(
        op,
        loops=replace(op.loops, batch=int(op.loops.batch * share)),
        vector_flops=int(op.vector_flops * share),
        input_passes=tuple(count * share for count in op.input_passes),
        output_passes=tuple(count * share for count in op.output_passes),
    )


def _exchange(op: Op, name: str, tensors: Mapping[str, Tensor], dimension: str) -> Op:
    """Return the exchange of a matrix's worth of parts, of as many matrices as there are ranks."""
    size = tensors[name].bytes
    attrs = (("dimension", dimension), ("size_bytes", size), ("repeat", 1))
    passes = (1,)
    return Op(
        f"{name}.exchange", "all-to-all", Pass.UPDATE, op.layer, (name,), (), input_passes=passes,
        attrs=attrs,
    )  # fmt: skip


def _unread(ops: list[Op], directions: set[str]) -> set[str]:
    """Name gathers and slices for matrices of other ranks: updates whose results nothing reads."""
    read = {name for op in ops for name in op.inputs}
    return {
        op.name
        for op in ops
        if op.pass_ is Pass.UPDATE
        and op.kind in {"all-gather", "slice"}
        and directions.intersection(op.inputs)
        and read.isdisjoint(op.outputs)
    }
