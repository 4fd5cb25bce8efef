"""Google's neural machine translation: LSTM encoder and decoder with attention.

Wu et al., 2016, arXiv:1609.08144, in the form of the MLPerf training reference (GNMT v2): one
embedding for both languages, a first encoder layer in both directions, residual connections from
the third encoder and the second decoder layer on, normalised additive attention from the first
decoder layer, whose context every decoder layer reads.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Network, Probability, family
from ridgeline.workload.families.blocks import dropout
from ridgeline.workload.families.decoder import Layers, Sequence
from ridgeline.workload.graph import Graph, Pass

_LOOPED = re.compile(r"decoder\.(attention|\d)")


@family("gnmt", network_kind="rnn")
class Gnmt(Network):
    """Translates source sequences; the decoder reads the true target sequence."""

    sample: ClassVar[str] = "sequence pairs"

    vocabulary: Channels
    source: Sequence
    """Tokens of a source sequence."""
    target: Sequence
    """Tokens of a target sequence."""
    layers: Layers
    """Of the encoder, the first in both directions, and of the decoder."""
    hidden: Channels
    dropout: Probability = 0.0
    """Before every layer."""
    step_kernels: Annotated[int, Field(ge=0, le=10000)] = 0
    """Kernels of a token in the decoder, in both passes, where a loop over tokens issues each; 0: a
    layer of it is run over all tokens, as cuDNN does."""
    kernel: Literal["separate", "eager"] = "separate"
    """Whether one op scores keys, which stores no sums of queries and keys, or several do (eager),
    as programs write it: sums, their bias, tanh, sums with the weights."""

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
        memory = self._encoder(b, ops.embedding(b, "encoder.embedding", source, table))
        x = self._decoder(b, ops.embedding(b, "decoder.embedding", target, table), memory)
        return ops.cross_entropy(b, "loss", ops.linear(b, "head", x, self.vocabulary), labels)

    def written(self, graph: Graph) -> Graph:
        """Share the kernels of the decoder's loop among its ops of both passes."""
        looped = {
            op.name
            for op in graph.ops
            if _LOOPED.match(op.layer) and op.pass_ is not Pass.UPDATE and op.kernels == 1
        }
        share = self.step_kernels * self.target // len(looped)
        if share <= 1:
            return graph
        kernels = (("kernels", share),)
        return replace(
            graph,
            ops=tuple(
                replace(op, attrs=op.attrs + kernels) if op.name in looped else op
                for op in graph.ops
            ),
        )

    def _lstm(self, b: GraphBuilder, name: str, x: str, *, reverse: bool = False) -> str:
        return ops.recurrent(b, name, x, self.hidden, "lstm", reverse=reverse)

    def _drop(self, b: GraphBuilder, name: str, x: str) -> str:
        return dropout(b, f"{name}.dropout", x, self.dropout)

    def _encoder(self, b: GraphBuilder, x: str) -> str:
        x = self._drop(b, "encoder.0", x)
        ways = [
            self._lstm(b, "encoder.0.forward", x),
            self._lstm(b, "encoder.0.backward", x, reverse=True),
        ]
        x = ops.concat(b, "encoder.0.concat", ways, axis=2)
        for i in range(1, self.layers):
            name = f"encoder.{i}"
            y = self._lstm(b, name, self._drop(b, name, x))
            x = ops.add(b, f"{name}.add", y, x) if i > 1 else y
        return x

    def _decoder(self, b: GraphBuilder, x: str, memory: str) -> str:
        x = self._lstm(b, "decoder.0", self._drop(b, "decoder.0", x))
        context = self._attention(b, "decoder.attention", x, memory)
        for i in range(1, self.layers):
            name = f"decoder.{i}"
            y = ops.concat(b, f"{name}.concat", [x, context], axis=2)
            y = self._lstm(b, name, self._drop(b, name, y))
            x = ops.add(b, f"{name}.add", y, x) if i > 1 else y
        return x

    def _attention(self, b: GraphBuilder, name: str, x: str, memory: str) -> str:
        q = ops.linear(b, f"{name}.query", x, self.hidden, bias=False)
        if self.kernel == "separate":
            q = ops.add_bias(b, f"{name}.query", q, axis=-1)
        k = ops.linear(b, f"{name}.key", memory, self.hidden, bias=False)
        v, length = b.weight(f"{name}.weight", (self.hidden,)), b.weight(f"{name}.length", (1,))
        if self.kernel == "eager":
            scores = _eager(b, f"{name}.scores", q, k, (v, length))
        else:
            scores = ops.additive_attention(b, f"{name}.scores", q, k, v, length)
        p = ops.softmax(b, f"{name}.softmax", scores)
        return ops.attention_context(b, f"{name}.context", p, memory, 1)


def _eager(b: GraphBuilder, name: str, q: str, k: str, weights: tuple[str, str]) -> str:
    """Score keys by ops that store the sum of every query with every key."""
    (n, rows, features), columns = b.shape(q), b.shape(k)[1]
    shape = (n, rows, columns, features)
    sums = ops.function(b, f"{name}.sum", "pairwise-add", (q, k), shape)[0]
    sums = ops.activation(
        b, f"{name}.tanh", ops.add_bias(b, f"{name}.query", sums, axis=-1), "tanh"
    )
    v, length = (b.cast(weight, b.format(q), name) for weight in weights)
    return ops.function(b, name, "weighted-sum", (sums, v, length), (n, 1, rows, columns))[0]
