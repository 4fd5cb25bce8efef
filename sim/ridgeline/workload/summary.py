"""A graph layer by layer, for people."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.workload.graph import Graph, Op, Pass, Role


@dataclass(frozen=True, slots=True)
class LayerSummary:
    """One layer of a network.

    Attributes
    ----------
    kind
        Kind of the layer's main op.
    output_shape
        Shape of what the layer hands on.
    forward_flops
        Matrix and convolution FLOPs of the forward pass.
    activation_bytes
        New memory that the layer's outputs take in the forward pass; nothing where it works in
        place.
    """

    name: str
    kind: str
    output_shape: tuple[int, ...]
    parameters: int
    forward_flops: int
    activation_bytes: int


def layer_table(graph: Graph) -> list[LayerSummary]:
    """Return one row per layer, in the order in which the forward pass meets them."""
    layers: dict[str, list[Op]] = {}
    owners: dict[str, str] = {}
    for op in graph.ops:
        if op.pass_ is Pass.FORWARD:
            layers.setdefault(op.layer, []).append(op)
            for name in op.inputs:
                owners.setdefault(name, op.layer)
    parameters = dict.fromkeys(layers, 0)
    for tensor in graph.tensors.values():
        if tensor.role is Role.WEIGHT:
            parameters[owners[tensor.name]] += tensor.elements
    return [_row(graph, name, ops, parameters[name]) for name, ops in layers.items()]


def _row(graph: Graph, name: str, ops: list[Op], parameters: int) -> LayerSummary:
    main = next((op for op in ops if op.kind != "cast"), ops[0])
    new = [t for op in ops for t in (op.outputs[1:] if op.in_place else op.outputs)]
    return LayerSummary(
        name,
        main.kind,
        graph.tensors[ops[-1].outputs[0]].shape,
        parameters,
        sum(op.matrix_flops for op in ops),
        sum(graph.tensors[t].bytes for t in new if graph.tensors[t].role is Role.ACTIVATION),
    )
