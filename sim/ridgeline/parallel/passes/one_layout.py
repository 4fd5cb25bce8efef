"""Operands in 8 bits that are written once, for matrix units that read them in either layout.

A weight's gradient reads its operands across the layout that the product before had. Tensor cores
of Hopper take operands in 8 bits along the sum alone, so that programs write a second, transposed
copy where they quantise. Those of Blackwell take either layout (`Engine.either_layout`), and the
same copy does for both: Transformer Engine then makes one (`common/gemm/cublaslt_gemm.cu`,
`nvte_is_non_tn_fp8_gemm_supported`). Where blocks of numbers have scales, those of rows are not
those of columns, and both copies are written on any device.
"""

from __future__ import annotations

from dataclasses import replace

from ridgeline.parallel.pass_manager import PassContext, graph_pass
from ridgeline.workload.builder import QUANTISE
from ridgeline.workload.formats import find
from ridgeline.workload.graph import Graph


def _read_either_way(to: PassContext) -> tuple[frozenset[str]] | None:
    rates = frozenset(
        format_
        for engine in to.device.engines.values()
        for format_, either in engine.either_layout.items()
        if either.value
    )
    return (rates,) if rates else None


@graph_pass("one-layout", 8, _read_either_way)
def with_one_copy(graph: Graph, rates: frozenset[str]) -> Graph:
    """Return the graph with one copy of each operand whose layout does not matter.

    Parameters
    ----------
    rates
        Formats that the device reads either way, by the names of their rates.
    """

    def is_once(output: str) -> bool:
        format_ = find(graph.tensors[output].format)
        return format_.rate in rates and not format_.block

    return replace(
        graph,
        ops=tuple(
            replace(op, output_passes=(1,))
            if op.kind == QUANTISE.name and is_once(op.outputs[0])
            else op
            for op in graph.ops
        ),
    )
