"""Which operands of a training graph have zeros: pruned weights, ReLU outputs, pooled gradients.

From the assumed density of ReLU outputs, densities follow through the graph:

* a cast passes its input's density on, dropout multiplies it by the share that it keeps;
* a maximum over w values of density d is 1 - (1 - d)**w dense;
* the gradient of a ReLU is zero where its output is: the product of both densities;
* the gradient of max pooling reaches at most one element for each window;
* a sum of two is zero where both are; the results of all other ops are dense.

Densities are expected values, as if zeros were independent of each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ridgeline.workload.graph import Graph, Op, Pass, Role, Tensor
from ridgeline.workload.sparsity import Sparsity

_OF_WEIGHTS = frozenset({Role.WEIGHT, Role.WEIGHT_COPY})
_SAME = frozenset({"cast", "quantise", "scale", "unscale"})


def with_zeros(graph: Graph, weights: Sparsity | None, relu_density: float) -> Graph:
    """Return the graph with the zeros of the operands of its contractions.

    Parameters
    ----------
    weights
        Zeros in the weights of every contraction; None: dense.
    relu_density
        Share of a ReLU's outputs that are not zero.
    """
    if weights is None and relu_density == 1:
        return graph
    density = densities(graph, relu_density)
    tensors = dict(graph.tensors)
    for op in graph.ops:
        if op.loops is None:
            continue
        for name in op.inputs[:2]:
            tensor = tensors[name]
            if tensor.role in _OF_WEIGHTS:
                tensors[name] = replace(tensor, sparsity=weights)
            elif density.get(name, 1.0) < 1:
                tensors[name] = replace(tensor, sparsity=Sparsity("activation", density[name]))
    said = [f"weights {weights}"] if weights is not None else []
    said += [f"{relu_density:g} of ReLU outputs not zero"] if relu_density < 1 else []
    note = f"zeros assumed: {', '.join(said)}; accuracy is not modelled"
    return replace(graph, tensors=tensors, notes=(*graph.notes, note))


def densities(graph: Graph, relu_density: float) -> dict[str, float]:
    """Return the expected share of non-zeros of every tensor that is not dense."""
    found: dict[str, float] = {}
    for op in graph.ops:
        density = _density_of(op, graph.tensors, found, relu_density)
        name = op.outputs[0]
        if density < 1:
            found[name] = density
        else:
            found.pop(name, None)  # overwritten by something dense
    return {name: density for name, density in found.items() if density > 0}


def _density_of(
    op: Op, tensors: Mapping[str, Tensor], found: Mapping[str, float], relu_density: float
) -> float:
    """Density of an op's first output."""
    inputs = [found.get(name, 1.0) for name in op.inputs]
    forward = op.priced_as is Pass.FORWARD
    density = 1.0
    match op.kind:
        case "relu":
            density = relu_density if forward else inputs[0] * inputs[1]
        case "max-pool" if forward:
            window = dict(op.attrs)
            density = 1 - (1 - inputs[0]) ** (int(window["kernel_h"]) * int(window["kernel_w"]))
        case "max-pool":
            reached = tensors[op.inputs[0]].elements / tensors[op.outputs[0]].elements
            density = inputs[0] * min(1.0, reached)
        case "dropout":
            density = inputs[0] * (1 - float(dict(op.attrs)["probability"]))
        case "add" if len(inputs) == 2:
            density = 1 - (1 - inputs[0]) * (1 - inputs[1])
        case kind if kind in _SAME:
            density = inputs[0]
    return density
