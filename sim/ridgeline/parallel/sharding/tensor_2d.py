"""2-D tensor parallelism: a grid of devices shares weights and activations.

Of a grid of R rows and C columns every device has a part of both dimensions of every weight, and of
two dimensions of every activation. The columns (the C neighbours in a row) share features: what
lies between two products is divided by features, too, so that a partial sum is scattered instead of
being summed on every device, and norms add up the sums of their rows. What the rows (the R devices
of a column) share is the plan's choice (`Plan.tensor_mode`):

``gather``
    Samples. Weights are divided between the rows, too, and gathered for each product, and their
    gradients are scattered: one product of SUMMA (R. van de Geijn and J. Watts, 1997), all of its
    panels at once. A product gathers its inputs' features or scatters its outputs', whichever moves
    less: the finalized 2D sharding of Y. Xu et al., GSPMD, 2021, arXiv:2105.04663, section 5.1.
``summa``
    The same, but every product gathers its inputs and keeps its outputs where they are, as Q. Xu et
    al., Optimus, 2021, arXiv:2104.05343, section 3.1: its panels are broadcast one after the other.
``stationary``
    Features, too. Weights stay where they are, and activations move along rows and columns in turn:
    2D weight-stationary, R. Pope et al., Efficiently scaling transformer inference, MLSys 2023,
    arXiv:2211.05102, section 3.2.2.

Columns are divided first, so that rows know which dimension of a weight is left for them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from ridgeline.errors import ConfigError
from ridgeline.parallel.sharding.axes import base
from ridgeline.parallel.sharding.axis_choice import (
    PARTIAL,
    STATIC,
    WEIGHTS,
    WHOLE,
    BySamples,
    need_of,
)
from ridgeline.parallel.sharding.inserted_ops import GRID
from ridgeline.parallel.sharding.kv_head_replication import with_copied_heads
from ridgeline.parallel.sharding.shard import Sharded, Sharder
from ridgeline.parallel.sharding.summa import with_panels
from ridgeline.workload.graph import Graph, Op, Pass, Role, Tensor
from ridgeline.workload.sharding_axes import OpAxes

Mode = Literal["summa", "gather", "stationary"]
COLUMNS, ROWS = GRID


@dataclass(frozen=True, slots=True)
class Grid:
    """Devices that share an op in a grid, and how."""

    rows: int = 1
    columns: int = 1
    mode: Mode = "gather"

    def __str__(self) -> str:
        return f"tensor={self.rows}x{self.columns}"


def with_tensor_grid(fields: dict[str, Any]) -> dict[str, Any]:
    """Read ``tensor=4x2`` in fields of a plan: eight devices in four rows.

    Raises
    ------
    ValueError
        If it is no grid, or another number of rows is given besides.
    """
    text = fields.get("tensor")
    if not isinstance(text, str):
        return fields
    parts = text.strip().lower().split("x")
    if not all(part.isascii() and part.isdecimal() and 0 < int(part) < 10**6 for part in parts):
        parts = []
    if len(parts) not in {1, 2}:
        raise ValueError(f"expected devices, or ROWSxCOLUMNS (4x2), found {text!r}")
    rows, columns = (int(parts[0]), int(parts[1])) if len(parts) == 2 else (1, int(parts[0]))
    given = fields.get("tensor_rows")
    if len(parts) == 1:
        return {**fields, "tensor": columns}
    if given is not None and str(given) != str(rows):
        raise ValueError(f"tensor={text} has {rows} rows, but tensor_rows={given} is given, too")
    return {**fields, "tensor": rows * columns, "tensor_rows": rows}


def with_grid(graph: Graph, grid: Grid) -> Sharded:
    """Divide a training graph over a grid of devices.

    Raises
    ------
    ConfigError
        If the rows can not share the samples, or the columns the heads, or the network is a mixture
        of experts.
    """
    if any(op.kind == "dispatch" for op in graph.ops):
        raise ConfigError(
            f"{grid}: a grid is not modelled for mixtures of experts, which {graph.name} has; "
            f"allowed: tensor={grid.rows * grid.columns}",
            field="plan.tensor",
        )
    graph = with_copied_heads(graph, grid.columns, COLUMNS)
    along_rows = _Features(graph, grid.columns, COLUMNS, grid)
    along_rows.check()
    columns = _walked(along_rows)
    features = grid.mode == "stationary"
    of_rows = _Features if features else _Samples
    along_columns = of_rows(columns.graph, grid.rows, ROWS, grid)
    if isinstance(along_columns, _Samples):
        along_columns.check()
    rows = _walked(along_columns)
    whole = {
        kind: max(columns.whole.get(kind, 0), rows.whole.get(kind, 0))
        for kind in sorted({*columns.whole, *rows.whole})
    }
    graph = rows.graph
    if grid.mode == "summa":
        graph = with_panels(graph, math.lcm(grid.rows, grid.columns))
    return Sharded(graph, columns.divided | rows.divided, whole, rows.apart)


def _walked(sharder: Sharder) -> Sharded:
    sharder.look_ahead()
    for op in sharder.graph.ops:
        sharder.take(op)
    return sharder.result()


class _Gridded(Sharder):
    """Divides an op over the rows, or the columns, of a grid."""

    of_grid = True

    def __init__(
        self, graph: Graph, degree: int, dimension: str, grid: Grid, samples: BySamples | None
    ) -> None:
        super().__init__(graph, degree, dimension, False, 1.0, samples)
        self.grid = grid

    def _choose(self, op: Op, sig: OpAxes) -> str | None:
        """Return the label of an op; weights are updated as they are divided."""
        if op.kind != "optimizer":
            return self._cheapest(op, sig)
        where = self._where(op.inputs[0])
        return sig.inputs[0][where] if where >= 0 else None

    def _cheapest(self, op: Op, sig: OpAxes) -> str | None:
        return super()._choose(op, sig)


class _Features(_Gridded):
    """Divides features, also between products."""

    def __init__(self, graph: Graph, degree: int, dimension: str, grid: Grid) -> None:
        super().__init__(graph, degree, dimension, grid, None)

    def _said(self) -> str:
        return f"{self.grid}: a row of {self.degree} devices"

    def _cheapest(self, op: Op, sig: OpAxes) -> str | None:
        """Return the label that moves least; a product with weights is always divided."""
        costs = {
            label: self._cost(label, op, sig)
            for label in sig.labels
            if self._divides(label, op, sig) and self._is_candidate(label, op, sig)
        }
        if not costs:
            return None
        begun = [label for label in costs if self._begins(label, op, sig)]
        if op.pass_ is Pass.FORWARD and begun:
            made = {label for labels in sig.outputs for label in labels}
            if self.grid.mode == "summa" and op.loops is not None and made.intersection(begun):
                begun = [label for label in begun if label in made]
            return min(begun, key=lambda label: (costs[label], label not in made))
        best = min(costs, key=costs.__getitem__)
        if any(self._where(self._now(name)) == PARTIAL for name in op.inputs):
            return best  # what is summed is scattered
        return best if costs[best] <= self._cost(None, op, sig) else None

    def _is_candidate(self, label: str, op: Op, sig: OpAxes) -> bool:
        if super()._is_candidate(label, op, sig):
            return True
        return any(
            label in labels
            and self._where(self._now(name)) == PARTIAL
            and labels.index(label) in self._resting(name)
            for name, labels in zip(op.inputs, sig.inputs, strict=True)
        )

    def _resting(self, name: str) -> frozenset[int]:
        """Return along which dimensions a partial sum may be scattered.

        Where the tensor of a gradient is divided, so is the gradient; else what a later product
        takes up, or features; the samples where rows can not share these.
        """
        of = base(name)
        if of != name and self.layout.get(of, WHOLE) >= 0:
            return frozenset({self.layout[of]})
        last = len(self.tensors[name].shape) - 1
        return self.good.get(name) or frozenset({last, 0 if self.dimension == ROWS else last})

    def _cost(self, label: str | None, op: Op, sig: OpAxes) -> float:
        """Count what is gathered for a product again, for the gradient of its weights.

        What several products read, as those of queries, keys and values, is gathered for all.
        """
        moved = super()._cost(label, op, sig)
        if op.pass_ is not Pass.FORWARD or not self._leaves(op):
            return moved
        for name, labels in zip(op.inputs, sig.inputs, strict=True):
            of, now = self.tensors[name], self._where(self._now(name))
            if of.role not in STATIC and now >= 0 and need_of(labels, label) == WHOLE:
                first = of.bytes * (1 + (of.role is Role.ACTIVATION))  # as counted already
                moved += (first + of.bytes) / self._products[name] - first
        return moved

    @cached_property
    def _products(self) -> Counter[str]:
        """How many products with weights read each tensor."""
        products = (op for op in self.forward.values() if self._leaves(op))
        return Counter(name for op in products for name in op.inputs)

    def _leaves(self, op: Op) -> bool:
        return op.loops is not None and self._has_weights(op)

    def _has_weights(self, op: Op) -> bool:
        return any(self.tensors[name].role in WEIGHTS for name in op.inputs)

    def _pass_on(self, op: Op) -> None:
        """Write communication inside an op: of its samples, however its features are divided."""
        inputs = tuple(self._now(name) for name in op.inputs)
        if any(self._where(name) == 0 for name in inputs):
            super()._pass_on(op)
        else:
            self._add(replace(op, inputs=inputs))


class _Samples(_Gridded):
    """Divides samples, with weights in parts that are gathered for each op that reads them."""

    def __init__(self, graph: Graph, degree: int, dimension: str, grid: Grid) -> None:
        super().__init__(graph, degree, dimension, grid, BySamples(lambda layer: True, None))

    def check(self) -> None:
        """Raise ConfigError if rows can not share the samples of a micro-batch."""
        if self.graph.batch % self.degree:
            raise ConfigError(
                f"{self.grid}: {self.degree} rows can not share the {self.graph.batch} samples of a"
                f" micro-batch evenly; allowed: a micro_batch that {self.degree} divides, or"
                " tensor_mode=stationary",
                field="plan.tensor",
            )

    def take(self, op: Op) -> None:
        """Write what one device does of an op; weights that were gathered for it are not kept."""
        super().take(op)
        for key in [key for key in self.copies if self.tensors[key[0]].role in WEIGHTS]:
            del self.copies[key]

    def _where(self, name: str) -> int:
        root = self._root(name)
        of = self.tensors[root]
        if root not in self.layout and of.role is Role.WEIGHT and not _is_vector(of):
            self.layout[root] = self._part_of(of)
        return super()._where(name)

    def _part_of(self, weight: Tensor) -> int:
        """Return the dimension along which a weight is divided: the largest that can be.

        Panels are of what a product sums over, the last.
        """
        able = [d for d, size in enumerate(weight.shape) if size % self.degree == 0]
        if self.grid.mode == "summa":
            return max(able, default=WHOLE)
        return max(able, key=lambda d: (weight.shape[d], d), default=WHOLE)

    def _role(self, role: Role, op: Op) -> Role:
        gathered = role in WEIGHTS and op.pass_ is Pass.FORWARD
        return Role.ACTIVATION if gathered else super()._role(role, op)

    def _is_apart(self, weight: str) -> bool:
        return _is_vector(self.tensors[self._root(weight)]) and super()._is_apart(weight)

    def _write(
        self, op: Op, sig: OpAxes, label: str | None, inputs: Iterable[str], at: int = WHOLE
    ) -> None:
        """Write the op, and scatter the gradients of weights that it makes."""
        super()._write(op, sig, label, inputs, at)
        for name in op.outputs:
            if self.tensors[name].role is not Role.WEIGHT_GRADIENT:
                continue
            if self._where(name) == PARTIAL:
                weight = base(name)  # a sparse gradient has the rows that were looked up
                is_like = self.tensors[name].shape == self.tensors[weight].shape
                self._bring(name, max(self._where(weight), WHOLE) if is_like else WHOLE, op)


def _is_vector(weight: Tensor) -> bool:
    """Whether a weight is too small for messages of its own, as biases and weights of norms are.

    All rows have it whole, and sum its gradients with those of the replicas.
    """
    return len(weight.shape) == 1
