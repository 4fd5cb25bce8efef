"""Sharding axes: dimensions of an op's tensors that are split together.

Every op kind has one sharding rule, written for its forward op. It gives each dimension of each
input and output a label. To divide an op by a label is to give every device one part of all
dimensions with that label; an operand without it is needed whole, and an output without it is a
*partial sum*, which has to be added up over the devices. A dimension with the empty label can not
be divided. This is index notation: a matrix product is x[m, k] w[n, k] -> y[m, n], so that dividing
by n splits the weight's rows ("column parallel" of Shoeybi et al., Megatron-LM, 2019,
arXiv:1909.08053, whose weights are transposed) and dividing by k leaves partial sums ("row
parallel").

A gradient op has the labels of the forward tensors that it reads, and its outputs those of the
tensors that they are gradients of; so the rules of the forward ops are enough for both passes.
`ridgeline.parallel.sharding` reads these rules; this module knows nothing of plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ridgeline.workload.graph import Op, Tensor

Labels = tuple[str, ...]
Tensors = Mapping[str, Tensor]
ROWS, COLUMNS = "rows", "columns"
"""Labels of the last two dimensions of images, where ops read windows of them."""
EXPERTS, EXPERT_ROWS = "e", "t"
"""Labels of a mixture's experts, and of the rows of each, in products of experts."""


class Window(NamedTuple):
    """How rows of an output come from rows of an input.

    ``slide``: convolutions and pools; row o reads ``o stride - padding + i dilation`` for i of
    `kernel`. ``spread``: transposed convolutions, the other way round. ``adaptive``: windows that
    cover the input evenly. ``nearest`` and ``bilinear``: enlarged images.
    """

    kind: Literal["slide", "spread", "adaptive", "nearest", "bilinear"]
    kernel: int = 1
    stride: int = 1
    padding: int = 0
    dilation: int = 1


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
class OpAxes:
    """Axes of the tensors of an op, as labels: along which it can be sharded.

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


ShardingRule = Callable[[Op, Tensors], OpAxes]
"""Labels of a forward op of some kind, whose tensors are `Tensors`."""
GradientShardingRule = Callable[[Op, Tensors, Op, OpAxes], OpAxes]
"""What is special about the labels of a gradient op: the op, all tensors, its forward op, and the
labels that follow from those of the forward op."""


def whole(op: Op, tensors: Tensors) -> OpAxes:
    """Labels of an op that can not be divided."""
    blank = [tuple("" for _ in tensors[name].shape) for name in (*op.inputs, *op.outputs)]
    return OpAxes(tuple(blank[: len(op.inputs)]), tuple(blank[len(op.inputs) :]))
