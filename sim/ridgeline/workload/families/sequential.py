"""Chains of layers on images: VGG, AlexNet, LeNet and their like."""

from __future__ import annotations

import abc
from collections import Counter
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ridgeline.config import Strict
from ridgeline.errors import RidgelineError
from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import (
    MAX_LAYERS,
    Channels,
    Image,
    Kernel,
    Network,
    Padding,
)
from ridgeline.workload.ops.elementwise import Activation


class Layer(Strict, abc.ABC):
    """One layer of the chain."""

    layer: str
    """What the layer does."""
    name: str | None = None
    """Its name; by default what it does and a number."""

    @abc.abstractmethod
    def apply(self, b: GraphBuilder, name: str, x: str, flat: bool) -> str:
        """Write the layer's ops and return its output; `flat`: a flatten layer came before."""


class Convolution(Layer):
    """2-D convolution."""

    layer: Literal["conv"]
    filters: Channels
    kernel: Kernel
    stride: Kernel = 1
    padding: Padding = 0
    dilation: Kernel = 1
    groups: Channels = 1
    bias: bool = True

    def apply(self, b: GraphBuilder, name: str, x: str, flat: bool) -> str:
        """Write the convolution."""
        return ops.conv2d(
            b,
            name,
            x,
            self.filters,
            self.kernel,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            bias=self.bias,
        )


class BatchNorm(Layer):
    """Batch normalisation."""

    layer: Literal["batch-norm"]

    def apply(self, b: GraphBuilder, name: str, x: str, flat: bool) -> str:
        """Write the normalisation."""
        return ops.batch_norm(b, name, x)


class ActivationFunction(Layer):
    """An elementwise function."""

    layer: Activation

    def apply(self, b: GraphBuilder, name: str, x: str, flat: bool) -> str:
        """Write the function."""
        return ops.activation(b, name, x, self.layer)


class Pool(Layer):
    """Maximum or mean over sliding windows."""

    layer: Literal["max-pool", "avg-pool"]
    kernel: Kernel
    stride: Kernel | None = None
    """By default the kernel."""
    padding: Padding = 0
    ceil_mode: bool = False
    """Round the number of windows up."""

    def apply(self, b: GraphBuilder, name: str, x: str, flat: bool) -> str:
        """Write the pooling."""
        pool = ops.max_pool if self.layer == "max-pool" else ops.avg_pool
        return pool(
            b,
            name,
            x,
            self.kernel,
            stride=self.stride,
            padding=self.padding,
            ceil_mode=self.ceil_mode,
        )


class AdaptivePool(Layer):
    """Mean over as many windows as are wanted."""

    layer: Literal["adaptive-avg-pool"]
    size: Kernel = 1

    def apply(self, b: GraphBuilder, name: str, x: str, flat: bool) -> str:
        """Write the pooling."""
        return ops.adaptive_avg_pool(b, name, x, self.size)


class Flatten(Layer):
    """Images become vectors; moves no data and is no op."""

    layer: Literal["flatten"]

    def apply(self, b: GraphBuilder, name: str, x: str, flat: bool) -> str:
        """Return the input."""
        return x


class Linear(Layer):
    """Fully connected layer."""

    layer: Literal["linear"]
    features: Channels
    bias: bool = True

    def apply(self, b: GraphBuilder, name: str, x: str, flat: bool) -> str:
        """Write the matrix product."""
        if len(b.shape(x)) > 2 and not flat:
            raise RidgelineError(f"layer {name!r}: put a flatten layer between images and it")
        return ops.linear(b, name, x, self.features, bias=self.bias, flatten=flat)


class Dropout(Layer):
    """Zeroes elements at random."""

    layer: Literal["dropout"]
    probability: Annotated[float, Field(ge=0, lt=1)] = 0.5

    def apply(self, b: GraphBuilder, name: str, x: str, flat: bool) -> str:
        """Write the dropout."""
        return ops.dropout(b, name, x, self.probability)


AnyLayer = Annotated[
    Convolution | BatchNorm | ActivationFunction | Pool | AdaptivePool | Flatten | Linear | Dropout,
    Field(discriminator="layer"),
]


class Sequential(Network):
    """Layers applied one after the other to images, and a softmax classifier."""

    sample: ClassVar[str] = "images"

    family: Literal["sequential"]
    image: Image
    """The images."""
    layers: Annotated[
        tuple[AnyLayer, ...], Field(strict=False, min_length=1, max_length=MAX_LAYERS)
    ]
    """The layers; the last one's features are the classes."""

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        x, labels = self.image.inputs(b)
        numbers: Counter[str] = Counter()
        flat = False
        for layer in self.layers:
            numbers[layer.layer] += 1
            name = layer.name or f"{layer.layer}{numbers[layer.layer]}"
            x = layer.apply(b, name, x, flat)
            flat = flat or isinstance(layer, Flatten)
        return ops.cross_entropy(b, "loss", x, labels)
