"""Chains of layers on images, with branches: VGG, AlexNet, GoogLeNet, DenseNet, U-Net, ..."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import MAX_LAYERS, Image, Network, family
from ridgeline.workload.families.layers import AnyLayer
from ridgeline.workload.families.simple_layers import Chain
from ridgeline.workload.ops.window import image


@family("sequential", network_kind="cnn")
class Sequential(Network):
    """Layers applied one after the other to images, and a softmax classifier of each or its pixels.

    Auxiliary classifiers add their losses.
    """

    sample: ClassVar[str] = "images"

    image: Image
    """The images."""
    layers: Annotated[
        tuple[AnyLayer, ...], Field(strict=False, min_length=1, max_length=MAX_LAYERS)
    ]
    """The layers; the last one's features are the classes."""
    segments: bool = False
    """Whether every pixel of the last layer is classified, rather than the image."""

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        images = self.image.images(b)
        if self.segments:
            x = Chain(b).run(self.layers, images)
            n, _, h, w = image("loss", b.shape(x))
            return ops.cross_entropy(b, "loss", x, b.input("masks", (n, h, w), "int64"), axis=1)
        chain = Chain(b, b.input("labels", (b.batch,), "int64"))
        loss = ops.cross_entropy(b, "loss", chain.run(self.layers, images), chain.labels)
        for i, other in enumerate(chain.losses, start=1):
            loss = ops.add(b, f"loss-sum{i}", loss, other)
        return loss
