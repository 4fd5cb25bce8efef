"""Plan space: all legal plans of one step on so many devices, as arrays, one entry a plan.

`Limits` says what the model allows: into how many parts it can be cut, and by how many devices its
parts can be shared.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from ridgeline.errors import RidgelineError
from ridgeline.parallel.checkpointing.blocks import attention_cores
from ridgeline.parallel.checkpointing.recompute import Mode
from ridgeline.parallel.partition.pipeline_partition import Cut
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.sharding import tensor_2d
from ridgeline.parallel.sharding.shard import shard
from ridgeline.parallel.sharding.spatial import with_shared_images
from ridgeline.parallel.sharding.tensor_2d import Grid, with_grid
from ridgeline.study.planner.extrapolation import ReducedModel, n_units
from ridgeline.workload.graph import Graph, Pass
from ridgeline.workload.model import Model

Ints = npt.NDArray[np.int64]

SCHEDULE_NAMES: tuple[Literal["1f1b", "gpipe", "interleaved", "zero-bubble"], ...] = (
    "1f1b",
    "gpipe",
    "interleaved",
    "zero-bubble",
)
RECOMPUTE_NAMES: tuple[Mode, ...] = ("none", "selective", "full", "sqrt")
GRID_MODES: tuple[tensor_2d.Mode, ...] = ("gather", "summa", "stationary")
MOST_CHUNKS = 8
"""Chunks of an interleaved schedule that are tried: each further one shortens the bubble less than
it adds messages."""
_INTERLEAVED = SCHEDULE_NAMES.index("interleaved")


@dataclass(frozen=True)
class PlanSpace:
    """Plans as arrays of equal length P.

    Attributes
    ----------
    global_batch
        Samples of one step.
    data, tensor, pipeline, micro_batch, chunks, context, expert, sharding
        [P] as in `Plan`.
    ring, sequence
        [P] 1 where context parallelism goes in a ring, and where sequence parallelism is on.
    tensor_rows, tensor_mode
        [P] rows of a grid of tensor-parallel devices, and the place of its mode in `GRID_MODES`.
    image_rows, image_columns
        [P] devices along the rows and along the columns of images.
    schedule, recompute
        [P] places in `SCHEDULE_NAMES` and `modes`.
    modes
        Modes of recomputation, or modules, that are tried.
    offload
        As in `Plan`, of all plans.
    """

    global_batch: int
    precision: str | None
    data: Ints
    tensor: Ints
    pipeline: Ints
    micro_batch: Ints
    chunks: Ints
    context: Ints
    ring: Ints
    expert: Ints
    sharding: Ints
    sequence: Ints
    tensor_rows: Ints
    tensor_mode: Ints
    image_rows: Ints
    image_columns: Ints
    schedule: Ints
    recompute: Ints
    modes: tuple[str, ...] = RECOMPUTE_NAMES
    offload: str = "none"

    def __len__(self) -> int:
        return len(self.data)

    @cached_property
    def micro_batches(self) -> Ints:
        """[P] micro-batches that a rank accumulates."""
        return self.global_batch // (self.data * self.micro_batch)

    @cached_property
    def replicas(self) -> Ints:
        """[P] ranks that hold the same weights: replicas, and those that share samples."""
        return self.data * self.context * self.spatial

    @cached_property
    def holders(self) -> Ints:
        """[P] ranks that hold the same of the weights that fewest have: biases in rows of a grid.

        So many share a state, or sum a gradient, at most.
        """
        return self.replicas * self.tensor_rows

    @cached_property
    def spatial(self) -> Ints:
        """[P] devices that share images."""
        return self.image_rows * self.image_columns

    def only(self, dimension: str) -> PlanSpace:
        """Return the plans that use this dimension alone: data, tensor, pipeline or spatial."""
        others = [
            getattr(self, name) == 1
            for name in ("data", "tensor", "pipeline", "context", "expert", "spatial")
            if name != dimension
        ]
        return self.where(np.logical_and.reduce(others))

    def where(self, kept: npt.NDArray[np.bool_]) -> PlanSpace:
        """Return some of the plans."""
        arrays = {f.name: getattr(self, f.name) for f in fields(self)}
        parts: dict[str, Any] = {
            name: array[kept] for name, array in arrays.items() if isinstance(array, np.ndarray)
        }
        return replace(self, **parts)

    def plan(self, i: int) -> Plan:
        """Return one plan."""
        tensor, two = int(self.tensor[i]), self.grid(i)
        high, wide = self.images(i)
        return Plan(
            global_batch=self.global_batch,
            precision=self.precision,
            data=int(self.data[i]),
            tensor=tensor,
            tensor_rows=two.rows if two else 1,
            tensor_mode=two.mode if two else "gather",
            spatial=f"{high}x{wide}",
            pipeline=int(self.pipeline[i]),
            micro_batch=int(self.micro_batch[i]),
            virtual_stages=int(self.chunks[i]),
            context=int(self.context[i]),
            cp_comm_type="ring" if self.ring[i] else "all-gather",
            expert=int(self.expert[i]),
            zero_stage=int(self.sharding[i]),
            sequence=tensor if self.sequence[i] else 1,
            schedule=SCHEDULE_NAMES[int(self.schedule[i])],
            recompute=self.modes[int(self.recompute[i])],
            offload=cast("Any", self.offload),
        )

    def grid(self, i: int) -> Grid | None:
        """Return the grid of a plan's tensor-parallel devices; None: they are in one dimension."""
        rows = int(self.tensor_rows[i])
        if rows == 1:
            return None
        return Grid(rows, int(self.tensor[i]) // rows, GRID_MODES[int(self.tensor_mode[i])])

    def images(self, i: int) -> tuple[int, int]:
        """Return devices along the rows, and along the columns, of a plan's images."""
        return int(self.image_rows[i]), int(self.image_columns[i])


def divisors(n: int) -> list[int]:
    """Return all divisors of a number, ascending."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def enumerate_plans(
    devices: int,
    global_batch: int,
    *,
    tensors: list[int],
    max_stages: int,
    sequences: bool,
    experts: list[int],
    contexts: list[tuple[int, int]],
    recomputations: Sequence[str],
    grids: Sequence[Grid] = (),
    images: Sequence[tuple[int, int]] = ((1, 1),),
    precision: str | None = None,
) -> PlanSpace:
    """List every plan that `Plan` allows on exactly so many devices.

    Parameters
    ----------
    tensors
        Degrees that the model can be divided by.
    max_stages
        Parts that it can be cut into.
    sequences
        Whether the samples have positions that sequence parallelism can share.
    experts
        By how many ranks its experts can be shared.
    contexts
        By how many ranks positions can be shared, and whether in a ring.
    recomputations
        Modes of recomputation, or modules, that are tried.
    grids
        Of tensor-parallel devices.
    images
        By how many devices rows and columns of images can be shared; (1, 1): by one.
    """
    rows: list[tuple[int, ...]] = []
    modes = (*RECOMPUTE_NAMES, *(m for m in recomputations if m not in RECOMPUTE_NAMES))
    for tensor, two in [*((t, None) for t in tensors), *((g.rows * g.columns, g) for g in grids)]:
        if devices % tensor:
            continue
        for pipeline, (context, ring), (high, wide) in itertools.product(
            divisors(devices // tensor), contexts, images
        ):
            data, left = divmod(devices // tensor // pipeline, context * high * wide)
            if left or global_batch % data or pipeline > max_stages:
                continue
            if high * wide > 1 and (two or context > 1):
                continue
            rank_batch = global_batch // data
            for micro_batch in divisors(rank_batch):
                if two and two.mode != "stationary" and micro_batch % two.rows:
                    continue
                pipes = _schedules(pipeline, rank_batch // micro_batch, max_stages)
                rows += [
                    (
                        data,
                        tensor,
                        pipeline,
                        micro_batch,
                        chunks,
                        context,
                        ring,
                        *more,
                        two.rows if two else 1,
                        GRID_MODES.index(two.mode) if two else 0,
                        high,
                        wide,
                        schedule,
                        recompute,
                    )
                    for schedule, chunks in pipes
                    for more in itertools.product(
                        [e for e in experts if data % e == 0 and 1 in (e, context)],
                        range(4) if data * context * high * wide > 1 else (0,),
                        (0, 1) if sequences and tensor > 1 and not two else (0,),
                    )
                    for recompute in map(modes.index, recomputations)
                ]
    columns = np.array(rows, np.int64).reshape(-1, 16).T
    arrays: list[Any] = list(columns)
    found = PlanSpace(global_batch, precision, *arrays)
    return replace(found, modes=modes)


def _schedules(pipeline: int, micro_batches: int, max_stages: int) -> list[tuple[int, int]]:
    """Return the schedules of a pipeline and their chunks."""
    if pipeline == 1:
        return [(0, 1)]
    found = [(s, 1) for s in range(len(SCHEDULE_NAMES)) if s != _INTERLEAVED]
    if micro_batches % pipeline == 0:
        found += [(_INTERLEAVED, v) for v in range(2, min(max_stages // pipeline, MOST_CHUNKS) + 1)]
    return found


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

    @cached_property
    def least_tensor(self) -> int:
        """The least degree above 1 that divides the model; 1: there is none."""
        return next((n for n in divisors(self.devices)[1:] if self.divides(n)), 1)

    @cached_property
    def least_expert(self) -> int:
        """By how many ranks its experts can be shared at least, if they are; 1: by none."""
        return next(iter(self.expert_degrees()[1:]), 1)

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
