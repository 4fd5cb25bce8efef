"""Images whose channels come first, on tensor cores that want them last.

Kernels on tensor cores read images pixel by pixel, all channels of a pixel side by side. A
framework that keeps them channel by channel makes the library copy what a convolution reads and
what it writes into the other order, by kernels before and after it (NVIDIA, Convolutional Layers
User's Guide, "Tensor Layouts In Memory: NCHW vs NHWC"). Weights, which are small, are left out, and
so are depthwise convolutions, which have kernels for either order. Ordinary cores have kernels for
either order, too.

Norms over images in that order have one thread block for each mean that they take: for each channel
of batch norm (cuDNN names its kernels bn_fw_tr_1C11 and bn_bw_1C11; PyTorch's own have
`blocks(input.size(1))`, aten/src/ATen/native/cuda/Normalization.cuh), for each channel of each
image of instance norm, which calls the same kernels. Where there are fewer than multiprocessors,
the others have nothing to do. With channels last, rows of pixels are shared by all.

Heads of attention lie side by side in the features of a position. A batched product takes its
matrices one behind the other with equal gaps, which sequences and heads together do not have, so
that programs in which attention is products of a library copy queries, keys and values into that
order before them, and what comes out back (`transpose_for_scores` and `.contiguous()` in Hugging
Face's BERT, `tf.transpose` in Google's; PyTorch's `matmul` makes the copy itself).
"""

from __future__ import annotations

from dataclasses import replace

from ridgeline.hardware.device import Device
from ridgeline.parallel.pass_manager import PassContext, graph_pass
from ridgeline.workload.formats import find
from ridgeline.workload.graph import Conv, Graph, Op, Role, Tensor
from ridgeline.workload.ops.attention import CONTEXT, SCORES
from ridgeline.workload.ops.contraction import CONV2D, CONV_TRANSPOSE2D
from ridgeline.workload.ops.normalization import BATCH_NORM, GROUP_NORM
from ridgeline.workload.ops.shape import LAYOUT

_IMAGES = frozenset({Role.ACTIVATION, Role.ACTIVATION_GRADIENT, Role.INPUT})
_LAST, _BY_HEAD = "channels-last", "by-head"
_OF_HEADS = 3  # dimensions: sequences, positions, features of all heads
_NORMS = frozenset({BATCH_NORM.name, GROUP_NORM.name})
_BATCHED = frozenset({SCORES.name, CONTEXT.name})


def copied_formats(device: Device) -> frozenset[str]:
    """Return the number formats that a device multiplies on tensor cores."""
    return frozenset(
        format_
        for engine in device.engines.values()
        if engine.kind == "tensor-core"
        for format_ in engine.rates
    )


@graph_pass(
    "channels-first-copies",
    5,
    lambda to: (
        (copied_formats(to.device),) if to.stack.kernels.layout == "channels-first" else None
    ),
)
def with_copies(graph: Graph, formats: frozenset[str]) -> Graph:
    """Return the graph with the copies around every convolution in one of these formats."""
    if not formats:
        return graph
    tensors, ops = dict(graph.tensors), list[Op]()
    for op in graph.ops:
        if not _is_copied(op, graph, formats):
            ops.append(op)
            continue
        before, reads = _copies(op, op.inputs, tensors, back=False)
        after, writes = _copies(op, op.outputs, tensors, back=True)
        ops += [*before, replace(op, inputs=reads, outputs=writes), *after]
    return replace(graph, tensors=tensors, ops=tuple(ops))


@graph_pass("norm-by-channel", 50, lambda to: () if to.stack.kernels.norm == "by-channel" else None)
def with_blocks(graph: Graph) -> Graph:
    """Return the graph with the number of thread blocks that norms over images have."""
    return replace(graph, ops=tuple(_in_blocks(op, graph) for op in graph.ops))


def _algorithms(to: PassContext) -> tuple[float | None, str | None] | None:
    kernels = to.stack.kernels
    if kernels.conv_workspace is None and kernels.conv_library is None:
        return None
    return kernels.conv_workspace, kernels.conv_library


@graph_pass("convolution-algorithms", 30, _algorithms)
def with_kernels(graph: Graph, workspace_bytes: float | None, library: str | None) -> Graph:
    """Return the graph with what is said of its convolutions' kernels.

    Parameters
    ----------
    workspace_bytes
        The most work space that they may have; None: as much as they need.
    library
        What they are of; None: the library that was measured on the device.
    """
    each = (("workspace", workspace_bytes and round(workspace_bytes)), ("library", library))
    said = tuple((name, value) for name, value in each if value is not None)
    ops = (
        replace(op, attrs=(*op.attrs, *said)) if isinstance(op.loops, Conv) else op
        for op in graph.ops
    )
    return replace(graph, ops=tuple(ops))


@graph_pass(
    "attention-transpose", 60, lambda to: () if to.stack.kernels.attention_transpose else None
)
def with_heads(graph: Graph) -> Graph:
    """Return the graph with the copies that put the rows of each head of attention together."""
    tensors, ops = dict(graph.tensors), list[Op]()
    there: dict[str, str] = {}
    for op in graph.ops:
        if op.kind not in _BATCHED:
            ops.append(op)
            continue
        heads = [n for n in (*op.inputs, *op.outputs) if len(tensors[n].shape) == _OF_HEADS]
        used = {n: there[n] for n in heads if n in there}
        for name in heads:
            if name in used:
                continue
            used[name] = copy = f"{op.name}.{name}.{_BY_HEAD}"
            tensors[copy] = replace(tensors[name], name=copy)
            if name in op.inputs:
                there[name] = copy
                ops.append(_copy(op, copy, name, copy))
        reads, writes = (tuple(used.get(n, n) for n in ns) for ns in (op.inputs, op.outputs))
        ops.append(replace(op, inputs=reads, outputs=writes))
        ops += [_copy(op, used[n], used[n], n) for n in op.outputs if n in used]
    return replace(graph, tensors=tensors, ops=tuple(ops))


def _copy(op: Op, name: str, read: str, written: str) -> Op:
    return Op(name, LAYOUT.name, op.pass_, op.layer, (read,), (written,), input_passes=(1,))


def _in_blocks(op: Op, graph: Graph) -> Op:
    if op.kind not in _NORMS:
        return op
    means = (graph.tensors[name] for name in (*op.outputs[1:], *op.inputs[2:]))
    blocks = next(t.elements for t in means if t.role is Role.ACTIVATION)
    return replace(op, attrs=(*op.attrs, ("blocks", blocks)))


def _is_copied(op: Op, graph: Graph, formats: frozenset[str]) -> bool:
    if op.kind not in {CONV2D.name, CONV_TRANSPOSE2D.name}:
        return False
    if isinstance(op.loops, Conv) and op.loops.groups == op.loops.c_in > 1:
        return False
    return find(graph.tensors[op.inputs[0]].format).rate in formats


def _copies(
    op: Op, names: tuple[str, ...], tensors: dict[str, Tensor], *, back: bool
) -> tuple[list[Op], tuple[str, ...]]:
    """Declare the copies of a convolution's images; return the ops and what it reads or writes."""
    made: list[Op] = []
    used = []
    for name in names:
        tensor = tensors[name]
        if tensor.role not in _IMAGES:
            used.append(name)
            continue
        copy = f"{op.name}.{name}.{_LAST}"
        role = Role.ACTIVATION if tensor.role is Role.INPUT else tensor.role
        tensors[copy] = replace(tensor, name=copy, role=role)
        read, written = (copy, name) if back else (name, copy)
        made.append(_copy(op, copy, read, written))
        used.append(copy)
    return made, tuple(used)
