"""Products that tensor-parallel ranks cut, so that they run beside the collective at one end.

Ranks that share positions gather the rows of a product, or add up and scatter its results. A
program that waits for the collective hides none of it. One that cuts the rows in as many pieces as
there are ranks passes pieces on in a ring, and multiplies meanwhile those that it has: Transformer
Engine's communication buffers (`ub_tp_comm_overlap`; Megatron-Core, `--tp-comm-overlap`), PyTorch's
asynchronous tensor parallelism (`torch._inductor.config._micro_pipeline_tp`), after S. Wang et al.,
"Overlap communication with dependent computation via decomposition in large deep learning models",
ASPLOS 2023.

A ring of p ranks takes p - 1 messages of c each, a product p pieces of q each. Before a product, a
rank begins with its own rows, and piece k may begin after k messages: the last ends after
max(p q, (p - 1) c + q) if pieces are equal. Two tasks say the same: p - 1 pieces that need nothing
of the collective, and the last one, which does. After a product the message of a piece follows it:
the first piece, then the collective beside the others, q + max((p - 1) q, (p - 1) c).

Gradients of weights, which need all rows for every number, are not cut: they run beside the
collective of the other gradient as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from ridgeline.parallel.pass_manager import graph_pass
from ridgeline.workload.graph import PIECES, Gemm, Graph, Op, Pass, Tensor

_CUT = frozenset({Pass.FORWARD, Pass.RECOMPUTE, Pass.INPUT_GRADIENT})
_TENSOR = ("dimension", "tensor")


@dataclass(frozen=True)
class _Beside:
    """A product, and the collective at one end of it that it runs beside.

    Attributes
    ----------
    pieces
        One for each rank.
    first
        The collective begins after the first piece; else the last piece waits for it.
    """

    collective: Op
    pieces: int
    first: bool


@graph_pass("decompose-gemm", 80, lambda to: () if to.stack.overlap.tensor == "pieces" else None)
def with_pieces(graph: Graph) -> Graph:
    """Return the graph of a device whose products next to collectives of "tensor" are cut.

    FLOPs are as before; weights are read, and kernels issued, once for each piece. Products whose
    rows can not be cut in equal pieces are left as they are.
    """
    products = {**_before_scatters(graph), **_after_gathers(graph)}
    moved = {one.collective.name for one in products.values() if one.first}
    tensors: dict[str, Tensor] = {}
    ops: list[Op] = []
    for op in graph.ops:
        if op.name not in products:
            ops += () if op.name in moved else (op,)
            continue
        found = products[op.name]
        cut = _first_piece if found.first else _last_piece
        ops += cut(op, found, graph, tensors)
    return replace(graph, ops=tuple(ops), tensors={**graph.tensors, **tensors})


def _after_gathers(graph: Graph) -> dict[str, _Beside]:
    """Find the first product that reads what is gathered, of every gather."""
    gathers = {op.outputs[0]: op for op in graph.ops if _is(op, "all-gather")}
    found: dict[str, _Beside] = {}
    for op in graph.ops:
        for name in op.inputs:
            if (gather := gathers.pop(name, None)) is None:
                continue
            pieces = _ratio(graph, name, gather.inputs[0])
            if op.inputs[0] == name and _can_be_cut(op, pieces):
                found[op.name] = _Beside(gather, pieces, first=False)
    return found


def _before_scatters(graph: Graph) -> dict[str, _Beside]:
    """Find the product whose result nothing but a scattered sum reads, of every such sum."""
    readers: dict[str, list[Op]] = {}
    for op in graph.ops:
        for name in op.inputs:
            readers.setdefault(name, []).append(op)
    found: dict[str, _Beside] = {}
    for op in graph.ops:
        after = readers.get(op.outputs[0], []) if len(op.outputs) == 1 else []
        if len(after) != 1 or not _is(after[0], "reduce-scatter"):
            continue
        pieces = _ratio(graph, op.outputs[0], after[0].outputs[0])
        if _can_be_cut(op, pieces) and op.pass_ is not Pass.INPUT_GRADIENT:
            found[op.name] = _Beside(after[0], pieces, first=True)
    return found


def _is(op: Op, kind: str) -> bool:
    return op.kind == kind and _TENSOR in op.attrs and len(op.inputs) == len(op.outputs) == 1


def _ratio(graph: Graph, whole: str, part: str) -> int:
    """How many ranks share a tensor; 0 if not equally."""
    ratio, left = divmod(graph.sizes[whole], graph.sizes[part])
    return 0 if left else ratio


def _can_be_cut(op: Op, pieces: int) -> bool:
    loops = op.loops
    return (
        op.kind == "gemm"
        and op.pass_ in _CUT
        and isinstance(loops, Gemm)
        and loops.batch == 1
        and pieces > 1
        and loops.m % pieces == 0
        and all(count == 1 for count in (*op.input_passes, *op.output_passes))
    )


def _last_piece(op: Op, beside: _Beside, graph: Graph, tensors: dict[str, Tensor]) -> Iterator[Op]:
    """Cut a product of gathered rows: all pieces but one begin with a rank's own rows."""
    n, own, gathered = beside.pieces, beside.collective.inputs[0], op.inputs[0]
    others = op.inputs[1:]
    yield _piece(
        op,
        op.name,
        n - 1,
        n,
        inputs=(own, *others),
        input_passes=(n - 1, *(n - 1 for _ in others)),
        output_passes=tuple(Fraction(n - 1, n) for _ in op.outputs),
    )
    yield _piece(
        op,
        f"{op.name}.last-piece",
        1,
        n,
        inputs=(own, *others, gathered),
        outputs=tuple(_part(graph, name, "last-piece", n, tensors) for name in op.outputs),
        input_passes=(*(1 for _ in (own, *others)), 0),  # it waits for what was gathered
        output_passes=(),
    )


