"""Mask R-CNN: a two-stage detector with a mask for each object.

He et al., Mask R-CNN, ICCV 2017, arXiv:1703.06870, with a feature pyramid (Lin et al., CVPR 2017,
arXiv:1612.03144), in torchvision's layout: the backbone's batch norms are frozen, as are its stem
and its first stage (torchvision, fasterrcnn_resnet50_fpn, trainable_backbone_layers; FREEZE_AT in
Detectron2 and before it). Approximations: all images have one size; proposals are given (sorting,
non-maximum suppression and matching, on which nothing is trained, are left out); losses of the
proposals count all anchors, and that of the boxes all classes.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Image, Network, family
from ridgeline.workload.families.pyramid import feature_pyramid
from ridgeline.workload.families.resnet import Stages


@family("mask-rcnn", network_kind="cnn")
class MaskRcnn(Network):
    """A ResNet with a feature pyramid, a proposal network, and heads for boxes and masks."""

    sample: ClassVar[str] = "images"

    image: Image
    classes: Channels
    """Classes of an object, background included."""
    backbone: Stages
    frozen: Annotated[int, Field(ge=0, le=8)] = 1
    """Stages of the backbone that are not trained, and with them its stem; 0: all are."""
    pyramid: Channels = 256
    """Channels of the feature pyramid and of the heads' convolutions."""
    box_width: Channels = 1024
    """Features inside the box head."""
    anchors: Channels = 3
    """Anchors of a pixel."""
    regions: Channels = 512
    """Proposals of an image that reach the box head."""
    masks: Channels = 128
    """Proposals of an image that reach the mask head: the positive ones."""

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        stages = self.backbone.features(
            b, self.image.images(b), prefix="backbone.", norm=ops.frozen_batch_norm
        )
        if self.frozen:
            layers = [f"backbone.layer{stage}." for stage in range(1, self.frozen + 1)]
            b.freeze("backbone.conv1.", *layers)
        levels = feature_pyramid(b, stages, self.pyramid)
        coarsest = ops.max_pool(b, "pyramid.pool", levels[-1], 1, stride=2)
        losses = [
            *self._proposals(b, [*levels, coarsest]),
            *self._boxes(b, levels),
            self._masks(b, levels),
        ]
        loss = losses[0]
        for i, other in enumerate(losses[1:], start=1):
            loss = ops.add(b, f"loss-sum{i}", loss, other)
        return loss

    def _proposals(self, b: GraphBuilder, levels: list[str]) -> tuple[str, str]:
        """Write the proposal network, the same on every level, and return its losses."""
        objects, boxes = [], []
        for i, level in enumerate(levels):
            shared = [f"proposals.{part}0" if i else None for part in ("conv", "objects", "boxes")]
            x = ops.conv2d(
                b, f"proposals.conv{i}", level, self.pyramid, 3, padding=1, weights_of=shared[0]
            )
            x = ops.relu(b, f"proposals.relu{i}", x)
            objects.append(
                ops.conv2d(b, f"proposals.objects{i}", x, self.anchors, 1, weights_of=shared[1])
            )
            boxes.append(
                ops.conv2d(b, f"proposals.boxes{i}", x, 4 * self.anchors, 1, weights_of=shared[2])
            )
        found = ops.concat(b, "proposals.objects", objects, features=1)
        where = ops.concat(b, "proposals.boxes", boxes, features=4)
        is_object = b.input("anchor-labels", b.shape(found))
        targets = b.input("anchor-boxes", b.shape(where))
        return (
            ops.binary_cross_entropy(b, "proposals.objects-loss", found, is_object),
            ops.smooth_l1(b, "proposals.boxes-loss", where, targets),
        )

    def _boxes(self, b: GraphBuilder, levels: list[str]) -> tuple[str, str]:
        """Write the box head and return its losses."""
        regions = b.input("regions", (b.batch, self.regions, 4))
        x = ops.roi_align(b, "boxes.align", levels, regions, 7)
        x = ops.relu(b, "boxes.relu6", ops.linear(b, "boxes.fc6", x, self.box_width, flatten=True))
        x = ops.relu(b, "boxes.relu7", ops.linear(b, "boxes.fc7", x, self.box_width))
        classes = ops.linear(b, "boxes.classes", x, self.classes)
        where = ops.linear(b, "boxes.where", x, 4 * self.classes)
        labels = b.input("region-labels", (b.batch * self.regions,), "int64")
        targets = b.input("region-boxes", b.shape(where))
        return (
            ops.cross_entropy(b, "boxes.classes-loss", classes, labels),
            ops.smooth_l1(b, "boxes.where-loss", where, targets),
        )

    def _masks(self, b: GraphBuilder, levels: list[str]) -> str:
        """Write the mask head and return the loss of the masks of each region's own class."""
        regions = b.input("mask-regions", (b.batch, self.masks, 4))
        x = ops.roi_align(b, "masks.align", levels, regions, 14)
        for i in range(1, 5):
            x = ops.conv2d(b, f"masks.conv{i}", x, self.pyramid, 3, padding=1)
            x = ops.relu(b, f"masks.relu{i}", x)
        x = ops.conv_transpose2d(b, "masks.conv5", x, self.pyramid, 2, stride=2)
        x = ops.conv2d(b, "masks.classes", ops.relu(b, "masks.relu5", x), self.classes, 1)
        x = ops.cut(b, "masks.own-class", x, axis=1)
        return ops.binary_cross_entropy(b, "masks.loss", x, b.input("masks", b.shape(x)))
