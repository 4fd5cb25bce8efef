"""Recurrent transducers: speech to text without an alignment.

Graves, Sequence transduction with recurrent neural networks, 2012, arXiv:1211.3711, with LSTMs as
He et al., ICASSP 2019, arXiv:1811.06621, in the form of the MLPerf training reference (RNN-T): an
encoder that puts frames together on its way, a network that reads the labels so far, and a joint
network of every frame with every label.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Network, Probability, family
from ridgeline.workload.families.blocks import dropout
from ridgeline.workload.families.decoder import Layers, Sequence


@family("transducer", network_kind="speech")
class Transducer(Network):
    """An encoder of frames, a network for labels, and a classifier of all pairs of both."""

    sample: ClassVar[str] = "utterances"

    features: Channels
    """Of a frame."""
    frames: Sequence
    """Of an utterance."""
    length: Sequence
    """Labels of an utterance."""
    labels: Channels
    """Different labels, without the blank."""
    encoder: Channels
    """Features of the encoder's layers."""
    before: Layers
    """Layers of the encoder before frames are put together."""
    after: Layers
    """Layers after that."""
    stack: Annotated[int, Field(ge=1, le=64)] = 2
    """Frames that are put together."""
    predictor: Channels
    """Features of the network for labels."""
    predictor_layers: Layers
    joint: Channels
    """Features of the joint network."""
    encoder_dropout: Probability = 0.0
    """Between the encoder's layers."""
    dropout: Probability = 0.0
    """Between the layers for labels, and in the joint network."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.frames % self.stack:
            raise ValueError(f"{self.frames} frames are no multiple of {self.stack}")
        return self

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        frames = b.input("frames", (b.batch, self.frames, self.features))
        labels = b.input("labels", (b.batch, self.length), "int64")
        f = ops.linear(b, "joint.encoder", self._encoded(b, frames), self.joint)
        g = ops.linear(b, "joint.predictor", self._predicted(b, labels), self.joint)
        shape = (b.batch, b.shape(f)[1], b.shape(g)[1], self.joint)
        x = ops.function(b, "joint.sum", "pairwise-add", (f, g), shape)[0]
        x = dropout(b, "joint.dropout", ops.relu(b, "joint.relu", x), self.dropout)
        logits = ops.linear(b, "joint.classes", x, self.labels + 1)
        return ops.transducer(b, "loss", logits, labels)

    def _encoded(self, b: GraphBuilder, x: str) -> str:
        x = self._stack(b, "encoder.before", x, self.before, self.encoder, self.encoder_dropout)
        n, time, features = b.shape(x)
        if self.stack > 1:
            shape = (n, time // self.stack, features * self.stack)
            x = ops.function(b, "encoder.stack", "rearrange", (x,), shape)[0]
        return self._stack(b, "encoder.after", x, self.after, self.encoder, self.encoder_dropout)

    def _predicted(self, b: GraphBuilder, labels: str) -> str:
        """Read the labels after a vector of zeros."""
        table = b.weight("embedding.weight", (self.labels, self.predictor))
        x = ops.embedding(b, "embedding", labels, table)
        start = b.buffer("start", (b.batch, 1, self.predictor))
        x = ops.concat(b, "start", [b.cast(start, b.format(x), "start"), x], axis=1)
        return self._stack(b, "predictor", x, self.predictor_layers, self.predictor, self.dropout)

    @staticmethod
    def _stack(b: GraphBuilder, name: str, x: str, layers: int, hidden: int, drop: float) -> str:
        for i in range(layers):
            x = dropout(b, f"{name}.dropout{i}", x, drop) if i else x
            x = ops.recurrent(b, f"{name}.{i}", x, hidden, "lstm")
        return x
