"""Decoder-only transformers that predict the next token: GPT, Llama, mixtures of experts.

GPT-2 (Radford et al., 2019): learned positions, pre-norm, gelu, tied embeddings. Llama (Touvron et
al., 2023, arXiv:2302.13971): rotary positions, RMS norm, SwiGLU, no biases. Every position of a
sequence is a token and a label. Blocks whose attention and feed-forward network read the same norm:
GPT-J (Wang and Komatsuzaki, 2021), GPT-NeoX (Black et al., 2022, arXiv:2204.06745), PaLM (Chowdhery
et al., 2022, arXiv:2204.02311, Section 2). Norms around branches: Gemma 2 (2024, arXiv:2408.00118).
Modules for further tokens: DeepSeek-V3 (2024, arXiv:2412.19437, Section 2.2). Layers of attention,
state-space layers and feed-forward networks in any order: Nemotron-H (2025, arXiv:2504.03624,
Section 2.1). Layers of several kinds, which `variants` describes: windows in five of six layers
(Gemma 3, 2025, arXiv:2503.19786), linear attention in three of four (Qwen3-Next, 2025). Rows of
encoders of images or sound in place of tokens: LLaVA (Liu et al., 2023, arXiv:2304.08485); or by
layers that attend to them (Llama 3.2 Vision; Whisper).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ridgeline.errors import RidgelineError
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
from ridgeline.workload.families.layer_variant import LayerVariant
from ridgeline.workload.families.mixture import Mixture
from ridgeline.workload.families.state_space import StateSpace
from ridgeline.workload.families.tower import EncoderTower, merged

Layers = Annotated[int, Field(ge=1, le=1000)]
Sequence = Annotated[int, Field(ge=1, le=2**24)]
Pattern = Annotated[str, Field(pattern=r"^[A-Za-z*-]*$", max_length=1000)]
_PLAIN = "M*E-"
_Branch = Callable[[GraphBuilder, str, str], str]


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
    pattern: Pattern = ""
    """Instead of blocks, one letter a layer: M a state-space layer, * attention, - the feed-forward
    network, E the mixture, each with one norm; or a letter of `variants`. The first of so many
    `layers`."""
    variants: Annotated[tuple[LayerVariant, ...], Field(strict=False)] = ()
    """Layers that letters of a pattern stand for."""
    hidden: Channels
    """Features of a token."""
    attention: Attention | None = None
    latent_attention: LatentAttention | None = None
    """Instead of `attention`."""
    feed_forward: FeedForward | None = None
    state_space: StateSpace | None = None
    """Layers M of a pattern."""
    mixture: Mixture | None = None
    """Instead of the feed-forward network, but in its first blocks."""
    norm: Norm = "layer-norm"
    norms: Literal["before", "around", "after"] = "before"
    """Of a branch: one before it, or also one at its end, or only that (OLMo 2)."""
    last_norm: bool = True
    """Whether the last layer's rows are normalised."""
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
    further_rows: Annotated[int, Field(ge=0, le=2**20)] = 0
    """Rows of the embedding that the classifier does not have (Llama 3.2 Vision's images)."""
    head_bias: bool = False
    """Whether the classifier adds a bias."""
    layer_features: Annotated[int, Field(ge=0, le=2**16)] = 0
    """Features that every layer gets of a token besides its embedding, of a table of its own and of
    the embedding, by a gate (Gemma 3n, per-layer embeddings); 0: none."""
    layer_vocabulary: Channels | None = None
    """Rows of that table; by default as of the embedding's."""
    towers: Annotated[tuple[EncoderTower, ...], Field(strict=False)] = ()
    """Encoders whose rows stand in the sequence in place of tokens, or are attended to by layers
    with cross_attention."""
    tables: Literal["master", "computed"] = "master"
    """Which tables of vectors tokens and positions are looked up in: those that are updated, or
    copies in the format of products (Megatron-LM, whose weights are all in 16 bits)."""
    narrow_classifier: bool = False
    """Whether products in 8 or 4 bits are those of the classifier, too: Megatron-Core's is not of
    Transformer Engine (gpt_model.py, output_layer), torchtitan leaves out `output` (float8.py)."""
    further_tokens: Annotated[int, Field(ge=0, le=8)] = 0
    """Modules of one block each, which predict tokens after the next."""
    further_pattern: Pattern = ""
    """Layers of such a module, where the network has a pattern."""
    dropout: Probability = 0.0
    """Of the embedding and of every residual branch."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.variants and not self.pattern:
            raise ValueError("variants: only letters of a pattern stand for them")
        if not self.variants:
            if (self.attention is None) == (self.latent_attention is None):
                raise ValueError("give either attention or latent_attention")
            dense = self.mixture is None or bool(self.mixture.first_dense)
            if dense and self.feed_forward is None and not self.pattern:
                raise ValueError("give feed_forward: layers without a mixture need it")
        if self._has_latent and self.positions != "rotary":
            raise ValueError("latent_attention needs rotary positions")
        if self.further_rows and self.tied:
            raise ValueError("further_rows: a classifier that is tied has all rows")
        if (self.max_positions or self.sequence) < self.sequence:
            raise ValueError(
                f"a sequence of {self.sequence} has over {self.max_positions} positions"
            )
        self._check_pattern()
        return self

    @property
    def _has_latent(self) -> bool:
        parts = (self.latent_attention, *(v.latent_attention for v in self.variants))
        return any(part is not None and part.rotary for part in parts)

    def _check_pattern(self) -> None:
        letters = self.pattern + self.further_pattern
        if self.pattern and self.layers > len(self.pattern):
            raise ValueError(f"layers {self.layers}: the pattern says {len(self.pattern)}")
        if self.pattern and self.further_tokens and not self.further_pattern:
            raise ValueError("further_tokens of a network with a pattern need further_pattern")
        plain = set(letters) - {variant.letter for variant in self.variants}
        if plain and self.pattern and (self.norms != "before" or self.parallel != "no"):
            raise ValueError("layers of a pattern have one norm each, before them")
        parts = (("M", "state_space"), ("E", "mixture"), ("-", "feed_forward"))
        for letter, part in parts[: 2 + bool(self.variants)]:
            if (letter in plain) is (getattr(self, part) is None) and self.pattern:
                raise ValueError(f"{part}: layers {letter} of the pattern, and only they, need it")
        if unknown := plain - set(_PLAIN):
            raise ValueError(f"pattern: no variant is called {', '.join(sorted(unknown))}")
        if "*" in plain and self.attention is None and self.latent_attention is None:
            raise ValueError("attention: layers * of the pattern need it")
        if self.state_space is not None and not self.pattern:
            raise ValueError("state_space: only layers M of a pattern are such")
        if any(v.cross_attention for v in self.variants) and not self.towers:
            raise ValueError("cross_attention of a variant needs towers to attend to")

    @property
    def tokens_per_sample(self) -> int:
        """Tokens of a sequence."""
        return self.sequence

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor.

        Of a step of generation: of the tokens that are drawn.
        """
        tokens = b.input("tokens", (b.batch, self.sequence), "int64")
        rows = self.vocabulary + self.further_rows
        table = b.weight("embedding.weight", (rows, self.hidden))
        x = ops.embedding(b, "embedding", tokens, self._table(b, table))
        if self.positions == "learned":
            rows = self.max_positions or self.sequence
            where = b.weight("positions.weight", (rows, self.hidden))
            x = ops.position_embedding(b, "positions", x, self._table(b, where))
        if self.embedding_norm:
            x = norm(b, "embedding-norm", x, self.norm)
        x = dropout(b, "embedding-dropout", x, self.dropout)
        reader = _Reader(self, b)
        x = reader.embed(tokens, x)
        for i in range(self.layers):
            x = reader.tapped(i, self._layer(b, i, x, reader))
        y = norm(b, "norm", x, self.norm) if self.last_norm else x
        head = table
        if not self.tied:
            head = b.weight("head.weight", (self.vocabulary, self.hidden))
        if b.generation:
            return self._drawn(b, y, head)
        labels = b.input("labels", (b.batch, self.sequence), "int64")
        loss = self._loss(b, "", y, head, labels)
        for i in range(self.further_tokens):
            x = self._further(b, i, x, tokens, table, reader)
            y = norm(b, f"further{i}.norm", x, self.norm)
            more = self._loss(b, f"further{i}.", y, head, labels)
            loss = ops.add(b, f"further{i}.sum", loss, more)
        return loss

    def _loss(self, b: GraphBuilder, prefix: str, x: str, head: str, labels: str) -> str:
        logits = self._logits(b, f"{prefix}head", x, head)
        return ops.cross_entropy(b, f"{prefix}loss", logits, labels)

    def _logits(self, b: GraphBuilder, layer: str, x: str, head: str) -> str:
        logits = ops.product(b, layer, x, head, narrow=self.narrow_classifier)
        return ops.add_bias(b, layer, logits, axis=-1) if self.head_bias else logits

    def _drawn(self, b: GraphBuilder, x: str, head: str) -> str:
        """Write the classifier of the last position of every sequence, and draw a token of it."""
        if self.sequence > 1:
            x = ops.cut(b, "last-position", x, axis=1, start=self.sequence - 1, length=1)
        return ops.top_k(b, "draw", self._logits(b, "head", x, head), 1)[1]

    def _table(self, b: GraphBuilder, table: str) -> str:
        """Return what vectors are looked up in, of a table that is updated."""
        if self.tables == "master":
            return table
        return b.cast(table, b.numerics.compute, table.removesuffix(".weight"))

    def _further(
        self, b: GraphBuilder, i: int, x: str, tokens: str, table: str, reader: _Reader
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
            return self._block(b, self.layers + i, x, reader)
        for j, letter in enumerate(self.further_pattern):
            x = self._of_letter(b, f"{name}.{j}", letter, x, reader)
        return x

    def _layer(self, b: GraphBuilder, i: int, x: str, reader: _Reader) -> str:
        if self.pattern:
            x = self._of_letter(b, f"blocks.{i}", self.pattern[i], x, reader)
        else:
            x = self._block(b, i, x, reader)
        return reader.with_layer_features(i, x) if self.layer_features else x

    def _of_letter(self, b: GraphBuilder, name: str, letter: str, x: str, reader: _Reader) -> str:
        for variant in self.variants:
            if variant.letter == letter:
                return self._variant(b, name, variant, x, reader)
        return self._branch(b, name, letter, x, reader)

    def _branch(self, b: GraphBuilder, name: str, letter: str, x: str, reader: _Reader) -> str:
        """Write a layer of a pattern: a norm, what the letter says, and the sum with the stream."""
        residual = ResidualBranch(self.norm, first=True, dropout=self.dropout)
        read = residual.enter(b, f"{name}.norm", x)
        match letter:
            case "M":
                assert self.state_space is not None
                y = self.state_space.build(b, f"{name}.state-space", read)
            case "*":
                y = self._attend(b, f"{name}.attention", read, reader)
            case "E":
                assert self.mixture is not None
                y = self.mixture.build(b, f"{name}.experts", read)
            case _:
                assert self.feed_forward is not None
                y = self.feed_forward.build(b, f"{name}.feed-forward", read)
        return residual.leave(b, name, f"{name}.norm", y, x)

    @property
    def _residual(self) -> ResidualBranch:
        around = self.norms in {"around", "after"}
        return ResidualBranch(
            self.norm, True, self.dropout, around=around, before=self.norms != "after"
        )

    def _block(self, b: GraphBuilder, i: int, x: str, reader: _Reader) -> str:
        def attend(b: GraphBuilder, name: str, read: str) -> str:
            return self._attend(b, f"{name}.attention", read, reader, i)

        def follow(b: GraphBuilder, name: str, read: str) -> str:
            if self.mixture and i >= self.mixture.first_dense:
                return self.mixture.build(b, f"{name}.experts", read)
            assert self.feed_forward is not None
            return self.feed_forward.build(b, f"{name}.feed-forward", read)

        return self._two_branches(b, f"blocks.{i}", x, attend, follow)

    def _two_branches(
        self, b: GraphBuilder, name: str, x: str, attend: _Branch, follow: _Branch
    ) -> str:
        """Write a block of two branches, one after the other or beside each other."""
        residual = self._residual
        read = residual.enter(b, f"{name}.norm1", x)
        y = attend(b, name, read)
        if self.parallel == "no":
            x = residual.leave(b, f"{name}.attention", f"{name}.norm1", y, x)
        if self.parallel != "one-norm":
            read = residual.enter(b, f"{name}.norm2", x)
        z = follow(b, name, read)
        if self.parallel != "no":
            z = ops.add(b, f"{name}.add-branches", z, y)
        return residual.leave(b, f"{name}.feed-forward", f"{name}.norm2", z, x)

    def _variant(
        self, b: GraphBuilder, name: str, variant: LayerVariant, x: str, reader: _Reader
    ) -> str:
        """Write a layer of a kind of its own: its branches, each with its norm."""

        def attend(b: GraphBuilder, name: str, read: str) -> str:
            return variant.mix(b, name, read, reader.attend)

        def follow(b: GraphBuilder, name: str, read: str) -> str:
            return variant.follow(b, name, read, x)

        if variant.mixes and variant.follows and self.parallel != "no":
            return self._two_branches(b, name, x, attend, follow)
        residual = self._residual
        branches: list[tuple[str, str, _Branch]] = []
        if variant.mixes:
            branches.append(("attention", "norm1", attend))
        if variant.cross_attention:
            cross = variant.cross_attention

            def look(b: GraphBuilder, name: str, read: str) -> str:
                memory = reader.memory
                return cross.build(b, f"{name}.cross", read, causal=False, memory=memory)

            branches.append(("cross", "norm3", look))
        if variant.follows:
            branches.append(("feed-forward", "norm2", follow))
        for part, layer, branch in branches:
            y = branch(b, name, residual.enter(b, f"{name}.{layer}", x))
            if variant.branch_gates:
                y = _gated(b, f"{name}.{part}-gate", y)
            x = residual.leave(b, f"{name}.{part}", f"{name}.{layer}", y, x)
        return x

    def _attend(self, b: GraphBuilder, name: str, x: str, reader: _Reader, i: int = 0) -> str:
        attention = self.latent_attention or (self.attention and self.attention.in_layer(i))
        assert attention is not None
        return reader.attend(b, name, attention, x)


def _gated(b: GraphBuilder, layer: str, y: str) -> str:
    """Scale a branch by the tanh of a trained number."""
    gate = ops.activation(b, f"{layer}.tanh", b.weight(f"{layer}.weight", (1,)), "tanh")
    gate = b.cast(gate, b.format(y), layer)
    return ops.function(b, layer, "broadcast-multiply", (y, gate), b.shape(y))[0]


class _Reader:
    """What layers of one graph share: angles, keys and values of earlier layers, rows of towers."""

    def __init__(self, network: Decoder, b: GraphBuilder) -> None:
        self.network, self.b = network, b
        self.memory = ""
        self._angles: dict[int, str] = {}
        self._kept: dict[tuple[int, bool], tuple[str, str]] = {}
        self._taps: dict[int, list[str]] = {}
        self._features = ""
        parts = [variant.attention for variant in network.variants]
        self._shares = any(part is not None and part.keys == "earlier" for part in parts)

    def embed(self, tokens: str, x: str) -> str:
        """Write the towers, and what else depends on the embedding; returns the stream."""
        b, network = self.b, self.network
        crossed = any(v.cross_attention for v in network.variants)
        for tower in network.towers:
            made = tower.build(b)
            if crossed:
                self.memory = made.rows
                continue
            x = merged(b, f"{tower.name}.merge", x, made.rows)
            for i, tap in enumerate(made.taps):
                self._taps.setdefault(i, []).append(tap)
        if network.layer_features:
            self._features = self._layer_features(tokens, x)
        return x

    def tapped(self, i: int, x: str) -> str:
        """Add to the stream behind layer `i` what towers tap for it."""
        for j, tap in enumerate(self._taps.get(i, ())):
            x = merged(self.b, f"blocks.{i}.tap{j or ''}", x, tap)
        return x

    def _layer_features(self, tokens: str, x: str) -> str:
        b, network = self.b, self.network
        features, layers = network.layer_features, network.layers
        rows = network.layer_vocabulary or network.vocabulary
        table = b.weight("layer-features.embedding.weight", (rows, layers * features))
        y = ops.embedding(b, "layer-features.embedding", tokens, table)
        z = ops.linear(b, "layer-features.projection", x, layers * features, bias=False)
        z = ops.head_norm(b, "layer-features.norm", z, layers)
        y = b.cast(y, b.format(z), "layer-features")
        return ops.add(b, "layer-features.add", z, y)

    def with_layer_features(self, i: int, x: str) -> str:
        """Add to the stream what layer `i` makes of its own features of every token."""
        b, features = self.b, self.network.layer_features
        name = f"blocks.{i}.layer-features"
        gate = ops.linear(b, f"{name}.gate", x, features, bias=False)
        gate = ops.activation(b, f"{name}.gelu", gate, "gelu")
        start = i * features
        mine = ops.cut(b, f"{name}.cut", self._features, axis=2, start=start, length=features)
        y = ops.multiply(b, f"{name}.multiply", gate, b.cast(mine, b.format(gate), name))
        y = ops.linear(b, f"{name}.projection", y, self.network.hidden, bias=False)
        y = norm(b, f"{name}.norm", y, self.network.norm)
        return ops.add(b, f"{name}.add", y, x)

    def attend(
        self, b: GraphBuilder, name: str, attention: Attention | LatentAttention, x: str
    ) -> str:
        """Write attention to the sequence itself."""
        if isinstance(attention, LatentAttention):
            angles = self._of_size(attention.rotary_size)
            return attention.build(b, name, x, causal=True, angles=angles)
        rotary = self.network.positions == "rotary" and attention.rotary
        size = attention.size(self.network.hidden)
        positions = Positions(angles=self._of_size(size) if rotary else None)
        kind = (size, attention.masked)
        kept = None
        if self._shares and attention.keys != "earlier":
            self._kept[kind] = kept = attention.keys_values(b, name, x, positions)
        elif self._shares:
            if kind not in self._kept:
                raise RidgelineError(f"{name}: no layer before it has keys of its own")
            kept = self._kept[kind]
        return attention.build(b, name, x, causal=True, positions=positions, keys_values=kept)

    def _of_size(self, size: int) -> str:
        """Return the table of angles for heads of a size."""
        if size not in self._angles:
            name = "rotary.angles" if not self._angles else f"rotary.angles{size}"
            sequence = self.network.sequence
            self._angles[size] = ops.rotary_angles(self.b, name, sequence, size)
        return self._angles[size]
