"""Mixers of positions whose cost grows with the sequence's length, not with its square.

Gated delta networks (Yang, Kautz and Hatamizadeh, ICLR 2025, arXiv:2412.06464, as in Qwen3-Next),
Kimi delta attention (Kimi Team, Kimi Linear, 2025, arXiv:2510.26692), Lightning attention (MiniMax,
2025, arXiv:2501.08313), the selective scan of Mamba (Gu and Dao, 2023, arXiv:2312.00752) and gated
short filters (Liquid AI, LFM2, 2025, arXiv:2511.23404).
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ridgeline.config import Strict
from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels
from ridgeline.workload.ops.linear_attention import DeltaHeads

Taps = Annotated[int, Field(ge=1, le=64)]


class LinearAttention(Strict):
    """Heads whose states take up keys and values position by position."""

    rule: Literal["gated-delta", "kimi-delta", "lightning"]
    """A decay a head and position; one for every feature of a key, by two products of low rank; or
    fixed decays, and states that take up all of a value."""
    heads: Channels
    """Heads of values."""
    head_size: Channels
    """Features of a value."""
    key_heads: Channels | None = None
    """Heads of queries and keys; by default as many."""
    key_size: Channels | None = None
    """Features of a key; by default as of a value."""
    taps: Taps = 4
    """Positions that the filter of queries, keys and values reads; lightning has none."""
    chunk: Annotated[int, Field(ge=1, le=2**16)] = 64
    """Positions that kernels form together by products."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.heads % (self.key_heads or self.heads):
            raise ValueError(f"key_heads {self.key_heads} must divide heads {self.heads}")
        return self

    @property
    def _sizes(self) -> DeltaHeads:
        return DeltaHeads(
            self.key_heads or self.heads,
            self.key_size or self.head_size,
            self.heads,
            self.head_size,
            self.chunk,
            self.rule == "kimi-delta",
        )

    def build(self, b: GraphBuilder, name: str, x: str) -> str:
        """Write the layer."""
        sizes, hidden = self._sizes, b.shape(x)[2]
        of_keys, of_values = sizes.keys * sizes.key_size, sizes.values * sizes.value_size
        widths = (of_keys, of_keys, of_values)
        if self.rule == "lightning":
            parts = ops.fused_linear(b, f"{name}.query-key-value", x, widths, bias=False)
            parts = tuple(
                ops.activation(b, f"{name}.silu{i}", part, "silu") for i, part in enumerate(parts)
            )
            y = ops.linear_attention(b, f"{name}.states", parts, sizes, "decay")
            y = ops.rms_norm(b, f"{name}.norm", y)
            gate = ops.linear(b, f"{name}.gate", x, of_values, bias=False)
            gate = ops.activation(b, f"{name}.gate.sigmoid", gate, "sigmoid")
            y = ops.multiply(b, f"{name}.gate.multiply", y, gate)
            return ops.linear(b, f"{name}.output", y, hidden, bias=False)
        parts = ops.fused_linear(b, f"{name}.query-key-value", x, widths, bias=False)
        parts = tuple(
            ops.causal_filter(b, f"{name}.{part}-filter", y, self.taps, bias=False, silu=True)
            for part, y in zip(("query", "key", "value"), parts, strict=True)
        )
        rates, steps, gate = self._controls(b, name, x, sizes)
        inputs = (*parts, rates, steps)
        y = ops.linear_attention(b, f"{name}.states", inputs, sizes, "delta")
        y = ops.head_norm(b, f"{name}.norm", y, self.heads)
        function: Literal["sigmoid", "silu"] = "silu" if self.rule == "gated-delta" else "sigmoid"
        gate = ops.activation(b, f"{name}.gate.{function}", gate, function)
        y = ops.multiply(b, f"{name}.gate.multiply", y, gate)
        return ops.linear(b, f"{name}.output", y, hidden, bias=False)

    def _controls(
        self, b: GraphBuilder, name: str, x: str, sizes: DeltaHeads
    ) -> tuple[str, str, str]:
        """Write learning rates, steps of the decays, and the gate of what is put out."""
        of_values = sizes.values * sizes.value_size
        if self.rule == "gated-delta":
            gate = ops.linear(b, f"{name}.gate", x, of_values, bias=False)
            widths = (self.heads, self.heads)
            rates, steps = ops.fused_linear(b, f"{name}.rates-steps", x, widths, bias=False)
        else:
            gate = ops.linear(b, f"{name}.gate-down", x, sizes.value_size, bias=False)
            gate = ops.linear(b, f"{name}.gate-up", gate, of_values, bias=False)
            rates = ops.linear(b, f"{name}.rates", x, self.heads, bias=False)
            steps = ops.linear(b, f"{name}.steps-down", x, sizes.key_size, bias=False)
            features = sizes.values * sizes.key_size
            steps = ops.linear(b, f"{name}.steps-up", steps, features, bias=False)
        rates = ops.activation(b, f"{name}.rates.sigmoid", rates, "sigmoid")
        return rates, steps, gate


class SelectiveScan(Strict):
    """A layer of Mamba's first version."""

    inner: Channels
    """Features inside."""
    state: Channels = 16
    """Numbers of the state of each feature."""
    step_rank: Channels
    """Features that the steps of all features are made of."""
    taps: Taps = 4
    """Positions that the filter of every feature reads."""
    bias: bool = False
    """Whether the products in and out add biases."""
    filter_bias: bool = True
    """Whether the filter adds a bias."""
    norms: bool = False
    """Whether steps, B and C are normalised (Jamba, 2024, arXiv:2403.19887)."""

    def build(self, b: GraphBuilder, name: str, x: str) -> str:
        """Write the layer."""
        hidden, inner = b.shape(x)[2], self.inner
        y, gate = ops.fused_linear(b, f"{name}.input", x, (inner, inner), bias=self.bias)
        y = ops.causal_filter(b, f"{name}.filter", y, self.taps, bias=self.filter_bias, silu=True)
        widths = (self.step_rank, self.state, self.state)
        parts = ops.fused_linear(b, f"{name}.steps-b-c", y, widths, bias=False)
        if self.norms:
            parts = tuple(
                ops.rms_norm(b, f"{name}.{part}-norm", z)
                for part, z in zip(("step", "b", "c"), parts, strict=True)
            )
        steps = ops.linear(b, f"{name}.steps", parts[0], inner)
        y = ops.selective_scan(b, f"{name}.scan", y, steps, (parts[1], parts[2]))
        gate = ops.activation(b, f"{name}.gate.silu", gate, "silu")
        y = ops.multiply(b, f"{name}.gate.multiply", y, gate)
        return ops.linear(b, f"{name}.output", y, hidden, bias=self.bias)


class ShortFilter(Strict):
    """A filter over a few positions between two gates, all three made by one product."""

    taps: Taps = 3
    """Positions that it reads."""
    bias: bool = False
    """Whether products and filter add biases."""

    def build(self, b: GraphBuilder, name: str, x: str) -> str:
        """Write the layer."""
        hidden = b.shape(x)[2]
        before, after, y = ops.fused_linear(b, f"{name}.input", x, (hidden,) * 3, bias=self.bias)
        y = ops.multiply(b, f"{name}.before", y, before)
        y = ops.causal_filter(b, f"{name}.filter", y, self.taps, bias=self.bias, silu=False)
        y = ops.multiply(b, f"{name}.after", y, after)
        return ops.linear(b, f"{name}.output", y, hidden, bias=self.bias)
