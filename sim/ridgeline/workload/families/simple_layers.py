"""The layers of `sequential` networks that hold no other layers, and what they are applied to."""

from __future__ import annotations

import abc
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from ridgeline.config import Strict
from ridgeline.errors import RidgelineError, nearest
from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import MAX_LAYERS, Channels, Kernel, Padding, Probability
from ridgeline.workload.families.excite import squeeze_excite
from ridgeline.workload.ops.elementwise import Activation
from ridgeline.workload.ops.window import image


@dataclass
class Chain:
    """What layers are applied to.

    Attributes
    ----------
    labels
        Labels of the images, for auxiliary classifiers.
    outputs
        What each layer so far has made, by its name.
    losses
        Losses of auxiliary classifiers, already weighted.
    flat
        Whether a flatten layer came before.
    """

    b: GraphBuilder
    labels: str = ""
    outputs: dict[str, str] = field(default_factory=dict)
    losses: list[str] = field(default_factory=list)
    flat: bool = False
    count: int = 0

    def run(self, layers: Sequence[Layer], x: str, prefix: str = "") -> str:
        """Apply layers one after the other and return the last one's output."""
        numbers: Counter[str] = Counter()
        flat = self.flat
        for layer in layers:
            self.count += 1
            if self.count > MAX_LAYERS:
                raise RidgelineError(f"more than {MAX_LAYERS} layers")
            numbers[layer.layer] += 1
            name = prefix + (layer.name or f"{layer.layer}{numbers[layer.layer]}")
            x = self.outputs[name] = layer.apply(self, name, x)
        if prefix:  # what is flat in a branch does not concern the layers after it
            self.flat = flat
        return x

    def find(self, layer: str, name: str) -> str:
        """Return the output of an earlier layer."""
        if name not in self.outputs:
            raise RidgelineError(
                f"layer {layer!r}: no layer before it is called {name!r}"
                f"{nearest(name, self.outputs)}"
            )
        return self.outputs[name]


class Layer(Strict, abc.ABC):
    """One layer of the chain."""

    layer: str
    """What the layer does."""
    name: str | None = None
    """Its name; by default what it does and a number."""

    @abc.abstractmethod
    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Write the layer's ops and return its output."""


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

    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Write the convolution."""
        return ops.conv2d(
            chain.b,
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


class ConvBnRelu(Layer):
    """2-D convolution without bias, batch norm and relu."""

    layer: Literal["conv-bn-relu"]
    filters: Channels
    kernel: Kernel
    stride: Kernel = 1
    padding: Padding = 0
    depthwise: bool = False
    """One group for each channel."""
    groups: Channels = 1
    function: Literal["relu", "none", "hard-swish", "prelu", "silu"] = "relu"
    """What is applied instead of relu."""

    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Write the three."""
        x = ops.conv2d(
            chain.b,
            f"{name}.conv",
            x,
            self.filters,
            self.kernel,
            stride=self.stride,
            padding=self.padding,
            groups=chain.b.shape(x)[1] if self.depthwise else self.groups,
            bias=False,
        )
        x = ops.batch_norm(chain.b, f"{name}.bn", x)
        return _applied(chain.b, f"{name}.{self.function}", x, self.function)


class TransposedConvolution(Layer):
    """Transposed 2-D convolution, which enlarges images."""

    layer: Literal["conv-transpose"]
    filters: Channels
    kernel: Kernel
    stride: Kernel = 1
    padding: Padding = 0
    bias: bool = True

    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Write the transposed convolution."""
        return ops.conv_transpose2d(
            chain.b,
            name,
            x,
            self.filters,
            self.kernel,
            stride=self.stride,
            padding=self.padding,
            bias=self.bias,
        )


class ActivationFunction(Layer):
    """An elementwise function."""

    layer: Activation

    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Write the function."""
        return ops.activation(chain.b, name, x, self.layer)


class Pool(Layer):
    """Maximum or mean over sliding windows."""

    layer: Literal["max-pool", "avg-pool"]
    kernel: Kernel
    stride: Kernel | None = None
    """By default the kernel."""
    padding: Padding = 0
    ceil_mode: bool = False
    """Round the number of windows up."""

    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Write the pooling."""
        pool = ops.max_pool if self.layer == "max-pool" else ops.avg_pool
        return pool(
            chain.b,
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

    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Write the pooling."""
        return ops.adaptive_avg_pool(chain.b, name, x, self.size)


