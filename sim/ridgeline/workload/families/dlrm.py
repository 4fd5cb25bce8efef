"""Deep learning recommendation model: dense features and rows of large tables.

Naumov et al., 2019, arXiv:1906.00091: a network for the dense features, a row for each category,
the dot products of all their pairs, and a network that tells how likely a click is. Every sample
looks up one row of each table; the tables' gradients are sparse.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Network

Widths = Annotated[tuple[Channels, ...], Field(strict=False, min_length=1, max_length=1000)]
Rows = Annotated[int, Field(ge=1, le=2**40)]


class Dlrm(Network):
    """Two networks, tables and the dot products between them."""

    sample: ClassVar[str] = "samples"

    family: Literal["dlrm"]
    dense: Channels
    """Dense features of a sample."""
    bottom: Widths
    """Outputs of the layers for the dense features; the last is the width of a row."""
    tables: Annotated[tuple[Rows, ...], Field(strict=False, min_length=1, max_length=10_000)]
    """Rows of each table."""
    top: Widths
    """Outputs of the layers after the dot products; the last is 1."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.top[-1] != 1:
            raise ValueError(f"the last layer must have one output, not {self.top[-1]}")
        return self

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        x = b.input("dense-features", (b.batch, self.dense))
        for i, width in enumerate(self.bottom, start=1):
            x = ops.relu(b, f"bottom-relu{i}", ops.linear(b, f"bottom{i}", x, width))
        vectors = [x]
        for i, rows in enumerate(self.tables, start=1):
            indices = b.input(f"indices{i}", (b.batch,), "int64")
            table = b.weight(f"table{i}.weight", (rows, self.bottom[-1]))
            vectors.append(ops.embedding(b, f"table{i}", indices, table, sparse=True))
        together = ops.concat(b, "vectors", vectors)
        pairs = ops.dot_interaction(b, "pairs", together, len(vectors))
        y = ops.concat(b, "features", [x, pairs])
        for i, width in enumerate(self.top, start=1):
            y = ops.linear(b, f"top{i}", y, width)
            if i < len(self.top):
                y = ops.relu(b, f"top-relu{i}", y)
        targets = b.input("clicks", (b.batch, 1))
        return ops.binary_cross_entropy(b, "loss", y, targets)
