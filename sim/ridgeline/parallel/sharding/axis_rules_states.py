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
