"""Functions of several steps as a framework runs them that has no kernel for the whole.

Programs are described by a table each of functions and their gradients (`TABLES`):

**TensorFlow** without XLA ("primitive").
It writes gelu, dropout and norms (but batch norm of images) as ops of its graph, each of which
streams its tensors from memory and is launched by itself; their gradients, which follow from those
of the ops, are longer still. In mixed precision, some of these ops are kept in fp32, and with them
all that follow up to the next product: Pow, which is in gelu, and Mean, which is in norms
(`auto_mixed_precision_lists.h`, what is black there). Their tensors are cast before and after.

**PyTorch** without a compiler ("eager"). It has kernels for gelu, dropout and layer norm, but
programs write RMS norm, rotations and gates of their own; statistics and rotations are computed in
fp32, of what is cast before and after. Gradients are those that autograd forms of each op
(tools/autograd/derivatives.yaml and FunctionsManual.cpp of PyTorch).

**Hugging Face's GPT-2** ("tanh-gelu"). It writes the tanh form of gelu op by op, and nothing else.

Tables count the ops that stream whole tensors; those of a row, a channel or a constant are left
out, as are shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType

from ridgeline.parallel.pass_manager import graph_pass
from ridgeline.workload.graph import Graph, Op, Pass, Tensor
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
    forward_rest, gradient_rest
        Tensors that ops besides read and write, which are not kept in fp32.
    """

    forward: Kernels
    gradient: Kernels
    wide: bool
    steps: str
    least_axes: int = 1
    forward_rest: Kernels = ()
    gradient_rest: Kernels = ()


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


EAGER: Mapping[str, Primitive] = MappingProxyType(
    {
        "rms-norm": Primitive(
            forward=(_TO_ONE, _MEAN, _TO_ONE),
            gradient=(
                _TO_ONE, _OF_TWO, _MEAN, _FILLED, _TO_ONE, _TO_ONE, _OF_TWO, _OF_TWO,
            ),
            wide=True,
            steps="x**2, its mean, x times 1/deviation, and in 16 bits times w; dy w, dy times the"
            " normalised x and its sum in 16 bits, then times 1/deviation, times x and its sum, the"
            " mean's gradient for every element, x**1, times 2, times this, the sum of both"
            " (pytorch/torchtitan, torchtitan/models/norms.py, RMSNorm)",
            forward_rest=(_TO_ONE,),
            gradient_rest=(_TO_ONE, _OF_TWO, _MEAN),
        ),
        "rotary": Primitive(
            forward=(_TO_ONE,),
            gradient=(_TO_ONE,),
            wide=True,
            steps="complex numbers times others, and times their conjugates"
            " (pytorch/torchtitan, torchtitan/models/llama/model.py, apply_rotary_emb)",
        ),
        "swiglu": Primitive(
            forward=(_TO_ONE, _OF_TWO),
            gradient=(_OF_TWO, _OF_TWO, _OF_TWO),
            wide=False,
            steps="silu, times y; dz y, dz silu(x), and the kernel of silu's gradient"
            " (pytorch/torchtitan, torchtitan/models/llama/model.py, FeedForward)",
        ),
    }
)  # fmt: skip

TANH_GELU: Mapping[str, Primitive] = MappingProxyType(
    {
        "gelu": replace(
            PRIMITIVES["gelu"],
            wide=False,
            steps="the same ops, each a kernel; of each the gradient that autograd forms"
            " (huggingface/transformers, src/transformers/activations.py, NewGELUActivation)",
        )
    }
)

TABLES: Mapping[str, Mapping[str, Primitive]] = MappingProxyType(
    {"primitive": PRIMITIVES, "eager": EAGER, "tanh-gelu": TANH_GELU}
)
"""By what a plan calls functions that are written so (`KernelSettings.fusion`)."""


@graph_pass(
    "decompose",
    71,
    lambda to: (to.stack.kernels.fusion,) if to.stack.kernels.fusion in TABLES else None,
)
def as_primitives(graph: Graph, table: str = "primitive") -> Graph:
    """Return the graph with as many kernels in such functions as they have ops."""
    primitives = TABLES[table]
    return replace(graph, ops=tuple(_written_out(op, graph, primitives) for op in graph.ops))


def _written_out(op: Op, graph: Graph, primitives: Mapping[str, Primitive]) -> Op:
    primitive = primitives.get(op.kind)
    if primitive is None or len(graph.tensors[op.inputs[0]].shape) < primitive.least_axes:
        return op
    forward = op.priced_as is Pass.FORWARD
    kernels = primitive.forward if forward else primitive.gradient
    rest = primitive.forward_rest if forward else primitive.gradient_rest
    read, written = graph.tensors[op.inputs[0]], graph.tensors[op.outputs[0]]
    if written.elements < read.elements:  # gradients of weights alone
        return op
    reads, writes = _streams(kernels)
    n_kernels = len(kernels) + len(rest)
    wide = replace(read, format=MASTER).bytes
    if primitive.wide and wide > read.bytes:  # with the casts before and after
        width = Fraction(wide, read.bytes)
        reads, writes = reads * width + 1 + width, writes * width + 1 + width
        n_kernels += 2
    more_reads, more_writes = _streams(rest)
    reads += more_reads - _whole(op.inputs[1:], read, graph)
    writes += more_writes - _whole(op.outputs[1:], read, graph)
    return replace(
        op,
        attrs=(*op.attrs, ("kernels", n_kernels)),
        input_passes=(reads, *(1 for _ in op.inputs[1:])),
        output_passes=(writes, *(1 for _ in op.outputs[1:])),
        in_place=False,
    )


def _streams(kernels: Kernels) -> tuple[Fraction, Fraction]:
    """Return how often whole tensors are read, and written."""
    return Fraction(sum(r for r, _ in kernels)), Fraction(sum(w for _, w in kernels))


def _whole(names: Sequence[str], read: Tensor, graph: Graph) -> int:
    """Count the tensors as large as the one that is read, each of which is streamed once anyway."""
    return sum(graph.tensors[name].bytes == read.bytes for name in names)
