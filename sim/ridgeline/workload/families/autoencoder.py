"""Autoencoders of what users like: a row of all items in, a row of all items out.

Liang et al., Variational autoencoders for collaborative filtering, WWW 2018, arXiv:1802.05814: tanh
layers down to a few features, of which a variational one forms means and variances and draws, and
up again; multinomial likelihood.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Network, Probability, family
from ridgeline.workload.families.blocks import dropout


@family("autoencoder")
class Autoencoder(Network):
    """Linear layers to a few features and back."""

    sample: ClassVar[str] = "users"

    items: Channels
    """Items of a row."""
    widths: Annotated[tuple[Channels, ...], Field(strict=False, min_length=1, max_length=100)]
    """Features of the layers down; those up are the same backwards."""
    variational: bool = False
    """Whether the last of them are drawn, around means with variances that the network says."""
    dropout: Probability = 0.5
    """Of the input."""

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        x = b.input("likes", (b.batch, self.items))
        targets = b.input("targets", (b.batch, self.items))
        x = dropout(b, "dropout", x, self.dropout)
        *outer, inner = self.widths
        for i, width in enumerate(outer, start=1):
            x = ops.activation(b, f"down{i}.tanh", ops.linear(b, f"down{i}", x, width), "tanh")
        x = self._inner(b, x, inner)
        for i, width in enumerate(reversed(outer), start=1):
            x = ops.activation(b, f"up{i}.tanh", ops.linear(b, f"up{i}", x, width), "tanh")
        x = ops.linear(b, "items", x, self.items)
        (x,) = ops.function(b, "log-softmax", "log-softmax", (x,), b.shape(x))
        return ops.binary_cross_entropy(b, "loss", x, targets)

    def _inner(self, b: GraphBuilder, x: str, width: int) -> str:
        if not self.variational:
            return ops.activation(b, "inner.tanh", ops.linear(b, "inner", x, width), "tanh")
        mean, spread = ops.fused_linear(b, "inner", x, (width, width))
        noise = b.cast(b.input("noise", b.shape(mean)), b.format(mean), "noise")
        (spread,) = ops.function(b, "inner.exp", "exp", (spread,), b.shape(spread))
        spread = ops.multiply(b, "inner.draw", spread, noise)
        return ops.add(b, "inner.add", mean, spread)
