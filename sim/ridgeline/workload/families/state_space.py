"""A state-space layer of Mamba-2 (Dao and Gu, 2024, arXiv:2405.21060, Section 7)."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from ridgeline.config import Strict
from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels
from ridgeline.workload.ops.state_space import StateSpaceSizes


class StateSpace(Strict):
    """One product makes gate, x, B, C and steps; then states run over positions, and a norm."""

    heads: Channels
    head_size: Channels
    """Features of a head."""
    groups: Channels = 1
    """Groups of heads that share B and C, and whose features are normalised together."""
    state: Channels = 128
    """Features of a group's B and C."""
    taps: Annotated[int, Field(ge=1, le=64)] = 4
    """Positions that the convolution of every feature reads."""
    chunk: Annotated[int, Field(ge=1, le=2**16)] = 128
    """Positions that kernels form together by products."""
    filter_bias: bool = True
    """Whether that convolution adds a bias."""
    bias: bool = False
    """Whether the two products add biases."""
    norm: bool = True
    """Whether what states give is normalised under its gate, or only multiplied by silu of it."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.heads % self.groups:
            raise ValueError(f"groups {self.groups} must divide heads {self.heads}")
        return self

    def build(self, b: GraphBuilder, name: str, x: str) -> str:
        """Write the layer."""
        sizes = StateSpaceSizes(self.heads, self.head_size, self.groups, self.state, self.chunk)
        widths = (sizes.inner, sizes.mixed, self.heads)
        gate, mixed, steps = ops.fused_linear(b, f"{name}.input", x, widths, bias=self.bias)
        y = ops.state_space(
            b, f"{name}.states", mixed, steps, sizes, self.taps, bias=self.filter_bias
        )
        if self.norm:
            y = ops.gated_norm(b, f"{name}.norm", y, gate, self.groups)
        else:
            gate = ops.activation(b, f"{name}.silu", gate, "silu")
            y = ops.multiply(b, f"{name}.gate", y, gate)
        return ops.linear(b, f"{name}.output", y, b.shape(x)[2], bias=self.bias)
