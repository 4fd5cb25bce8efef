"""Axis rules of state-space layers: b samples, H groups of heads (see `axes`).

Positions follow each other, so that no device can have some of them.
"""

from __future__ import annotations

from ridgeline.parallel.sharding.axes import Signature, Tensors, rule
from ridgeline.workload.graph import Op


@rule("state-space")
def state_space(op: Op, tensors: Tensors) -> Signature:
    """X, B and C [b, s, H], steps [b, s, H], weights [H] -> y [b, s, H]; a unit is a group."""
    rows = ("b", "", "H")
    weights = tuple(("H", *("" for _ in tensors[name].shape[1:])) for name in op.inputs[2:])
    units = {"H": int(dict(op.attrs)["groups"])}
    loops = {"b": ("batch",), "H": ("batch",)}
    return Signature((rows, rows, *weights), (rows,), units, loops, strict=frozenset({"H"}))


@rule("gated-norm")
def gated_norm(op: Op, tensors: Tensors) -> Signature:
    """X, gate [b, s, H], weight [H] -> y [b, s, H] and a statistic for each group."""
    rows = ("b", "s", "H")
    units = {"H": int(dict(op.attrs)["heads"])}
    return Signature((rows, rows, ("H",)), (rows, rows), units, strict=frozenset({"H"}))


@rule("linear-attention")
def linear_attention(op: Op, tensors: Tensors) -> Signature:
    """Q, k, v, rates, steps [b, s, H], weights [H] -> y [b, s, H]; a unit is a head of keys."""
    rows = ("b", "", "H")
    inputs = tuple(rows if len(tensors[name].shape) == 3 else ("H",) for name in op.inputs)
    units = {"H": int(dict(op.attrs)["kv-heads"])}
    loops = {"b": ("batch",), "H": ("batch",)}
    return Signature(inputs, (rows,), units, loops, strict=frozenset({"H"}))


@rule("causal-filter")
def causal_filter(op: Op, tensors: Tensors) -> Signature:
    """X [b, s, f], taps [f, taps], bias [f] -> y [b, s, f]; positions read those before them."""
    rows = ("b", "", "f")
    weights = tuple(("f", *("" for _ in tensors[name].shape[1:])) for name in op.inputs[1:])
    return Signature((rows, *weights), (rows,))


@rule("selective-scan")
def selective_scan(op: Op, tensors: Tensors) -> Signature:
    """X, steps [b, s, f], B, C [b, s, n], decay [f, n], skip [f] -> y [b, s, f]."""
    rows, shared = ("b", "", "f"), ("b", "", "")
    return Signature((rows, rows, shared, shared, ("f", ""), ("f",)), (rows,))
