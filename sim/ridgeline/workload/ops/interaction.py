"""Dot products between the feature vectors of a sample, as in recommenders."""

from __future__ import annotations

from ridgeline.errors import RidgelineError
from ridgeline.workload.builder import GradientBuilder, GraphBuilder
from ridgeline.workload.graph import Gemm, Op
from ridgeline.workload.kinds import op_kind
from ridgeline.workload.sharding_rules import sample_sharding


def dot_interaction(b: GraphBuilder, layer: str, x: str, vectors: int) -> str:
    """Dot products of all pairs of different vectors of a sample, `x` [batch, vectors x size].

    Naumov et al., Deep learning recommendation model, 2019, arXiv:1906.00091, Section 2.2, and as
    it is implemented there: the full matrix of products is formed, half of it is taken.
    """
    n, width = b.shape(x)
    if width % vectors:
        raise RidgelineError(f"layer {layer!r}: {vectors} vectors do not divide {width} features")
    x = b.cast(x, b.numerics.compute, layer)
    y = b.activation(f"{layer}.y", (n, vectors * (vectors - 1) // 2), b.format(x))
    loops = Gemm(vectors, vectors, width // vectors, batch=n)
    b.emit(DOT_INTERACTION, layer, (x, x), (y,), loops=loops)
    return y


def _gradient(g: GradientBuilder, op: Op) -> None:
    """Each side is an operand: dx [vectors, size] = dz [vectors, vectors] x, twice."""
    x, dy = op.inputs[0], g.gradient(op.outputs[0])
    assert isinstance(op.loops, Gemm)
    vectors, size, n = op.loops.m, op.loops.k, op.loops.batch
    if g.wants(x):
        for operand in range(2):
            g.derive(
                DOT_INTERACTION,
                op,
                (x,),
                (dy, x),
                loops=Gemm(vectors, size, vectors, batch=n),
                attrs=(("gradient-of", operand),),
            )


DOT_INTERACTION = op_kind("dot-interaction", sharding=sample_sharding)(_gradient)
