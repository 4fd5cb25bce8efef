"""Feature pyramids: what a network makes at several sizes, each knowing of the coarser ones.

Lin et al., Feature pyramid networks for object detection, CVPR 2017, arXiv:1612.03144, Section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder


def feature_pyramid(b: GraphBuilder, stages: Sequence[str], channels: int) -> list[str]:
    """Return a feature map for each stage of a backbone, finest first."""
    levels: list[str] = []
    above = ""
    for i in range(len(stages) - 1, -1, -1):
        x = ops.conv2d(b, f"pyramid.inner{i}", stages[i], channels, 1)
        if above:
            size = (b.shape(x)[2], b.shape(x)[3])
            above = ops.upsample(b, f"pyramid.upsample{i}", above, size, "nearest")
            x = ops.add(b, f"pyramid.add{i}", x, above)
        above = x
        levels.insert(0, ops.conv2d(b, f"pyramid.layer{i}", x, channels, 3, padding=1))
    return levels
