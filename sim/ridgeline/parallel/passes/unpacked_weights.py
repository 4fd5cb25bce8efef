"""Frozen weights in few bits that a kernel of its own unpacks before every product that reads them.

What bitsandbytes does in QLoRA (Dettmers et al., arXiv:2305.14314, Section 3; bitsandbytes,
autograd/_functions.py, `MatMul4Bit`): forward and backward pass each unpack the matrix to the
format that is multiplied, and nothing keeps the copy.
"""

from __future__ import annotations

from dataclasses import replace

from ridgeline.parallel.pass_manager import PassContext, graph_pass
from ridgeline.workload.adapters import BASE_FORMATS
from ridgeline.workload.graph import Graph, Op, Pass, Role, Tensor, free_name
from ridgeline.workload.ops.contraction import UNPACK


def _always(to: PassContext) -> tuple[()]:
    return ()


@graph_pass("unpacked-weights", 6, _always)
def with_unpacked_weights(graph: Graph) -> Graph:
    """Return the graph with an op before each product of a matrix in few bits, which unpacks it."""
    tensors = dict(graph.tensors)
    packed = {
        t.name for t in tensors.values() if t.role is Role.WEIGHT and t.format in BASE_FORMATS
    }
    if not packed:
        return graph
    ops, taken = list[Op](), {op.name for op in graph.ops}
    for op in graph.ops:
        inputs = op.inputs
        for i, name in enumerate(op.inputs if op.loops is not None else ()):
            multiplied = tensors[op.inputs[1 - i]].format if i < 2 else ""
            if name in packed and multiplied != tensors[name].format:
                made = _unpacked(tensors[name], multiplied, op, tensors)
                inputs = tuple(made if x == name else x for x in inputs)
                ops.append(_unpacking(tensors[name], tensors[made], op, taken))
        ops.append(op if inputs is op.inputs else replace(op, inputs=inputs))
    return replace(graph, ops=tuple(ops), tensors=tensors)


def _unpacked(packed: Tensor, format_: str, op: Op, tensors: dict[str, Tensor]) -> str:
    """Declare the matrix as it is multiplied: it lives for one op."""
    name = free_name(f"{packed.name}.{format_}", tensors)
    role = Role.ACTIVATION if op.pass_ is Pass.FORWARD else Role.ACTIVATION_GRADIENT
    tensors[name] = Tensor(name, packed.shape, format_, role)
    return name


def _unpacking(packed: Tensor, made: Tensor, op: Op, taken: set[str]) -> Op:
    name = free_name(f"{packed.name}.unpack", taken)
    taken.add(name)
    return Op(
        name, UNPACK.name, op.pass_, op.layer, (packed.name,), (made.name,),
        vector_flops=UNPACK.forward.of(packed.elements), input_passes=(1,),
    )  # fmt: skip
