"""The layers of `sequential` networks.

Layers that hold layers (`branches`, `repeat`, `auxiliary`) put their own name before those of the
layers in them: "stage.2.conv1". Without a name of its own a layer is called by what it does and a
number.
"""

from __future__ import annotations

import abc
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from ridgeline.config import Strict
from ridgeline.errors import RidgelineError, nearest
from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import MAX_LAYERS, Channels, Kernel, Padding, Probability
from ridgeline.workload.ops.elementwise import Activation


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

    def run(self, layers: tuple[AnyLayer, ...], x: str, prefix: str = "") -> str:
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
            groups=chain.b.shape(x)[1] if self.depthwise else 1,
            bias=False,
        )
        return ops.relu(chain.b, f"{name}.relu", ops.batch_norm(chain.b, f"{name}.bn", x))


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


class BatchNorm(Layer):
    """Batch normalisation."""

    layer: Literal["batch-norm"]

    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Write the normalisation."""
        return ops.batch_norm(chain.b, name, x)


class LocalResponseNorm(Layer):
    """Local response normalisation across channels."""

    layer: Literal["local-response-norm"]
    size: Annotated[int, Field(ge=1, le=1024)] = 5
    """Neighbouring channels."""

    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Write the normalisation."""
        return ops.local_response_norm(chain.b, name, x, self.size)


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


class Join(Layer):
    """Puts the outputs of earlier layers beside the input, or adds them to it."""

    layer: Literal["concat", "add"]
    beside: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    """Names of the earlier layers."""
    crop: bool = False
    """Cut them to the input's height and width first."""

    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Write the crops and the join."""
        size = chain.b.shape(x)[2:]
        xs = [x]
        for i, other in enumerate(self.beside, start=1):
            y = chain.find(name, other)
            if self.crop and chain.b.shape(y)[2:] != size:
                y = ops.crop(chain.b, f"{name}.crop{i}", y, (size[0], size[1]))
            xs.append(y)
        return _join(chain.b, self.layer, name, xs)


class Branches(Layer):
    """Chains of layers that all read the input, and meet again; an empty one hands it on."""

    layer: Literal["branches"]
    join: Literal["concat", "add"]
    branches: Annotated[
        tuple[Annotated[tuple[AnyLayer, ...], Field(strict=False)], ...],
        Field(strict=False, min_length=2),
    ]

    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Write the branches and the join."""
        ends = [chain.run(b, x, f"{name}.{i}.") for i, b in enumerate(self.branches, start=1)]
        return _join(chain.b, self.join, name, ends)


class Repeat(Layer):
    """The same layers several times, each time with weights of their own."""

    layer: Literal["repeat"]
    times: Annotated[int, Field(ge=1, le=MAX_LAYERS)]
    layers: Annotated[tuple[AnyLayer, ...], Field(strict=False, min_length=1)]

    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Write the layers."""
        for i in range(1, self.times + 1):
            x = chain.run(self.layers, x, f"{name}.{i}.")
        return x


class Auxiliary(Layer):
    """A classifier on the way, whose loss is added to the network's; hands its input on."""

    layer: Literal["auxiliary"]
    weight: Annotated[float, Field(gt=0, le=1)]
    """Of its loss."""
    layers: Annotated[tuple[AnyLayer, ...], Field(strict=False, min_length=1)]

    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Write the classifier."""
        if not chain.labels:
            raise RidgelineError(f"layer {name!r}: pixels have no auxiliary classifiers")
        logits = chain.run(self.layers, x, f"{name}.")
        loss = ops.cross_entropy(chain.b, f"{name}.loss", logits, chain.labels)
        chain.losses.append(ops.scale(chain.b, f"{name}.weight", loss, self.weight))
        return x


def _join(b: GraphBuilder, how: Literal["concat", "add"], name: str, xs: list[str]) -> str:
    if how == "concat":
        return ops.concat(b, name, xs)
    y = xs[0]
    for i, other in enumerate(xs[1:], start=1):
        y = ops.add(b, name if i == len(xs) - 1 else f"{name}.{i}", y, other)
    return y


AnyLayer = Annotated[
    Convolution
    | ConvBnRelu
    | TransposedConvolution
    | BatchNorm
    | LocalResponseNorm
    | ActivationFunction
    | Pool
    | AdaptivePool
    | Flatten
    | Linear
    | Dropout
    | PadChannels
    | Join
    | Branches
    | Repeat
    | Auxiliary,
    Field(discriminator="layer"),
]
for _holder in (Branches, Repeat, Auxiliary):
    _holder.model_rebuild()
