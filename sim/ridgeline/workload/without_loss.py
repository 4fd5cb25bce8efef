"""The forward pass without its losses, and without what only losses of training need.

A network's loss may be a sum. Of several heads (boxes, masks) all are results of the network. A
term that is weighed beside others that are not is the loss of an auxiliary classifier, which helps
to train and is taken away afterwards (Szegedy et al., CVPR 2015, Section 5): all that only such a
term reads does not run in inference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from ridgeline.workload.builder import ADD
from ridgeline.workload.graph import Graph, Op
from ridgeline.workload.ops.part_boundary import HAND_OVER
from ridgeline.workload.ops.step import SCALE


def without_loss(graph: Graph) -> Graph:
    """Return a forward graph up to what its losses read; its last result is named as the loss."""
    makers = {name: op for op in graph.ops for name in op.outputs}
    if makers[graph.loss].kind == HAND_OVER.name:  # a part of a network, which has no loss
        return graph
    terms = list(_terms(graph, makers, graph.loss, helps=False))
    gone = {id(op) for op, _ in terms}
    readers = Counter(name for op in graph.ops if id(op) not in gone for name in op.inputs)
    for op, is_auxiliary in terms:
        unread = [name for name in op.inputs if name in makers and not readers[name]]
        while unread:
            maker = makers[unread.pop()]
            of_others = [readers[name] - maker.inputs.count(name) for name in maker.outputs]
            if id(maker) in gone or any(of_others):  # statistics are updated in place
                continue
            if is_auxiliary or maker.kind == "cast":
                gone.add(id(maker))
                readers.subtract(maker.inputs)
                unread += [name for name in maker.inputs if name in makers and not readers[name]]
    ops = tuple(op for op in graph.ops if id(op) not in gone)
    used = {name for op in ops for name in (*op.inputs, *op.outputs)}
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name in used}
    return replace(graph, ops=ops, tensors=tensors, loss=ops[-1].outputs[0])


def _terms(
    graph: Graph, makers: dict[str, Op], name: str, *, helps: bool
) -> Iterator[tuple[Op, bool]]:
    """Yield the ops that make losses, weigh them and sum them up, and whether they only help."""
    op = makers[name]
    yield op, helps
    if op.kind not in (ADD.name, SCALE.name) or graph.tensors[name].elements > 1:
        return
    parts = [each for each in op.inputs if each in makers]
    weighed = [makers[each].kind == SCALE.name for each in parts]
    for each, is_weighed in zip(parts, weighed, strict=True):
        yield from _terms(graph, makers, each, helps=helps or (is_weighed and not all(weighed)))
