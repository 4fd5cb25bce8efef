"""Deep learning recommendation model: dense features and rows of large tables.

Naumov et al., 2019, arXiv:1906.00091: a network for the dense features, a row for each category,
the dot products of all their pairs, and a network that tells how likely a click is. Every sample
looks up one row of each table, or the sum of several; the tables' gradients are sparse. DLRM-DCNv2
crosses the vectors instead (Wang et al., DCN V2, WWW 2021, arXiv:2008.13535, Section 3.2 and 3.5):
x0 (U V x + b) + x with matrices of low rank.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from ridgeline.config import Strict
from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Network, family

Widths = Annotated[tuple[Channels, ...], Field(strict=False, min_length=1, max_length=1000)]
Rows = Annotated[int, Field(ge=1, le=2**40)]


class Cross(Strict):
    """Layers that multiply what they are given by what all of them have been given."""

    layers: Annotated[int, Field(ge=1, le=1000)]
    rank: Channels
    """Features between the two matrices of a layer."""

    def build(self, b: GraphBuilder, x: str) -> str:
        """Write the layers."""
        first, features = x, b.shape(x)[1]
        for i in range(1, self.layers + 1):
            y = ops.linear(b, f"cross{i}.down", x, self.rank, bias=False)
            y = ops.linear(b, f"cross{i}.up", y, features)
            x = ops.add(b, f"cross{i}.add", ops.multiply(b, f"cross{i}.multiply", first, y), x)
        return x


@family("dlrm", network_kind="recommender")
class Dlrm(Network):
    """Two networks, tables and the dot products between them."""

    sample: ClassVar[str] = "samples"

    dense: Channels
    """Dense features of a sample."""
    bottom: Widths
    """Outputs of the layers for the dense features; the last is the width of a row."""
    tables: Annotated[tuple[Rows, ...], Field(strict=False, min_length=1, max_length=10_000)]
    """Rows of each table."""
    lookups: Annotated[tuple[Channels, ...], Field(strict=False)] = ()
    """Rows of each table that a sample looks up and adds up; by default one of each."""
    cross: Cross | None = None
    """What the vectors pass instead of the dot products of their pairs."""
    top: Widths
    """Outputs of the layers after that; the last is 1."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.top[-1] != 1:
            raise ValueError(f"the last layer must have one output, not {self.top[-1]}")
        if self.lookups and len(self.lookups) != len(self.tables):
            raise ValueError(f"{len(self.lookups)} lookups for {len(self.tables)} tables")
        return self

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        x = b.input("dense-features", (b.batch, self.dense))
        for i, width in enumerate(self.bottom, start=1):
            x = ops.relu(b, f"bottom-relu{i}", ops.linear(b, f"bottom{i}", x, width))
        vectors = [x]
        for i, rows in enumerate(self.tables, start=1):
            several = self.lookups[i - 1] if self.lookups else 1
            shape = (b.batch, several) if several > 1 else (b.batch,)
            indices = b.input(f"indices{i}", shape, "int64")
            table = b.weight(f"table{i}.weight", (rows, self.bottom[-1]))
            vectors.append(
                ops.embedding(b, f"table{i}", indices, table, sparse=True, pooled=several > 1)
            )
        together = ops.concat(b, "vectors", vectors)
        if self.cross is not None:
            y = self.cross.build(b, together)
        else:
            pairs = ops.dot_interaction(b, "pairs", together, len(vectors))
            y = ops.concat(b, "features", [x, pairs])
        for i, width in enumerate(self.top, start=1):
            y = ops.linear(b, f"top{i}", y, width)
            if i < len(self.top):
                y = ops.relu(b, f"top-relu{i}", y)
        targets = b.input("clicks", (b.batch, 1))
        return ops.binary_cross_entropy(b, "loss", y, targets)
