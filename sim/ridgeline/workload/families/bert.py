"""BERT: a bidirectional transformer encoder that fills in masked tokens.

Devlin et al., BERT, NAACL 2019, arXiv:1810.04805: post-norm, gelu, learned positions; its two
heads tell whether two segments follow each other, and which tokens were masked. As in the paper's
code, only the masked positions reach the second head.
"""

from __future__ import annotations

from typing import ClassVar

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Network, Probability, family
from ridgeline.workload.families.blocks import Attention, FeedForward, ResidualBranch, dropout
from ridgeline.workload.families.decoder import Layers, Sequence


def stack(
    b: GraphBuilder,
    prefix: str,
    x: str,
    layers: int,
    attention: Attention,
    feed_forward: FeedForward,
    residual: ResidualBranch,
) -> str:
    """Write blocks of attention in both directions and a feed-forward network."""
    for i in range(layers):
        name = f"{prefix}.{i}"
        y = attention.build(
            b, f"{name}.attention", residual.enter(b, f"{name}.norm1", x), causal=False
        )
        x = residual.leave(b, f"{name}.attention", f"{name}.norm1", y, x)
        y = feed_forward.build(b, f"{name}.feed-forward", residual.enter(b, f"{name}.norm2", x))
        x = residual.leave(b, f"{name}.feed-forward", f"{name}.norm2", y, x)
    return x


@family("bert", network_kind="transformer")
class Bert(Network):
    """A stack of transformer blocks between embeddings and the two heads of pre-training."""

    sample: ClassVar[str] = "sequences"

    vocabulary: Channels
    sequence: Sequence
    """Tokens of the two segments together."""
    masked: Sequence
    """Tokens to fill in."""
    layers: Layers
    hidden: Channels
    attention: Attention
    feed_forward: FeedForward
    max_positions: Sequence
    segments: Channels = 2
    """Kinds of segments."""
    next_sentence: bool = True
    """Whether a head tells if the second segment follows the first."""
    dropout: Probability = 0.0
    """Of the embedding and of every residual branch."""

    @property
    def tokens_per_sample(self) -> int:
        """Tokens of a sequence."""
        return self.sequence

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        tokens = b.input("tokens", (b.batch, self.sequence), "int64")
        table = b.weight("embedding.weight", (self.vocabulary, self.hidden))
        x = self._embedded(b, tokens, table)
        residual = ResidualBranch("layer-norm", first=False, dropout=self.dropout)
        x = stack(b, "blocks", x, self.layers, self.attention, self.feed_forward, residual)
        if not self.next_sentence:
            return self._filled_in(b, x, table)
        follows = self._follows(b, x)
        return ops.add(b, "loss", self._filled_in(b, x, table), follows)

    def _embedded(self, b: GraphBuilder, tokens: str, table: str) -> str:
        segments = b.input("segments", (b.batch, self.sequence), "int64")
        of_segments = b.weight("segments.weight", (self.segments, self.hidden))
        where = b.weight("positions.weight", (self.max_positions, self.hidden))
        x = ops.embedding(b, "embedding", tokens, table)
        y = ops.embedding(b, "segments", segments, of_segments)
        x = ops.add(b, "embedding-add", x, y)
        x = ops.position_embedding(b, "positions", x, where)
        x = ops.layer_norm(b, "embedding-norm", x)
        return dropout(b, "embedding-dropout", x, self.dropout)

    def _follows(self, b: GraphBuilder, x: str) -> str:
        """Write the head that tells from the first token whether the second segment follows."""
        labels = b.input("next-labels", (b.batch, 1), "int64")
        x = ops.cut(b, "pooler.first", x, axis=1)
        x = ops.linear(b, "pooler", x, self.hidden)
        x = ops.activation(b, "pooler.tanh", x, "tanh")
        return ops.cross_entropy(b, "next-loss", ops.linear(b, "next", x, 2), labels)

    def _filled_in(self, b: GraphBuilder, x: str, table: str) -> str:
        """Write the head that fills in the masked tokens."""
        where = b.input("masked-positions", (b.batch, self.masked), "int64")
        labels = b.input("masked-labels", (b.batch, self.masked), "int64")
        x = ops.gather(b, "masked.gather", x, where)
        x = ops.linear(b, "masked.transform", x, self.hidden)
        x = ops.activation(b, "masked.gelu", x, "gelu")
        x = ops.layer_norm(b, "masked.norm", x)
        x = ops.product(b, "masked", x, table)
        x = ops.add_bias(b, "masked", x, axis=-1)
        return ops.cross_entropy(b, "masked-loss", x, labels)
