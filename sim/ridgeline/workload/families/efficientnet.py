"""EfficientNet: inverted residual blocks with depthwise convolutions, scaled in width and depth.

Tan and Le, EfficientNet, ICML 2019, arXiv:1905.11946: the stages of Table 1, multiplied by two
coefficients; blocks of MobileNetV2 (Sandler et al., CVPR 2018, arXiv:1801.04381) with squeeze and
excitation. Left out: stochastic depth, which drops whole branches.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field

from ridgeline.config import Strict
from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Image, Network, Probability, family
from ridgeline.workload.families.blocks import dropout
from ridgeline.workload.families.excite import squeeze_excite

_Coefficient = Annotated[float, Field(gt=0, le=16, strict=False)]
_MULTIPLE = 8  # channels are rounded to multiples of it
_STEM, _HEAD = 32, 1280


class _Stage(NamedTuple):
    """Blocks of one size: how much wider inside, filter, channels, depth, stride of the first."""

    expand: int
    kernel: int
    channels: int
    depth: int
    stride: int


_STAGES = (
    _Stage(1, 3, 16, 1, 1),
    _Stage(6, 3, 24, 2, 2),
    _Stage(6, 5, 40, 2, 2),
    _Stage(6, 3, 80, 3, 2),
    _Stage(6, 5, 112, 3, 1),
    _Stage(6, 5, 192, 4, 2),
    _Stage(6, 3, 320, 1, 1),
)


def rounded(channels: float) -> int:
    """Round to a multiple of 8, but not down by more than 10 % (the authors' code)."""
    near = max(_MULTIPLE, int(channels + _MULTIPLE / 2) // _MULTIPLE * _MULTIPLE)
    return near + _MULTIPLE if near < 0.9 * channels else near


class Scaled(Strict):
    """A stem and stages of inverted residual blocks."""

    width: _Coefficient = 1.0
    """Multiplies the channels."""
    depth: _Coefficient = 1.0
    """Multiplies the blocks of a stage, rounded up."""
    squeeze_of: Literal["input", "inside"] = "input"
    """Inner features of squeeze and excitation are a quarter of the block's input channels, or of
    those inside it ("WideSE")."""

    def features(self, b: GraphBuilder, x: str, *, prefix: str = "") -> list[str]:
        """Write stem and stages; return the output of each stage."""
        x = _conv_norm(b, f"{prefix}stem", x, rounded(_STEM * self.width), 3, stride=2)
        outputs = []
        for number, stage in enumerate(_STAGES, start=1):
            for i in range(math.ceil(stage.depth * self.depth)):
                stride = stage.stride if i == 0 else 1
                x = self._block(b, f"{prefix}stage{number}.{i}", x, stage, stride)
            outputs.append(x)
        return outputs

    def _block(self, b: GraphBuilder, name: str, x: str, stage: _Stage, stride: int) -> str:
        before, after = b.shape(x)[1], rounded(stage.channels * self.width)
        inside, y = stage.expand * before, x
        if stage.expand > 1:
            y = _conv_norm(b, f"{name}.expand", y, inside, 1)
        y = _conv_norm(
            b, f"{name}.depthwise", y, inside, stage.kernel, stride=stride, groups=inside
        )
        width = max(1, (before if self.squeeze_of == "input" else inside) // 4)
        y = squeeze_excite(b, f"{name}.excite", y, width, "silu")
        y = _conv_norm(b, f"{name}.project", y, after, 1, activated=False)
        if stride > 1 or before != after:
            return y
        return ops.add(b, f"{name}.add", y, x)


@family("efficientnet", network_kind="cnn")
class EfficientNet(Scaled, Network):
    """A stem, stages of inverted residual blocks, and a classifier."""

    sample: ClassVar[str] = "images"

    image: Image
    classes: Channels
    """Classes that are told apart."""
    dropout: Probability = 0.2
    """Before the classifier."""

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        images, labels = self.image.inputs(b)
        x = self.features(b, images)[-1]
        x = _conv_norm(b, "head", x, rounded(_HEAD * self.width), 1)
        x = ops.adaptive_avg_pool(b, "avgpool", x)
        x = dropout(b, "dropout", x, self.dropout)
        logits = ops.linear(b, "classifier", x, self.classes, flatten=True)
        return ops.cross_entropy(b, "loss", logits, labels)


def _conv_norm(
    b: GraphBuilder,
    name: str,
    x: str,
    filters: int,
    kernel: int,
    *,
    stride: int = 1,
    groups: int = 1,
    activated: bool = True,
) -> str:
    x = ops.conv2d(
        b,
        f"{name}.conv",
        x,
        filters,
        kernel,
        stride=stride,
        padding=kernel // 2,
        groups=groups,
        bias=False,
    )
    x = ops.batch_norm(b, f"{name}.bn", x)
    return ops.activation(b, f"{name}.silu", x, "silu") if activated else x
