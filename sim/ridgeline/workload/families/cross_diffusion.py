"""Diffusion transformers whose patches attend to a text: PixArt, LTX-Video, Wan.

Chen et al., PixArt-alpha, ICLR 2024, arXiv:2310.00426, Section 2.3 (adaLN-single: one product
makes scales, shifts and gates of the time for all blocks, and each adds a table of its own);
HaCohen et al., LTX-Video, 2024, arXiv:2501.00103; Wan team, Wan, 2025, arXiv:2503.20314, Section
4.2; Jiang et al., VACE, 2025, arXiv:2503.07598 (blocks beside some, whose results
these add). The frozen encoders of video and text are left out.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from ridgeline.config import Strict
from ridgeline.errors import RidgelineError
from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Network, family
from ridgeline.workload.families.blocks import Attention, FeedForward, Positions
from ridgeline.workload.families.decoder import Layers, Sequence
from ridgeline.workload.families.modulation import embedded, gated, modulated

_WAVES = 256  # features of the time's sines and cosines


class ImageCondition(Strict):
    """Rows of an encoded image that patches attend to, too, by keys and values of their own."""

    rows: Sequence
    features: Channels
    positions: bool = False
    """Whether it has a table of trained positions (first and last frame)."""


@family("cross-diffusion", network_kind="diffusion")
class CrossDiffusion(Network):
    """Blocks of attention to each other, attention to a text, and a feed-forward network."""

    sample: ClassVar[str] = "videos"

    patches: Sequence
    """Of an image or a video."""
    channels: Channels
    """Of a patch."""
    channels_out: Channels
    """Of a patch that it predicts."""
    text: Sequence
    """Tokens of a text."""
    text_features: Channels
    """Of such a token."""
    text_projection: bool = True
    """Whether they pass two linear layers first."""
    image: ImageCondition | None = None
    layers: Layers
    hidden: Channels
    attention: Attention
    cross: Attention
    """Attention to the text."""
    feed_forward: FeedForward
    cross_norm: bool = False
    """Whether what attends to the text is normalised with scale and shift first."""
    rotary: bool = True
    """Whether queries and keys of patches are rotated."""
    sizes: Annotated[int, Field(ge=0, le=8)] = 0
    """Numbers (height, width, aspect ratio) that are embedded beside the time, in a third of the
    features each (PixArt)."""
    control_layers: Annotated[tuple[int, ...], Field(strict=False)] = ()
    """Blocks to which others of the same kind add what they make of a control video."""
    control_channels: Channels | None = None
    """Of a patch of that."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.control_layers) != bool(self.control_channels):
            raise ValueError("give control_layers and control_channels together")
        if any(not 0 <= i < self.layers for i in self.control_layers):
            raise ValueError(f"control_layers: there are {self.layers} layers")
        return self

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        hidden = self.hidden
        patches = b.input("patches", (b.batch, self.patches, self.channels))
        x = ops.linear(b, "patches", patches, hidden)
        time, parts = self._time(b)
        text = b.input("text", (b.batch, self.text, self.text_features))
        if self.text_projection:
            text = ops.linear(b, "text.1", text, hidden)
            text = ops.activation(b, "text.gelu", text, "gelu")
            text = ops.linear(b, "text.2", text, hidden)
        seen = self._image(b)
        positions = Positions()
        if self.rotary:
            size = self.attention.size(hidden)
            positions = Positions(angles=ops.rotary_angles(b, "angles", self.patches, size))
        hints = self._hints(b, x, text, seen, parts, positions)
        for i in range(self.layers):
            x = self._block(b, f"blocks.{i}", x, text, seen, parts, positions)
            if i in hints:
                x = ops.add(b, f"blocks.{i}.add-control", x, hints[i])
        shift, scale = self._added(b, "head", [time, time], 2)
        x = ops.linear(b, "head", modulated(b, "head", x, shift, scale), self.channels_out)
        return ops.mean_squared_error(b, "loss", x, b.input("flow", b.shape(x)))

    def _time(self, b: GraphBuilder) -> tuple[str, list[str]]:
        """Write the embedding of the time, and what all blocks are modulated by."""
        time = embedded(b, "time", b.input("time", (b.batch, 1, _WAVES)), self.hidden)
        if self.sizes:
            if self.hidden % 3:
                raise RidgelineError(f"sizes: {self.hidden} features have no third")
            part = self.hidden // 3
            made = []
            for name, count in (("resolution", 2), ("ratio", 1)):
                waves = b.input(name, (b.batch, count, _WAVES))
                made.append(embedded(b, name, waves, part))
            rows = [
                ops.function(b, f"{name}.row", "rearrange", (y,), (b.batch, 1, n * part))[0]
                for (name, n), y in zip((("resolution", 2), ("ratio", 1)), made, strict=True)
            ]
            both = ops.concat(b, "sizes", rows, axis=2)
            time = ops.add(b, "time.sizes", time, both)
        wide = ops.activation(b, "modulation.silu", time, "silu")
        return time, list(ops.fused_linear(b, "modulation", wide, (self.hidden,) * 6))

    def _image(self, b: GraphBuilder) -> str:
        if self.image is None:
            return ""
        of = self.image
        x = b.input("image", (b.batch, of.rows, of.features))
        if of.positions:
            where = b.weight("image.positions.weight", (of.rows, of.features))
            x = ops.position_embedding(b, "image.positions", x, where)
        x = ops.layer_norm(b, "image.norm1", x)
        x = ops.linear(b, "image.1", x, of.features)
        x = ops.activation(b, "image.gelu", x, "gelu")
        x = ops.linear(b, "image.2", x, self.hidden)
        return ops.layer_norm(b, "image.norm2", x)

    def _hints(
        self,
        b: GraphBuilder,
        x: str,
        text: str,
        seen: str,
        parts: list[str],
        positions: Positions,
    ) -> dict[int, str]:
        """Write the blocks of the control video, and what each gives to its block."""
        if not self.control_layers:
            return {}
        assert self.control_channels is not None
        patches = b.input("control", (b.batch, self.patches, self.control_channels))
        y = ops.linear(b, "control.patches", patches, self.hidden)
        y = ops.linear(b, "control.0.input", y, self.hidden)
        y = ops.add(b, "control.0.add-input", y, x)
        hints = {}
        for i, layer in enumerate(self.control_layers):
            y = self._block(b, f"control.{i}", y, text, seen, parts, positions)
            hints[layer] = ops.linear(b, f"control.{i}.output", y, self.hidden)
        return hints

    def _added(self, b: GraphBuilder, name: str, parts: list[str], count: int) -> list[str]:
        """Add a block's own table to what the time makes."""
        table = b.weight(f"{name}.table.weight", (count, self.hidden))
        table = b.cast(table, b.format(parts[0]), f"{name}.table")
        made = []
        for i, part in enumerate(parts):
            row = ops.cut(b, f"{name}.table.{i}", table, axis=0, start=i)
            layer = f"{name}.table.{i}.add"
            made.append(ops.function(b, layer, "broadcast-add", (part, row), b.shape(part))[0])
        return made

    def _block(
        self,
        b: GraphBuilder,
        name: str,
        x: str,
        text: str,
        seen: str,
        parts: list[str],
        positions: Positions,
    ) -> str:
        own = self._added(b, name, parts, 6)
        y = modulated(b, f"{name}.attention", x, own[0], own[1])
        y = self.attention.build(b, f"{name}.attention", y, causal=False, positions=positions)
        x = gated(b, f"{name}.attention", x, y, own[2])
        y = ops.layer_norm(b, f"{name}.cross.norm", x) if self.cross_norm else x
        y = self._cross(b, f"{name}.cross", y, text, seen)
        x = ops.add(b, f"{name}.cross.add", y, x)
        y = modulated(b, f"{name}.feed-forward", x, own[3], own[4])
        y = self.feed_forward.build(b, f"{name}.feed-forward", y)
        return gated(b, f"{name}.feed-forward", x, y, own[5])

    def _cross(self, b: GraphBuilder, name: str, x: str, text: str, seen: str) -> str:
        """Write attention to the text, and to an image by the same queries."""
        if not seen:
            return self.cross.build(b, name, x, causal=False, memory=text)
        q, k, v = self.cross.projected(b, name, x, text)
        of_image = self.cross.keys_values(b, f"{name}.image", seen)
        y = self.cross.attend(b, name, q, k, v, causal=False)
        z = self.cross.attend(b, f"{name}.image", q, *of_image, causal=False)
        y = ops.add(b, f"{name}.add-image", y, z)
        return ops.linear(b, f"{name}.output", y, self.hidden, bias=self.cross.output_bias)
