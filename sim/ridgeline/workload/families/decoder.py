"""Decoder-only transformers that predict the next token: GPT, Llama, mixtures of experts.

GPT-2 (Radford et al., 2019): learned positions, pre-norm, gelu, tied embeddings. Llama (Touvron et
al., 2023, arXiv:2302.13971): rotary positions, RMS norm, SwiGLU, no biases. Every position of a
sequence is a token and a label. Blocks whose attention and feed-forward network read the same norm:
GPT-J (Wang and Komatsuzaki, 2021), GPT-NeoX (Black et al., 2022, arXiv:2204.06745), PaLM (Chowdhery
et al., 2022, arXiv:2204.02311, Section 2). Norms around branches: Gemma 2 (2024, arXiv:2408.00118).
Modules for further tokens: DeepSeek-V3 (2024, arXiv:2412.19437, Section 2.2). Layers of attention,
state-space layers and feed-forward networks in any order: Nemotron-H (2025, arXiv:2504.03624,
Section 2.1).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Network, Probability, family
from ridgeline.workload.families.blocks import (
    Attention,
    FeedForward,
    LatentAttention,
    Norm,
    Positions,
    ResidualBranch,
    dropout,
    norm,
)
from ridgeline.workload.families.mixture import Mixture
from ridgeline.workload.families.state_space import StateSpace

Layers = Annotated[int, Field(ge=1, le=1000)]
Sequence = Annotated[int, Field(ge=1, le=2**20)]


@family("decoder", network_kind="decoder")
class Decoder(Network):
    """A stack of causal transformer blocks between an embedding and a classifier of tokens."""

    sample: ClassVar[str] = "sequences"

    precision: str = "bf16-mixed"
    """The precision that it is usually trained in."""
    vocabulary: Channels
    sequence: Sequence
    """Tokens of a sequence."""
    layers: Layers
    """Blocks of attention and feed-forward network, or layers of a `pattern`."""
    pattern: Annotated[str, Field(pattern=r"^[M*E-]*$", max_length=1000)] = ""
    """Instead of blocks, one branch a layer: M a state-space layer, * attention, - the feed-forward
    network, E the mixture; the first of so many `layers`."""
    hidden: Channels
    """Features of a token."""
    attention: Attention | None = None
    latent_attention: LatentAttention | None = None
    """Instead of `attention`."""
    feed_forward: FeedForward
    state_space: StateSpace | None = None
    """Layers M of a pattern."""
    mixture: Mixture | None = None
    """Instead of the feed-forward network, but in its first blocks."""
    norm: Norm = "layer-norm"
    norms: Literal["before", "around"] = "before"
    """Of a branch: one before it, or also one at its end."""
    parallel: Literal["no", "one-norm", "two-norms"] = "no"
    """Whether attention and feed-forward network of a block both read the residual stream, and are
    added to it together; by one norm, or each its own."""
    embedding_norm: bool = False
    """Whether the embedding is normalised."""
    positions: Literal["learned", "rotary", "none"] = "learned"
    """Learned and added, rotations of queries and keys, or none that computes anything worth
    counting (ALiBi)."""
    max_positions: Sequence | None = None
    """Rows of the table of learned positions; by default as many as tokens."""
    tied: bool = True
    """Whether the classifier uses the embedding's weights."""
    tables: Literal["master", "computed"] = "master"
    """Which tables of vectors tokens and positions are looked up in: those that are updated, or
    copies in the format of products (Megatron-LM, whose weights are all in 16 bits)."""
    narrow_classifier: bool = False
    """Whether products in 8 or 4 bits are those of the classifier, too: Megatron-Core's is not of
    Transformer Engine (gpt_model.py, output_layer), torchtitan leaves out `output` (float8.py)."""
    further_tokens: Annotated[int, Field(ge=0, le=8)] = 0
    """Modules of one block each, which predict tokens after the next."""
    further_pattern: Annotated[str, Field(pattern=r"^[M*E-]*$", max_length=1000)] = ""
    """Layers of such a module, where the network has a pattern."""
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
        self._check_pattern()
        return self

    def _check_pattern(self) -> None:
        letters = self.pattern + self.further_pattern
        if self.pattern and self.layers > len(self.pattern):
            raise ValueError(f"layers {self.layers}: the pattern says {len(self.pattern)}")
        if self.pattern and self.further_tokens and not self.further_pattern:
            raise ValueError("further_tokens of a network with a pattern need further_pattern")
        if self.pattern and (self.norms != "before" or self.parallel != "no"):
            raise ValueError("layers of a pattern have one norm each, before them")
        for letter, part in (("M", "state_space"), ("E", "mixture")):
            if (letter in letters) is (getattr(self, part) is None) and self.pattern:
                raise ValueError(f"{part}: layers {letter} of the pattern, and only they, need it")
        if self.state_space is not None and not self.pattern:
            raise ValueError("state_space: only layers M of a pattern are such")

    @property
    def tokens_per_sample(self) -> int:
        """Tokens of a sequence."""
        return self.sequence

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        tokens = b.input("tokens", (b.batch, self.sequence), "int64")
        labels = b.input("labels", (b.batch, self.sequence), "int64")
        table = b.weight("embedding.weight", (self.vocabulary, self.hidden))
        x = ops.embedding(b, "embedding", tokens, self._table(b, table))
        if self.positions == "learned":
            rows = self.max_positions or self.sequence
            where = b.weight("positions.weight", (rows, self.hidden))
            x = ops.position_embedding(b, "positions", x, self._table(b, where))
        if self.embedding_norm:
            x = norm(b, "embedding-norm", x, self.norm)
        x = dropout(b, "embedding-dropout", x, self.dropout)
        angles = self._angles(b)
        for i in range(self.layers):
            x = self._layer(b, i, x, angles)
        y = norm(b, "norm", x, self.norm)
        head = table
        if not self.tied:
            head = b.weight("head.weight", (self.vocabulary, self.hidden))
        loss = self._loss(b, "", y, head, labels)
        for i in range(self.further_tokens):
            x = self._further(b, i, x, tokens, table, angles)
            y = norm(b, f"further{i}.norm", x, self.norm)
            more = self._loss(b, f"further{i}.", y, head, labels)
            loss = ops.add(b, f"further{i}.sum", loss, more)
        return loss

    def _loss(self, b: GraphBuilder, prefix: str, x: str, head: str, labels: str) -> str:
        logits = ops.product(b, f"{prefix}head", x, head, narrow=self.narrow_classifier)
        return ops.cross_entropy(b, f"{prefix}loss", logits, labels)

    def _table(self, b: GraphBuilder, table: str) -> str:
        """Return what vectors are looked up in, of a table that is updated."""
        if self.tables == "master":
            return table
        return b.cast(table, b.numerics.compute, table.removesuffix(".weight"))

    def _further(
        self, b: GraphBuilder, i: int, x: str, tokens: str, table: str, angles: str | None
    ) -> str:
        """Write a module that joins the stream with the embedding of tokens; none is shifted."""
        name = f"further{i}"
        token = ops.embedding(b, f"{name}.embedding", tokens, self._table(b, table))
        parts = [
            norm(b, f"{name}.norm-{part}", y, self.norm) for part, y in (("x", x), ("t", token))
        ]
        x = ops.concat(b, f"{name}.concat", parts, axis=2)
        x = ops.linear(b, f"{name}.join", x, self.hidden, bias=False)
        if not self.pattern:
            return self._block(b, self.layers + i, x, angles)
        for j, letter in enumerate(self.further_pattern):
            x = self._branch(b, f"{name}.{j}", letter, x, angles)
        return x

    def _angles(self, b: GraphBuilder) -> str | None:
        if self.positions != "rotary":
            return None
        if self.latent_attention:
            size = self.latent_attention.rotary_size
        else:
            assert self.attention is not None
            size = self.attention.size(self.hidden)
        return ops.rotary_angles(b, "rotary.angles", self.sequence, size)

    def _layer(self, b: GraphBuilder, i: int, x: str, angles: str | None) -> str:
        if self.pattern:
            return self._branch(b, f"blocks.{i}", self.pattern[i], x, angles)
        return self._block(b, i, x, angles)

    def _branch(self, b: GraphBuilder, name: str, letter: str, x: str, angles: str | None) -> str:
        """Write a layer of a pattern: a norm, what the letter says, and the sum with the stream."""
        residual = ResidualBranch(self.norm, first=True, dropout=self.dropout)
        read = residual.enter(b, f"{name}.norm", x)
        match letter:
            case "M":
                assert self.state_space is not None
                y = self.state_space.build(b, f"{name}.state-space", read)
            case "*":
                y = self._attend(b, f"{name}.attention", read, angles)
            case "E":
                assert self.mixture is not None
                y = self.mixture.build(b, f"{name}.experts", read)
            case _:
                y = self.feed_forward.build(b, f"{name}.feed-forward", read)
        return residual.leave(b, name, f"{name}.norm", y, x)

    def _block(self, b: GraphBuilder, i: int, x: str, angles: str | None) -> str:
        name = f"blocks.{i}"
        residual = ResidualBranch(
            self.norm, first=True, dropout=self.dropout, around=self.norms == "around"
        )
        read = residual.enter(b, f"{name}.norm1", x)
        y = self._attend(b, f"{name}.attention", read, angles)
        if self.parallel == "no":
            x = residual.leave(b, f"{name}.attention", f"{name}.norm1", y, x)
        if self.parallel != "one-norm":
            read = residual.enter(b, f"{name}.norm2", x)
        if self.mixture and i >= self.mixture.first_dense:
            z = self.mixture.build(b, f"{name}.experts", read)
        else:
            z = self.feed_forward.build(b, f"{name}.feed-forward", read)
        if self.parallel != "no":
            z = ops.add(b, f"{name}.add-branches", z, y)
        return residual.leave(b, f"{name}.feed-forward", f"{name}.norm2", z, x)

    def _attend(self, b: GraphBuilder, name: str, x: str, angles: str | None) -> str:
        if self.latent_attention:
            assert angles is not None
            return self.latent_attention.build(b, name, x, causal=True, angles=angles)
        assert self.attention is not None
        return self.attention.build(b, name, x, causal=True, positions=Positions(angles=angles))
