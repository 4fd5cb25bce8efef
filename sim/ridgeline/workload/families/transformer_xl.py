"""Transformer-XL: causal attention to a segment and to what the last segment was.

Dai et al., Transformer-XL, ACL 2019, arXiv:1901.02860, in the form of the authors' code: relative
positions as a second product of queries with encoded distances, two trained biases of the queries,
post-norm. Tokens that are rare are told apart in two steps (adaptive softmax, Grave et al., ICML
2017, arXiv:1609.04309): one class for each cluster of them, then, for the tokens that are in it,
the cluster. The classifier uses the tables of the embeddings, of which there is one, or one for
each cluster, narrower the rarer its tokens are (adaptive input, Baevski and Auli,
arXiv:1809.10853).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from ridgeline.config import Strict
from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Network, Probability, family
from ridgeline.workload.families.blocks import FeedForward, ResidualBranch, dropout, masked_fill
from ridgeline.workload.families.decoder import Layers, Sequence
from ridgeline.workload.graph import Role
from ridgeline.workload.numerics import MASTER


class VocabularyCluster(Strict):
    """Rare tokens that are told apart together."""

    tokens: Channels
    share: Annotated[float, Field(gt=0, lt=1)]
    """Share of a text that they make up."""
    width: Channels | None = None
    """Features of their embeddings, which a matrix then makes as many as the others'; by default
    all tokens have one table of one width."""


class _Table(NamedTuple):
    """Rows of embeddings, and the matrix between them and the blocks' features, "" for none."""

    rows: str
    wide: str = ""


def _brought(b: GraphBuilder, name: str, of: tuple[str, ...], shape: tuple[int, ...]) -> str:
    """Bring weights into another form: some rows, turned, one below the other."""
    passes = (Fraction(math.prod(shape), sum(map(b.elements, of))),) * len(of)
    made = ops.function(b, name, "rearrange", of, shape, role=Role.WEIGHT_COPY, passes=passes)
    return made[0]


