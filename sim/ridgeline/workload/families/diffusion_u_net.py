"""U-Nets that predict the noise of latent images, conditioned on time and text.

Rombach et al., High-resolution image synthesis with latent diffusion models, CVPR 2022,
arXiv:2112.10752, Section 3 and Appendix E.2.1 (Stable Diffusion): residual blocks to which the time
is added, and transformer blocks that attend to the pixels and to the text. The frozen encoders of
images and text are left out.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Image, Network, family
from ridgeline.workload.families.blocks import Attention, FeedForward
from ridgeline.workload.families.decoder import Sequence

_GROUPS = 32  # of group norms
_OF_TIME = 4  # features of the time over those of the finest level

_PerLevel = Annotated[tuple[Channels, ...], Field(strict=False, min_length=1, max_length=8)]


@family("diffusion-u-net", network_kind="diffusion")
class DiffusionUNet(Network):
    """A contracting path, a middle and an expanding path, which reads what the first has made."""

    sample: ClassVar[str] = "images"

    image: Image
    """Latent images: what a frozen encoder has made of pixels."""
    width: Channels
    """Channels of the finest level."""
    levels: _PerLevel
    """Channels of each level over those of the finest."""
    blocks: Channels = 2
    """Residual blocks of a level on the way down; on the way up there is one more."""
    attends: Annotated[tuple[bool, ...], Field(strict=False)]
    """Whether the blocks of each level are followed by attention."""
    attention: Attention
    """Its heads are those of the finest level, or of all, as `head_size` says."""
    text: Sequence
    """Tokens of a text."""
    text_features: Channels
    """Of such a token."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.attends) != len(self.levels):
            raise ValueError(f"{len(self.levels)} levels, attends says {len(self.attends)}")
        parts = 2 ** (len(self.levels) - 1)
        if self.image.height % parts or self.image.width % parts:
            raise ValueError(f"{len(self.levels)} levels need sides that are multiples of {parts}")
        return self

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        images = self.image.images(b)
        text = b.input("text", (b.batch, self.text, self.text_features))
        time = self._time(b)
        x = ops.conv2d(b, "in", images, self.width, 3, padding=1)
        made = [x]
        for level, times in enumerate(self.levels, start=1):
            if level > 1:
                x = ops.conv2d(b, f"down{level}", x, b.shape(x)[1], 3, stride=2, padding=1)
                made.append(x)
            for i in range(self.blocks):
                name = f"down{level}.{i}"
                x = self._block(b, name, x, time, times, text if self.attends[level - 1] else "")
                made.append(x)
        x = self._block(b, "middle.0", x, time, self.levels[-1], text)
        x = self._block(b, "middle.1", x, time, self.levels[-1], "")
        for level in range(len(self.levels), 0, -1):
            for i in range(self.blocks + 1):
                name, times = f"up{level}.{i}", self.levels[level - 1]
                x = ops.concat(b, f"{name}.concat", [x, made.pop()])
                x = self._block(b, name, x, time, times, text if self.attends[level - 1] else "")
            if level > 1:
                _, channels, h, w = b.shape(x)
                x = ops.upsample(b, f"up{level}.enlarge", x, (2 * h, 2 * w), "nearest")
                x = ops.conv2d(b, f"up{level}.conv", x, channels, 3, padding=1)
        x = self._activated(b, "out", x)
        x = ops.conv2d(b, "out.conv", x, self.image.channels, 3, padding=1)
        return ops.mean_squared_error(b, "loss", x, b.input("noise", b.shape(x)))

    def _time(self, b: GraphBuilder) -> str:
        """Make the condition of sines and cosines of the time, as an image of one pixel."""
        x = b.input("time", (b.batch, self.width, 1, 1))
        x = ops.conv2d(b, "time.1", x, _OF_TIME * self.width, 1)
        x = ops.conv2d(
            b, "time.2", ops.activation(b, "time.silu1", x, "silu"), _OF_TIME * self.width, 1
        )
        return ops.activation(b, "time.silu2", x, "silu")

    @staticmethod
    def _activated(b: GraphBuilder, name: str, x: str) -> str:
        x = ops.group_norm(b, f"{name}.norm", x, min(_GROUPS, b.shape(x)[1]))
        return ops.activation(b, f"{name}.silu", x, "silu")

    def _block(self, b: GraphBuilder, name: str, x: str, time: str, times: int, text: str) -> str:
        """Write a residual block and, of a level that reads the text, attention."""
        filters = times * self.width
        y = ops.conv2d(
            b, f"{name}.conv1", self._activated(b, f"{name}.1", x), filters, 3, padding=1
        )
        shift = ops.conv2d(b, f"{name}.time", time, filters, 1)
        y = ops.function(b, f"{name}.shift", "broadcast-add", (y, shift), b.shape(y))[0]
        y = ops.conv2d(
            b, f"{name}.conv2", self._activated(b, f"{name}.2", y), filters, 3, padding=1
        )
        if b.shape(x)[1] != filters:
            x = ops.conv2d(b, f"{name}.shortcut", x, filters, 1)
        x = ops.add(b, f"{name}.add", y, x)
        return self._attended(b, f"{name}.attention", x, text) if text else x

    def _attended(self, b: GraphBuilder, name: str, x: str, text: str) -> str:
        """Attend to the pixels, to the text, and add what comes of it to the image."""
        n, features, h, w = b.shape(x)
        y = ops.group_norm(b, f"{name}.norm", x, min(_GROUPS, features))
        y = ops.conv2d(b, f"{name}.in", y, features, 1)
        y = ops.function(b, f"{name}.rows", "rearrange", (y,), (n, h * w, features))[0]
        attention = self.attention
        if size := attention.head_size:
            attention = attention.model_copy(update={"heads": features // size})
        for i, memory in enumerate((None, text), start=1):
            z = ops.layer_norm(b, f"{name}.norm{i}", y)
            z = attention.build(b, f"{name}.{i}", z, causal=False, memory=memory)
            y = ops.add(b, f"{name}.add{i}", z, y)
        z = ops.layer_norm(b, f"{name}.norm3", y)
        inner = FeedForward(width=4 * features, activation="geglu")
        y = ops.add(b, f"{name}.add3", inner.build(b, f"{name}.feed-forward", z), y)
        y = ops.function(b, f"{name}.image", "rearrange", (y,), b.shape(x))[0]
        return ops.add(b, f"{name}.add", ops.conv2d(b, f"{name}.out", y, features, 1), x)
