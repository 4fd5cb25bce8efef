"""FLUX.1: a rectified-flow transformer for images and text.

Black Forest Labs, FLUX.1, 2024 (github.com/black-forest-labs/flux, src/flux/model.py): blocks with
weights of their own for text and image, which attend together (Esser et al., Scaling rectified flow
transformers, ICML 2024, arXiv:2403.03206, Section 4), then blocks of one stream whose attention and
feed-forward network stand side by side. Stable Diffusion 3 (Esser et al.) and Qwen-Image (2025,
arXiv:2508.02324) have blocks of the first kind alone; HunyuanVideo (2024, arXiv:2412.03603) refines
the text by blocks of its own first. The frozen encoders of images and text are left out.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Network, family
from ridgeline.workload.families.blocks import Attention, FeedForward
from ridgeline.workload.families.decoder import Layers, Sequence
from ridgeline.workload.families.modulation import embedded, gated, modulated, vectors

_WAVES = 256  # features of the time's sines and cosines


@family("flux", network_kind="diffusion")
class Flux(Network):
    """Double blocks of two streams, and single ones of both together."""

    sample: ClassVar[str] = "images"

    patches: Sequence
    """Of an image: pairs of latent pixels in both directions."""
    channels: Channels = 64
    """Of a patch."""
    channels_out: Channels | None = None
    """Of a patch that it predicts; by default as many."""
    text: Sequence
    """Tokens of a text."""
    text_features: Channels = 4096
    """Of such a token."""
    text_norm: bool = False
    """Whether such tokens are normalised first."""
    vector: Channels | None = 768
    """Features of the text as a whole, or None: it is not read."""
    guidance: bool = False
    """Whether the strength of guidance is read, too, beside the time."""
    refiner_layers: Annotated[int, Field(ge=0, le=1000)] = 0
    """Blocks that the text passes first, modulated by the time and its own mean."""
    double_layers: Layers
    single_layers: Annotated[int, Field(ge=0, le=1000)]
    head_norm: bool = True
    """Whether the features of every head of queries and keys are normalised."""
    last_text: bool = True
    """Whether the last double block still makes a text (not, where no single block follows)."""
    unread: Annotated[int, Field(ge=0, le=2**40)] = 0
    """Parameters that no loss reaches: those of a last text that is made all the same."""
    hidden: Channels
    attention: Attention
    expansion: Channels = 4
    """Features between the layers of a feed-forward network, over the hidden ones."""

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        images = b.input("images", (b.batch, self.patches, self.channels))
        text = b.input("text", (b.batch, self.text, self.text_features))
        x = ops.linear(b, "image", images, self.hidden)
        waves = b.input("time", (b.batch, 1, _WAVES))
        if self.text_norm:
            text = ops.rms_norm(b, "text.norm", text)
        if self.refiner_layers:
            t = self._refined(b, text, waves)
        else:
            t = ops.linear(b, "text", text, self.hidden)
        condition = embedded(b, "time", waves, self.hidden)
        if self.vector:
            vector = b.input("vector", (b.batch, 1, self.vector))
            whole = embedded(b, "vector", vector, self.hidden)
            condition = ops.add(b, "condition", condition, whole)
        if self.guidance:
            strength = b.input("guidance", (b.batch, 1, _WAVES))
            guided = embedded(b, "guidance", strength, self.hidden)
            condition = ops.add(b, "condition.guidance", condition, guided)
        condition = ops.activation(b, "condition.silu", condition, "silu")
        size = self.attention.size(self.hidden)
        angles = ops.rotary_angles(b, "angles", self.text + self.patches, size)
        for i in range(self.double_layers):
            x, t = self._double(b, i, x, t, condition, angles)
        if self.single_layers:
            x = ops.concat(b, "streams", [t, x], axis=1)
            for i in range(self.single_layers):
                x = self._single(b, f"single.{i}", x, condition, angles)
            x = ops.cut(b, "image-part", x, axis=1, start=self.text, length=self.patches)
        shift, scale = vectors(b, "head", condition, 2, self.hidden)
        if self.unread:
            b.weight("unread.weight", (self.unread,))
            b.freeze("unread")
        channels = self.channels_out or self.channels
        x = ops.linear(b, "head", modulated(b, "head", x, shift, scale), channels)
        return ops.mean_squared_error(b, "loss", x, b.input("flow", b.shape(x)))

    def _refined(self, b: GraphBuilder, text: str, waves: str) -> str:
        """Write the blocks that the text passes first."""
        n, _, features = b.shape(text)
        time = embedded(b, "refiner.time", waves, self.hidden)
        (mean,) = ops.function(b, "refiner.mean", "mean", (text,), (n, 1, features))
        whole = embedded(b, "refiner.vector", mean, self.hidden)
        condition = ops.add(b, "refiner.condition", time, whole)
        condition = ops.activation(b, "refiner.condition.silu", condition, "silu")
        t = ops.linear(b, "text", text, self.hidden)
        forward = FeedForward(width=self.expansion * self.hidden, activation="silu")
        for i in range(self.refiner_layers):
            name = f"refiner.{i}"
            gates = vectors(b, name, condition, 2, self.hidden)
            y = ops.layer_norm(b, f"{name}.norm1", t)
            y = self.attention.build(b, f"{name}.attention", y, causal=False)
            t = gated(b, f"{name}.attention", t, y, gates[0])
            y = ops.layer_norm(b, f"{name}.norm2", t)
            y = forward.build(b, f"{name}.feed-forward", y)
            t = gated(b, f"{name}.feed-forward", t, y, gates[1])
        return t

    def _double(
        self, b: GraphBuilder, i: int, x: str, t: str, condition: str, angles: str
    ) -> tuple[str, str]:
        name, last = f"double.{i}", i == self.double_layers - 1 and not self.last_text
        of_image = vectors(b, f"{name}.image", condition, 6, self.hidden)
        of_text = vectors(b, f"{name}.text", condition, 2 if last else 6, self.hidden)
        image = self._projected(b, f"{name}.image", x, of_image)
        text = self._projected(b, f"{name}.text", t, of_text)
        q, k, v = (
            ops.concat(b, f"{name}.{part}", [of_t, of_x], axis=1)
            for part, of_t, of_x in zip(("query", "key", "value"), text, image, strict=True)
        )
        y = self._attended(b, name, q, k, v, angles)
        if last:
            length = self.patches
            y = ops.cut(b, f"{name}.image.part", y, axis=1, start=self.text, length=length)
            return self._rest(b, f"{name}.image", x, y, of_image), t
        y_text = ops.cut(b, f"{name}.text.part", y, axis=1, length=self.text)
        y_image = ops.cut(b, f"{name}.image.part", y, axis=1, start=self.text, length=self.patches)
        return (
            self._rest(b, f"{name}.image", x, y_image, of_image),
            self._rest(b, f"{name}.text", t, y_text, of_text),
        )

    def _projected(
        self, b: GraphBuilder, name: str, x: str, parts: list[str]
    ) -> tuple[str, str, str]:
        x = modulated(b, f"{name}.attention", x, parts[0], parts[1])
        return self._normed(b, name, *ops.fused_linear(b, f"{name}.qkv", x, (self.hidden,) * 3))

    def _normed(self, b: GraphBuilder, name: str, q: str, k: str, v: str) -> tuple[str, str, str]:
        if not self.head_norm:
            return q, k, v
        heads = self.attention.heads
        q = ops.head_norm(b, f"{name}.query-norm", q, heads)
        return q, ops.head_norm(b, f"{name}.key-norm", k, heads), v

    def _attended(self, b: GraphBuilder, name: str, q: str, k: str, v: str, angles: str) -> str:
        q = ops.rotary(b, f"{name}.rotary-query", q, angles)
        k = ops.rotary(b, f"{name}.rotary-key", k, angles)
        return self.attention.attend(b, name, q, k, v, causal=False)

    def _rest(self, b: GraphBuilder, name: str, x: str, y: str, parts: list[str]) -> str:
        """Write what follows attention in a block of one stream of two."""
        y = ops.linear(b, f"{name}.output", y, self.hidden)
        x = gated(b, f"{name}.attention", x, y, parts[2])
        y = modulated(b, f"{name}.feed-forward", x, parts[3], parts[4])
        inner = FeedForward(width=self.expansion * self.hidden, activation="gelu")
        return gated(
            b, f"{name}.feed-forward", x, inner.build(b, f"{name}.feed-forward", y), parts[5]
        )

    def _single(self, b: GraphBuilder, name: str, x: str, condition: str, angles: str) -> str:
        shift, scale, gate = vectors(b, name, condition, 3, self.hidden)
        width = self.expansion * self.hidden
        y = modulated(b, name, x, shift, scale)
        q, k, v = ops.fused_linear(b, f"{name}.qkv", y, (self.hidden,) * 3)
        q, k, v = self._normed(b, name, q, k, v)
        inner = ops.activation(b, f"{name}.gelu", ops.linear(b, f"{name}.up", y, width), "gelu")
        y = ops.concat(b, f"{name}.both", [self._attended(b, name, q, k, v, angles), inner], axis=2)
        return gated(b, name, x, ops.linear(b, f"{name}.output", y, self.hidden), gate)
