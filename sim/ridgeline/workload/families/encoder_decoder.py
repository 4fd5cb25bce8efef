"""Encoder-decoder transformers: the first transformer, T5 and BART.

Vaswani et al., Attention is all you need, NIPS 2017, arXiv:1706.03762: post-norm, relu, fixed
sinusoidal positions. Raffel et al., T5, JMLR 21(140), 2020, arXiv:1910.10683: pre-norm by RMS, no
biases, a trained bias of the scores for each range of distances, shared by the blocks of a stack.
Lewis et al., BART, ACL 2020, arXiv:1910.13461: post-norm, gelu, learned positions, embeddings
normalised.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Network, Probability, family
from ridgeline.workload.families.blocks import (
    NOWHERE,
    Attention,
    FeedForward,
    Norm,
    Positions,
    ResidualBranch,
    dropout,
    norm,
)
from ridgeline.workload.families.decoder import Layers, Sequence


@family("encoder-decoder", network_kind="transformer")
class EncoderDecoder(Network):
    """An encoder of a source sequence, and a decoder that predicts a target sequence."""

    sample: ClassVar[str] = "sequence pairs"

    vocabulary: Channels
    """Of source and target together: they share one embedding."""
    source: Sequence
    """Tokens of a source sequence."""
    target: Sequence
    """Tokens of a target sequence."""
    encoder_layers: Layers
    decoder_layers: Layers
    hidden: Channels
    attention: Attention
    feed_forward: FeedForward
    norm: Norm = "layer-norm"
    norm_first: bool = False
    """Norm before each branch and after each stack (pre-norm), or after each sum."""
    positions: Literal["sinusoidal", "relative", "learned"] = "sinusoidal"
    ranges: Channels = 32
    """Ranges of relative distances."""
    distance: Channels = 128
    """Distance from which on all share the last range."""
    max_positions: Sequence | None = None
    """Rows of the tables of learned positions, one of each stack; by default as many as tokens."""
    embedding_norm: bool = False
    """Whether embeddings are normalised before the first block of a stack."""
    tied: bool = True
    """Whether the classifier uses the embedding's weights."""
    dropout: Probability = 0.0
    """Of the embeddings and of every residual branch."""
    padded: bool = False
    """Whether positions behind the end of a sentence are multiplied by 0 after each branch."""

    @property
    def tokens_per_sample(self) -> int:
        """Tokens of source and target."""
        return self.source + self.target

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        source = b.input("source", (b.batch, self.source), "int64")
        target = b.input("target", (b.batch, self.target), "int64")
        labels = b.input("labels", (b.batch, self.target), "int64")
        table = b.weight("embedding.weight", (self.vocabulary, self.hidden))
        memory = self._encoder(b, self._embedded(b, "encoder", source, table))
        x = self._decoder(b, self._embedded(b, "decoder", target, table), memory)
        if self.tied:
            logits = ops.product(b, "head", x, table)
        else:
            logits = ops.linear(b, "head", x, self.vocabulary, bias=False)
        return ops.cross_entropy(b, "loss", logits, labels)

    def _embedded(self, b: GraphBuilder, stack: str, tokens: str, table: str) -> str:
        x = ops.embedding(b, f"{stack}.embedding", tokens, table)
        if self.positions == "sinusoidal":
            x = ops.scale(b, f"{stack}.scale", x, math.sqrt(self.hidden))
            waves = b.buffer(f"{stack}.waves", b.shape(x)[1:])
            x = ops.position_embedding(b, f"{stack}.positions", x, waves)
        elif self.positions == "learned":
            rows = (self.max_positions or b.shape(x)[1], self.hidden)
            where = b.weight(f"{stack}.positions.weight", rows)
            x = ops.position_embedding(b, f"{stack}.positions", x, where)
        if self.embedding_norm:
            x = norm(b, f"{stack}.embedding-norm", x, self.norm)
        return dropout(b, f"{stack}.embedding-dropout", x, self.dropout)

    def _encoder(self, b: GraphBuilder, x: str) -> str:
        positions = self._positions(b, "encoder")
        for i in range(self.encoder_layers):
            name = f"encoder.{i}"
            x = self._attention(b, f"{name}.attention", f"{name}.norm1", x, positions)
            x = self._feed_forward(b, name, f"{name}.norm2", x)
        return self._leave(b, "encoder", x)

    def _decoder(self, b: GraphBuilder, x: str, memory: str) -> str:
        positions = self._positions(b, "decoder")
        for i in range(self.decoder_layers):
            name = f"decoder.{i}"
            layer = f"{name}.attention"
            x = self._attention(b, layer, f"{name}.norm1", x, positions, causal=True)
            x = self._attention(b, f"{name}.cross", f"{name}.norm2", x, NOWHERE, memory=memory)
            x = self._feed_forward(b, name, f"{name}.norm3", x)
        return self._leave(b, "decoder", x)

    def _positions(self, b: GraphBuilder, stack: str) -> Positions:
        if self.positions != "relative":
            return NOWHERE
        table = b.weight(f"{stack}.relative-bias.weight", (self.ranges, self.attention.heads))
        return Positions(table=table, distance=self.distance)

    @property
    def _residual(self) -> ResidualBranch:
        return ResidualBranch(self.norm, self.norm_first, self.dropout)

    def _attention(
        self,
        b: GraphBuilder,
        name: str,
        norm_layer: str,
        x: str,
        positions: Positions,
        *,
        causal: bool = False,
        memory: str | None = None,
    ) -> str:
        y = self._residual.enter(b, norm_layer, x)
        y = self.attention.build(b, name, y, causal=causal, positions=positions, memory=memory)
        return self._hidden(b, name, self._residual.leave(b, name, norm_layer, y, x))

    def _feed_forward(self, b: GraphBuilder, name: str, norm_layer: str, x: str) -> str:
        name = f"{name}.feed-forward"
        y = self.feed_forward.build(b, name, self._residual.enter(b, norm_layer, x))
        return self._hidden(b, name, self._residual.leave(b, name, norm_layer, y, x))

    def _hidden(self, b: GraphBuilder, name: str, x: str) -> str:
        if not self.padded:
            return x
        mask = b.cast(b.input(f"{name}.given", (*b.shape(x)[:2], 1)), b.format(x), name)
        return ops.function(b, f"{name}.hidden", "broadcast-multiply", (x, mask), b.shape(x))[0]

    def _leave(self, b: GraphBuilder, stack: str, x: str) -> str:
        if not self.norm_first:
            return x
        return dropout(b, f"{stack}.dropout", norm(b, f"{stack}.norm", x, self.norm), self.dropout)
