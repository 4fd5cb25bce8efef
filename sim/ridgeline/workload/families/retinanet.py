"""RetinaNet: a single-shot detector on a feature pyramid.

Lin et al., Focal loss for dense object detection, ICCV 2017, arXiv:1708.02002, Section 4, in
torchvision's layout. The focal loss counts as binary cross entropy over all anchors. Matching them
to the ground truth, on which nothing is trained, is left out unless the description says how many
kernels do it for each image.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Image, Network, family
from ridgeline.workload.families.pyramid import feature_pyramid
from ridgeline.workload.families.resnet import Stages

_EXTRA_LEVELS = 2
_OBJECTS = 100  # to which images are padded in TensorFlow's object detection API


@family("retinanet", network_kind="cnn")
class RetinaNet(Network):
    """A ResNet with a feature pyramid, and two towers of convolutions that all levels share."""

    sample: ClassVar[str] = "images"

    image: Image
    classes: Channels
    """Classes of a box."""
    backbone: Stages
    frozen: bool = True
    """Whether the backbone's norms are fixed by earlier training."""
    pyramid: Channels = 256
    """Channels of the feature pyramid and of the towers."""
    depth: Annotated[int, Field(ge=1, le=100)] = 4
    """Convolutions of a tower before its predictions."""
    tower_norm: bool = False
    """Whether batch norm follows them, for each level its own."""
    anchors: Channels = 9
    """Anchors of a pixel."""
    matching: Annotated[int, Field(ge=0, le=10000)] = 0
    """Kernels that match the anchors of one image to its objects; 0: this is left out."""

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        norm = ops.frozen_batch_norm if self.frozen else ops.batch_norm
        stages = self.backbone.features(b, self.image.images(b), prefix="backbone.", norm=norm)
        levels = feature_pyramid(b, stages[1:], self.pyramid)
        x = levels[-1]
        for i in range(_EXTRA_LEVELS):
            x = ops.relu(b, f"pyramid.relu{i}", x) if i else x
            x = ops.conv2d(b, f"pyramid.extra{i}", x, self.pyramid, 3, stride=2, padding=1)
            levels.append(x)
        classes = self._tower(b, "classes", levels, self.classes)
        boxes = self._tower(b, "boxes", levels, 4)
        labels, targets = self._truth(b, b.shape(classes), b.shape(boxes))
        loss = ops.binary_cross_entropy(b, "classes-loss", classes, labels)
        return ops.add(b, "loss", loss, ops.smooth_l1(b, "boxes-loss", boxes, targets))

    def _truth(
        self, b: GraphBuilder, classes: tuple[int, ...], boxes: tuple[int, ...]
    ) -> tuple[str, str]:
        """Return what classes and boxes should be: as the host has it, or matched on the device."""
        labels = b.input("labels", classes)
        if not self.matching:
            return labels, b.input("targets", boxes)
        objects = b.input("objects", (b.batch, _OBJECTS, 4))
        kernels = (("kernels", self.matching * b.batch),)
        (targets,) = ops.function(b, "matching", "compare", (objects,), boxes, attrs=kernels)
        return labels, targets

    def _tower(self, b: GraphBuilder, name: str, levels: list[str], features: int) -> str:
        """Write one tower on every level, and put what it makes of their anchors together."""
        made = []
        for i, level in enumerate(levels):
            x = level
            for j in range(self.depth):
                x = self._shared(b, f"{name}.conv{j}", i, x, self.pyramid)
                if self.tower_norm:
                    x = ops.batch_norm(b, f"{name}.norm{j}-{i}", x)
                x = ops.relu(b, f"{name}.relu{j}-{i}", x)
            made.append(self._shared(b, f"{name}.out", i, x, self.anchors * features))
        return ops.concat(b, name, made, features=features)

    @staticmethod
    def _shared(b: GraphBuilder, name: str, level: int, x: str, filters: int) -> str:
        first = f"{name}-0" if level else None
        return ops.conv2d(b, f"{name}-{level}", x, filters, 3, padding=1, weights_of=first)
