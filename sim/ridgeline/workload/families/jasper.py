"""Convolutional networks for speech: Jasper and QuartzNet.

Li et al., Jasper, Interspeech 2019, arXiv:1904.03288: blocks of 1-D convolutions, batch norm, relu
and dropout, with dense residuals (1x1 convolutions of what all blocks before have made). Kriman et
al., QuartzNet, ICASSP 2020, arXiv:1910.10261: the convolutions are depthwise over time and 1x1, a
block's residual is that of its own input. A sequence is an image of one row.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from ridgeline.config import Strict
from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Extent, Network, Probability, family
from ridgeline.workload.families.blocks import dropout, masked_fill

_Window = Annotated[int, Field(ge=1, le=1024)]


class SpeechBlock(Strict):
    """Convolutions of one size, the same a few times."""

    filters: Channels
    kernel: _Window
    stride: _Window = 1
    dilation: _Window = 1
    inner: Annotated[int, Field(ge=1, le=1000)] = 1
    """Convolutions in a block."""
    blocks: Annotated[int, Field(ge=1, le=1000)] = 1
    """Blocks."""
    residual: bool = False
    """Whether what came before is added before the last relu of a block."""
    separable: bool = False
    """Depthwise over time and 1x1, rather than one convolution."""
    dropout: Probability = 0.0


@family("jasper", network_kind="speech")
class Jasper(Network):
    """Blocks of convolutions over time and a classifier of characters."""

    sample: ClassVar[str] = "utterances"

    features: Extent
    """Features of a frame."""
    frames: Extent
    """Frames of an utterance."""
    characters: Channels
    """Characters that are told apart, blank included."""
    length: Extent
    """Characters of an utterance."""
    blocks: Annotated[tuple[SpeechBlock, ...], Field(strict=False, min_length=1, max_length=100)]
    dense: bool = False
    """Whether a residual is of all blocks before, rather than of the block's own input."""
    masked: bool = False
    """Whether frames after the end of an utterance are set to 0 before every convolution, which
    NVIDIA's programs do with a copy (`masked_fill`)."""

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        x = b.input("features", (b.batch, self.features, 1, self.frames))
        labels = b.input("labels", (b.batch, self.length), "int64")
        before: list[str] = []
        for number, block in enumerate(self.blocks, start=1):
            for i in range(block.blocks):
                name = f"block{number}.{i}"
                if block.residual:
                    before = [*before, x] if self.dense else [x]
                x = self._block(b, name, x, block, before if block.residual else [])
        x = ops.conv2d(b, "head", x, self.characters, 1)
        return ops.ctc(b, "loss", ops.columns(b, "columns", x), labels)

    def _block(
        self, b: GraphBuilder, name: str, x: str, block: SpeechBlock, before: list[str]
    ) -> str:
        for i in range(1, block.inner + 1):
            x = self._conv_norm(b, f"{name}.{i}", x, block)
            if i < block.inner or not before:
                x = dropout(
                    b, f"{name}.dropout{i}", ops.relu(b, f"{name}.relu{i}", x), block.dropout
                )
        if not before:
            return x
        for i, other in enumerate(before, start=1):
            y = self._cut_off(b, f"{name}.before{i}", other)
            y = ops.conv2d(b, f"{name}.residual{i}", y, block.filters, 1, bias=False)
            x = ops.add(b, f"{name}.add{i}", x, ops.batch_norm(b, f"{name}.residual-bn{i}", y))
        return dropout(b, f"{name}.dropout", ops.relu(b, f"{name}.relu", x), block.dropout)

    def _conv_norm(self, b: GraphBuilder, name: str, x: str, block: SpeechBlock) -> str:
        """Convolve over time and normalise; the length stays but for the stride."""
        padding = (0, block.dilation * (block.kernel - 1) // 2)
        window, dilation, stride = (1, block.kernel), (1, block.dilation), (1, block.stride)
        x = self._cut_off(b, f"{name}.conv", x)
        if block.separable:
            x = ops.conv2d(
                b,
                f"{name}.depthwise",
                x,
                b.shape(x)[1],
                window,
                stride=stride,
                padding=padding,
                dilation=dilation,
                groups=b.shape(x)[1],
                bias=False,
            )
            x = self._cut_off(b, f"{name}.pointwise", x)
            x = ops.conv2d(b, f"{name}.pointwise", x, block.filters, 1, bias=False)
        else:
            x = ops.conv2d(
                b,
                f"{name}.conv",
                x,
                block.filters,
                window,
                stride=stride,
                padding=padding,
                dilation=dilation,
                bias=False,
            )
        return ops.batch_norm(b, f"{name}.bn", x)

    def _cut_off(self, b: GraphBuilder, name: str, x: str) -> str:
        return masked_fill(b, f"{name}.mask", x) if self.masked else x
