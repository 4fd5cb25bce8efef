"""Fused op: consecutive layers of a step as one op of its graph.

What lies between the layers stays on chip: it is no tensor of the graph, so it takes none of the
device's memory. Which layers, and how many rows a step, is found for one device (`kernels.fusion`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from ridgeline.workload.graph import Graph, Op, Pass, Same
from ridgeline.workload.liveness import STATIC_ROLES

FUSED_LAYERS = "fused-layers"
"""Kind of ops that are several layers."""
_PASSES = tuple(Pass)


@dataclass(frozen=True)
class FusedRows:
    """How the layers of a fused op are computed; see `kernels.fusion.groups.FusedGroup`.

    Attributes
    ----------
    rows
        Of the last layer's output in a step.
    halo
        What is done with rows that two steps need: "line-buffer" or "recompute".
    weights
        "held" on chip for all samples, or "streamed" in every step.
    cores
        Equal parts of the device that share the layers; 1: each has all of it.
    core_of
        Of several: by layer, the one that computes it.
    steps
        Of a sample.
    """

    rows: int
    halo: Literal["line-buffer", "recompute"]
    weights: Literal["held", "streamed"]
    cores: int
    core_of: tuple[int, ...]
    steps: int


@dataclass(frozen=True, slots=True)
class FusedOp(Op):
    """Consecutive layers that are computed some rows at a time, one behind the other.

    Attributes
    ----------
    layers
        The layers' ops and all of their tensors. Names of operands of the fused op may change,
        these do not.
    results
        Names of its tensors that something outside reads.
    how
        The schedule of rows.
    """

    layers: Same | None = None
    results: frozenset[str] = frozenset()
    how: FusedRows | None = None

    @property
    def parts(self) -> tuple[Op, ...]:
        """The layers' ops."""
        assert self.layers is not None
        return self.layers.graph.ops

    @property
    def matrix_flops(self) -> int:
        """FLOPs of all contractions at their mathematical shapes."""
        return sum(op.matrix_flops for op in self.parts)


def fused_op(ops: Sequence[Op], graph: Graph, results: frozenset[str], how: FusedRows) -> FusedOp:
    """Return ops that follow each other in a graph as one.

    It counts to the earliest of their passes: sums to that of the gradients that they take.

    Parameters
    ----------
    results
        Names of what something outside reads.
    """
    tensors = {name: graph.tensors[name] for op in ops for name in (*op.inputs, *op.outputs)}
    made = list(dict.fromkeys(chain.from_iterable(op.outputs for op in ops)))
    read = dict.fromkeys(chain.from_iterable(op.inputs for op in ops))
    inputs = tuple(name for name in read if name not in made)
    leaving = [name for name in made if name in results or name not in read]
    layers = replace(graph, tensors=tensors, ops=tuple(ops))
    often = graph.batch * how.steps if how.weights == "streamed" else 1
    static = {name for name, tensor in tensors.items() if tensor.role in STATIC_ROLES}
    return FusedOp(
        name=ops[0].name if len(ops) == 1 else f"{ops[0].name} .. {ops[-1].name}",
        kind=FUSED_LAYERS,
        pass_=min((op.pass_ for op in ops), key=_PASSES.index),
        layer=ops[0].layer,
        inputs=inputs,
        outputs=tuple(leaving),
        vector_flops=sum(op.vector_flops for op in ops),
        input_passes=tuple(often if name in static else 1 for name in inputs),
        attrs=(("kernels", sum(op.kernels for op in ops)),),
        recomputed_flops=sum(op.recomputed_flops for op in ops),
        layers=Same(layers),
        results=frozenset(leaving),
        how=how,
    )


def with_fused_ops(graph: Graph, spans: Mapping[tuple[int, int], FusedOp]) -> Graph:
    """Return a graph with ops from one to before another, by their places, as one each.

    What only these read and write is no tensor of the graph any more.
    """
    ends = dict(tuple(spans))
    ops: list[Op] = []
    at = 0
    while at < len(graph.ops):
        end = ends.get(at, at + 1)
        ops.append(spans[at, end] if at in ends else graph.ops[at])
        at = end
    used = {name for op in ops for name in (*op.inputs, *op.outputs)} | {graph.loss}
    made = {name for op in graph.ops for name in op.outputs}
    tensors = {n: tensor for n, tensor in graph.tensors.items() if n in used or n not in made}
    return replace(graph, tensors=tensors, ops=tuple(ops))
