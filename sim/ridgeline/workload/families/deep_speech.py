"""Deep Speech 2: from a spectrogram to characters.

Amodei et al., ICML 2016, arXiv:1512.02595: convolutions over frequency and time, recurrent layers
in both directions whose outputs are added, batch norm before all but the first, CTC loss. The
clipped relu of the convolutions costs what relu costs.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from ridgeline.config import Strict
from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Extent, Kernel, Network, Padding, family
from ridgeline.workload.families.decoder import Layers
from ridgeline.workload.ops.recurrent import Cell


class Filter(Strict):
    """A convolution over frequency and time."""

    filters: Channels
    kernel: Kernel
    """[frequency, time]."""
    stride: Kernel
    padding: Padding = 0


@family("deep-speech", network_kind="speech")
class DeepSpeech(Network):
    """Convolutions, recurrent layers and a classifier of characters."""

    sample: ClassVar[str] = "utterances"

    frequencies: Extent
    """Rows of the spectrogram."""
    frames: Extent
    """Columns of the spectrogram."""
    characters: Channels
    """Characters that are told apart, blank included."""
    length: Extent
    """Characters of an utterance."""
    convolutions: Annotated[tuple[Filter, ...], Field(strict=False, min_length=1, max_length=16)]
    layers: Layers
    hidden: Channels
    cell: Cell = "gru"

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        x = b.input("spectrogram", (b.batch, 1, self.frequencies, self.frames))
        labels = b.input("labels", (b.batch, self.length), "int64")
        for i, conv in enumerate(self.convolutions, start=1):
            x = ops.conv2d(
                b,
                f"conv{i}",
                x,
                conv.filters,
                conv.kernel,
                stride=conv.stride,
                padding=conv.padding,
            )
            x = ops.relu(b, f"relu{i}", ops.batch_norm(b, f"bn{i}", x))
        x = ops.columns(b, "columns", x)
        for i in range(1, self.layers + 1):
            name = f"{self.cell}{i}"
            if i > 1:
                x = ops.batch_norm(b, f"{name}.bn", x, axis=2)
            y = ops.recurrent(b, f"{name}.forward", x, self.hidden, self.cell)
            z = ops.recurrent(b, f"{name}.backward", x, self.hidden, self.cell, reverse=True)
            x = ops.add(b, f"{name}.add", y, z)
        x = ops.batch_norm(b, "head.bn", x, axis=2)
        x = ops.linear(b, "head", x, self.characters, bias=False)
        return ops.ctc(b, "loss", x, labels)
