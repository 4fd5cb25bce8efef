"""Functions of several steps as a framework runs them that has no kernel for the whole.

TensorFlow without XLA writes gelu, dropout and norms (but batch norm of images) as ops of its
graph, each of which streams its tensors from memory and is launched by itself; their gradients,
which follow from those of the ops, are longer still. `PRIMITIVES` counts, for each function and its
gradient, the ops that stream whole tensors; those of a row, a channel or a constant are left out,
as are shapes.

In mixed precision, some of these ops are kept in fp32, and with them all that follow up to the next
product: Pow, which is in gelu, and Mean, which is in norms (`auto_mixed_precision_lists.h`, what is
black there). Their tensors are cast before and after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType

from ridgeline.workload.graph import Graph, Op, Pass, Same
from ridgeline.workload.numerics import MASTER

Kernels = tuple[tuple[int, int], ...]
"""Tensors that each kernel reads and writes."""


@dataclass(frozen=True, slots=True)
class Primitive:
    """A function as the ops of a graph.

    Attributes
    ----------
    forward, gradient
        Tensors that each op reads and writes.
    wide
        Whether mixed precision keeps these ops in fp32.
    steps
        What the ops are, and where they are written.
    least_axes
        Of the tensors that it is run on like this: those with fewer have a kernel.
    """

    forward: Kernels
    gradient: Kernels
    wide: bool
    steps: str
    least_axes: int = 1


_MEAN, _TO_ONE, _OF_TWO = (1, 0), (1, 1), (2, 1)
_FILLED, _OF_THREE = (0, 1), (3, 1)

_ONE_FOR_EACH_MEAN = Primitive(
    forward=(_MEAN, _TO_ONE, _MEAN, _TO_ONE, _TO_ONE),
    gradient=(
        _TO_ONE, _OF_TWO, _MEAN, _MEAN, _FILLED, _TO_ONE, _TO_ONE, _OF_TWO, _FILLED, _OF_THREE,
    ),
    wide=True,
    steps="as layer norm, but w / deviation has one number for each mean",
)  # fmt: skip

PRIMITIVES: Mapping[str, Primitive] = MappingProxyType(
    {
        "gelu": Primitive(
            forward=(_TO_ONE, _TO_ONE, _OF_TWO, _TO_ONE, _TO_ONE, _TO_ONE, _TO_ONE, _OF_TWO),
            gradient=(
                _OF_TWO, _OF_TWO, _TO_ONE, _OF_TWO, _TO_ONE, _TO_ONE, _TO_ONE, _TO_ONE, _OF_TWO,
                _OF_THREE,
            ),
            wide=True,
            steps="x**3, times c, + x, times a, tanh, + 1, times 1/2, times x; of each its gradient"
            " and the sum of three (google-research/bert, modeling.py, gelu)",
        ),
        "silu": Primitive(
            forward=(_TO_ONE, _OF_TWO),
            gradient=(_TO_ONE, _TO_ONE, _OF_TWO, _TO_ONE, _OF_TWO, _OF_TWO),
            wide=False,
            steps="s = sigmoid(x), times x; s again, 1 - s, times x, + 1, times s, times dy"
            " (tensorflow/python/ops/nn_impl.py, swish)",
        ),
        "dropout": Primitive(
            forward=(_FILLED, _TO_ONE, _TO_ONE, _TO_ONE, _OF_TWO),
            gradient=(_OF_TWO, _TO_ONE),
            wide=False,
            steps="random numbers, compared, as numbers, x / keep, times these; both products again"
            " (tensorflow/python/ops/nn_ops.py, dropout_v2)",
        ),
        "layer-norm": Primitive(
            forward=(_MEAN, _TO_ONE, _MEAN, _FILLED, _OF_TWO, _TO_ONE, _TO_ONE, _OF_TWO),
            gradient=(
                _OF_TWO, _OF_TWO, _MEAN, _OF_TWO, _MEAN, _TO_ONE, _OF_TWO, _TO_ONE, _MEAN, _TO_ONE,
                _MEAN, _FILLED, _TO_ONE, _OF_TWO, _TO_ONE, _FILLED, _OF_THREE,
            ),
            wide=True,
            steps="mean, (x - mean)**2, its mean, w / deviation for every element, times x and"
            " times the mean, b minus this, their sum; of each its gradient, and sums over rows"
            " (tensorflow/python/ops/nn_impl.py, moments, batch_normalization)",
        ),
        "group-norm": _ONE_FOR_EACH_MEAN,
        "batch-norm": replace(
            _ONE_FOR_EACH_MEAN,
            steps="the same; the kernel takes images, not volumes"
            " (tensorflow/python/layers/normalization.py, 1.15, where fused asks for 4 axes)",
            least_axes=5,
        ),
    }
)  # fmt: skip


@lru_cache(maxsize=16)
def as_primitives(same: Same) -> Graph:
    """Return the graph with as many kernels in such functions as they have ops."""
    graph = same.graph
    return replace(graph, ops=tuple(_written_out(op, graph) for op in graph.ops))


def _written_out(op: Op, graph: Graph) -> Op:
    primitive = PRIMITIVES.get(op.kind)
    if primitive is None or len(graph.tensors[op.inputs[0]].shape) < primitive.least_axes:
        return op
    forward = op.priced_as is Pass.FORWARD
    kernels = primitive.forward if forward else primitive.gradient
    read, written = graph.tensors[op.inputs[0]], graph.tensors[op.outputs[0]]
    if written.elements < read.elements:  # gradients of weights alone
        return op
    reads, writes = (Fraction(sum(counts)) for counts in zip(*kernels, strict=True))
    n_kernels = len(kernels)
    wide = replace(read, format=MASTER).bytes
    if primitive.wide and wide > read.bytes:  # with the casts before and after
        width = Fraction(wide, read.bytes)
        reads, writes = reads * width + 1 + width, writes * width + 1 + width
        n_kernels += 2
    others = len(op.inputs) - 1
    at_least = sum(graph.tensors[name].bytes == read.bytes for name in op.inputs[1:])
    return replace(
        op,
        attrs=(*op.attrs, ("kernels", n_kernels)),
        input_passes=(reads - at_least, *(1 for _ in range(others))),
        output_passes=(writes, *(1 for _ in op.outputs[1:])),
        in_place=False,
    )
