"""Recurrent language models.

Zaremba, Sutskever and Vinyals, Recurrent neural network regularization, 2014, arXiv:1409.2329:
dropout between the layers, not in time.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Network, Probability, family
from ridgeline.workload.families.blocks import dropout
from ridgeline.workload.families.decoder import Layers, Sequence
from ridgeline.workload.ops.recurrent import Cell


@family("recurrent-lm", network_kind="rnn")
class RecurrentLm(Network):
    """An embedding, recurrent layers, and a classifier of the next token."""

    sample: ClassVar[str] = "sequences"

    vocabulary: Channels
    sequence: Sequence
    """Timesteps that backpropagation goes back."""
    layers: Layers
    hidden: Channels
    """Features of the embedding and of every layer's state."""
    cell: Cell = "lstm"
    bias: Literal["none", "one", "two"] = "two"
    """Bias vectors of a cell: none, one, or a second one with the recurrent products (cuDNN)."""
    dropout: Probability = 0.0
    """Before and after every layer."""
    tied: bool = False
    """Whether the classifier uses the embedding's weights."""

    @property
    def tokens_per_sample(self) -> int:
        """Timesteps."""
        return self.sequence

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        tokens = b.input("tokens", (b.batch, self.sequence), "int64")
        labels = b.input("labels", (b.batch, self.sequence), "int64")
        table = b.weight("embedding.weight", (self.vocabulary, self.hidden))
        x = ops.embedding(b, "embedding", tokens, table)
        x = dropout(b, "dropout0", x, self.dropout)
        for i in range(1, self.layers + 1):
            x = ops.recurrent(b, f"{self.cell}{i}", x, self.hidden, self.cell, bias=self.bias)
            x = dropout(b, f"dropout{i}", x, self.dropout)
        if self.tied:
            logits = ops.add_bias(b, "head", ops.product(b, "head", x, table), axis=-1)
        else:
            logits = ops.linear(b, "head", x, self.vocabulary)
        return ops.cross_entropy(b, "loss", logits, labels)
