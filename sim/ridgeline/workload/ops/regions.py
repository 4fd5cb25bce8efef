"""Features of regions of images, for detectors."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from ridgeline.errors import RidgelineError
from ridgeline.workload.builder import GradientBuilder, GraphBuilder
from ridgeline.workload.graph import Op
from ridgeline.workload.kinds import Cost, op_kind
from ridgeline.workload.ops.window import image
from ridgeline.workload.sharding_axes import OpAxes, Tensors

_SAMPLES = 4  # points of a cell, two by two, as in the paper
_PIXELS = 4  # pixels around a point


def roi_align(b: GraphBuilder, layer: str, levels: Sequence[str], boxes: str, size: int) -> str:
    """Mean of points sampled in size x size cells of each box; of the level that fits its size.

    He et al., Mask R-CNN, ICCV 2017, arXiv:1703.06870, Section 3; Lin et al., FPN, CVPR 2017,
    arXiv:1612.03144, equation 1. `levels` are images of one batch with the same channels, `boxes`
    [batch, regions, 4]. Returns [batch x regions, channels, size, size]. Each sampled point reads
    four pixels; of every level the same share is counted as read.
    """
    shapes = [image(layer, b.shape(level)) for level in levels]
    n, regions, _ = b.shape(boxes)
    if len({shape[:2] for shape in shapes}) > 1 or shapes[0][0] != n:
        raise RidgelineError(f"layer {layer!r}: levels {shapes} and boxes of {n} images")
    y = b.activation(f"{layer}.y", (n * regions, shapes[0][1], size, size), b.format(levels[0]))
    touched = Fraction(_touched(b, y), sum(map(b.elements, levels)))
    b.emit(
        ROI_ALIGN,
        layer,
        (*levels, boxes),
        (y,),
        flops=ROI_ALIGN.forward.of(b.elements(y)),
        passes=(*(touched for _ in levels), 1),
    )
    return y


def _touched(b: GraphBuilder, y: str) -> int:
    return _SAMPLES * _PIXELS * b.elements(y)


def _roi_align_gradient(g: GradientBuilder, op: Op) -> None:
    *levels, boxes = op.inputs
    if not all(map(g.wants, levels)):
        raise RidgelineError(f"{op.name}: all levels must depend on weights")
    dy = g.gradient(op.outputs[0])
    added = Fraction(2 * _touched(g, dy), sum(map(g.elements, levels)))
    g.derive(
        ROI_ALIGN,
        op,
        levels,
        (dy, boxes),
        flops=ROI_ALIGN.gradient.of(g.elements(dy)),
        output_passes=tuple(1 + added for _ in levels),  # zeros; then pixels read and written
    )


def _roi_align_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Levels [b, c, h, w], boxes [b, n, 4] -> y [b n, c, s, s]."""
    labels = ("b", "c", "", "")
    return OpAxes((*(labels,) * (len(op.inputs) - 1), ("b", "", "")), (labels,))


ROI_ALIGN = op_kind(
    "roi-align",
    forward=Cost(33, "output element", "four points of four products and their sum, their mean"),
    gradient=Cost(
        33, "output element", "share dy; four points of four products, each added to a pixel"
    ),
    sharding=_roi_align_sharding,
)(_roi_align_gradient)
