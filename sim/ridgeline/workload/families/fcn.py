"""Fully convolutional networks: a class for every pixel.

Long, Shelhamer and Darrell, CVPR 2015, arXiv:1411.4038, in torchvision's layout: a ResNet whose
last two stages are dilated, a small head and bilinear enlargement; an auxiliary head on the stage
before the last.
"""

from __future__ import annotations

from typing import ClassVar

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Image, Network, family
from ridgeline.workload.families.resnet import Stages


@family("fcn", network_kind="cnn")
class Fcn(Network):
    """A dilated ResNet with segmentation heads."""

    sample: ClassVar[str] = "images"

    image: Image
    classes: Channels
    """Classes of a pixel, background included."""
    backbone: Stages

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        masks = b.input("masks", (b.batch, self.image.height, self.image.width), "int64")
        *_, third, fourth = self.backbone.features(
            b, self.image.images(b), prefix="backbone.", dilated=2
        )
        loss = self._head(b, "classifier", fourth, masks)
        auxiliary = self._head(b, "auxiliary", third, masks)
        auxiliary = ops.scale(b, "auxiliary.weight", auxiliary, 0.5)
        return ops.add(b, "loss", loss, auxiliary)

    def _head(self, b: GraphBuilder, name: str, x: str, masks: str) -> str:
        inner = b.shape(x)[1] // 4
        x = ops.conv2d(b, f"{name}.conv1", x, inner, 3, padding=1, bias=False)
        x = ops.relu(b, f"{name}.relu", ops.batch_norm(b, f"{name}.bn", x))
        x = ops.dropout(b, f"{name}.dropout", x, 0.1)
        x = ops.conv2d(b, f"{name}.conv2", x, self.classes, 1)
        size = (self.image.height, self.image.width)
        x = ops.upsample(b, f"{name}.upsample", x, size, "bilinear")
        return ops.cross_entropy(b, f"{name}.loss", x, masks, axis=1)
