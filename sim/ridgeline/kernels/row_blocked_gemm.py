"""Row-blocked GEMM: products cut by rows, each block a kernel of its own.

So they are where tensor-parallel ranks hide what they send behind products
(`ridgeline.parallel.passes.decompose_gemm`): a piece has fewer tiles than the product, so that its
last wave leaves more processors idle, and reads all of the weights.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from ridgeline.workload.graph import PIECES, Gemm, Op


def applies(op: Op) -> bool:
    """Tell whether an op is several pieces of a product."""
    return op.kernels > 1 and any(name == PIECES for name, _ in op.attrs)


def one_of(op: Op) -> Op:
    """Return one of the pieces that an op does."""
    n = op.kernels
    assert isinstance(op.loops, Gemm)
    return replace(
        op,
        loops=replace(op.loops, m=op.loops.m // n),
        vector_flops=-(-op.vector_flops // n),
        recomputed_flops=-(-op.recomputed_flops // n),
        input_passes=tuple(Fraction(count) / n for count in op.input_passes),
        output_passes=tuple(Fraction(count) / n for count in op.output_passes),
        attrs=tuple(said for said in op.attrs if said[0] != "kernels"),
    )
