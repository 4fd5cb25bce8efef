"""Usual collectives of a plan, from which ranks are compared before a step is emitted."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ridgeline.parallel.comm.collective_flows import StageCollective
from ridgeline.parallel.comm.collective_selection import COPIES
from ridgeline.parallel.plan.mesh import Mesh, Ranks
from ridgeline.parallel.sharding.halo import written
from ridgeline.parallel.sharding.inserted_ops import GRID, HALO

PROBE_BYTES = 64e6
"""A collective that is long enough for its bandwidth."""
_DIMENSIONS = ("tensor", "spatial", "context", "data")


def usual_calls(
    mesh: Mesh, *, wraps: bool = False, offloads: bool = False
) -> list[StageCollective]:
    """Return what is sent in and between stages.

    Parameters
    ----------
    wraps
        Whether the last stage sends to the first, as where ranks have several parts of the layers.
    offloads
        Whether devices copy to their hosts, and back.
    """
    calls = []
    stages = range(len(mesh.stages))
    for stage in stages:
        calls += [
            StageCollective("all-reduce", groups, PROBE_BYTES) for groups in _grouped(mesh, stage)
        ]
        calls += _halos(mesh, stage)
        for op in COPIES if offloads else ():
            calls.append(StageCollective(op, mesh.stage(stage)[:, None], PROBE_BYTES))
    for stage in stages if wraps else stages[1:]:
        ends = mesh.replica(stage - 1), mesh.replica(stage)
        calls.append(StageCollective("send", np.stack(ends, axis=1), PROBE_BYTES))
        calls.append(StageCollective("send", np.stack(ends[::-1], axis=1), PROBE_BYTES))
    return calls


def _halos(mesh: Mesh, stage: int) -> Iterator[StageCollective]:
    """Yield what devices that share images fetch of neighbours on one side, the other, or both."""
    for dimension in ("spatial.rows", "spatial.columns") if math.prod(mesh.grid) > 1 else ():
        groups = mesh.groups(stage, dimension)
        near = np.eye(groups.shape[1], k=1, dtype=np.int64)
        for side in (near, near.T, near + near.T) if near.any() else ():
            yield StageCollective(f"{HALO} {written(side)}", groups, PROBE_BYTES)


def _grouped(mesh: Mesh, stage: int) -> Iterator[Ranks]:
    """Yield the groups of every dimension and level of a plan."""
    levels = range(len(mesh.levels))
    grid = [f"{name}.{part}" for name in ("spatial", "data") for part in ("rows", "columns")]
    images = [*grid, "data.spatial"] if math.prod(mesh.grid) > 1 else []
    parts = [f"{name}.{level}" for name in ("tensor", "data") for level in levels]
    first, last = mesh.expert_levels
    shares = mesh.expert > 1 or mesh.expert_context > 1 or last > first
    experts = ["expert", "beyond"] if shares else []
    tensor = GRID if mesh.tensor_grid is not None else ()
    for dimension in (*_DIMENSIONS, *parts, *tensor, *experts, *images):
        groups = mesh.groups(stage, *mesh.along(dimension))
        if groups.shape[1] > 1:
            yield groups