def _first_piece(op: Op, beside: _Beside, graph: Graph, tensors: dict[str, Tensor]) -> Iterator[Op]:
    """Cut a product whose rows are added up and scattered: the sum goes on behind a piece."""
    n, others = beside.pieces, op.inputs[1:]
    piece = _part(graph, op.outputs[0], "first-piece", n, tensors)
    yield _piece(
        op,
        f"{op.name}.first-piece",
        1,
        n,
        outputs=(piece,),
        input_passes=(Fraction(1, n), *(1 for _ in others)),
        output_passes=(),
    )
    yield replace(beside.collective, inputs=(piece,))
    yield _piece(
        op,
        op.name,
        n - 1,
        n,
        input_passes=(Fraction(n - 1, n), *(n - 1 for _ in others)),
        output_passes=(Fraction(n - 1, n),),
    )


def _piece(op: Op, name: str, count: int, of: int, **fields: Any) -> Op:
    """Return so many pieces of a product as one op: kernels one after the other."""
    assert isinstance(op.loops, Gemm)
    return replace(
        op,
        name=name,
        loops=replace(op.loops, m=op.loops.m * count // of),
        vector_flops=_share(op.vector_flops, count, of),
        recomputed_flops=_share(op.recomputed_flops, count, of),
        attrs=(*op.attrs, (PIECES, of), ("kernels", count)),
        **fields,
    )


def _share(total: int, count: int, of: int) -> int:
    """Return so many of equal parts; the one that is left over has what does not divide."""
    part = total // of * (of - 1)
    return part if count == of - 1 else total - part


def _part(graph: Graph, name: str, label: str, of: int, tensors: dict[str, Tensor]) -> str:
    """Return the name of a new tensor with a part of the elements of another."""
    whole, new = graph.tensors[name], f"{name}.{label}"
    tensors[new] = whole.renamed(new).reshaped((whole.elements // of,))
    return new
