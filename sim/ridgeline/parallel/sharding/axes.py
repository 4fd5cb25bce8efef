"""Sharding axes: dimensions of an op's tensors that are split together.

Every op kind has one rule, written for its forward op. It gives each dimension of each input and
output a label. To divide an op by a label is to give every device one part of all dimensions with
that label; an operand without it is needed whole, and an output without it is a *partial sum*,
which has to be added up over the devices. A dimension with the empty label can not be divided. This
is index notation: a matrix product is x[m, k] w[n, k] -> y[m, n], so that dividing by n splits the
weight's rows ("column parallel" of Shoeybi et al., Megatron-LM, 2019, arXiv:1909.08053, whose
weights are transposed) and dividing by k leaves partial sums ("row parallel").

A gradient op has the labels of the forward tensors that it reads, and its outputs those of the
tensors that they are gradients of; so the rules of the forward ops are enough for both passes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from ridgeline.parallel.sharding.halo import Window
from ridgeline.workload.graph import Conv, Gemm, Op, Pass, Tensor

Labels = tuple[str, ...]
Tensors = Mapping[str, Tensor]
ROWS, COLUMNS = "rows", "columns"
"""Labels of the last two dimensions of images, where ops read windows of them."""
EXPERTS, EXPERT_ROWS = "e", "t"
"""Labels of a mixture's experts, and of the rows of each, in products of experts."""
GRID = ("tensor.columns", "tensor.rows")
"""Dimensions of a grid of tensor-parallel devices: along a row, and along a column."""
HALO = "halo"
"""Kind of the ops that fetch rows of neighbours; attribute of an op: how many of its last inputs
are such rows, each of another of its inputs."""

_GRADIENT = re.compile(r"(\.grad(\.\d+)?|\.unscaled)+$")
_MOVED = re.compile(
    r"(\.(all-gather|all-reduce|reduce-scatter|all-to-all|send-recv|slice|halo|in-order)(\.\d+)?)+$"
)
_OF_NEIGHBOURS = re.compile(r"(\.halo(\.\d+)?)+$")
_GRADIENT_OP = re.compile(r"\.(input|weight)-gradient(\.\d+)?$")


@dataclass(frozen=True, slots=True)
class Inner:
    """Communication inside an op that is divided: `repeat` collectives of `size_bytes` each."""

    op: str
    size_bytes: int
    repeat: int = 1


@dataclass(frozen=True, slots=True)
class Grouped:
    """Heads of keys and values that each serve a group of query heads.

    Attributes
    ----------
    label
        Of the heads.
    heads
        Heads of queries.
    inputs
        Places of the inputs that have fewer heads: keys, values.
    rows
        Label of the positions of queries; the extent that it divides counts those of a whole group.
    """

    label: str
    heads: int
    inputs: tuple[int, ...]
    rows: str


