"""Diffusion transformers: noise of images is predicted from their patches.

Peebles and Xie, Scalable diffusion models with transformers, ICCV 2023, arXiv:2212.09748, Section
3.2, in the form of the authors' program: blocks whose norms are modulated by time and class, fixed
positions, a classifier-free class. The loss is that of the noise: what the variances add to it is
left out, as is the frozen encoder of images.
"""

from __future__ import annotations

from typing import ClassVar

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Image, Network, family
from ridgeline.workload.families.blocks import Attention, FeedForward
from ridgeline.workload.families.decoder import Layers
from ridgeline.workload.families.modulation import embedded, gated, modulated, vectors

_WAVES = 256  # features of the time's sines and cosines


@family("diffusion-transformer", network_kind="diffusion")
class DiT(Network):
    """A stack of modulated transformer blocks over the patches of latent images."""

    sample: ClassVar[str] = "images"

    image: Image
    """Latent images: what a frozen encoder has made of pixels."""
    classes: Channels
    patch: Channels = 2
    """Height and width of a patch."""
    layers: Layers
    hidden: Channels
    attention: Attention
    feed_forward: FeedForward
    variance: bool = True
    """Whether it predicts a variance beside the noise."""

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        images, labels = self.image.inputs(b)
        x = ops.conv2d(b, "patches", images, self.hidden, self.patch, stride=self.patch)
        n, features, h, w = b.shape(x)
        x = ops.function(b, "patches.last", "rearrange", (x,), (n, h * w, features))[0]
        x = ops.position_embedding(b, "positions", x, b.buffer("waves", (h * w, features)))
        condition = self._condition(b, labels)
        for i in range(self.layers):
            x = self._block(b, f"blocks.{i}", x, condition)
        shift, scale = vectors(b, "head", condition, 2, features)
        x = modulated(b, "head", x, shift, scale)
        channels = (1 + self.variance) * self.image.channels
        x = ops.linear(b, "head", x, channels * self.patch**2)
        targets = b.input("noise", b.shape(x))
        return ops.mean_squared_error(b, "loss", x, targets)

    def _condition(self, b: GraphBuilder, labels: str) -> str:
        """Add time and class up."""
        time = b.input("time", (b.batch, 1, _WAVES))
        time = embedded(b, "time", time, self.hidden)
        table = b.weight("classes.weight", (self.classes + 1, self.hidden))
        kind = ops.embedding(b, "classes", labels, table)
        kind = ops.function(b, "classes.row", "rearrange", (kind,), b.shape(time))[0]
        both = ops.add(b, "condition", time, b.cast(kind, b.format(time), "condition"))
        return ops.activation(b, "condition.silu", both, "silu")

    def _block(self, b: GraphBuilder, name: str, x: str, condition: str) -> str:
        parts = vectors(b, name, condition, 6, self.hidden)
        y = modulated(b, f"{name}.attention", x, parts[0], parts[1])
        y = self.attention.build(b, f"{name}.attention", y, causal=False)
        x = gated(b, f"{name}.attention", x, y, parts[2])
        y = modulated(b, f"{name}.feed-forward", x, parts[3], parts[4])
        y = self.feed_forward.build(b, f"{name}.feed-forward", y)
        return gated(b, f"{name}.feed-forward", x, y, parts[5])