@family("transformer-xl", network_kind="transformer")
class TransformerXl(Network):
    """Blocks of attention over a segment and a memory, and an adaptive classifier."""

    sample: ClassVar[str] = "sequences"

    frequent: Channels
    """Tokens that are told apart in the first step."""
    clusters: Annotated[tuple[VocabularyCluster, ...], Field(strict=False, max_length=16)] = ()
    """The others, by how frequent they are."""
    sequence: Sequence
    """Tokens of a segment."""
    memory: Sequence
    """Tokens before it that are attended to."""
    layers: Layers
    hidden: Channels
    heads: Channels
    head_size: Channels
    feed_forward: FeedForward
    dropout: Probability = 0.0
    attention_dropout: Probability | None = None
    """Of the probabilities of attention; by default as of everything else."""
    kernel: Literal["separate", "eager"] = "separate"
    """Whether softmax hides later positions itself, or ops of their own do (eager): as in the
    authors' code, in fp32, and on a copy of the scores (`masked_fill`)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(cluster.share for cluster in self.clusters) >= 1:
            raise ValueError("the clusters' shares must leave something to the frequent tokens")
        if len({cluster.width is None for cluster in self.clusters}) > 1:
            raise ValueError("either all clusters have a width of their own or none")
        return self

    @property
    def tokens_per_sample(self) -> int:
        """Tokens of a segment."""
        return self.sequence

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        x, tables = self._embedded(b)
        x = dropout(
            b, "embedding-dropout", ops.scale(b, "scale", x, math.sqrt(self.hidden)), self.dropout
        )
        width = self.heads * self.head_size
        content = b.weight("content-bias.weight", (width,))
        position = b.weight("position-bias.weight", (width,))
        residual = ResidualBranch("layer-norm", first=False, dropout=self.dropout)
        for i in range(self.layers):
            name = f"blocks.{i}"
            y = self._attention(b, f"{name}.attention", x, content, position)
            x = residual.leave(b, f"{name}.attention", f"{name}.norm1", y, x)
            y = self.feed_forward.build(b, f"{name}.feed-forward", x)
            x = residual.leave(b, f"{name}.feed-forward", f"{name}.norm2", y, x)
        return self._classifier(b, dropout(b, "dropout", x, self.dropout), tables)

    @property
    def _narrow(self) -> bool:
        """Whether clusters have tables of their own."""
        return any(cluster.width is not None for cluster in self.clusters)

    def _members(self, cluster: VocabularyCluster) -> int:
        """Tokens of a segment that are in a cluster."""
        return max(1, round(self.sequence * cluster.share))

    def _embedded(self, b: GraphBuilder) -> tuple[str, list[_Table]]:
        """Look up the tokens, and return what the classifier needs of the tables."""
        tokens = b.input("tokens", (b.batch, self.sequence), "int64")
        rows = 0 if self._narrow else sum(cluster.tokens for cluster in self.clusters)
        table = b.weight("embedding.weight", (self.frequent + rows, self.hidden))
        x = ops.embedding(b, "embedding", tokens, table)
        if not self._narrow:
            return x, [_Table(table)] * (1 + len(self.clusters))
        x = ops.linear(b, "embedding.wide", x, self.hidden, bias=False)
        tables = [_Table(table, b.weight("head.wide.weight", (self.hidden, self.hidden)))]
        for i, cluster in enumerate(self.clusters, start=1):
            assert cluster.width is not None
            name = f"embedding{i}"
            of_these = b.input(f"{name}.tokens", (b.batch, self._members(cluster)), "int64")
            own = b.weight(f"{name}.weight", (cluster.tokens, cluster.width))
            y = ops.embedding(b, name, of_these, own)
            y = ops.linear(b, f"{name}.wide", y, self.hidden, bias=False)
            y = b.cast(y, b.format(x), name)
            (x,) = ops.function(b, f"{name}.scatter", "scatter", (x, y), b.shape(x))
            tables.append(_Table(own, f"{name}.wide.weight"))
        return x, tables

    def _attention(self, b: GraphBuilder, name: str, x: str, content: str, position: str) -> str:
        """Write attention whose scores are of contents and of encoded distances."""
        width, reach = self.heads * self.head_size, self.memory + self.sequence
        before = b.input(f"{name}.memory", (b.batch, self.memory, self.hidden))
        before = b.cast(before, b.format(x), name)
        whole = ops.concat(b, f"{name}.with-memory", [before, x], axis=1)
        # The authors' code forms queries of the memory, too, and cuts them off.
        q, k, v = ops.fused_linear(b, f"{name}.query-key-value", whole, (width,) * 3, bias=False)
        q = ops.cut(b, f"{name}.own-queries", q, axis=1, start=self.memory, length=self.sequence)
        distances = b.input(f"{name}.distances", (1, reach, self.hidden))
        r = ops.linear(b, f"{name}.distance", distances, width, bias=False)
        p = self._scores(b, f"{name}.contents", q, content, k)
        p = ops.add(b, f"{name}.scores", p, self._positions(b, name, q, position, r, p))
        scale = 1 / math.sqrt(self.head_size)
        if self.kernel == "eager":
            p = self._masked(b, f"{name}.mask", p)
        p = ops.softmax(b, f"{name}.softmax", p, scale=scale, causal=True)
        p = dropout(b, f"{name}.dropout", p, self._dropped)
        y = ops.attention_context(b, f"{name}.context", p, v, self.heads, causal=True)
        return ops.linear(b, f"{name}.output", y, self.hidden, bias=False)

    @property
    def _dropped(self) -> float:
        """Probability of dropping a probability of attention."""
        return self.dropout if self.attention_dropout is None else self.attention_dropout

    def _masked(self, b: GraphBuilder, name: str, scores: str) -> str:
        masked = masked_fill(b, name, b.cast(scores, MASTER, name))
        return b.cast(masked, b.format(scores), name)

    def _scores(self, b: GraphBuilder, name: str, q: str, bias: str, k: str) -> str:
        q = ops.add_bias(b, name, q, axis=-1, shared=bias)
        return ops.attention_scores(b, f"{name}.scores", q, k, self.heads, self.heads, causal=True)

    def _positions(self, b: GraphBuilder, name: str, q: str, bias: str, r: str, like: str) -> str:
        """Scores of the distances: one product for all sequences, and a shift of every row."""
        name = f"{name}.positions"
        q = ops.add_bias(b, name, q, axis=-1, shared=bias)
        rows = ops.function(b, f"{name}.repeat", "rearrange", (r,), (b.batch, *b.shape(r)[1:]))[0]
        p = ops.attention_scores(b, f"{name}.scores", q, rows, self.heads, self.heads, causal=True)
        return ops.function(b, f"{name}.shift", "rearrange", (p,), b.shape(like))[0]

    def _classifier(self, b: GraphBuilder, x: str, tables: list[_Table]) -> str:
        """Write the adaptive softmax: frequent tokens and clusters, then the tokens of each."""
        labels = b.input("labels", (b.batch, self.sequence), "int64")
        loss = self._part(b, "head", x, labels, tables[0], self.frequent, len(self.clusters))
        for i, cluster in enumerate(self.clusters, start=1):
            members = (b.batch, self._members(cluster))
            where = b.input(f"cluster{i}.positions", members, "int64")
            of_these = b.input(f"cluster{i}.labels", members, "int64")
            y = ops.gather(b, f"cluster{i}.gather", x, where)
            part = self._part(b, f"cluster{i}", y, of_these, tables[i], cluster.tokens)
            loss = ops.add(b, f"loss-sum{i}", loss, part)
        return loss

    def _part(
        self,
        b: GraphBuilder,
        name: str,
        x: str,
        labels: str,
        table: _Table,
        tokens: int,
        clusters: int = 0,
    ) -> str:
        """Write one step of the classifier: so many rows of a table, and a row for each cluster."""
        rows, width = b.shape(table.rows)
        weights = table.rows
        if table.wide:  # hidden features become as many as the table's
            loops = (width, b.shape(x)[-1])
            turned = _brought(b, f"{name}.turn", (table.wide,), loops)
            x = ops.product(b, f"{name}.narrow", x, turned)
        if clusters:
            more = b.weight(f"{name}.clusters.weight", (clusters, width))
            shape = (tokens + clusters, width)
            weights = _brought(b, f"{name}.rows", (weights, more), shape)
        elif rows != tokens:
            weights = _brought(b, f"{name}.rows", (weights,), (tokens, width))
        y = ops.add_bias(b, name, ops.product(b, name, x, weights), axis=-1)
        return ops.cross_entropy(b, f"{name}.loss", y, labels)
