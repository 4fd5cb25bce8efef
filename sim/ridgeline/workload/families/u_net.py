"""U-Nets with padded convolutions on images and volumes: 3D U-Net, nnU-Net.

Ronneberger, Fischer and Brox, U-Net, MICCAI 2015, arXiv:1505.04597; Çiçek et al., 3D U-Net, MICCAI
2016, arXiv:1606.06650; Isensee et al., nnU-Net, Nature Methods 18, 2021, arXiv:1809.10486. The
first U-Net, whose convolutions are not padded, is a chain of layers (`sequential`). The loss is
cross entropy: what Dice losses add is left out.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Extent, Network, family

_Level = Annotated[tuple[Channels, ...], Field(strict=False, min_length=1, max_length=16)]


@family("u-net", network_kind="cnn")
class UNet(Network):
    """A contracting path, and an expanding one that reads what the first has made at each size."""

    sample: ClassVar[str] = "images"

    size: Annotated[tuple[Extent, ...], Field(strict=False, min_length=2, max_length=3)]
    """Height and width of an image, or depth, height and width of a volume."""
    channels: Channels
    """Channels of the input."""
    classes: Channels
    """Classes of a pixel."""
    levels: Annotated[tuple[_Level, ...], Field(strict=False, min_length=2, max_length=12)]
    """Filters of the convolutions of each level of the contracting path, finest first; those of the
    expanding path all have as many as the last one."""
    down: Literal["pool", "stride"] = "stride"
    """Maxima of 2 x 2 pixels, or a stride of the level's first convolution."""
    up: Literal["keep", "reduce"] = "reduce"
    """Whether a transposed convolution keeps the channels or has those of the level it goes to."""
    norm: Literal["batch", "instance"] = "instance"
    activation: Literal["relu", "leaky-relu"] = "leaky-relu"
    bias: bool = False
    """Whether the convolutions before norms add biases; transposed ones have none."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        parts = 2 ** (len(self.levels) - 1)
        if any(size % parts for size in self.size):
            raise ValueError(f"{len(self.levels)} levels need sizes that are multiples of {parts}")
        return self

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        x = b.input("images", (b.batch, self.channels, *self.size))
        masks = b.input("masks", (b.batch, *self.size), "int64")
        made: list[str] = []
        for i, filters in enumerate(self.levels, start=1):
            if i > 1 and self.down == "pool":
                x = ops.pool_volume(b, f"down{i}.pool", x, 2)
            for j, channels in enumerate(filters, start=1):
                stride = 2 if (i > 1 and j == 1 and self.down == "stride") else 1
                x = self._conv(b, f"down{i}.{j}", x, channels, stride)
            made.append(x)
        for i in range(len(self.levels) - 1, 0, -1):
            filters, beside = self.levels[i - 1], made[i - 1]
            channels = filters[-1] if self.up == "reduce" else b.shape(x)[1]
            x = ops.conv_transpose(b, f"up{i}", x, channels, 2, bias=False)
            x = ops.concat(b, f"up{i}.concat", [x, beside])
            for j in range(1, len(filters) + 1):
                x = self._conv(b, f"up{i}.{j}", x, filters[-1])
        x = ops.conv(b, "classes", x, self.classes, 1)
        return ops.cross_entropy(b, "loss", x, masks, axis=1)

    def _conv(self, b: GraphBuilder, name: str, x: str, filters: int, stride: int = 1) -> str:
        x = ops.conv(b, f"{name}.conv", x, filters, 3, stride=stride, bias=self.bias)
        if self.norm == "batch":
            x = ops.batch_norm(b, f"{name}.norm", x)
        else:
            x = ops.group_norm(b, f"{name}.norm", x, filters)
        if self.activation == "relu":
            return ops.relu(b, f"{name}.relu", x)
        (y,) = ops.function(b, f"{name}.leaky-relu", "leaky-relu", (x,), b.shape(x))
        return y
