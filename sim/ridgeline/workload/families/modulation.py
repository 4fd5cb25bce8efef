"""Conditioning by scales, shifts and gates that another network makes of a vector.

Perez et al., FiLM, AAAI 2018, arXiv:1709.07871; Peebles and Xie, Scalable diffusion models with
transformers, ICCV 2023, arXiv:2212.09748, Section 3.2 (adaLN-Zero).
"""

from __future__ import annotations

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder


def vectors(b: GraphBuilder, name: str, condition: str, count: int, features: int) -> list[str]:
    """Make vectors [batch, 1, features] of one that is already activated, by one product."""
    if count == 1:
        return [ops.linear(b, f"{name}.modulation", condition, features)]
    return list(ops.fused_linear(b, f"{name}.modulation", condition, (features,) * count))


def modulated(b: GraphBuilder, name: str, x: str, shift: str, scale: str) -> str:
    """Normalise rows of `x` [batch, positions, features] without weights; scale and shift them."""
    x = ops.function(b, f"{name}.norm", "normalize", (x,), b.shape(x))[0]
    x = ops.function(b, f"{name}.scale", "broadcast-multiply", (x, scale), b.shape(x))[0]
    return ops.function(b, f"{name}.shift", "broadcast-add", (x, shift), b.shape(x))[0]


def gated(b: GraphBuilder, name: str, x: str, y: str, gate: str) -> str:
    """Add a branch `y` to `x` as far as its gate is open."""
    y = ops.function(b, f"{name}.gate", "broadcast-multiply", (y, gate), b.shape(y))[0]
    return ops.add(b, f"{name}.add", y, x)


def embedded(b: GraphBuilder, name: str, x: str, features: int) -> str:
    """Make a condition of a vector: two linear layers with silu between them."""
    x = ops.activation(b, f"{name}.silu", ops.linear(b, f"{name}.1", x, features), "silu")
    return ops.linear(b, f"{name}.2", x, features)
