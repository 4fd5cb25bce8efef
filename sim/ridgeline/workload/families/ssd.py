"""SSD300: a single-shot detector, with VGG-16 or a ResNet.

Liu et al., SSD, ECCV 2016, arXiv:1512.02325, Section 2 and Figure 2, in torchvision's layout; with
a ResNet as the MLPerf training reference until version 1.1, whose third stage keeps the size of the
image (single_stage_detector/ssd/ssd300.py of github.com/mlcommons/training).
Approximations: losses count all default boxes, not only the positive and the hardest negative
ones; matching them to the ground truth, on which nothing is trained, is left out; conv4_3 is
divided by its root mean square over the channels, which is its L2 norm but for a constant.
"""

from __future__ import annotations

from typing import ClassVar

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Image, Network, family
from ridgeline.workload.families.resnet import Stages

_VGG = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))
"""Channels over the width, and convolutions of each block."""
_BOXES = (4, 6, 6, 6, 4, 4)
"""Default boxes of a pixel of each feature map."""
_AFTER_RESNET = ((4, 8, 2, 1), (4, 8, 2, 1), (2, 4, 2, 1), (2, 4, 1, 0), (2, 4, 1, 0))
_EXTRAS = ((4, 8, 2, 1), (2, 4, 2, 1), (2, 4, 1, 0), (2, 4, 1, 0))
"""Channels over the width of a 1x1 and a 3x3 convolution, stride and padding of the latter."""


@family("ssd", network_kind="cnn")
class Ssd(Network):
    """VGG-16 or a ResNet, further feature maps, and two heads on six of them."""

    sample: ClassVar[str] = "images"

    image: Image
    classes: Channels
    """Classes of a box, background included."""
    width: Channels = 64
    """Channels of the first block."""
    backbone: Stages | None = None
    """Stages of a ResNet instead of VGG-16, of which the last keeps the size of the image."""

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        maps = self._maps(b, self.image.images(b))
        scores, boxes = [], []
        for i, (x, count) in enumerate(zip(maps, _BOXES, strict=True), start=1):
            scores.append(ops.conv2d(b, f"scores{i}", x, count * self.classes, 3, padding=1))
            boxes.append(ops.conv2d(b, f"boxes{i}", x, count * 4, 3, padding=1))
        all_scores = ops.concat(b, "scores", scores, features=self.classes)
        all_boxes = ops.concat(b, "boxes", boxes, features=4)
        labels = b.input("labels", b.shape(all_scores)[:2], "int64")
        targets = b.input("targets", b.shape(all_boxes))
        of_scores = ops.cross_entropy(b, "scores-loss", all_scores, labels)
        return ops.add(b, "loss", of_scores, ops.smooth_l1(b, "boxes-loss", all_boxes, targets))

    def _maps(self, b: GraphBuilder, x: str) -> list[str]:
        """Return the six feature maps, finest first."""
        if self.backbone is not None:
            stages = self.backbone.features(b, x, prefix="backbone.", dilated=0, kept=1)
            return self._further(b, stages[-1:], _AFTER_RESNET)
        maps, width = [], self.width
        for block, (filters, count) in enumerate(_VGG, start=1):
            for i in range(1, count + 1):
                x = ops.conv2d(b, f"conv{block}-{i}", x, filters * width, 3, padding=1)
                x = ops.relu(b, f"relu{block}-{i}", x)
            if block == 4:
                maps.append(ops.rms_norm(b, "norm4-3", x, axis=1))
            if block < 5:
                x = ops.max_pool(b, f"pool{block}", x, 2, ceil_mode=block == 3)
        x = ops.max_pool(b, "pool5", x, 3, stride=1, padding=1)
        x = ops.relu(b, "relu6", ops.conv2d(b, "fc6", x, 16 * width, 3, padding=6, dilation=6))
        x = ops.relu(b, "relu7", ops.conv2d(b, "fc7", x, 16 * width, 1))
        return self._further(b, [*maps, x], _EXTRAS)

    def _further(
        self, b: GraphBuilder, maps: list[str], extras: tuple[tuple[int, ...], ...]
    ) -> list[str]:
        """Append smaller and smaller feature maps."""
        x, width = maps[-1], self.width
        for i, (narrow, wide, stride, padding) in enumerate(extras, start=12 - len(extras)):
            x = ops.relu(b, f"relu{i}-1", ops.conv2d(b, f"conv{i}-1", x, narrow * width, 1))
            x = ops.conv2d(b, f"conv{i}-2", x, wide * width, 3, stride=stride, padding=padding)
            x = ops.relu(b, f"relu{i}-2", x)
            maps.append(x)
        return maps
