"""What a model allows: how often it can be cut, and by how many devices its parts can be shared."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from ridgeline.errors import RidgelineError
from ridgeline.parallel.checkpointing.blocks import attention_cores
from ridgeline.parallel.checkpointing.recompute import Mode
from ridgeline.parallel.partition.pipeline_partition import Cut
from ridgeline.parallel.sharding.shard import shard
from ridgeline.parallel.sharding.spatial import with_shared_images
from ridgeline.parallel.sharding.tensor_2d import Grid, with_grid
from ridgeline.study.planner.layer_extrapolation import ReducedModel, n_units
from ridgeline.study.planner.space import GRID_MODES, divisors
from ridgeline.workload.graph import Graph, Pass
from ridgeline.workload.model import Model


@dataclass(frozen=True)
class Limits:
    """Limits of a model on so many devices, found with the few layers that tell of it."""

    model: Model
    few: ReducedModel
    precision: str
    devices: int
    cut: Cut = "even"

    @cached_property
    def graph(self) -> Graph:
        """The smallest training step that is divided as the whole is."""
        return self.few.smallest.training(1, self.precision)

    @property
    def max_stages(self) -> int:
        """Parts that a pipeline can cut the model into."""
        return n_units(self.model, self.precision, self.cut)

    @property
    def n_ops(self) -> int:
        """Ops of what tells of the model."""
        return len(self.graph.ops)

    @cached_property
    def n_ops_of_all(self) -> int:
        """Ops of the whole model."""
        return len(self.model.training(1, self.precision).ops)

    def divides(self, tensor: int) -> bool:
        """Whether the model's heads can be shared by so many devices."""
        try:
            shard(self.graph, tensor)
        except RidgelineError:
            return False
        return True

    def expert_degrees(self) -> list[int]:
        """By how many ranks the model's experts can be shared; 1: it has none."""
        sent = (op for op in self.graph.ops if op.kind == "dispatch" and op.pass_ is Pass.FORWARD)
        found = math.gcd(*(self.graph.tensors[op.outputs[0]].shape[0] for op in sent))
        return divisors(found) if found else [1]

    def contexts(self) -> list[tuple[int, int]]:
        """By how many ranks positions can be shared, and whether in a ring; (1, 0): by one."""
        modes = (0, 1) if any(op.kind == "flash-attention" for op in self.graph.ops) else (0,)
        found = [(1, 0)]
        for n in divisors(self.devices)[1:] if self.graph.tokens_per_sample else ():
            try:
                shard(self.graph, n, dimension="context")
            except RidgelineError:
                continue
            found += [(n, ring) for ring in modes]
        return found

    def grids(self) -> list[Grid]:
        """Return the grids of tensor-parallel devices that the model can be divided over."""
        found = []
        for rows, columns in self._products():
            if min(rows, columns) == 1:
                continue
            graph = self.few.smallest.training(rows, self.precision)
            for mode in GRID_MODES:
                with suppress(RidgelineError):
                    with_grid(graph, two := Grid(rows, columns, mode))
                    found.append(two)
        return found

    def images(self) -> list[tuple[int, int]]:
        """Return by how many devices rows and columns of images can be shared; (1, 1): by one."""
        found = [(1, 1)]
        for rows, columns in self._products()[1:]:
            with suppress(RidgelineError):
                with_shared_images(self.graph, rows, columns)
                found.append((rows, columns))
        return found

    def _products(self) -> list[tuple[int, int]]:
        """Return all pairs of numbers whose product divides that of the devices."""
        n = self.devices
        return [(a, b) for a in divisors(n) for b in divisors(n // a)]

    def recomputations(self) -> list[Mode]:
        """Return what the model can compute again: scores of attention only where there is any.

        Stretches of layers (sqrt) only where layers are not all alike: how long they are depends on
        how many layers there are, of which a few would tell nothing.
        """
        some = attention_cores(self.graph)
        modes: list[Mode] = ["none", "selective", "full"] if some else ["none", "full"]
        return modes if self.few.fewer else [*modes, "sqrt"]
