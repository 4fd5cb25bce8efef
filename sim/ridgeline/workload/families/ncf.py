"""Neural collaborative filtering: which user likes which item.

He et al., WWW 2017, arXiv:1708.05031, Section 3.4 (NeuMF): the products of two vectors beside a
network on two others.
"""

from __future__ import annotations

from typing import ClassVar

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Network, family
from ridgeline.workload.families.dlrm import Rows, Widths


@family("ncf", network_kind="recommender")
class Ncf(Network):
    """Matrix factorisation and a multilayer perceptron side by side."""

    sample: ClassVar[str] = "samples"

    users: Rows
    items: Rows
    factors: Channels
    """Features of the vectors that are multiplied."""
    widths: Widths
    """Input of the network, half of it from the user, and the outputs of its layers."""
    sparse: bool = False
    """Whether the tables' gradients are sparse."""

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        half = self.widths[0] // 2
        factors = [self._row(b, side, "factors", self.factors) for side in ("user", "item")]
        inputs = [self._row(b, side, "network", half) for side in ("user", "item")]
        x = ops.concat(b, "network.inputs", inputs)
        for i, width in enumerate(self.widths[1:], start=1):
            x = ops.relu(b, f"network.relu{i}", ops.linear(b, f"network.fc{i}", x, width))
        products = ops.multiply(b, "factors.multiply", *factors)
        x = ops.linear(b, "head", ops.concat(b, "head.inputs", [products, x]), 1)
        return ops.binary_cross_entropy(b, "loss", x, b.input("likes", (b.batch, 1)))

    def _row(self, b: GraphBuilder, side: str, part: str, width: int) -> str:
        name = f"{side}s"
        if name not in b.tensors:
            b.input(name, (b.batch,), "int64")
        rows = self.users if side == "user" else self.items
        table = b.weight(f"{part}.{side}.weight", (rows, width))
        return ops.embedding(b, f"{part}.{side}", name, table, sparse=self.sparse)
