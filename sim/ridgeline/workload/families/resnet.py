"""Residual networks for images.

He et al., Deep residual learning for image recognition, CVPR 2016, arXiv:1512.03385, Table 1, in
torchvision's layout: no biases in convolutions, batch norm after each. `groups` and
`width_per_group` give ResNeXt (arXiv:1611.05431) and wide ResNets (arXiv:1605.07146), `squeeze`
SE-ResNets (arXiv:1709.01507). The small
networks for CIFAR-10 are those of Section 4.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from ridgeline.config import Strict
from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import MAX_LAYERS, Channels, Image, Network, family
from ridgeline.workload.families.excite import squeeze_excite

_Depth = Annotated[int, Field(ge=1, le=MAX_LAYERS)]
_Norm = Callable[[GraphBuilder, str, str], str]


class _Conv(NamedTuple):
    """A convolution that keeps the image's size but for the stride."""

    filters: int
    kernel: int
    stride: int = 1
    groups: int = 1
    dilation: int = 1


class Stages(Strict):
    """A stem and stages of residual blocks, each but the first on half the image."""

    block: Literal["basic", "bottleneck"]
    """Two 3x3 convolutions, or 1x1, 3x3 and 1x1 with four times the channels at the end."""
    depths: Annotated[tuple[_Depth, ...], Field(strict=False, min_length=1, max_length=8)]
    """Blocks of each stage."""
    stem: Literal["7x7", "3x3"] = "7x7"
    """A 7x7 convolution and a pooling, which both halve the image, or a 3x3 one (CIFAR)."""
    stride_on: Literal["1x1", "3x3"] = "3x3"
    """The convolution of a bottleneck that halves the image: 1x1 in the paper (v1), 3x3 in v1.5."""
    shortcut: Literal["projection", "zeros"] = "projection"
    """Where a block changes the shape: a 1x1 convolution (option B), or every other pixel and
    channels of zeros (option A)."""
    width: Annotated[int, Field(ge=1, le=4096)] = 64
    """Channels of the stem and of the first stage; each further stage has twice as many."""
    groups: Channels = 1
    """Groups of the 3x3 convolutions of bottlenecks."""
    width_per_group: Annotated[int, Field(ge=1, le=4096)] = 64
    """Channels of each group in the first stage, when `width` is 64."""
    squeeze: Annotated[int, Field(ge=0, le=4096)] = 0
    """Channels over the inner features of squeeze and excitation, at the end of each block; 0:
    without (arXiv:1709.01507)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if 3 * sum(self.depths) > MAX_LAYERS:
            raise ValueError(f"more than {MAX_LAYERS} layers")
        narrow = (self.stride_on, self.groups, self.width_per_group) == ("3x3", 1, 64)
        if self.block == "basic" and not narrow:
            raise ValueError("stride_on, groups and width_per_group are for bottleneck blocks")
        return self

    def features(
        self,
        b: GraphBuilder,
        x: str,
        *,
        prefix: str = "",
        dilated: int = 0,
        kept: int = 0,
        norm: _Norm = ops.batch_norm,
    ) -> list[str]:
        """Write stem and stages; return the output of each stage.

        Parameters
        ----------
        prefix
            Stands before all names.
        kept
            So many stages at the end keep the size of the image.
        dilated
            So many stages at the end dilate their windows instead of halving the image (Yu and
            Koltun, ICLR 2016, arXiv:1511.07122).
        """
        large = self.stem == "7x7"
        stem = _Conv(self.width, 7 if large else 3, stride=2 if large else 1)
        x = _conv_norm(b, f"{prefix}conv1", f"{prefix}bn1", x, stem, norm)
        x = ops.relu(b, f"{prefix}relu", x)
        if large:
            x = ops.max_pool(b, f"{prefix}maxpool", x, 3, stride=2, padding=1)
        outputs, dilation = [], 1
        for stage, depth in enumerate(self.depths):
            before = dilation
            if stage > 0 and stage >= len(self.depths) - dilated:
                dilation *= 2
            for i in range(depth):
                halves = 0 < stage < len(self.depths) - kept and dilation == before
                stride = 2 if halves and i == 0 else 1
                name = f"{prefix}layer{stage + 1}.{i}"
                spread = before if i == 0 else dilation
                x = self._block(b, name, x, self.width << stage, stride, spread, norm)
            outputs.append(x)
        return outputs

    def _block(
        self,
        b: GraphBuilder,
        name: str,
        x: str,
        planes: int,
        stride: int,
        dilation: int,
        norm: _Norm,
    ) -> str:
        if self.block == "basic":
            convs = [_Conv(planes, 3, stride), _Conv(planes, 3)]
        else:
            inner = planes * self.width_per_group // 64 * self.groups
            first, second = (stride, 1) if self.stride_on == "1x1" else (1, stride)
            convs = [
                _Conv(inner, 1, first),
                _Conv(inner, 3, second, self.groups, dilation),
                _Conv(4 * planes, 1),
            ]
        y = x
        for i, conv in enumerate(convs, start=1):
            y = _conv_norm(b, f"{name}.conv{i}", f"{name}.bn{i}", y, conv, norm)
            if i < len(convs):
                y = ops.relu(b, f"{name}.relu{i}", y)
        if self.squeeze:
            width = max(1, convs[-1].filters // self.squeeze)
            y = squeeze_excite(b, f"{name}.excite", y, width)
        x = self._shortcut(b, f"{name}.downsample", x, _Conv(convs[-1].filters, 1, stride), norm)
        y = ops.add(b, f"{name}.add", y, x)
        return ops.relu(b, f"{name}.relu", y)

    def _shortcut(self, b: GraphBuilder, name: str, x: str, conv: _Conv, norm: _Norm) -> str:
        if conv.stride == 1 and b.shape(x)[1] == conv.filters:
            return x
        if self.shortcut == "projection":
            return _conv_norm(b, f"{name}.0", f"{name}.1", x, conv, norm)
        if conv.stride > 1:  # the mean of one pixel
            x = ops.avg_pool(b, f"{name}.0", x, 1, stride=conv.stride)
        return ops.pad_channels(b, f"{name}.1", x, conv.filters)


@family("resnet", network_kind="cnn")
class ResNet(Stages, Network):
    """A stem, stages of residual blocks that halve the image, and a classifier."""

    sample: ClassVar[str] = "images"

    image: Image
    """The images."""
    classes: Channels
    """Classes that are told apart."""

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        images, labels = self.image.inputs(b)
        x = ops.adaptive_avg_pool(b, "avgpool", self.features(b, images)[-1])
        logits = ops.linear(b, "fc", x, self.classes, flatten=True)
        return ops.cross_entropy(b, "loss", logits, labels)


def _conv_norm(
    b: GraphBuilder, conv_name: str, norm_name: str, x: str, conv: _Conv, norm: _Norm
) -> str:
    x = ops.conv2d(
        b,
        conv_name,
        x,
        conv.filters,
        conv.kernel,
        stride=conv.stride,
        padding=conv.kernel // 2 * conv.dilation,
        dilation=conv.dilation,
        groups=conv.groups,
        bias=False,
    )
    return norm(b, norm_name, x)
