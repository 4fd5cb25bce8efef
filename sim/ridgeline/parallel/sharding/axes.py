"""Labels of ops (`workload.sharding_axes`): by the sharding rule of their kind, gradients too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from ridgeline.parallel.sharding.inserted_ops import HALO, INSERTED
from ridgeline.workload.graph import Conv, Gemm, Op, Pass
from ridgeline.workload.kinds import KINDS
from ridgeline.workload.sharding_axes import (
    Inner,
    Labels,
    OpAxes,
    ShardingRule,
    Tensors,
    whole,
)

_GRADIENT = re.compile(r"(\.grad(\.\d+)?|\.unscaled)+$")
_MOVED = re.compile(
    r"(\.(all-gather|all-reduce|reduce-scatter|all-to-all|send-recv|slice|halo|in-order)(\.\d+)?)+$"
)
_OF_NEIGHBOURS = re.compile(r"(\.halo(\.\d+)?)+$")
_GRADIENT_OP = re.compile(r"\.(input|weight)-gradient(\.\d+)?$")


@lru_cache(maxsize=2**16)
def base(name: str) -> str:
    """Name of the tensor that a gradient belongs to; any other name as it is."""
    return _GRADIENT.sub("", _MOVED.sub("", name))


def forward_name(op: Op) -> str:
    """Name of the forward op that a gradient op belongs to."""
    return _without_gradient(op.name)


@lru_cache(maxsize=2**16)
def _without_gradient(name: str) -> str:
    return _GRADIENT_OP.sub("", name)


def signature(op: Op, tensors: Tensors, forward: Op | None) -> OpAxes | None:
    """Labels of an op, or None if nothing is known about its kind.

    Parameters
    ----------
    forward
        The forward op of a gradient op.
    """
    of = op if forward is None else forward
    rule = sharding_rule(of.kind)
    if rule is None:
        return None
    found = _by_rule(of, tensors, rule)
    return found if forward is None else _of_gradient(op, tensors, forward, found)


def sharding_rule(kind: str) -> ShardingRule | None:
    """Return the sharding rule of an op kind, or of a kind that the lowering inserts."""
    if kind in INSERTED:
        return INSERTED[kind]
    known = KINDS.find(kind)
    return None if known is None else known.sharding


def _by_rule(op: Op, tensors: Tensors, rule: ShardingRule) -> OpAxes:
    """Labels by the rule of the op's kind; none where tensors have other axes than it expects.

    A traced network may keep a tensor in another shape than families do: graphs have no views.
    """
    halos = int(dict(op.attrs).get(HALO, 0))
    if halos:
        return _with_halos(op, _by_rule(without_halos(op), tensors, rule))
    try:
        found = rule(op, tensors)
    except (KeyError, IndexError, ValueError):
        return whole(op, tensors)
    names, labels = (*op.inputs, *op.outputs), (*found.inputs, *found.outputs)
    fits = len(names) == len(labels) and all(
        len(tensors[name].shape) == len(axes) for name, axes in zip(names, labels, strict=True)
    )
    return found if fits else whole(op, tensors)


def without_halos(op: Op) -> Op:
    """Return an op without the rows of neighbours that it reads besides its inputs."""
    halos = int(dict(op.attrs).get(HALO, 0))
    if not halos:
        return op
    attrs = tuple(item for item in op.attrs if item[0] != HALO)
    return replace(op, inputs=op.inputs[:-halos], attrs=attrs)


def _with_halos(op: Op, sig: OpAxes) -> OpAxes:
    """Give rows of neighbours the labels of the input that they belong to."""
    known = {_MOVED.sub("", n): of for n, of in zip(op.inputs, sig.inputs, strict=False)}
    more = tuple(known[_MOVED.sub("", name)] for name in op.inputs[len(sig.inputs) :])
    return replace(sig, inputs=(*sig.inputs, *more))


def _of_gradient(op: Op, tensors: Tensors, forward: Op, sig: OpAxes) -> OpAxes:
    """Derive the labels of a gradient op from those of its forward op."""
    known = {_MOVED.sub("", n): ls for n, ls in zip(forward.inputs, sig.inputs, strict=True)}
    known |= dict(zip(forward.inputs, sig.inputs, strict=True))
    known |= dict(zip(forward.outputs, sig.outputs, strict=True))
    made = OpAxes(
        tuple(_labels_of(name, tensors, forward, known) for name in op.inputs),
        tuple(_labels_of(name, tensors, forward, known) for name in op.outputs),
        sig.units,
        _gradient_loops(op, forward, sig),
        sig.padded,
        {label: _gradient_inner(parts) for label, parts in sig.inner.items()},
        sig.strict,
        sig.grouped,
        sig.local,
        sig.windows,
        sig.of_grid,
    )
    kind = KINDS.find(forward.kind)
    adjust = None if kind is None else kind.gradient_sharding
    return made if adjust is None else adjust(op, tensors, without_halos(forward), made)


def _labels_of(name: str, tensors: Tensors, forward: Op, known: Mapping[str, Labels]) -> Labels:
    """Labels of a tensor that a gradient op reads or writes."""
    if (whole_name := _OF_NEIGHBOURS.sub("", name)) in tensors:
        name = whole_name
    shape = tensors[name].shape
    for candidate in (name, _MOVED.sub("", name), base(name)):
        labels = known.get(candidate)
        if labels is not None and len(labels) == len(shape):
            return labels  # also of a sparse gradient, which has the rows that were looked up
    for candidate in forward.outputs:  # a gradient that was handed on under another name, or a part
        of = tensors[candidate].shape
        is_part = len(of) == len(shape) and not any(a % b for a, b in zip(of, shape, strict=True))
        is_like = is_part or tensors[candidate].elements == tensors[name].elements
        if is_like and len(known[candidate]) == len(shape):
            return known[candidate]
    if len(forward.outputs) > 1:  # gradients of all outputs, side by side
        first = known[forward.outputs[0]]
        if len(first) == len(shape):
            return first
    return tuple("" for _ in shape)


def _gradient_loops(op: Op, forward: Op, sig: OpAxes) -> Mapping[str, tuple[str, ...]]:
    """Extents that the labels divide in the loop nest of a gradient op."""
    if op.loops is None or isinstance(op.loops, Conv):
        return sig.loops
    if not isinstance(forward.loops, Gemm):
        return sig.loops
    turned = _TURNED.get((op.pass_, dict(op.attrs).get("gradient-of")), {})
    return {
        label: tuple(turned.get(extent, extent) for extent in extents)
        for label, extents in sig.loops.items()
    }


# Forward C[m, n] = A[m, k] B[k, n]; input gradient dA[m, k] = dC[m, n] B'[n, k]; weight gradient
# dB'[n, k] = dC'[n, m] A[m, k]. Products of two activations say which operand's gradient it is.
_OF_A = {"n": "k", "k": "n"}
_OF_B = {"m": "k", "n": "m", "k": "n"}
_TURNED: Mapping[tuple[Pass, object], Mapping[str, str]] = {
    (Pass.INPUT_GRADIENT, None): _OF_A,
    (Pass.INPUT_GRADIENT, 0): _OF_A,
    (Pass.INPUT_GRADIENT, 1): _OF_B,
    (Pass.WEIGHT_GRADIENT, None): _OF_B,
}


def _gradient_inner(parts: tuple[Inner, ...]) -> tuple[Inner, ...]:
    """Communication of the gradient: what was gathered is scattered; sums are not repeated."""
    turned = {"all-gather": "reduce-scatter"}
    return tuple(replace(part, op=turned[part.op]) for part in parts if part.op in turned)


def divided_loops(
    loops: Gemm | Conv | None, extents: tuple[str, ...], parts: int
) -> Gemm | Conv | None:
    """Loop nest of one part; extents that are not divided evenly are padded."""
    if loops is None or not extents:
        return loops
    changes = {extent: -(-getattr(loops, extent) // parts) for extent in extents}
    return replace(loops, **changes)
