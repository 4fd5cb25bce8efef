"""Functions that a unit behind the accumulators applies to results of products on their way out.

A TPU v1's Activate instruction reads accumulators, applies a nonlinear function, pools, and writes
the unified buffer, while the array goes on with other accumulators (Jouppi et al., ISCA 2017,
Section 2). What the function reads is then never stored. Of the forward pass; what others read too,
in a backward pass, stays an op of its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ridgeline.hardware.device import Device
from ridgeline.parallel.pass_manager import PassContext, graph_pass
from ridgeline.workload.graph import EPILOGUE, Graph, Op, Pass, Role


def _kinds(to: PassContext) -> tuple[frozenset[str]] | None:
    kinds = epilogues_of(to.device)
    return (kinds,) if kinds else None


def epilogues_of(device: Device) -> frozenset[str]:
    """Kinds of ops that a device does on results of products on their way out."""
    return frozenset(kind for engine in device.engines.values() for kind in engine.epilogue)


@graph_pass("product-epilogues", 55, _kinds)
def with_product_epilogues(graph: Graph, kinds: frozenset[str]) -> Graph:
    """Return the graph with one op for a product and the functions that only its result feeds."""
    readers = Counter(name for op in graph.ops for name in op.inputs)
    product_of: dict[str, Op] = {}  # by the name of its result
    gone: set[str] = set()
    ops: dict[str, Op] = {}
    for op in graph.ops:
        ops[op.name] = op
        if op.pass_ is not Pass.FORWARD:
            continue
        before = product_of.get(op.inputs[0]) if op.inputs else None
        if op.loops is not None:
            product_of[op.outputs[0]] = op
        elif before is not None and op.kind in kinds and _is_alone(op, graph, readers):
            gone |= {op.inputs[0], *op.outputs[1:]}
            del ops[before.name], ops[op.name]
            merged = ops[before.name] = _merged(before, op)
            product_of[op.outputs[0]] = merged
    used = {name for op in ops.values() for name in (*op.inputs, *op.outputs)} | {graph.loss}
    tensors = {
        name: tensor for name, tensor in graph.tensors.items() if name in used or name not in gone
    }
    return replace(graph, tensors=tensors, ops=tuple(ops.values()))


def _is_alone(op: Op, graph: Graph, readers: Counter[str]) -> bool:
    """Tell whether nobody else reads what a function reads, nor what it writes besides."""
    result, *parameters = op.inputs
    others = sum(readers[name] for name in op.outputs[1:])  # where the greatest of a window was
    standing = all(graph.tensors[name].role is Role.WEIGHT for name in parameters)
    return standing and readers[result] == 1 and not others


def _merged(product: Op, function: Op) -> Op:
    """Return a product whose results a function is applied to."""
    attrs, parameters = dict(product.attrs), function.inputs[1:]
    names = (*filter(None, [attrs.get(EPILOGUE)]), function.kind)
    passes = product.input_passes or (1,) * len(product.inputs)
    more = function.input_passes[1:] or (1,) * len(parameters)
    return replace(
        product,
        inputs=(*product.inputs, *parameters),
        input_passes=(*passes, *more),
        outputs=function.outputs[:1],
        vector_flops=product.vector_flops + function.vector_flops,
        attrs=tuple({**attrs, EPILOGUE: "+".join(map(str, names))}.items()),
    )
