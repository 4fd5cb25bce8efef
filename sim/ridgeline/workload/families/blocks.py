"""Parts of transformers: attention, feed-forward networks, norms and residual branches.

Vaswani et al., Attention is all you need, NIPS 2017, arXiv:1706.03762. Every part is a schema that
writes its own ops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ridgeline.config import Strict
from ridgeline.errors import RidgelineError
from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Probability
from ridgeline.workload.ops.elementwise import Activation, Gate

Norm = Literal["layer-norm", "rms-norm", "unbiased-layer-norm", "plain-norm"]
"""With scale and shift, with scale (of the root mean square, or of the deviation), or neither."""


def norm(b: GraphBuilder, layer: str, x: str, kind: Norm) -> str:
    """Normalise the last axis."""
    match kind:
        case "layer-norm" | "unbiased-layer-norm":
            return ops.layer_norm(b, layer, x, bias=kind == "layer-norm")
        case "rms-norm":
            return ops.rms_norm(b, layer, x)
        case "plain-norm":
            return ops.function(b, layer, "normalize", (x,), b.shape(x))[0]


def dropout(b: GraphBuilder, layer: str, x: str, probability: float) -> str:
    """Drop elements, or nothing."""
    return ops.dropout(b, layer, x, probability) if probability else x


@dataclass(frozen=True)
class Positions:
    """What attention must know of positions.

    Attributes
    ----------
    angles
        The table of `ops.rotary_angles`.
    table, distance
        The table of `ops.relative_bias`, and the distance from which on its last range is used.
    mask
        What is added to all scores alike, so that some are hidden.
    """

    angles: str | None = None
    table: str | None = None
    distance: int = 0
    mask: str | None = None


NOWHERE = Positions()


class Attention(Strict):
    """Multi-head attention."""

    heads: Channels
    kv_heads: Channels | None = None
    """Heads of keys and values; by default as many as of queries."""
    head_size: Channels | None = None
    """Features of a head; by default hidden / heads."""
    bias: bool | Literal["no-key"] = True
    """Whether the products for queries, keys and values add biases; no-key: not that for keys."""
    output_bias: bool = True
    """Whether the product after attention adds a bias."""
    fused: bool = True
    """Whether queries, keys and values are one matrix product."""
    kernel: Literal["separate", "eager", "flash", "flash-1"] = "separate"
    """Separate ops, which store the scores (eager: so that dividing and masking them are ops of
    their own, as programs write it op by op), or one op, which does not (FlashAttention-2; flash-1:
    its first version)."""
    scaled: bool = True
    """Whether scores are divided by the square root of the head size."""
    dropout: Probability = 0.0
    """Of the probabilities."""
    head_norm: bool | Literal["whole"] = False
    """Whether the features of every head of queries and keys are normalised (`ops.head_norm`);
    whole: those of all heads together (OLMo 2)."""
    value_size: Channels | None = None
    """Features of a head's values; by default as of its keys."""
    window: Annotated[int, Field(ge=0, le=2**24)] = 0
    """Keys that a query meets at most, itself the last; 0: all before it. Separate ops form all
    scores and hide the others; one fused op leaves them out."""
    chunk: Annotated[int, Field(ge=0, le=2**24)] = 0
    """Positions that attend to each other alone, those after them to each other, ...; 0: all."""
    full_every: Annotated[int, Field(ge=0, le=1000)] = 0
    """Every so many layers of a stack there is one that meets all keys; 0: none. (Layers 6, 12, ...
    of Gemma 3.)"""
    sinks: bool = False
    """Whether every head has a trained score without a value in its softmax (`ops.sink_scale`)."""
    gate: Literal["none", "heads", "features"] = "none"
    """Whether sigmoids of a linear layer scale each head, or each feature, of what attention
    gives."""
    rotary: bool = True
    """Whether queries and keys are rotated, in a network of rotary positions."""
    keys: Literal["own", "values-too", "earlier"] = "own"
    """Products for keys and values; one for both (Gemma 4); or none, and keys and values are those
    of the last layer that has its own (Gemma 3n)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(f"kv_heads {self.kv_heads} must divide heads {self.heads}")
        if self.fused and self.bias == "no-key":
            raise ValueError("one product has a bias for all or none; give fused: false")
        if self.window and self.chunk:
            raise ValueError("give either window or chunk")
        if self.keys == "values-too" and self.value_size:
            raise ValueError("keys that are values, too, have their size")
        return self

    def in_layer(self, i: int) -> Attention:
        """Return the attention of a layer of a stack, counted from 0: with its window, or full."""
        if not (self.full_every and self.masked) or (i + 1) % self.full_every:
            return self
        return self.model_copy(update={"window": 0, "chunk": 0})

    @property
    def masked(self) -> bool:
        """Whether a window or a chunk hides some of the keys before a query."""
        return bool(self.window or self.chunk)

    def size(self, hidden: int) -> int:
        """Features of a head."""
        if self.head_size is None and hidden % self.heads:
            raise RidgelineError(f"{self.heads} heads do not divide {hidden} features")
        return self.head_size or hidden // self.heads

    def build(
        self,
        b: GraphBuilder,
        name: str,
        x: str,
        *,
        causal: bool,
        positions: Positions = NOWHERE,
        memory: str | None = None,
        keys_values: tuple[str, str] | None = None,
    ) -> str:
        """Write attention from `x` to itself, or to `memory`, or to given keys and values."""
        features = b.shape(x)[2]
        if keys_values is None:
            q, k, v = self.projected(b, name, x, memory, positions)
        else:
            (q,) = self._project(b, name, ("query",), x, self._widths(features)[:1])
            q = self._normed(b, f"{name}.query-norm", q, self.heads)
            q = self._rotated(b, f"{name}.rotary-query", q, positions)
            k, v = keys_values
        shared = keys_values is not None and self.keys == "earlier"
        y = self.attend(b, name, q, k, v, causal=causal, positions=positions, keeps=not shared)
        y = self._gated(b, f"{name}.gate", x, y)
        return ops.linear(b, f"{name}.output", y, features, bias=self.output_bias)

    def projected(
        self,
        b: GraphBuilder,
        name: str,
        x: str,
        memory: str | None = None,
        positions: Positions = NOWHERE,
    ) -> tuple[str, str, str]:
        """Write queries of `x`, and keys and values of it or of `memory`, ready to attend."""
        q, k, v = self._projected(b, name, x, memory)
        q = self._normed(b, f"{name}.query-norm", q, self.heads)
        k = self._normed(b, f"{name}.key-norm", k, self.kv_heads or self.heads)
        q = self._rotated(b, f"{name}.rotary-query", q, positions)
        return q, self._rotated(b, f"{name}.rotary-key", k, positions), v

    def keys_values(
        self, b: GraphBuilder, name: str, x: str, positions: Positions = NOWHERE
    ) -> tuple[str, str]:
        """Write the keys and values of `x` alone, for several layers to attend to."""
        k, v = self._keys_values(b, name, x, b.shape(x)[2])
        k = self._normed(b, f"{name}.key-norm", k, self.kv_heads or self.heads)
        return self._rotated(b, f"{name}.rotary-key", k, positions), v

    def _widths(self, hidden: int) -> tuple[int, int, int]:
        size, kv_heads = self.size(hidden), self.kv_heads or self.heads
        return self.heads * size, kv_heads * size, kv_heads * (self.value_size or size)

    def _projected(self, b: GraphBuilder, name: str, x: str, memory: str | None) -> tuple[str, ...]:
        widths = self._widths(b.shape(x)[2])
        if memory is None and self.keys == "own":
            return self._project(b, name, ("query", "key", "value"), x, widths)
        (q,) = self._project(b, name, ("query",), x, widths[:1])
        return q, *self._keys_values(b, name, memory or x, b.shape(x)[2])

    def _keys_values(self, b: GraphBuilder, name: str, x: str, hidden: int) -> tuple[str, str]:
        """Write keys and values of `x`, for queries of `hidden` features."""
        widths = self._widths(hidden)[1:]
        if self.keys == "values-too":
            (k,) = self._project(b, name, ("key",), x, widths[:1])
            return k, k
        k, v = self._project(b, name, ("key", "value"), x, widths)
        return k, v

    def _normed(self, b: GraphBuilder, layer: str, x: str, heads: int) -> str:
        match self.head_norm:
            case True:
                return ops.head_norm(b, layer, x, heads)
            case "whole":
                return ops.rms_norm(b, layer, x)
            case _:
                return x

    def _rotated(self, b: GraphBuilder, layer: str, x: str, positions: Positions) -> str:
        if not (positions.angles and self.rotary):
            return x
        return ops.rotary(b, layer, x, positions.angles)

    def _gated(self, b: GraphBuilder, layer: str, x: str, y: str) -> str:
        if self.gate == "none":
            return y
        width = self.heads if self.gate == "heads" else b.shape(y)[2]
        gate = ops.linear(b, layer, x, width, bias=False)
        gate = ops.activation(b, f"{layer}.sigmoid", gate, "sigmoid")
        if self.gate == "features":
            return ops.multiply(b, f"{layer}.multiply", y, gate)
        *rows, features = b.shape(y)
        (wide,) = ops.function(b, f"{layer}.spread", "rearrange", (gate,), (*rows, features))
        return ops.multiply(b, f"{layer}.multiply", y, wide)

    def attend(
        self,
        b: GraphBuilder,
        name: str,
        q: str,
        k: str,
        v: str,
        *,
        causal: bool,
        positions: Positions = NOWHERE,
        keeps: bool = True,
    ) -> str:
        """Write attention between given queries, keys and values.

        `keeps`: in generation, whether they are put into a cache of the layer's own.
        """
        heads, kv_heads = self.heads, self.kv_heads or self.heads
        scale = 1 / math.sqrt(b.shape(q)[2] // heads) if self.scaled else 1.0
        if b.generation:
            return self._over_cache(b, name, q, k, v, keeps=keeps)
        if self.kernel in {"flash", "flash-1"} and not positions.table:
            y = ops.flash_attention(
                b,
                f"{name}.flash",
                q,
                k,
                v,
                heads,
                kv_heads,
                scale=scale,
                causal=causal,
                dropout=self.dropout,
                first=self.kernel == "flash-1",
                window=self.window,
                chunk=self.chunk,
            )
            if not self.sinks:
                return y
            sinks = b.weight(f"{name}.sinks.weight", (heads,))
            return ops.sink_scale(b, f"{name}.sinks", y, f"{name}.flash.log-sums", sinks)
        p = ops.attention_scores(b, f"{name}.scores", q, k, heads, kv_heads, causal=causal)
        if positions.table:
            distance, layer = positions.distance, f"{name}.relative-bias"
            p = ops.relative_bias(b, layer, p, positions.table, distance, causal=causal)
        if positions.mask:
            p = _added(b, f"{name}.add-mask", p, positions.mask)
        if self.kernel == "eager":
            p, scale = self._divided_and_masked(b, name, p, scale), 1.0
        p = self._softmax(b, name, p, scale, causal=causal)
        p = dropout(b, f"{name}.dropout", p, self.dropout)
        return ops.attention_context(b, f"{name}.context", p, v, kv_heads, causal=causal)

    def _over_cache(
        self, b: GraphBuilder, name: str, q: str, k: str, v: str, *, keeps: bool
    ) -> str:
        """Write attention of new positions to themselves and to those in the cache."""
        heads, kv_heads = self.heads, self.kv_heads or self.heads
        layer = f"{name}.flash"
        y = ops.cached_attention(
            b, layer, q, k, v, heads, kv_heads,
            window=self.window, chunk=self.chunk, keeps=keeps,
        )  # fmt: skip
        if not self.sinks:
            return y
        sinks = b.weight(f"{name}.sinks.weight", (heads,))
        return ops.sink_scale(b, f"{name}.sinks", y, f"{layer}.log-sums", sinks)

    def _softmax(self, b: GraphBuilder, name: str, p: str, scale: float, *, causal: bool) -> str:
        """Write the softmax, in which sinks may take part."""
        layer = f"{name}.softmax"
        if not self.sinks:
            return ops.softmax(b, layer, p, scale=scale, causal=causal)
        sinks = b.weight(f"{name}.sinks.weight", (self.heads,))
        return ops.softmax_with_sinks(b, layer, p, sinks, scale=scale, causal=causal)

    def _divided_and_masked(self, b: GraphBuilder, name: str, scores: str, scale: float) -> str:
        """Divide scores, then add a mask of the keys that every query of a sequence shares."""
        n, _, _, keys = b.shape(scores)
        if self.scaled:
            scores = ops.scale(b, f"{name}.scale", scores, scale)
        mask = b.input(f"{name}.mask", (n, 1, 1, keys))
        return _added(b, f"{name}.add-mask", scores, mask)

    def _project(
        self, b: GraphBuilder, name: str, parts: tuple[str, ...], x: str, widths: tuple[int, ...]
    ) -> tuple[str, ...]:
        if self.fused and len(parts) > 1:
            bias = self.bias is True
            return ops.fused_linear(b, f"{name}.{'-'.join(parts)}", x, widths, bias=bias)
        without = "key" if self.bias == "no-key" else ""
        return tuple(
            ops.linear(b, f"{name}.{part}", x, width, bias=bool(self.bias) and part != without)
            for part, width in zip(parts, widths, strict=True)
        )


def _added(b: GraphBuilder, layer: str, scores: str, mask: str) -> str:
    mask = b.cast(mask, b.format(scores), layer.rpartition(".")[0])
    return ops.function(b, layer, "broadcast-add", (scores, mask), b.shape(scores))[0]


class Indexer(Strict):
    """What chooses the keys that a query meets (`ops.index_scores`).

    It is trained by a loss of its own on what is detached; here its weights are frozen, and what
    that loss costs is left out.
    """

    heads: Channels
    size: Channels
    """Features of a head."""
    top_k: Channels
    """Keys that a query meets."""
    shared: bool = False
    """Whether it takes the keys that the layer before has chosen."""

    def build(self, b: GraphBuilder, name: str, x: str, latent: str) -> None:
        """Write the choice of keys for `x`, whose queries are made of `latent`."""
        if self.shared:
            return
        known = b.generation.context if b.generation else 0
        q = ops.linear(b, f"{name}.query", latent, self.heads * self.size, bias=False)
        k = ops.linear(b, f"{name}.key", x, self.size, bias=False)
        k = ops.layer_norm(b, f"{name}.key-norm", k)
        k = b.cast(k, b.numerics.compute, f"{name}.key-norm")
        weights = ops.linear(b, f"{name}.weights", x, self.heads, bias=False)
        b.freeze(name)
        scores = ops.index_scores(b, f"{name}.scores", q, k, weights)
        ops.top_k(b, f"{name}.top-k", scores, min(self.top_k, known + b.shape(x)[1]))
        if b.generation:
            ops.keep_latent(b, name, self.size)


class LatentAttention(Strict):
    """Multi-head latent attention: queries, keys and values from vectors of low rank.

    DeepSeek-V2, 2024, arXiv:2405.04434, Section 2.1 and Appendix C, as it is trained: keys and
    values are formed for all heads.
    """

    heads: Channels
    query_rank: Channels | None = None
    """Rank of the queries; by default they are formed directly."""
    rank: Channels
    """Rank of keys and values together."""
    plain_size: Channels
    """Features of a head's query and key that are not rotated."""
    rotary_size: Channels
    """Features of a head's query and key that are rotated; the key's are shared by all heads."""
    value_size: Channels
    """Features of a head's value."""
    kernel: Literal["separate", "flash"] = "separate"
    """Separate ops, which store the scores, or one op, which does not (FlashAttention)."""
    rotary: bool = True
    """Whether the features that are there to be rotated are."""
    indexer: Indexer | None = None
    """What chooses the keys that a query meets; by default it meets all before it. Separate ops
    form all scores; one fused op only those of as many keys as are chosen."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.indexer and self.query_rank is None:
            raise ValueError("indexer: its queries are made of those of low rank; give query_rank")
        return self

    def build(self, b: GraphBuilder, name: str, x: str, *, causal: bool, angles: str) -> str:
        """Write attention from `x` to itself."""
        hidden, heads = b.shape(x)[2], self.heads
        latent = x
        if self.query_rank:
            latent = ops.linear(b, f"{name}.query-down", x, self.query_rank, bias=False)
            latent = ops.rms_norm(b, f"{name}.query-norm", latent)
        window = 0
        if self.indexer:
            self.indexer.build(b, f"{name}.indexer", x, latent)
            window = self.indexer.top_k
        widths = (heads * self.plain_size, heads * self.rotary_size)
        q, q_rotary = ops.fused_linear(b, f"{name}.query-up", latent, widths, bias=False)
        widths = (self.rank, self.rotary_size)
        latent, k_rotary = ops.fused_linear(b, f"{name}.key-value-down", x, widths, bias=False)
        latent = ops.rms_norm(b, f"{name}.key-value-norm", latent)
        absorbs = b.generation is not None and b.generation.decodes
        k = v = ""
        if not absorbs:
            widths = (heads * self.plain_size, heads * self.value_size)
            k, v = ops.fused_linear(b, f"{name}.key-value-up", latent, widths, bias=False)
        if self.rotary:
            q_rotary = ops.rotary(b, f"{name}.rotary-query", q_rotary, angles)
            k_rotary = ops.rotary(b, f"{name}.rotary-key", k_rotary, angles)
        if absorbs:
            return self._absorbed(b, name, hidden, (q, q_rotary), (latent, k_rotary))
        q = ops.join_heads(b, f"{name}.join-query", q, q_rotary, heads, heads)
        k = ops.join_heads(b, f"{name}.join-key", k, k_rotary, heads, 1)
        plain = Attention(heads=heads, kernel=self.kernel, window=window)
        if b.generation:
            y = ops.cached_attention(
                b, f"{name}.flash", q, k, v, heads, heads, window=window, keeps=False
            )
            ops.keep_latent(b, name, self.rank + self.rotary_size)
        else:
            y = plain.attend(b, name, q, k, v, causal=causal)
        return ops.linear(b, f"{name}.output", y, hidden, bias=False)

    def _absorbed(
        self,
        b: GraphBuilder,
        name: str,
        hidden: int,
        queries: tuple[str, str],
        latents: tuple[str, str],
    ) -> str:
        """Write attention of one new position to latent vectors (`ops.head_products`)."""
        heads, layer = self.heads, f"{name}.key-value-up"
        to_keys, to_values = (
            b.weight(f"{layer}.{part}.weight", (heads * size, features))
            for part, size, features in (
                ("key", self.rank, self.plain_size),
                ("value", self.value_size, self.rank),
            )
        )
        q = ops.head_products(b, f"{layer}.key", queries[0], heads, to_keys, self.rank)
        q = ops.join_heads(b, f"{name}.join-query", q, queries[1], heads, heads)
        k = ops.join_heads(b, f"{name}.join-key", *latents, 1, 1)
        window = self.indexer.top_k if self.indexer else 0
        y = ops.cached_attention(
            b, f"{name}.flash", q, k, latents[0], heads, 1, window=window, latent=True
        )
        y = ops.head_products(b, f"{layer}.value", y, heads, to_values, self.value_size)
        return ops.linear(b, f"{name}.output", y, hidden, bias=False)


class FeedForward(Strict):
    """Two linear layers with a function between them, or three with a gate."""

    width: Channels
    """Features between the layers."""
    activation: Activation | Gate
    """Function; "swiglu" and "geglu" multiply two halves."""
    bias: bool = True
    fused: bool = True
    """Whether a gate's two products, and its function and multiplication, are one op each."""
    dropout: Probability = 0.0
    """After the function."""
    convolutions: bool = False
    """Whether the layers are convolutions of one tap over the positions, which copies bring last
    before them and back after them."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.convolutions and self.activation in {"swiglu", "geglu"}:
            raise ValueError(f"convolutions are two layers; {self.activation} needs three")
        return self

    def build(self, b: GraphBuilder, name: str, x: str) -> str:
        """Write the layers."""
        y = self._inner(b, name, x)
        y = dropout(b, f"{name}.dropout", y, self.dropout)
        if not self.convolutions:
            return ops.linear(b, f"{name}.down", y, b.shape(x)[-1], bias=self.bias)
        y = ops.conv2d(b, f"{name}.down", y, b.shape(x)[-1], 1, bias=self.bias)
        return ops.function(b, f"{name}.back", "rearrange", (y,), b.shape(x))[0]

    def _inner(self, b: GraphBuilder, name: str, x: str) -> str:
        match self.activation:
            case "swiglu" | "geglu" as gate:
                return self._gated(b, name, x, gate)
            case function:
                y = self._up(b, name, x)
                return ops.activation(b, f"{name}.{function}", y, function)

    def _up(self, b: GraphBuilder, name: str, x: str) -> str:
        if not self.convolutions:
            return ops.linear(b, f"{name}.up", x, self.width, bias=self.bias)
        n, positions, features = b.shape(x)
        rows = (n, features, 1, positions)
        (y,) = ops.function(b, f"{name}.last", "rearrange", (x,), rows)
        return ops.conv2d(b, f"{name}.up", y, self.width, 1, bias=self.bias)

    def _gated(self, b: GraphBuilder, name: str, x: str, function: Gate) -> str:
        if self.fused:
            widths = (self.width, self.width)
            gate, up = ops.fused_linear(b, f"{name}.gate-up", x, widths, bias=self.bias)
            return ops.gated(b, f"{name}.{function}", gate, up, function)
        gate = ops.linear(b, f"{name}.gate", x, self.width, bias=self.bias)
        up = ops.linear(b, f"{name}.up", x, self.width, bias=self.bias)
        of_gate: Activation = "silu" if function == "swiglu" else "gelu"
        gate = ops.activation(b, f"{name}.{of_gate}", gate, of_gate)
        return ops.multiply(b, f"{name}.multiply", gate, up)


def masked_fill(b: GraphBuilder, layer: str, x: str) -> str:
    """Set hidden elements to a constant in a copy of a tensor (PyTorch's `masked_fill`)."""
    copy = ops.function(b, f"{layer}.copy", "rearrange", (x,), b.shape(x))[0]
    return ops.function(b, layer, "select", (copy,), b.shape(x))[0]


@dataclass(frozen=True)
class ResidualBranch:
    """Where norm and dropout stand in a residual branch.

    Attributes
    ----------
    first
        Norm before the branch (pre-norm), or after the sum as in the first transformer.
    around
        Another norm at the end of the branch, before the sum.
    before
        Whether there is a norm before it, too, where there is one around it.
    """

    norm: Norm
    first: bool
    dropout: float
    around: bool = False
    before: bool = True

    def enter(self, b: GraphBuilder, layer: str, x: str) -> str:
        """Return what the branch computes with."""
        return norm(b, layer, x, self.norm) if self.first and self.before else x

    def leave(self, b: GraphBuilder, name: str, layer: str, y: str, x: str) -> str:
        """Return the sum of the branch `y` and the stream `x`."""
        if self.around:
            y = norm(b, f"{layer}-after", y, self.norm)
        y = dropout(b, f"{name}.residual-dropout", y, self.dropout)
        y = ops.add(b, f"{name}.add", y, x)
        return y if self.first else norm(b, layer, y, self.norm)
