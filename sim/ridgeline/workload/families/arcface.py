"""Face recognition: an improved residual network and a classifier of many identities.

Deng et al., ArcFace, CVPR 2019, arXiv:1801.07698, Section 3.1 (LResNet-E-IR): residual units of
batch norm, 3x3 convolution, batch norm, PReLU, 3x3 convolution and batch norm, on faces that are
halved four times; 512 features of a face; a classifier whose rows, like the features, have length
1. The margin that is added to the angle is left out.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import (
    MAX_LAYERS,
    Channels,
    Image,
    Network,
    Probability,
    family,
)
from ridgeline.workload.families.blocks import dropout
from ridgeline.workload.graph import Role

_Depth = Annotated[int, Field(ge=1, le=MAX_LAYERS // 4)]


@family("arcface", network_kind="cnn")
class ArcFace(Network):
    """A stem, stages of residual units that halve the image, features and a classifier."""

    sample: ClassVar[str] = "images"

    image: Image
    identities: Channels
    """Faces that are told apart."""
    depths: Annotated[tuple[_Depth, ...], Field(strict=False, min_length=1, max_length=8)]
    """Units of each stage; each has twice the channels of the one before."""
    width: Channels = 64
    """Channels of the stem and of the first stage."""
    features: Channels = 512
    """Features of a face."""
    dropout: Probability = 0.4
    """Before them."""

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        images, labels = self.image.inputs(b)
        x = self._conv(b, "stem", images, self.width, 3)
        x = _prelu(b, "stem.prelu", ops.batch_norm(b, "stem.bn", x))
        for stage, depth in enumerate(self.depths):
            for i in range(depth):
                x = self._unit(b, f"stage{stage + 1}.{i}", x, self.width << stage, 1 if i else 2)
        x = dropout(b, "dropout", ops.batch_norm(b, "bn", x), self.dropout)
        x = ops.linear(b, "features", x, self.features, flatten=True)
        x = _unit_length(b, "features.length", ops.batch_norm(b, "features.bn", x))
        rows = b.weight("identities.weight", (self.identities, self.features))
        rows = _unit_length(b, "identities.length", rows, Role.WEIGHT_COPY)
        y = ops.product(b, "identities", x, rows)
        return ops.cross_entropy(b, "loss", y, labels)

    def _unit(self, b: GraphBuilder, name: str, x: str, filters: int, stride: int) -> str:
        y = self._conv(b, f"{name}.conv1", ops.batch_norm(b, f"{name}.bn1", x), filters, 3)
        y = _prelu(b, f"{name}.prelu", ops.batch_norm(b, f"{name}.bn2", y))
        y = self._conv(b, f"{name}.conv2", y, filters, 3, stride)
        y = ops.batch_norm(b, f"{name}.bn3", y)
        if stride > 1 or b.shape(x)[1] != filters:
            x = self._conv(b, f"{name}.shortcut", x, filters, 1, stride)
            x = ops.batch_norm(b, f"{name}.shortcut-bn", x)
        return ops.add(b, f"{name}.add", y, x)

    @staticmethod
    def _conv(
        b: GraphBuilder, name: str, x: str, filters: int, kernel: int, stride: int = 1
    ) -> str:
        padding = kernel // 2
        return ops.conv2d(b, name, x, filters, kernel, stride=stride, padding=padding, bias=False)


def _prelu(b: GraphBuilder, name: str, x: str) -> str:
    """Return x where it is positive, else a trained multiple of each channel."""
    slope = b.cast(b.weight(f"{name}.weight", (b.shape(x)[1],)), b.format(x), name)
    return ops.function(b, name, "prelu", (x, slope), b.shape(x))[0]


def _unit_length(b: GraphBuilder, name: str, x: str, role: Role = Role.ACTIVATION) -> str:
    """Divide rows by their length."""
    (length,) = ops.function(b, name, "length", (x,), (b.shape(x)[0], 1), role=role)
    return ops.function(b, f"{name}.divide", "divide", (x, length), b.shape(x), role=role)[0]
