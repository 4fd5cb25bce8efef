"""Wide and deep networks: a linear model of all features beside a network of their embeddings.

Cheng et al., Wide & deep learning for recommender systems, DLRS 2016, arXiv:1606.07792.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from ridgeline.config import Strict
from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Network, Probability, family
from ridgeline.workload.families.blocks import dropout


class CategoricalTable(Strict):
    """A categorical feature."""

    rows: Annotated[int, Field(ge=1, le=2**40)]
    """Values that it can have."""
    features: Channels
    """Of the vector that the deep part looks up."""


@family("wide-and-deep", network_kind="recommender")
class WideAndDeep(Network):
    """Embeddings and numbers, a multilayer perceptron, and one weight a value beside it."""

    sample: ClassVar[str] = "samples"

    tables: Annotated[
        tuple[CategoricalTable, ...], Field(strict=False, min_length=1, max_length=1000)
    ]
    """Categorical features."""
    numbers: Channels
    """Numerical features."""
    widths: Annotated[tuple[Channels, ...], Field(strict=False, min_length=1, max_length=100)]
    """Features of the hidden layers."""
    dropout: Probability = 0.0
    """After each of them."""
    sparse: bool = True
    """Whether the tables' gradients are sparse."""

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        numbers = b.input("numbers", (b.batch, self.numbers))
        deep, wide = [numbers], list[str]()
        for i, table in enumerate(self.tables):
            values = b.input(f"values{i}", (b.batch,), "int64")
            for part, width, found in (("deep", table.features, deep), ("wide", 1, wide)):
                weight = b.weight(f"{part}{i}.weight", (table.rows, width))
                found.append(ops.embedding(b, f"{part}{i}", values, weight, sparse=self.sparse))
        x = ops.concat(b, "deep", deep)
        for i, width in enumerate(self.widths):
            x = ops.relu(b, f"relu{i}", ops.linear(b, f"fc{i}", x, width))
            x = dropout(b, f"dropout{i}", x, self.dropout)
        x = ops.linear(b, "head", x, 1)
        y = ops.linear(b, "wide-numbers", numbers, 1, bias=True)
        terms = ops.concat(b, "wide", [*wide, y, x])
        (logits,) = ops.function(b, "sum", "sum", (terms,), (b.batch, 1))
        return ops.binary_cross_entropy(b, "loss", logits, b.input("clicks", (b.batch, 1)))
