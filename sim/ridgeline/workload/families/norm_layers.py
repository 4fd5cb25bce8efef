"""The layers of `sequential` networks that normalise or scale channels."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ridgeline.workload import ops
from ridgeline.workload.families.base import Channels
from ridgeline.workload.families.simple_layers import Chain, Layer


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


class ChannelNorm(Layer):
    """Layer normalisation of the channels of every pixel."""

    layer: Literal["layer-norm"]

    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Write the normalisation."""
        return ops.layer_norm(chain.b, name, x, axis=1)


class GroupNorm(Layer):
    """Normalisation of groups of channels of every image."""

    layer: Literal["group-norm"]
    groups: Channels = 32

    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Write the normalisation."""
        return ops.group_norm(chain.b, name, x, self.groups)


class InstanceNorm(Layer):
    """Normalisation of every channel of every image, without weights.

    Ulyanov, Vedaldi and Lempitsky, Instance normalization, 2016, arXiv:1607.08022.
    """

    layer: Literal["instance-norm"]

    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Write the normalisation, which streams its input twice."""
        shape = chain.b.shape(x)
        return ops.function(chain.b, name, "normalize", (x,), shape, passes=(2,))[0]


class LayerScale(Layer):
    """Multiplies every channel by a trained number.

    Touvron et al., Going deeper with image transformers, ICCV 2021, arXiv:2103.17239, Section 2.1.
    """

    layer: Literal["layer-scale"]

    def apply(self, chain: Chain, name: str, x: str) -> str:
        """Write the product."""
        b, shape = chain.b, chain.b.shape(x)
        gains = b.weight(f"{name}.weight", (shape[1], *(1 for _ in shape[2:])))
        inputs = (x, b.cast(gains, b.format(x), name))
        return ops.function(b, name, "broadcast-multiply", inputs, shape)[0]
