"""Which device is which: ranks as places in the dimensions of the plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ridgeline.errors import ConfigError
from ridgeline.parallel.plan.layers import levels
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.plan.replicas import counts_of
from ridgeline.parallel.sharding.inserted_ops import GRID
from ridgeline.parallel.sharding.tensor_2d import Grid

Ranks = npt.NDArray[np.int64]


NEAR, FAR = "data.near", "data.far"
"""Parts of "data": ranks that share what is sharded, and ranks that have the same."""
_NEAR, _FAR = "context.expert", "context.beyond"
"""Parts of "context": ranks that share experts, and ranks that have the same."""
_BEYOND = {
    "spatial": ("spatial.rows", "spatial.columns"),
    "rows": ("spatial.rows",),
    "columns": ("spatial.columns",),
    "grid": ("tensor.rows",),
}


@dataclass(frozen=True)
class Mesh:
    """Ranks in the order of the plan: the first dimension numbers neighbours.

    Attributes
    ----------
    order
        Names of the dimensions, the innermost first.
    stages
        Of every stage the rank at each place, with one axis for each dimension in that order;
        that of "pipeline" has length 1.
    expert
        Neighbours along "data" that share experts: dimension "expert" of a group; "beyond" goes
        over the ranks that have the same experts.
    expert_context
        Neighbours along "context" that share experts, too.
    expert_levels
        Where layers differ, the levels of "tensor" that share experts, too: from the first, up to
        the second.
    levels
        Where layers differ, how "tensor" is built of groups in groups, innermost first: dimensions
        "tensor.0", "tensor.1", ... "data.i" goes over all ranks that divide samples where layers
        share their features on the levels before i.
    sharing
        Neighbours along "data" that share what is sharded, 0: all; dimensions "data.near" of a
        group and "data.far" over those of equal place in other groups.
    grid
        Devices along the rows and the columns of images: dimensions "spatial.rows" and
        "spatial.columns", neighbours along a row first. "data.rows", "data.columns" and
        "data.spatial" go over the replicas and these, "data.rows.0" over levels of "tensor", too.
        "data.spatial" go over the replicas and these.
    tensor_grid
        Rows and columns of tensor-parallel devices: dimensions "tensor.rows" and "tensor.columns",
        neighbours along a row first.
    """

    order: tuple[str, ...]
    stages: tuple[Ranks, ...]
    expert: int = 1
    expert_context: int = 1
    expert_levels: tuple[int, int] = (0, 0)
    levels: tuple[int, ...] = ()
    grid: tuple[int, int] = (1, 1)
    tensor_grid: Grid | None = None
    sharing: int = 0
    _groups: dict[tuple[int, tuple[str, ...], int], Ranks] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan, mixture: int | None = None) -> Mesh:
        """Return the ranks of a plan.

        Parameters
        ----------
        mixture
            Devices that share the features of each expert, of a layer-wise plan; None: as the
            plan says.
        """
        order = tuple(plan.order.split("-"))
        features = mixture or plan.expert_tensor_parallel or plan.tensor
        span = features * plan.expert  # neighbours that hold the experts once
        unlike = plan.layers or features < plan.tensor
        inside = levels(plan.layers, plan.tensor, features, span) if unlike else ()
        within = (
            [math.prod(inside[:i]) for i in range(len(inside) + 1)] if inside else [plan.tensor]
        )
        between = within.index(features), within.index(min(span, plan.tensor))
        if plan.spatial != "1" and "spatial" not in order:
            order = (order[0], "spatial", *order[1:])
        degrees = {**plan.model_dump(), "spatial": math.prod(plan.grid)}
        shape = {name: int(degrees[name]) for name in order}
        if plan.replicas:
            stages, first = [], 0
            for count in counts_of(plan.replicas):
                here = {**shape, "data": count, "pipeline": 1}
                stages.append(first + _counted([here[name] for name in order]))
                first += stages[-1].size
        else:
            ranks, axis = _counted([shape[name] for name in order]), order.index("pipeline")
            stages = np.split(ranks, plan.pipeline, axis)
        further = max(1, span // plan.tensor)
        along_context = math.gcd(further, plan.context) if plan.expert_tensor_parallel else 1
        return cls(
            order, tuple(stages), further // along_context, along_context, between, inside,
            plan.grid, plan.tensor_grid, plan.hybrid_shard_size,
        )  # fmt: skip

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for plans whose groups are the same ranks."""
        shapes = tuple(ranks.shape for ranks in self.stages)
        return (
            *(self.order, shapes, self.expert, self.expert_context, self.expert_levels),
            *(self.levels, self.grid, self.tensor_grid, self.sharing),
        )

    def replica(self, stage: int, number: int | None = None) -> Ranks:
        """Ranks of one replica of a stage, or of all: in the same order for every stage."""
        ranks = self.stages[stage]
        if number is not None:
            ranks = np.take(ranks, number, axis=self.order.index("data"))
        return ranks.ravel()

    def along(self, dimension: str) -> tuple[str, ...]:
        """Return the dimensions that the groups of a collective extend along.

        Gradients are summed over all ranks that have the same weights, those of "context", too.
        """
        if dimension in {*GRID, FAR}:
            return (dimension,)
        if dimension == NEAR:
            return (dimension, "context")
        kind, *parts = dimension.split(".")
        first, last = self.expert_levels
        if kind == "expert":
            return (kind, _NEAR, *self._of_levels(first, last))
        if kind == "beyond":
            axis = kind if self.expert > 1 else "data"
            context = _FAR if self.expert_context > 1 else "context"
            return (axis, context, *self._of_levels(last))
        if kind == "data":
            level = min((int(part) for part in parts if part.isdigit()), default=len(self.levels))
            further = (name for part in parts for name in _BEYOND.get(part, ()))
            return (kind, "context", *further, *self._of_levels(level))
        return (dimension,)

    def _of_levels(self, first: int, last: int | None = None) -> tuple[str, ...]:
        return tuple(f"tensor.{i}" for i in range(len(self.levels)))[first:last]

    def groups(self, stage: int, *dimensions: str, neighbours: int = 0) -> Ranks:
        """Ranks of one stage by group: [groups, members]; a group varies in the dimensions.

        Members are in ascending order, as are the groups by their first member. Equal calls return
        one object. With `neighbours` every group is cut into parts of so many members.
        """
        key = (stage, dimensions, neighbours)
        if key not in self._groups:
            groups = self._grouped(stage, dimensions)
            if neighbours:
                groups = groups.reshape(-1, neighbours)
                groups = groups[np.argsort(groups[:, 0], kind="stable")]
            self._groups[key] = groups
        return self._groups[key]

    def _grouped(self, stage: int, dimensions: tuple[str, ...]) -> Ranks:
        at_stage, order = self.stages[stage], self.order
        split: dict[str, dict[str, int]] = {}  # a dimension: its parts, innermost first
        if self.expert > 1 and "data" not in dimensions:  # neighbours along data share experts
            beyond = at_stage.shape[order.index("data")] // self.expert
            split["data"] = {"expert": self.expert, "beyond": beyond}
        if self.sharing and "data" not in dimensions:
            beyond = at_stage.shape[order.index("data")] // self.sharing
            split["data"] = {NEAR: self.sharing, FAR: beyond}
        if self.expert_context > 1 and "context" not in dimensions:
            far = at_stage.shape[order.index("context")] // self.expert_context
            split["context"] = {_NEAR: self.expert_context, _FAR: far}
        if self.levels and "tensor" not in dimensions:
            split["tensor"] = {f"tensor.{i}": size for i, size in enumerate(self.levels)}
        if self.tensor_grid is not None and "tensor" not in dimensions:
            sizes = (self.tensor_grid.columns, self.tensor_grid.rows)
            split["tensor"] = dict(zip(GRID, sizes, strict=True))
        if "spatial" in order and "spatial" not in dimensions:
            split["spatial"] = {"spatial.columns": self.grid[1], "spatial.rows": self.grid[0]}
        for name, parts in split.items():
            axis, shape = order.index(name), at_stage.shape
            if math.prod(parts.values()) != shape[axis]:
                raise ConfigError(
                    f"{shape[axis]} ranks cannot be divided by {max(parts.values())}",
                    field=f"plan.{name}",
                )
            new = (*shape[:axis], *parts.values(), *shape[axis + 1 :])
            at_stage = at_stage.reshape(new, order="F")
            order = (*order[:axis], *parts, *order[axis + 1 :])
        inside = [axis for axis, name in enumerate(order) if name in dimensions]
        outside = [axis for axis, name in enumerate(order) if name not in dimensions]
        moved = at_stage.transpose(outside[::-1] + inside[::-1])
        size = int(np.prod([at_stage.shape[axis] for axis in inside], initial=1))
        rows = moved.reshape(-1, size)
        return rows[np.argsort(rows[:, 0], kind="stable")]

    def stage(self, stage: int) -> Ranks:
        """Ranks of a stage, ascending."""
        return np.sort(self.stages[stage].ravel())


def _counted(shape: Sequence[int]) -> Ranks:
    """Return ranks at all places, the first dimension numbering neighbours."""
    return np.arange(math.prod(shape)).reshape(shape[::-1]).transpose()
