"""Im2col convolutions: unfold an image into columns and multiply, image after image.

Caffe and Torch7 without cuDNN have one buffer for the columns [C R S, P Q] of an image. For each
image of a batch and each pass

* forward: a kernel writes the columns, and cuBLAS multiplies them by the filters;
* input gradient: cuBLAS multiplies the output's gradient by the filters, and a kernel adds up the
  columns that this gives;
* gradient of the filters: the columns are written again, multiplied by the output's gradient, and
  added to the sums of the images before

(Caffe: src/caffe/layers/base_conv_layer.cpp, conv_layer.cu, src/caffe/util/im2col.cu; Torch:
THCUNN/generic/SpatialConvolutionMM.cu). The products are priced as any product that small of the
device, by its row for matrix products and with the menu of the cuBLAS of that time. The other
kernels have a thread for each window, which walks through its taps, and reach a share of the
memory's peak however much of it the cache serves: 0.41 where they write columns, 0.30 where they
add them up. (Profile of a GTX 680, of 192 GB/s, in BVLC/caffe's issue 579: 48.8 and 67.1 us an
image and layer of CaffeNet, whose five layers have 3.84 MB of columns and image on average; from
1.6 to 7 MB the rate is the same to a tenth.)

Groups are products one after the other. Caffe multiplies the image itself where a filter has one
tap and slides by one pixel; Torch7 copies it. What an image needs stays in the last cache if all of
it fits there: the columns, which one kernel leaves to the next, and the filters or their sums,
which one image leaves to the next.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ridgeline.hardware.device import Device
from ridgeline.kernels.cost import OpCost, OperandBytes
from ridgeline.kernels.cudnn_fp32_conv import UNFOLDING
from ridgeline.kernels.latency_parts import LatencyParts
from ridgeline.kernels.traffic import cache_bytes
from ridgeline.workload.graph import Conv, Gemm, Graph, Op, Pass, Role

_CAFFE = "caffe"
_COLUMNS = "columns"
_WRITING, _ADDING = 0.41, 0.30  # of the farthest memory's peak


class Unfolded(NamedTuple):
    """A convolution as the work on one of its images.

    Attributes
    ----------
    product
        The product of one image, or of one of its groups.
    graph
        Its operands.
    products
        How many there are, one after the other.
    copies
        How many times columns are written or added up, each for one product.
    image_bytes
        Of such an image, or a group of it.
    columns_bytes
        Of its columns.
    """

    product: Op
    graph: Graph
    products: int
    copies: int
    image_bytes: float
    columns_bytes: float


def applies(op: Op) -> bool:
    """Tell whether an op is a convolution of a library that unfolds images."""
    return isinstance(op.loops, Conv) and dict(op.attrs).get("library") in UNFOLDING


def unfolded(op: Op, graph: Graph) -> Unfolded:
    """Return the work on one image."""
    loops = op.loops
    assert isinstance(loops, Conv)
    pixels = loops.h_out * loops.w_out
    c_out = loops.c_out // loops.groups
    window = loops.c_in // loops.groups * loops.r * loops.s
    output, columns, filters = (pixels, c_out), (pixels, window), (c_out, window)
    shapes = {  # two operands, then the result
        Pass.FORWARD: {_COLUMNS: columns, "filters": filters, "output": output},
        Pass.INPUT_GRADIENT: {"output": output, "filters": filters, _COLUMNS: columns},
        Pass.WEIGHT_GRADIENT: {"output": output, _COLUMNS: columns, "filters": filters},
    }[op.priced_as]
    gemm = {
        Pass.FORWARD: Gemm(pixels, c_out, window),
        Pass.INPUT_GRADIENT: Gemm(pixels, window, c_out),
        Pass.WEIGHT_GRADIENT: Gemm(c_out, window, pixels),
    }[op.priced_as]
    like = replace(graph.tensors[op.inputs[0]], role=Role.ACTIVATION, sparsity=None)
    tensors = {name: replace(like, name=name, shape=shape) for name, shape in shapes.items()}
    *inputs, result = tensors
    adds = op.priced_as is Pass.WEIGHT_GRADIENT  # to the sums of the images before
    product = replace(
        op,
        kind="gemm",
        pass_=Pass.FORWARD,
        inputs=(*inputs, result) if adds else tuple(inputs),
        outputs=(result,),
        loops=gemm,
        vector_flops=0,
        input_passes=(),
        output_passes=(),
        attrs=tuple(said for said in op.attrs if said[0] == "library"),
    )
    products = loops.batch * loops.groups
    size = tensors[_COLUMNS].bytes
    return Unfolded(
        product=product,
        graph=replace(graph, tensors=tensors, ops=(product,)),
        products=products,
        copies=0 if _is_its_own_columns(op, loops) else products,
        image_bytes=size * loops.h_in * loops.w_in / (pixels * loops.r * loops.s),
        columns_bytes=size,
    )


def _is_its_own_columns(op: Op, loops: Conv) -> bool:
    taps = loops.r, loops.s
    return dict(op.attrs)["library"] == _CAFFE and (taps, loops.stride, loops.padding) == (
        (1, 1),
        (1, 1),
        (0, 0),
    )


def together(work: Unfolded, one: OpCost, device: Device) -> OpCost:
    """Return the price of all images.

    Parameters
    ----------
    one
        The price of the product of one of them, whose operands all pass the farthest memory.
    """
    far, times = device.far_memory, work.products
    resident = sum(t.bytes for t in work.graph.tensors.values()) + work.image_bytes
    is_kept = resident <= cache_bytes(device)
    copied = work.image_bytes + work.columns_bytes
    passing = dict.fromkeys(one.traffic_bytes, copied)
    products = dict(one.moved)
    if is_kept:
        passing[far] = work.image_bytes
        products[far] = _from_memory(work, one.moved[far])
    bandwidth = device.memory[far].bandwidth
    assert bandwidth is not None  # a device without is refused when it is loaded
    share = _ADDING if _COLUMNS in work.product.outputs else _WRITING
    copy_s = device.launch_latency.value + copied / (share * bandwidth.value)
    moved = {
        name: OperandBytes(
            times * by.a,
            times * by.b,
            times * by.rest,
            times * by.partial + work.copies * passing[name],
        )
        for name, by in products.items()
    }
    launches = LatencyParts(
        launch_s=work.copies * device.launch_latency.value,
        copy_s=work.copies * (copy_s - device.launch_latency.value),
    )
    return replace(
        one,
        latency_parts=one.latency_parts and one.latency_parts.times(times).plus(launches),
        latency_s=times * one.latency_s + work.copies * copy_s,
        engine_work={name: times * flop for name, flop in one.engine_work.items()},
        level_work={
            name: times * products[name].total / device.memory[name].achievable.value
            for name in one.level_work
        },
        flops={name: times * flop for name, flop in one.flops.items()},
        traffic_bytes={name: by.total for name, by in moved.items()},
        moved=moved,
    )


def _from_memory(work: Unfolded, all_of_it: OperandBytes) -> OperandBytes:
    """Return what passes the farthest memory where columns and filters stay in the cache.

    That is the output or its gradient, and one copy of the filters for all images.
    """
    filters = work.graph.tensors["filters"].bytes / work.products
    by = {"output": float(work.graph.tensors["output"].bytes), "filters": filters, _COLUMNS: 0.0}
    a, b = (by[name] for name in work.product.inputs[:2])
    return OperandBytes(a, b, by[work.product.outputs[0]], all_of_it.partial)
