"""Depthwise convolutions: one filter a channel, computed where the pixels are.

A depthwise convolution is no matrix product: each output needs a handful of multiplications, of
which nothing is shared between channels. Libraries have kernels of their own for it, on the
ordinary cores and in fp32 whatever the storage format. In PyTorch's
(aten/src/ATen/native/cuda/DepthwiseConv2d.cu) a thread makes one output and loads a pixel and a
weight for every multiplication; a block makes one element of the weights' gradient, so that no
pixel stays in the first cache for the next element.

Where a pixel lies is computed for every multiplication, on lanes for integers of which there are as
many as for fp32 (V100, A100; Pascal shares them). By that file, the weights' gradient divides its
index by the width of the image (20 instructions: CUDA C++ Programming Guide, "Arithmetic
Instructions"), takes the remainder (1), forms two coordinates (2), compares them (4), forms two
offsets (3) and addresses (2) and goes on (3); the forward kernel and the input's gradient, whose
taps are unrolled, form a coordinate (1), compare (4), and form an offset and an address (2), the
gradient with a test of the stride (1) and for every tap of every pixel, so that all but one of
stride**2 are in vain.
"""

from __future__ import annotations

import math

from ridgeline.hardware.device import Device
from ridgeline.kernels.traffic import near_levels
from ridgeline.workload.graph import Conv, Graph, Op, Pass

FORMAT = "fp32"
_OF_THREADS = frozenset({"vector", "tensor-core"})
_LANE_BYTES = 4  # what a load of one thread takes of the first cache, whatever it loads
_LOADS = 2  # of one multiplication
_INTEGERS = {Pass.FORWARD: 7, Pass.INPUT_GRADIENT: 8, Pass.WEIGHT_GRADIENT: 35}


def applies(op: Op) -> bool:
    """Tell whether every channel of a convolution has filters of its own."""
    loops = op.loops
    return isinstance(loops, Conv) and loops.groups == loops.c_in > 1


def engine_for(device: Device) -> str | None:
    """Name the fastest engine that does both products and elementwise work; None: there is none.

    Kernels of threads with caches are those of GPUs: a device with arrays is left out, and so is
    one whose first cache has no bandwidth.
    """
    kinds = {engine.kind for engine in device.engines.values()}
    first = next(iter(near_levels(device).values()), None)
    if not kinds <= _OF_THREADS or first is None or first.bandwidth is None:
        return None
    rates = {
        name: engine.rates[FORMAT].value
        for name, engine in device.engines.items()
        if {"matrix", "vector"} <= set(engine.runs) and FORMAT in engine.rates
    }
    return max(rates, key=lambda name: rates[name]) if rates else None


def integers(op: Op) -> float:
    """Instructions on integers for each multiplication."""
    assert isinstance(op.loops, Conv)
    again = math.prod(op.loops.stride) if op.priced_as is Pass.INPUT_GRADIENT else 1
    return float(_INTEGERS[op.priced_as] * again)


def nearer_bytes(op: Op, graph: Graph, device: Device) -> dict[str, float]:
    """Bytes that pass the caches: all loads the first, those that it does not keep all of them."""
    assert op.loops is not None
    levels = list(near_levels(device))
    size = max(graph.tensors[name].bytes / graph.tensors[name].elements for name in op.inputs[:2])
    missed = _LOADS * size * op.loops.macs if op.priced_as is Pass.WEIGHT_GRADIENT else 0.0
    loads = dict.fromkeys(levels, missed)
    loads[levels[0]] = max(missed, float(_LOADS * _LANE_BYTES * op.loops.macs))
    return loads
