"""Towers: encoders of images, sound or text, whose rows other networks read.

A tower is a stem (patches, frames or an embedding), blocks of attention in both directions, and a
projector that brings its rows to the features of what reads them. Vision transformers (Dosovitskiy
et al., ICLR 2021, arXiv:2010.11929), CLIP (Radford et al., ICML 2021, arXiv:2103.00020), SigLIP
(Zhai et al., ICCV 2023, arXiv:2303.15343), Whisper's encoder (Radford et al., ICML 2023,
arXiv:2212.04356), and those of language models that see and hear.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from ridgeline.config import Strict
from ridgeline.errors import RidgelineError
from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels
from ridgeline.workload.families.blocks import (
    Attention,
    FeedForward,
    Norm,
    Positions,
    ResidualBranch,
    norm,
)
from ridgeline.workload.ops.elementwise import Activation

Count = Annotated[int, Field(ge=0, le=2**24)]
Width = Annotated[int, Field(ge=1, le=2**24)]


class ProjectorStep(Strict):
    """One step from a tower's rows to those that are read."""

    norm: Norm | None = None
    """Of the rows, first."""
    join: Channels = 1
    """Rows that become one, side by side."""
    pool: Channels = 1
    """Rows that become one, their mean."""
    width: Channels | None = None
    """Features of a linear layer; by default there is none."""
    bias: bool = True
    """Whether that adds a bias."""
    norm_after: Norm | None = None
    """Of what the linear layer makes."""
    function: Activation | None = None
    """Of that."""
    feed_forward: FeedForward | None = None
    """Instead of a linear layer."""

    def build(self, b: GraphBuilder, name: str, x: str) -> str:
        """Write the step."""
        if self.norm:
            x = norm(b, f"{name}.norm", x, self.norm)
        n, rows, features = b.shape(x)
        if self.pool > 1:
            if rows % self.pool:
                raise RidgelineError(f"{name}: {rows} rows are not means of {self.pool} each")
            shape = (n, rows // self.pool, features)
            (x,) = ops.function(b, f"{name}.pool", "mean", (x,), shape)
        if self.join > 1:
            if rows % self.join:
                raise RidgelineError(
                    f"{name}: {rows} rows are not joined {self.join} by {self.join}"
                )
            shape = (n, rows // self.join, features * self.join)
            (x,) = ops.function(b, f"{name}.join", "rearrange", (x,), shape)
        if self.feed_forward:
            x = self.feed_forward.build(b, name, x)
        elif self.width:
            x = ops.linear(b, name, x, self.width, bias=self.bias)
        if self.norm_after:
            x = norm(b, f"{name}.norm-after", x, self.norm_after)
        if self.function:
            x = ops.activation(b, f"{name}.{self.function}", x, self.function)
        return x


class StemConvolution(Strict):
    """A convolution over the frames of sound, or over pixels of a spectrum, with gelu behind it."""

    filters: Channels
    kernel: Channels = 3
    stride: Channels = 1


@dataclass(frozen=True)
class Encoded:
    """What a tower makes: rows for its reader, rows before the projector, and taps of layers."""

    rows: str
    stack: str
    taps: tuple[str, ...]


class EncoderTower(Strict):
    """A stack of blocks whose rows see each other."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")] = "vision"
    """How its layers are called."""
    vocabulary: Channels | None = None
    """Of tokens that it reads; by default it reads patches or frames."""
    rows: Channels
    """Tokens, patches or frames of a sample."""
    inputs: Channels = 1
    """Images, or pieces of sound, of a sample: each has so many rows, which see each other alone,
    and those of all of them stand one after the other for the tower's readers."""
    features: Channels | None = None
    """Numbers of a patch or frame."""
    stem: Annotated[tuple[StemConvolution, ...], Field(strict=False)] = ()
    """Convolutions over frames, instead of one product of each patch."""
    stem_bias: bool = True
    """Whether that product adds a bias."""
    planes: Literal[1, 2] = 1
    """Axes that the convolutions of a stem slide along: time, or the spectrum, too."""
    first_norm: Norm | None = None
    """Of the stem's rows."""
    leading: Count = 0
    """Trained rows that stand before the others."""
    positions: Count = 0
    """Rows of a table of trained positions; 0: there is none."""
    segments: Count = 0
    """Rows of a table of kinds of tokens."""
    rotary: bool = False
    """Whether queries and keys are rotated."""
    layers: Annotated[int, Field(ge=0, le=1000)]
    hidden: Channels
    attention: Attention
    feed_forward: FeedForward
    local: Count = 0
    """Rows that attend to each other alone, in most layers; 0: all do."""
    full_every: Annotated[tuple[int, ...], Field(strict=False)] = ()
    """Layers whose rows attend to all, where there is `local`."""
    norm: Norm = "layer-norm"
    norms: Literal["before", "after-sum", "around", "after"] = "before"
    """Of a branch: one before it; one after its sum with the stream (BERT); or at its end, beside
    one before it or alone."""
    first_layer_norm: bool = True
    """Whether the first layer's attention has a norm before it, or the stem's is enough."""
    stack_norm: Norm | None = "layer-norm"
    """Of the last block's rows."""
    layer_scale: bool = False
    """Whether each branch is scaled feature by feature (Touvron et al., CaiT, ICCV 2021)."""
    drop_leading: bool = False
    """Whether readers do not get the leading rows."""
    projector: Annotated[tuple[ProjectorStep, ...], Field(strict=False)] = ()
    taps: Annotated[tuple[int, ...], Field(strict=False)] = ()
    """Layers whose rows readers get, too, each through a projector of its own (DeepStack)."""
    tap_projector: Annotated[tuple[ProjectorStep, ...], Field(strict=False)] = ()
    pool_before_norm: Channels = 1
    """Rows that become one, their mean, before the stack's norm."""
    copies: Channels = 1
    """How often each row's features stand side by side for the projector: those of several layers
    (Llama 3.2 Vision)."""
    pool: Literal["none", "first", "last", "mean", "first-and-mean", "probe"] = "none"
    """Which rows make one of all, behind the stack's norm: one of them, their mean, both, or what a
    trained row attends to (SigLIP), through a feed-forward network."""
    trained_rows: Count = 0
    """Trained vectors that stand between what is read (the ends of an image's lines)."""
    unread: Annotated[int, Field(ge=0, le=2**40)] = 0
    """Parameters that no loss reaches: a head, or blocks behind the rows that are read."""

    def build(self, b: GraphBuilder) -> Encoded:
        """Write the tower."""
        x = self._stem(b)
        if self.leading:
            x = _led(b, f"{self.name}.leading", x, self.leading)
        if self.positions:
            rows = b.shape(x)[1]
            shape = (max(self.positions, rows), self.hidden)
            if self.positions < rows:
                raise RidgelineError(
                    f"{self.name}: {rows} rows need more than {self.positions} positions"
                )
            where = b.weight(f"{self.name}.positions.weight", shape)
            x = ops.position_embedding(b, f"{self.name}.positions", x, where)
        if self.first_norm:
            x = norm(b, f"{self.name}.first-norm", x, self.first_norm)
        x, taps = self._blocks(b, x)
        if self.pool_before_norm > 1:
            x = ProjectorStep(pool=self.pool_before_norm).build(b, f"{self.name}.mean", x)
        if self.stack_norm:
            x = norm(b, f"{self.name}.norm", x, self.stack_norm)
        stack = x
        if self.drop_leading and self.leading:
            count = b.shape(x)[1] - self.leading
            layer = f"{self.name}.drop-leading"
            x = ops.cut(b, layer, x, axis=1, start=self.leading, length=count)
        x = self._pooled(b, f"{self.name}.pool", x)
        if self.copies > 1:
            x = ops.concat(b, f"{self.name}.copies", [x] * self.copies, axis=2)
        x = _projected(b, f"{self.name}.projector", x, self.projector)
        if self.trained_rows:
            x = _led(b, f"{self.name}.trained-rows", x, self.trained_rows)
        if self.unread:
            b.weight(f"{self.name}.unread.weight", (self.unread,))
            b.freeze(f"{self.name}.unread")
        if self.inputs > 1:
            x, stack, *others = (
                self._of_sample(b, f"{self.name}.inputs{i or ''}", y)
                for i, y in enumerate((x, stack, *taps))
            )
            taps = tuple(others)
        return Encoded(x, stack, taps)

    def _of_sample(self, b: GraphBuilder, layer: str, x: str) -> str:
        """Put the rows of all inputs of a sample one after the other."""
        _, rows, features = b.shape(x)
        shape = (b.batch, self.inputs * rows, features)
        return ops.function(b, layer, "rearrange", (x,), shape)[0]

    def _pooled(self, b: GraphBuilder, name: str, x: str) -> str:
        n, rows, features = b.shape(x)
        match self.pool:
            case "none":
                return x
            case "first" | "last":
                start = 0 if self.pool == "first" else rows - 1
                return ops.cut(b, name, x, axis=1, start=start)
            case "mean":
                return ops.function(b, name, "mean", (x,), (n, 1, features))[0]
            case "first-and-mean":
                first = ops.cut(b, f"{name}.first", x, axis=1)
                rest = ops.cut(b, f"{name}.rest", x, axis=1, start=1, length=rows - 1)
                (mean,) = ops.function(b, f"{name}.mean", "mean", (rest,), (n, 1, features))
                return ops.concat(b, name, [first, mean], axis=2)
            case "probe":
                probe = b.weight(f"{name}.probe.weight", (1, features))
                probe = b.cast(probe, b.format(x), f"{name}.probe")
                (row,) = ops.function(b, f"{name}.probe", "rearrange", (probe,), (n, 1, features))
                whole = self.attention.model_copy(update={"kv_heads": None})
                row = whole.build(b, f"{name}.attention", row, causal=False, memory=x)
                y = norm(b, f"{name}.norm", row, self.norm)
                y = self.feed_forward.build(b, f"{name}.feed-forward", y)
                return ops.add(b, f"{name}.add", y, row)

    def _stem(self, b: GraphBuilder) -> str:
        name = self.name
        if self.vocabulary:
            tokens = b.input(f"{name}-tokens", (b.batch * self.inputs, self.rows), "int64")
            table = b.weight(f"{name}.embedding.weight", (self.vocabulary, self.hidden))
            x = ops.embedding(b, f"{name}.embedding", tokens, table)
            if self.segments:
                kinds = b.input(f"{name}-segments", (b.batch * self.inputs, self.rows), "int64")
                table = b.weight(f"{name}.segments.weight", (self.segments, self.hidden))
                y = ops.embedding(b, f"{name}.segments", kinds, table)
                x = ops.add(b, f"{name}.add-segments", x, y)
            return x
        if self.features is None:
            raise RidgelineError(f"{name}: features or vocabulary must be given")
        if not self.stem:
            patches = b.input(f"{name}-patches", (b.batch * self.inputs, self.rows, self.features))
            return ops.linear(b, f"{name}.patches", patches, self.hidden, bias=self.stem_bias)
        axes = (self.rows,) if self.planes == 1 else (self.features, self.rows)
        channels = self.features if self.planes == 1 else 1
        x = b.input(f"{name}-frames", (b.batch * self.inputs, channels, *axes))
        for i, of in enumerate(self.stem):
            layer = f"{name}.stem{i}"
            x = ops.conv(b, layer, x, of.filters, of.kernel, stride=of.stride)
            x = ops.activation(b, f"{layer}.gelu", x, "gelu")
        n, filters, *left = b.shape(x)
        features = filters * (left[0] if self.planes == 2 else 1)
        (x,) = ops.function(b, f"{name}.frames", "rearrange", (x,), (n, left[-1], features))
        if self.planes == 2:
            x = ops.linear(b, f"{name}.frames.linear", x, self.hidden, bias=self.stem_bias)
        return x

    def _blocks(self, b: GraphBuilder, x: str) -> tuple[str, tuple[str, ...]]:
        residual = ResidualBranch(
            self.norm,
            first=self.norms != "after-sum",
            dropout=0.0,
            around=self.norms in {"around", "after"},
            before=self.norms != "after",
        )
        angles = None
        if self.rotary and self.layers:
            size = self.attention.size(self.hidden)
            angles = ops.rotary_angles(b, f"{self.name}.angles", b.shape(x)[1], size)
        positions, taps = Positions(angles=angles), []
        for i in range(self.layers):
            name = f"{self.name}.{i}"
            attention = self.attention
            if self.local and i not in self.full_every:
                attention = attention.model_copy(update={"chunk": self.local})
            y = x if i == 0 and not self.first_layer_norm else residual.enter(b, f"{name}.norm1", x)
            y = attention.build(b, f"{name}.attention", y, causal=False, positions=positions)
            y = self._scaled(b, f"{name}.scale1", y)
            x = residual.leave(b, f"{name}.attention", f"{name}.norm1", y, x)
            y = residual.enter(b, f"{name}.norm2", x)
            y = self.feed_forward.build(b, f"{name}.feed-forward", y)
            y = self._scaled(b, f"{name}.scale2", y)
            x = residual.leave(b, f"{name}.feed-forward", f"{name}.norm2", y, x)
            if i in self.taps:
                taps.append(_projected(b, f"{name}.tap", x, self.tap_projector))
        return x, tuple(taps)

    def _scaled(self, b: GraphBuilder, layer: str, y: str) -> str:
        if not self.layer_scale:
            return y
        scale = b.cast(b.weight(f"{layer}.weight", (b.shape(y)[2],)), b.format(y), layer)
        return ops.function(b, layer, "broadcast-multiply", (y, scale), b.shape(y))[0]


def _projected(b: GraphBuilder, name: str, x: str, steps: tuple[ProjectorStep, ...]) -> str:
    for i, step in enumerate(steps):
        x = step.build(b, f"{name}{i}", x)
    return x


def _led(b: GraphBuilder, layer: str, x: str, count: int) -> str:
    """Put trained rows before the rows of every sample."""
    n, rows, features = b.shape(x)
    first = b.cast(b.weight(f"{layer}.weight", (count, features)), b.format(x), layer)
    return ops.function(b, layer, "rearrange", (x, first), (n, rows + count, features))[0]


def merged(b: GraphBuilder, layer: str, x: str, rows: str) -> str:
    """Put the rows of towers where the tokens of a sequence stand for them, or add them there."""
    if b.shape(rows)[1] > b.shape(x)[1]:
        raise RidgelineError(
            f"{layer}: {b.shape(rows)[1]} rows do not fit into a sequence of {b.shape(x)[1]}"
        )
    rows = b.cast(rows, b.format(x), layer)
    return ops.function(b, layer, "scatter", (x, rows), b.shape(x))[0]
