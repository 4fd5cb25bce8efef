"""Swin transformers: attention in windows of images, which every other block shifts.

Liu et al., Swin transformer, ICCV 2021, arXiv:2103.14030, Section 3, in torchvision's layout:
pre-norm, gelu, a trained bias for each pair of places in a window; stages that merge pixels by
fours. Left out: stochastic depth, and padding of images that windows do not divide.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Image, Network, family
from ridgeline.workload.families.blocks import Attention, FeedForward, Positions
from ridgeline.workload.families.decoder import Layers

_OF_STAGES = {"strict": False, "min_length": 1, "max_length": 8}


@family("swin", network_kind="transformer")
class Swin(Network):
    """Stages of transformer blocks, each on a quarter of the patches with twice the features."""

    sample: ClassVar[str] = "images"

    image: Image
    classes: Channels
    patch: Channels = 4
    """Height and width of a patch."""
    depths: Annotated[tuple[Layers, ...], Field(**_OF_STAGES)]
    """Blocks of each stage."""
    heads: Annotated[tuple[Channels, ...], Field(**_OF_STAGES)]
    """Heads of each stage."""
    width: Channels
    """Features of the first stage."""
    window: Channels = 7
    """Patches along each side of a window."""
    expansion: Channels = 4
    """Features between the layers of a feed-forward network, over those of its input."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.heads) != len(self.depths):
            raise ValueError(f"heads of {len(self.heads)} stages, depths of {len(self.depths)}")
        parts = self.patch * self.window << (len(self.depths) - 1)
        if self.image.height % parts or self.image.width % parts:
            raise ValueError(f"windows need an image whose sides are multiples of {parts}")
        return self

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        images, labels = self.image.inputs(b)
        x = ops.conv2d(b, "patches", images, self.width, self.patch, stride=self.patch)
        n, features, h, w = b.shape(x)
        x = ops.function(b, "patches.last", "rearrange", (x,), (n, h * w, features))[0]
        x = ops.layer_norm(b, "patches.norm", x)
        for stage, depth in enumerate(self.depths):
            if stage:
                x, h, w = self._merge(b, f"merge{stage}", x, h, w), h // 2, w // 2
            for i in range(depth):
                shifted = i % 2 == 1 and min(h, w) > self.window
                x = self._block(b, f"stage{stage + 1}.{i}", x, (h, w), self.heads[stage], shifted)
        x = ops.layer_norm(b, "norm", x)
        n, _, features = b.shape(x)
        x = ops.function(b, "first", "rearrange", (x,), (n, features, h, w))[0]
        x = ops.adaptive_avg_pool(b, "avgpool", x)
        return ops.cross_entropy(
            b, "loss", ops.linear(b, "head", x, self.classes, flatten=True), labels
        )

    def _block(
        self, b: GraphBuilder, name: str, x: str, size: tuple[int, int], heads: int, shifted: bool
    ) -> str:
        y = ops.layer_norm(b, f"{name}.norm1", x)
        y = self._attention(b, f"{name}.attention", y, size, heads, shifted)
        x = ops.add(b, f"{name}.attention.add", y, x)
        y = ops.layer_norm(b, f"{name}.norm2", x)
        inner = FeedForward(width=self.expansion * b.shape(x)[2], activation="gelu")
        y = inner.build(b, f"{name}.feed-forward", y)
        return ops.add(b, f"{name}.feed-forward.add", y, x)

    def _attention(
        self, b: GraphBuilder, name: str, x: str, size: tuple[int, int], heads: int, shifted: bool
    ) -> str:
        """Attend inside windows, of images that are rolled by half a window where shifted."""
        whole, places = b.shape(x), self.window**2
        windows = whole[0] * size[0] * size[1] // places
        table = b.weight(f"{name}.bias.weight", ((2 * self.window - 1) ** 2, heads))
        mask = b.buffer(f"{name}.mask", (1, 1, places, places)) if shifted else None
        if shifted:
            x = ops.function(b, f"{name}.roll", "rearrange", (x,), whole)[0]
        shape = (windows, places, whole[2])
        x = ops.function(b, f"{name}.windows", "rearrange", (x,), shape)[0]
        where = Positions(table=table, distance=b.shape(table)[0], mask=mask)
        x = Attention(heads=heads).build(b, name, x, causal=False, positions=where)
        x = ops.function(b, f"{name}.image", "rearrange", (x,), whole)[0]
        if shifted:
            x = ops.function(b, f"{name}.roll-back", "rearrange", (x,), whole)[0]
        return x

    @staticmethod
    def _merge(b: GraphBuilder, name: str, x: str, h: int, w: int) -> str:
        """Put four neighbours' features together and halve them."""
        n, _, features = b.shape(x)
        shape = (n, h * w // 4, 4 * features)
        x = ops.function(b, f"{name}.concat", "rearrange", (x,), shape)[0]
        x = ops.layer_norm(b, f"{name}.norm", x)
        return ops.linear(b, f"{name}.reduce", x, 2 * features, bias=False)
