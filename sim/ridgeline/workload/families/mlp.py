"""Multilayer perceptrons."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Network, family
from ridgeline.workload.ops.elementwise import Activation


@family("mlp")
class Mlp(Network):
    """Linear layers with an activation function between them, and a softmax classifier."""

    inputs: Channels
    """Features of a sample."""
    widths: Annotated[tuple[Channels, ...], Field(strict=False, min_length=1, max_length=10_000)]
    """Outputs of each layer; the last is the number of classes."""
    activation: Activation = "relu"
    """Function after every layer but the last."""
    bias: bool = True
    """Whether the layers add a bias."""

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        x = b.input("features", (b.batch, self.inputs))
        labels = b.input("labels", (b.batch,), "int64")
        for i, width in enumerate(self.widths, start=1):
            x = ops.linear(b, f"fc{i}", x, width, bias=self.bias)
            if i < len(self.widths):
                x = ops.activation(b, f"{self.activation}{i}", x, self.activation)
        return ops.cross_entropy(b, "loss", x, labels)
