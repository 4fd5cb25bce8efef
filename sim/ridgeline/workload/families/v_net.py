"""V-Net: a U-Net on volumes whose levels are residual blocks.

Milletari, Navab and Ahmadi, V-Net: fully convolutional neural networks for volumetric medical image
segmentation, 3DV 2016, arXiv:1606.04797, in the form of NVIDIA DeepLearningExamples
(TensorFlow/Segmentation/VNet): padded convolutions with batch norm and relu. The loss is cross
entropy: what Dice losses add is left out.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Extent, Network, family

_Depths = Annotated[
    tuple[Annotated[int, Field(ge=1, le=100)], ...], Field(strict=False, min_length=1, max_length=8)
]


@family("v-net", network_kind="cnn")
class VNet(Network):
    """Convolutions that halve the volume and double its channels, and back, with blocks between."""

    sample: ClassVar[str] = "images"

    size: Annotated[tuple[Extent, ...], Field(strict=False, min_length=2, max_length=3)]
    """Height and width of an image, or depth, height and width of a volume."""
    channels: Channels = 1
    """Channels of the input."""
    classes: Channels
    """Classes of a voxel."""
    filters: Channels = 16
    """Channels of the finest level."""
    kernel: Annotated[int, Field(ge=1, le=15)] = 5
    """Taps of a filter along each axis."""
    down: _Depths
    """Convolutions of the block of each coarser level, on the way down."""
    up: Annotated[tuple[Annotated[int, Field(ge=1, le=100)], ...], Field(strict=False)]
    """The same on the way up; the finest level has no block there."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.up) != len(self.down) - 1:
            raise ValueError(f"up needs {len(self.down) - 1} depths, one fewer than down")
        parts = 2 ** len(self.down)
        if any(size % parts for size in self.size):
            raise ValueError(f"{len(self.down)} levels need sizes that are multiples of {parts}")
        return self

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        images = b.input("images", (b.batch, self.channels, *self.size))
        masks = b.input("masks", (b.batch, *self.size), "int64")
        x = self._conv(b, "input", images, self.filters)
        (x,) = ops.function(b, "input.add", "broadcast-add", (x, images), b.shape(x))
        made = [x]
        for i, depth in enumerate(self.down, start=1):
            x = ops.conv(b, f"down{i}", x, 2 * b.shape(x)[1], 2, stride=2)
            x = self._activated(b, f"down{i}", x)
            x = self._block(b, f"down{i}.block", x, depth)
            made.append(x)
        made.pop()
        for i, depth in zip(range(len(self.down) - 1, 0, -1), self.up, strict=True):
            x = self._enlarged(b, f"up{i}", x, b.shape(made[-1])[1])
            x = ops.concat(b, f"up{i}.concat", [x, made.pop()])
            x = self._block(b, f"up{i}.block", x, depth)
        x = self._enlarged(b, "up0", x, self.filters)
        x = ops.conv(b, "classes", x, self.classes, self.kernel)
        return ops.cross_entropy(b, "loss", x, masks, axis=1)

    def _block(self, b: GraphBuilder, name: str, x: str, depth: int) -> str:
        y = x
        for i in range(depth):
            y = self._conv(b, f"{name}.{i}", y, b.shape(x)[1])
        return ops.add(b, f"{name}.add", y, x)

    def _conv(self, b: GraphBuilder, name: str, x: str, filters: int) -> str:
        return self._activated(b, name, ops.conv(b, f"{name}.conv", x, filters, self.kernel))

    def _enlarged(self, b: GraphBuilder, name: str, x: str, filters: int) -> str:
        return self._activated(b, name, ops.conv_transpose(b, f"{name}.conv", x, filters, 2))

    @staticmethod
    def _activated(b: GraphBuilder, name: str, x: str) -> str:
        return ops.relu(b, f"{name}.relu", ops.batch_norm(b, f"{name}.norm", x))
