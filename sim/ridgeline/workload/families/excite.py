"""Squeeze and excitation: each channel of an image is scaled by what all channels say of it.

Hu, Shen and Sun, Squeeze-and-excitation networks, CVPR 2018, arXiv:1709.01507, Section 3.
"""

from __future__ import annotations

from typing import Literal

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.ops.elementwise import Activation


def squeeze_excite(
    b: GraphBuilder,
    name: str,
    x: str,
    width: int,
    activation: Activation = "relu",
    gate: Literal["sigmoid", "hard-sigmoid"] = "sigmoid",
) -> str:
    """Scale the channels of images [n, c, h, w] by a network of `width` inner features."""
    channels = b.shape(x)[1]
    y = ops.adaptive_avg_pool(b, f"{name}.squeeze", x)
    y = ops.conv2d(b, f"{name}.reduce", y, width, 1)
    y = ops.activation(b, f"{name}.{activation}", y, activation)
    y = ops.conv2d(b, f"{name}.expand", y, channels, 1)
    if gate == "sigmoid":
        y = ops.activation(b, f"{name}.sigmoid", y, "sigmoid")
    else:
        (y,) = ops.function(b, f"{name}.hard-sigmoid", "hard-sigmoid", (y,), b.shape(y))
    (scaled,) = ops.function(b, f"{name}.scale", "broadcast-multiply", (x, y), b.shape(x))
    return scaled
