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
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ridgeline.hardware.device import Device
from ridgeline.workload.formats import find
from ridgeline.workload.graph import Conv, Graph, Op, Role, Same, Tensor
from ridgeline.workload.ops.contraction import CONV2D, CONV_TRANSPOSE2D
from ridgeline.workload.ops.normalization import BATCH_NORM, GROUP_NORM
from ridgeline.workload.ops.shape import LAYOUT

_IMAGES = frozenset({Role.ACTIVATION, Role.ACTIVATION_GRADIENT, Role.INPUT})
_LAST = "channels-last"
_NORMS = frozenset({BATCH_NORM.name, GROUP_NORM.name})


def copied_formats(device: Device) -> frozenset[str]:
    """Return the number formats that a device multiplies on tensor cores."""
    return frozenset(
        format_
        for engine in device.engines.values()
        if engine.kind == "tensor-core"
        for format_ in engine.rates
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


@lru_cache(maxsize=16)
def with_blocks(same: Same) -> Graph:
    """Return the graph with the number of thread blocks that norms over images have."""
    graph = same.graph
    return replace(graph, ops=tuple(_in_blocks(op, graph) for op in graph.ops))


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
        made.append(
            Op(copy, LAYOUT.name, op.pass_, op.layer, (read,), (written,), input_passes=(1,))
        )
        used.append(copy)
    return made, tuple(used)
