"""Decoder-only transformers that predict the next token: GPT, Llama, mixtures of experts.

GPT-2 (Radford et al., 2019): learned positions, pre-norm, gelu, tied embeddings. Llama (Touvron et
al., 2023, arXiv:2302.13971): rotary positions, RMS norm, SwiGLU, no biases. Every position of a
sequence is a token and a label.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Network, Probability
from ridgeline.workload.families.blocks import (
    Attention,
    FeedForward,
    LatentAttention,
    Mixture,
    Norm,
    Positions,
    Residual,
    dropout,
    norm,
)

Layers = Annotated[int, Field(ge=1, le=1000)]
Sequence = Annotated[int, Field(ge=1, le=2**20)]


class Decoder(Network):
    """A stack of causal transformer blocks between an embedding and a classifier of tokens."""

    sample: ClassVar[str] = "sequences"

    family: Literal["decoder"]
    precision: str = "bf16-mixed"
    """The precision that it is usually trained in."""
    vocabulary: Channels
    sequence: Sequence
    """Tokens of a sequence."""
    layers: Layers
    """Blocks of attention and feed-forward network."""
    hidden: Channels
    """Features of a token."""
    attention: Attention | None = None
    latent_attention: LatentAttention | None = None
    """Instead of `attention`."""
    feed_forward: FeedForward
    mixture: Mixture | None = None
    """Instead of the feed-forward network, but in its first blocks."""
    norm: Norm = "layer-norm"
    positions: Literal["learned", "rotary"] = "learned"
    max_positions: Sequence | None = None
    """Rows of the table of learned positions; by default as many as tokens."""
    tied: bool = True
    """Whether the classifier uses the embedding's weights."""
    separate_loss: bool | Literal["log-softmax"] = False
    """Which steps of the cross entropy are kernels of their own: none, all (Megatron-LM), or
    log-softmax and the loss of its result (PyTorch); see `ops.cross_entropy`."""
    dropout: Probability = 0.0
    """Of the embedding and of every residual branch."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.attention is None) == (self.latent_attention is None):
            raise ValueError("give either attention or latent_attention")
        if self.latent_attention and self.positions != "rotary":
            raise ValueError("latent_attention needs rotary positions")
        if (self.max_positions or self.sequence) < self.sequence:
            raise ValueError(
                f"a sequence of {self.sequence} has over {self.max_positions} positions"
            )
        return self

    @property
    def tokens_per_sample(self) -> int:
        """Tokens of a sequence."""
        return self.sequence

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        tokens = b.input("tokens", (b.batch, self.sequence), "int64")
        labels = b.input("labels", (b.batch, self.sequence), "int64")
        table = b.weight("embedding.weight", (self.vocabulary, self.hidden))
        x = ops.embedding(b, "embedding", tokens, table)
        if self.positions == "learned":
            rows = self.max_positions or self.sequence
            where = b.weight("positions.weight", (rows, self.hidden))
            x = ops.position_embedding(b, "positions", x, where)
        x = dropout(b, "embedding-dropout", x, self.dropout)
        angles = self._angles(b)
        for i in range(self.layers):
            x = self._block(b, i, x, angles)
        x = norm(b, "norm", x, self.norm)
        if self.tied:
            logits = ops.product(b, "head", x, table)
        else:
            logits = ops.linear(b, "head", x, self.vocabulary, bias=False)
        return ops.cross_entropy(b, "loss", logits, labels, separate=self.separate_loss)

    def _angles(self, b: GraphBuilder) -> str | None:
        if self.positions != "rotary":
            return None
        if self.latent_attention:
            size = self.latent_attention.rotary_size
        else:
            assert self.attention is not None
            size = self.attention.size(self.hidden)
        return ops.rotary_angles(b, "rotary.angles", self.sequence, size)

    def _block(self, b: GraphBuilder, i: int, x: str, angles: str | None) -> str:
        name = f"blocks.{i}"
        residual = Residual(self.norm, first=True, dropout=self.dropout)
        y = residual.enter(b, f"{name}.norm1", x)
        if self.latent_attention:
            assert angles is not None
            y = self.latent_attention.build(b, f"{name}.attention", y, causal=True, angles=angles)
        else:
            assert self.attention is not None
            positions = Positions(angles=angles)
            y = self.attention.build(b, f"{name}.attention", y, causal=True, positions=positions)
        x = residual.leave(b, f"{name}.attention", f"{name}.norm1", y, x)
        y = residual.enter(b, f"{name}.norm2", x)
        if self.mixture and i >= self.mixture.first_dense:
            y = self.mixture.build(b, f"{name}.experts", y)
        else:
            y = self.feed_forward.build(b, f"{name}.feed-forward", y)
        return residual.leave(b, f"{name}.feed-forward", f"{name}.norm2", y, x)
