"""Axis rules of attention: b samples, H heads, s and t positions (see `axes`)."""

from __future__ import annotations

from ridgeline.parallel.sharding.axes import Grouped, Labels, Signature, Tensors, rule
from ridgeline.workload.graph import Op


def _rows(shape: tuple[int, ...], positions: str) -> Labels:
    """Labels of queries, keys or values: [b, s, H], or [b s, H] as some networks write them."""
    return ("b", positions, "H") if len(shape) == 3 else ("b", "H")


def _flat(op: Op, tensors: Tensors, samples: int) -> tuple[dict[str, int], str, str]:
    """Units of heads, and of samples where rows are one dimension; labels of the positions.

    There only samples can be divided: positions of one device are no rows next to each other.
    """
    units = {"H": int(dict(op.attrs)["kv-heads"])}
    shapes = [tensors[name].shape for name in (*op.inputs, *op.outputs)]
    if all(len(shape) != 2 for shape in shapes):
        return units, "s", "t"
    return {**units, "b": samples}, "", ""


@rule("attention-scores")
def scores(op: Op, tensors: Tensors) -> Signature:
    """Q [b, s, H] k [b, t, H] -> y [b, H, s, t]; a unit of H is a head of keys."""
    q, k, y = (tensors[name].shape for name in (*op.inputs, *op.outputs))
    units, s, t = _flat(op, tensors, y[0])
    return Signature(
        (_rows(q, s), _rows(k, t)),
        (("b", "H", s, t),),
        units,
        {"b": ("batch",), "H": ("batch",), "s": ("m",), "t": ("n",)},
        strict=frozenset({"H"}),
        grouped=Grouped("H", int(dict(op.attrs)["heads"]), (1,), "s"),
    )


@rule("attention-context")
def context(op: Op, tensors: Tensors) -> Signature:
    """P [b, H, s, t] v [b, t, H] -> y [b, s, H]."""
    p, v, y = (tensors[name].shape for name in (*op.inputs, *op.outputs))
    units, s, t = _flat(op, tensors, p[0])
    return Signature(
        (("b", "H", s, t), _rows(v, t)),
        (_rows(y, s),),
        units,
        {"b": ("batch",), "H": ("batch",), "s": ("m",), "t": ("k",)},
        strict=frozenset({"H"}),
        grouped=Grouped("H", int(dict(op.attrs)["heads"]), (1,), "s"),
    )


@rule("flash-attention")
def flash(op: Op, tensors: Tensors) -> Signature:
    """Q [b, s, H] k [b, t, H] v [b, t, H] -> y [b, s, H], sums [b, H, s]; keys stay whole."""
    q, k, v, y, sums = (tensors[name].shape for name in (*op.inputs, *op.outputs))
    units, s, _ = _flat(op, tensors, sums[0])
    return Signature(
        (_rows(q, s), _rows(k, ""), _rows(v, "")),
        (_rows(y, s), ("b", "H", s)),
        units,
        {"b": ("batch",), "H": ("batch",), "s": ("m",)},
        strict=frozenset({"H"}),
        grouped=Grouped("H", int(dict(op.attrs)["heads"]), (1, 2), "s"),
    )


@rule("merge-attention")
def merge(op: Op, tensors: Tensors) -> Signature:
    """Two times y [b, s, H], sums [b, H, s] -> both of one."""
    both = (("b", "s", "H"), ("b", "H", "s"))
    return Signature(both * 2, both, {"H": tensors[op.outputs[1]].shape[1]})


@rule("index-scores")
def index_scores(op: Op, tensors: Tensors) -> Signature:
    """Q [b, s, h], k [b, t, f], weights [b, s, h] -> scores [b, s, t]: a sum over heads."""
    q, y = ("b", "s", ""), ("b", "s", "")
    loops = {"b": ("batch",), "s": ("m",)}
    return Signature((q, ("b", "", ""), q), (y,), {}, loops)


@rule("sink-scale")
def sink_scale(op: Op, tensors: Tensors) -> Signature:
    """Y [b, s, H], sums [b, H, s], sinks [H] -> y [b, s, H]."""
    rows, heads = ("b", "s", "H"), tensors[op.inputs[2]].shape[0]
    return Signature((rows, ("b", "H", "s"), ("H",)), (rows,), {"H": heads})


@rule("rotary")
def rotary(op: Op, tensors: Tensors) -> Signature:
    """X [b, s, heads x size], angles [s, size]."""
    x, angles = (tensors[name].shape for name in op.inputs)
    labels = ("b", "s", "H")
    return Signature((labels, ("s", "")), (labels,), {"H": x[2] // angles[1]})


@rule("relative-bias")
def relative_bias(op: Op, tensors: Tensors) -> Signature:
    """Scores [b, H, s, t], table [ranges, H]."""
    labels = ("b", "H", "s", "t")
    return Signature((labels, ("", "H")), (labels,))


@rule("join-heads")
def join_heads(op: Op, tensors: Tensors) -> Signature:
    """X [b, s, H], other [b, s, H] or of one head, which all need."""
    x, other, y = (tensors[name].shape for name in (*op.inputs, *op.outputs))
    heads = int(dict(op.attrs)["heads"])
    of_other = "H" if heads * other[2] // heads == y[2] - x[2] else ""
    return Signature((("b", "s", "H"), ("b", "s", of_other)), (("b", "s", "H"),), {"H": heads})


@rule("additive-attention")
def additive(op: Op, tensors: Tensors) -> Signature:
    """Q [b, s, f] k [b, t, f] v [f] length [1] -> y [b, 1, s, t]: a sum over features."""
    return Signature((("b", "s", "f"), ("b", "t", "f"), ("f",), ("",)), (("b", "", "s", "t"),))
