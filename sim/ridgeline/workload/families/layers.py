"""The layers of `sequential` networks that hold or join others.

Those without layers in them are in `simple_layers` and `norm_layers`. Layers that hold layers
(`branches`, `repeat`, `auxiliary`) put their own name before those of the layers in them:
"stage.2.conv1". Without a name of its own a layer is called by what it does and a number.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ridgeline.errors import RidgelineError
from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import MAX_LAYERS
from ridgeline.workload.families.norm_layers import (
    BatchNorm,
    ChannelNorm,
    GroupNorm,
    InstanceNorm,
    LayerScale,
    LocalResponseNorm,
)
from ridgeline.workload.families.simple_layers import (
    ActivationFunction,
    AdaptivePool,
    Chain,
    ChannelFunction,
    ConvBnRelu,
    Convolution,
    Dropout,
    Enlarge,
    Excite,
    Flatten,
    GlobalPool,
    Layer,
    Linear,
    PadChannels,
    PartOfChannels,
    Pool,
    Scale,
    Shuffle,
    TransposedConvolution,
)


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
    | ChannelNorm
    | GroupNorm
    | InstanceNorm
    | LayerScale
    | Enlarge
    | Scale
    | ActivationFunction
    | ChannelFunction
    | Excite
    | PartOfChannels
    | Shuffle
    | Pool
    | AdaptivePool
    | GlobalPool
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
