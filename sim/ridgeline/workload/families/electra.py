"""ELECTRA: a small generator fills in masked tokens, and a discriminator tells which it replaced.

Clark et al., ELECTRA, ICLR 2020, arXiv:2003.10555, Section 2: both are BERTs and share their
embeddings, which are as wide as the discriminator. What the generator fills in is drawn from its
probabilities, on which nothing is trained.
"""

from __future__ import annotations

from typing import ClassVar

from ridgeline.config import Strict
from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Network, Probability, family
from ridgeline.workload.families.bert import stack
from ridgeline.workload.families.blocks import Attention, FeedForward, ResidualBranch, dropout
from ridgeline.workload.families.decoder import Layers, Sequence


class Tower(Strict):
    """Blocks of one of the two networks."""

    layers: Layers
    hidden: Channels
    attention: Attention
    feed_forward: FeedForward


@family("electra", network_kind="transformer")
class Electra(Network):
    """A generator and a discriminator, trained together."""

    sample: ClassVar[str] = "sequences"

    vocabulary: Channels
    sequence: Sequence
    """Tokens of a sequence."""
    masked: Sequence
    """Tokens that are masked."""
    generator: Tower
    discriminator: Tower
    max_positions: Sequence
    segments: Channels = 2
    """Kinds of segments."""
    dropout: Probability = 0.0
    """Of the embeddings and of every residual branch."""

    @property
    def tokens_per_sample(self) -> int:
        """Tokens of a sequence."""
        return self.sequence

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        width = self.discriminator.hidden
        table = b.weight("embedding.weight", (self.vocabulary, width))
        where = b.weight("positions.weight", (self.max_positions, width))
        kinds = b.weight("segments.weight", (self.segments, width))
        x = self._tower(b, "generator", self.generator, (table, where, kinds))
        filled = self._filled_in(b, x, table)
        x = self._tower(b, "discriminator", self.discriminator, (table, where, kinds))
        x = ops.linear(b, "replaced.dense", x, width)
        x = ops.activation(b, "replaced.gelu", x, "gelu")
        x = ops.linear(b, "replaced", x, 1)
        replaced = ops.binary_cross_entropy(b, "replaced-loss", x, b.input("replaced", b.shape(x)))
        return ops.add(b, "loss", filled, replaced)

    def _tower(self, b: GraphBuilder, name: str, tower: Tower, tables: tuple[str, str, str]) -> str:
        table, where, kinds = tables
        tokens = b.input(f"{name}.tokens", (b.batch, self.sequence), "int64")
        segments = b.input(f"{name}.segments", (b.batch, self.sequence), "int64")
        x = ops.embedding(b, f"{name}.embedding", tokens, table)
        y = ops.embedding(b, f"{name}.segments", segments, kinds)
        x = ops.add(b, f"{name}.embedding-add", x, y)
        x = ops.position_embedding(b, f"{name}.positions", x, where)
        x = dropout(b, f"{name}.dropout", ops.layer_norm(b, f"{name}.norm", x), self.dropout)
        if b.shape(x)[2] != tower.hidden:
            x = ops.linear(b, f"{name}.project", x, tower.hidden)
        residual = ResidualBranch("layer-norm", first=False, dropout=self.dropout)
        return stack(b, name, x, tower.layers, tower.attention, tower.feed_forward, residual)

    def _filled_in(self, b: GraphBuilder, x: str, table: str) -> str:
        """Write the head that fills in the masked tokens."""
        where = b.input("masked-positions", (b.batch, self.masked), "int64")
        labels = b.input("masked-labels", (b.batch, self.masked), "int64")
        x = ops.gather(b, "masked.gather", x, where)
        x = ops.linear(b, "masked.transform", x, b.shape(table)[1])
        x = ops.activation(b, "masked.gelu", x, "gelu")
        x = ops.layer_norm(b, "masked.norm", x)
        x = ops.add_bias(b, "masked", ops.product(b, "masked", x, table), axis=-1)
        return ops.cross_entropy(b, "masked-loss", x, labels)
