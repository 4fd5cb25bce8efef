"""Residual networks for images.

He et al., Deep residual learning for image recognition, CVPR 2016, arXiv:1512.03385, Table 1, in
torchvision's layout: no biases in convolutions, batch norm after each. `groups` and
`width_per_group` give ResNeXt (arXiv:1611.05431) and wide ResNets (arXiv:1605.07146).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import MAX_LAYERS, Channels, Image, Network

_Depth = Annotated[int, Field(ge=1, le=MAX_LAYERS)]


class _Conv(NamedTuple):
    """A convolution that keeps the image's size but for the stride."""

    filters: int
    kernel: int
    stride: int = 1
    groups: int = 1


class ResNet(Network):
    """A stem, stages of residual blocks that halve the image, and a classifier."""

    sample: ClassVar[str] = "images"

    family: Literal["resnet"]
    image: Image
    """The images."""
    classes: Channels
    """Classes that are told apart."""
    block: Literal["basic", "bottleneck"]
    """Two 3x3 convolutions, or 1x1, 3x3 and 1x1 with four times the channels at the end."""
    depths: Annotated[tuple[_Depth, ...], Field(strict=False, min_length=1, max_length=8)]
    """Blocks of each stage."""
    stride_on: Literal["1x1", "3x3"] = "3x3"
    """The convolution of a bottleneck that halves the image: 1x1 in the paper (v1), 3x3 in v1.5."""
    width: Annotated[int, Field(ge=1, le=4096)] = 64
    """Channels of the stem and of the first stage; each further stage has twice as many."""
    groups: Channels = 1
    """Groups of the 3x3 convolutions of bottlenecks."""
    width_per_group: Annotated[int, Field(ge=1, le=4096)] = 64
    """Channels of each group in the first stage, when `width` is 64."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if 3 * sum(self.depths) > MAX_LAYERS:
            raise ValueError(f"more than {MAX_LAYERS} layers")
        narrow = (self.stride_on, self.groups, self.width_per_group) == ("3x3", 1, 64)
        if self.block == "basic" and not narrow:
            raise ValueError("stride_on, groups and width_per_group are for bottleneck blocks")
        return self

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        x, labels = self.image.inputs(b)
        x = _conv_bn(b, "conv1", "bn1", x, _Conv(self.width, 7, stride=2))
        x = ops.relu(b, "relu", x)
        x = ops.max_pool(b, "maxpool", x, 3, stride=2, padding=1)
        for stage, depth in enumerate(self.depths):
            for i in range(depth):
                stride = 2 if stage > 0 and i == 0 else 1
                x = self._block(b, f"layer{stage + 1}.{i}", x, self.width << stage, stride)
        x = ops.adaptive_avg_pool(b, "avgpool", x)
        logits = ops.linear(b, "fc", x, self.classes, flatten=True)
        return ops.cross_entropy(b, "loss", logits, labels)

    def _block(self, b: GraphBuilder, name: str, x: str, planes: int, stride: int) -> str:
        if self.block == "basic":
            convs = [_Conv(planes, 3, stride), _Conv(planes, 3)]
        else:
            inner = planes * self.width_per_group // 64 * self.groups
            first, second = (stride, 1) if self.stride_on == "1x1" else (1, stride)
            convs = [
                _Conv(inner, 1, first),
                _Conv(inner, 3, second, self.groups),
                _Conv(4 * planes, 1),
            ]
        y = x
        for i, conv in enumerate(convs, start=1):
            y = _conv_bn(b, f"{name}.conv{i}", f"{name}.bn{i}", y, conv)
            if i < len(convs):
                y = ops.relu(b, f"{name}.relu{i}", y)
        out = convs[-1].filters
        if stride != 1 or b.shape(x)[1] != out:
            down = f"{name}.downsample"
            x = _conv_bn(b, f"{down}.0", f"{down}.1", x, _Conv(out, 1, stride))
        y = ops.add(b, f"{name}.add", y, x)
        return ops.relu(b, f"{name}.relu", y)


def _conv_bn(b: GraphBuilder, conv_name: str, bn_name: str, x: str, conv: _Conv) -> str:
    x = ops.conv2d(
        b,
        conv_name,
        x,
        conv.filters,
        conv.kernel,
        stride=conv.stride,
        padding=conv.kernel // 2,
        groups=conv.groups,
        bias=False,
    )
    return ops.batch_norm(b, bn_name, x)