@dataclass(frozen=True, slots=True)
class Signature:
    """Labels of an op.

    Attributes
    ----------
    inputs, outputs
        One label for each dimension of each tensor.
    units
        How many equal parts a label has at most, where that is not the size of its dimension:
        heads, groups, channels of a flattened image.
    loops
        Extents of the loop nest that a label divides.
    padded
        Labels that are padded where the devices do not divide them: vocabularies.
    inner
        Communication inside the op by label.
    strict
        Labels for which not dividing evenly is the plan's mistake: heads.
    grouped
        Heads that several others share.
    local
        Labels of whose parts each has statistics of its own, that are never summed.
    windows
        By label, how a dimension of the outputs comes from that of the inputs, where a part needs
        more than its own share: only `spatial` divides these.
    of_grid
        Labels that only a grid of tensor-parallel devices divides (`grid`): features of norms.
    labels
        All labels, in order of first appearance.
    """

    inputs: tuple[Labels, ...]
    outputs: tuple[Labels, ...]
    units: Mapping[str, int] = field(default_factory=dict)
    loops: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    padded: frozenset[str] = frozenset()
    inner: Mapping[str, tuple[Inner, ...]] = field(default_factory=dict)
    strict: frozenset[str] = frozenset()
    grouped: Grouped | None = None
    local: frozenset[str] = frozenset()
    windows: Mapping[str, Window] = field(default_factory=dict)
    of_grid: frozenset[str] = frozenset()
    labels: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Look up the labels once: they are asked for by every division."""
        found = (label for labels in (*self.inputs, *self.outputs) for label in labels if label)
        object.__setattr__(self, "labels", tuple(dict.fromkeys(found)))

    def size(self, label: str, op: Op, tensors: Tensors) -> int:
        """Parts that a label can have: its units, else the extent of its first dimension."""
        if label in self.units:
            return self.units[label]
        for names, all_labels in ((op.inputs, self.inputs), (op.outputs, self.outputs)):
            for name, labels in zip(names, all_labels, strict=True):
                if label in labels:
                    return tensors[name].shape[labels.index(label)]
        raise KeyError(label)


Rule = Callable[[Op, Tensors], Signature]
RULES: dict[str, Rule] = {}
"""By op kind."""


def rule(*kinds: str) -> Callable[[Rule], Rule]:
    """Enter a function as the rule of op kinds."""

    def enter(function: Rule) -> Rule:
        for kind in kinds:
            RULES[kind] = function
        return function

    return enter


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


def signature(op: Op, tensors: Tensors, forward: Op | None) -> Signature | None:
    """Labels of an op, or None if nothing is known about its kind.

    Parameters
    ----------
    forward
        The forward op of a gradient op.
    """
    from ridgeline.parallel.sharding import (  # noqa: F401  they register the rules
        axis_rules,
        axis_rules_attention,
        axis_rules_images,
        axis_rules_states,
    )

    if forward is not None:
        if forward.kind not in RULES:
            return None
        return _of_gradient(op, tensors, forward, _by_rule(forward, tensors))
    if op.kind not in RULES:
        return None
    return _by_rule(op, tensors)


def _by_rule(op: Op, tensors: Tensors) -> Signature:
    """Labels by the rule of the op's kind; none where tensors have other axes than it expects.

    A traced network may keep a tensor in another shape than families do: graphs have no views.
    """
    halos = int(dict(op.attrs).get(HALO, 0))
    if halos:
        return _with_halos(op, _by_rule(without_halos(op), tensors))
    try:
        found = RULES[op.kind](op, tensors)
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


def _with_halos(op: Op, sig: Signature) -> Signature:
    """Give rows of neighbours the labels of the input that they belong to."""
    known = {_MOVED.sub("", n): of for n, of in zip(op.inputs, sig.inputs, strict=False)}
    more = tuple(known[_MOVED.sub("", name)] for name in op.inputs[len(sig.inputs) :])
    return replace(sig, inputs=(*sig.inputs, *more))


def whole(op: Op, tensors: Tensors) -> Signature:
    """Labels of an op that can not be divided."""
    blank = [tuple("" for _ in tensors[name].shape) for name in (*op.inputs, *op.outputs)]
    return Signature(tuple(blank[: len(op.inputs)]), tuple(blank[len(op.inputs) :]))


def _of_gradient(op: Op, tensors: Tensors, forward: Op, sig: Signature) -> Signature:
    """Derive the labels of a gradient op from those of its forward op."""
    known = {_MOVED.sub("", n): ls for n, ls in zip(forward.inputs, sig.inputs, strict=True)}
    known |= dict(zip(forward.inputs, sig.inputs, strict=True))
    known |= dict(zip(forward.outputs, sig.outputs, strict=True))
    made = Signature(
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
    adjust = ADJUSTMENTS.get(forward.kind)
    return made if adjust is None else adjust(op, tensors, forward, made)


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


def _gradient_loops(op: Op, forward: Op, sig: Signature) -> Mapping[str, tuple[str, ...]]:
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


Adjust = Callable[[Op, Tensors, Op, Signature], Signature]
ADJUSTMENTS: dict[str, Adjust] = {}
"""By op kind: what is special about the labels of its gradient ops."""


def divided_loops(
    loops: Gemm | Conv | None, extents: tuple[str, ...], parts: int
) -> Gemm | Conv | None:
    """Loop nest of one part; extents that are not divided evenly are padded."""
    if loops is None or not extents:
        return loops
    changes = {extent: -(-getattr(loops, extent) // parts) for extent in extents}
    return replace(loops, **changes)