class GlobalPool(Layer):
    """Mean over all pixels of an image, which becomes a vector."""

    layer: Literal["global-avg-pool"]

    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Write the mean."""
        shape = chain.b.shape(x)
        return ops.function(chain.b, name, "mean", (x,), shape[:2])[0]


class Flatten(Layer):
    """Images become vectors; moves no data and is no op."""

    layer: Literal["flatten"]

    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Return the input."""
        chain.flat = True
        return x


class Linear(Layer):
    """Fully connected layer."""

    layer: Literal["linear"]
    features: Channels
    bias: bool = True

    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Write the matrix product."""
        if len(chain.b.shape(x)) > 2 and not chain.flat:
            raise RidgelineError(f"layer {name!r}: put a flatten layer between images and it")
        return ops.linear(chain.b, name, x, self.features, bias=self.bias, flatten=chain.flat)


class Dropout(Layer):
    """Zeroes elements at random."""

    layer: Literal["dropout"]
    probability: Probability = 0.5

    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Write the dropout."""
        return ops.dropout(chain.b, name, x, self.probability)


class PadChannels(Layer):
    """Adds channels of zeros: the parameter-free shortcut of residual networks."""

    layer: Literal["pad-channels"]
    channels: Channels

    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Write the padding."""
        return ops.pad_channels(chain.b, name, x, self.channels)


class ChannelFunction(Layer):
    """An elementwise function of `ops.functions`; of "prelu", each channel has a trained slope."""

    layer: Literal["hard-swish", "hard-sigmoid", "leaky-relu", "elu", "mish", "prelu"]

    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Write the function."""
        return _applied(chain.b, name, x, self.layer)


class Excite(Layer):
    """Squeeze and excitation."""

    layer: Literal["excite"]
    features: Channels
    """Inside."""
    function: Literal["relu", "silu"] = "relu"
    """Between its two layers."""
    gate: Literal["sigmoid", "hard-sigmoid"] = "sigmoid"

    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Write its layers."""
        return squeeze_excite(chain.b, name, x, self.features, self.function, self.gate)


class PartOfChannels(Layer):
    """Some of the channels; what follows in a branch goes on with these."""

    layer: Literal["channels"]
    first: Annotated[int, Field(ge=0, le=2**20)] = 0
    count: Channels

    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Write the copy."""
        if self.first + self.count > chain.b.shape(x)[1]:
            raise RidgelineError(f"layer {name!r}: there are {chain.b.shape(x)[1]} channels")
        return ops.cut(chain.b, name, x, axis=1, start=self.first, length=self.count)


class Enlarge(Layer):
    """Repeats pixels, or interpolates between them."""

    layer: Literal["nearest", "bilinear"]
    factor: Annotated[int, Field(ge=1, le=64)] = 2

    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Write the copy."""
        _, _, h, w = image(name, chain.b.shape(x))
        return ops.upsample(chain.b, name, x, (self.factor * h, self.factor * w), self.layer)


class Scale(Layer):
    """Multiplies by a constant."""

    layer: Literal["scale"]
    factor: Annotated[float, Field(gt=0, le=1024)]

    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Write the product."""
        return ops.scale(chain.b, name, x, self.factor)


class Shuffle(Layer):
    """Channels of groups one after the other (Zhang et al., ShuffleNet, CVPR 2018)."""

    layer: Literal["shuffle"]

    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Write the copy."""
        return ops.function(chain.b, name, "rearrange", (x,), chain.b.shape(x))[0]


def _applied(b: GraphBuilder, name: str, x: str, function: str) -> str:
    match function:
        case "none":
            return x
        case "relu" | "silu" as plain:
            return ops.activation(b, name, x, plain)
        case "prelu":
            slope = b.weight(f"{name}.weight", (b.shape(x)[1],))
            inputs = (x, b.cast(slope, b.format(x), name))
            return ops.function(b, name, "prelu", inputs, b.shape(x))[0]
        case _:
            return ops.function(b, name, function, (x,), b.shape(x))[0]
