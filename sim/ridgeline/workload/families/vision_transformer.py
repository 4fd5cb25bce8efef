"""Vision transformers.

Dosovitskiy et al., An image is worth 16x16 words, ICLR 2021, arXiv:2010.11929: pre-norm, gelu,
learned positions; the classifier reads a trained token that stands before the patches.
"""

from __future__ import annotations

from typing import ClassVar

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Image, Network, Probability, family
from ridgeline.workload.families.blocks import Attention, FeedForward, ResidualBranch, dropout
from ridgeline.workload.families.decoder import Layers


@family("vision-transformer", network_kind="transformer")
class VisionTransformer(Network):
    """A stack of transformer blocks over the patches of images."""

    sample: ClassVar[str] = "images"

    image: Image
    classes: Channels
    patch: Channels
    """Height and width of a patch."""
    layers: Layers
    hidden: Channels
    attention: Attention
    feed_forward: FeedForward
    dropout: Probability = 0.0
    """Of the embedding and of every residual branch."""

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        images, labels = self.image.inputs(b)
        x = ops.conv2d(b, "patches", images, self.hidden, self.patch, stride=self.patch)
        x = ops.class_token(b, "class-token", x)
        where = b.weight("positions.weight", b.shape(x)[1:])
        x = ops.position_embedding(b, "positions", x, where)
        x = dropout(b, "embedding-dropout", x, self.dropout)
        residual = ResidualBranch("layer-norm", first=True, dropout=self.dropout)
        for i in range(self.layers):
            name = f"blocks.{i}"
            y = residual.enter(b, f"{name}.norm1", x)
            y = self.attention.build(b, f"{name}.attention", y, causal=False)
            x = residual.leave(b, f"{name}.attention", f"{name}.norm1", y, x)
            y = residual.enter(b, f"{name}.norm2", x)
            y = self.feed_forward.build(b, f"{name}.feed-forward", y)
            x = residual.leave(b, f"{name}.feed-forward", f"{name}.norm2", y, x)
        x = ops.cut(b, "first", ops.layer_norm(b, "norm", x), axis=1)
        logits = ops.linear(b, "head", x, self.classes, flatten=True)
        return ops.cross_entropy(b, "loss", logits, labels)
