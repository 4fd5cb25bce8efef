"""By what a pipeline is cut besides the work of its ops: messages, collectives, replicas.

The lowering and the search of plans take these numbers from here, so that both cut alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ridgeline.network.topology import Topology
from ridgeline.parallel.comm.comm_cost import Wires, slowest_message
from ridgeline.parallel.emit.grad_accumulation import lasting
from ridgeline.parallel.emit.rank_group import CollectiveCall
from ridgeline.parallel.partition.overheads import Replicas
from ridgeline.parallel.partition.part_memory import DeviceRoom
from ridgeline.parallel.partition.partition_dp import Pace
from ridgeline.parallel.plan.layers import kind_of
from ridgeline.parallel.plan.mesh import FAR, NEAR, Mesh, Ranks
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.schedule import SCHEDULES
from ridgeline.parallel.sharding.ring_attention import HOP
from ridgeline.parallel.sharding.shard import COLLECTIVES
from ridgeline.software.stack import Stack
from ridgeline.workload.graph import Op

SIZES = (1.0, 2.0**16, 2.0**20, 2.0**24, 2.0**28, 2.0**32)
"""Bytes for which sums and gathers are priced; others are on lines between them: an algorithm takes
a fixed time, and one for each byte, and a library has few of them."""


def with_waits(
    ops: Sequence[Op], own_s: Sequence[float], wires: Wires, mesh: Mesh, stack: Stack
) -> list[float]:
    """Return the seconds of ops with those of collectives that they wait for.

    Of the first groups of ranks that share ops, samples or experts. Blocks of a ring go on beside
    the op behind them: what they take longer counts. Exchanges of experts that a stack lets another
    micro-batch run beside do not.
    """
    found, beside_s = list(own_s), 0.0
    for i, op in enumerate(ops):
        if op.kind not in COLLECTIVES:
            if beside_s and op.kind not in _SMALL:
                found[i] += max(beside_s - own_s[i], 0.0)
                beside_s = 0.0
            continue
        sent = CollectiveCall.of(op)
        if stack.overlap.moe_a2a and kind_of(sent.dimension) == "expert":
            continue
        groups = mesh.groups(0, *mesh.along(sent.dimension), neighbours=sent.neighbours)
        if groups.shape[1] == 1:
            continue
        takes = wires.time_s(sent.op, groups[0], sent.size_bytes) * sent.repeat
        if op.kind == HOP:
            beside_s += takes
        else:
            found[i] += takes
    return found


_SMALL = frozenset({"add", "slice", "concat"})
"""Kinds of ops between the blocks of a ring and the attention that goes on beside them."""


def room_of(
    stack: Stack,
    sizes: npt.NDArray[np.int64],
    stages: Sequence[Ranks],
    runtime: float | None = None,
) -> DeviceRoom:
    """Return what the devices of a pipeline have room for.

    Parameters
    ----------
    sizes
        Bytes of every rank's device.
    stages
        Ranks of every stage.
    runtime
        Bytes that the program takes of each device besides tensors; None: the stack's.
    """
    runtime = stack.memory.runtime if runtime is None else runtime
    capacity = tuple(max(float(sizes[ranks].min()) - runtime, 1.0) for ranks in stages)
    keeps = stack.memory.allocator != "caching" or lasting(stack.gradients.main_grads)
    return DeviceRoom(capacity, keeps)


def pace_of(
    plan: Plan,
    topology: Topology,
    stages: Sequence[Ranks],
    replicas: Replicas | None,
    room: DeviceRoom | None = None,
) -> Pace | None:
    """Return the pace of a plan's step; None: it has no pipeline, or one of unlike stages.

    Parameters
    ----------
    stages
        Ranks of every stage; those of equal place send to each other.
    room
        Of the devices; None: for everything.
    """
    if plan.pipeline == 1 or plan.replicas:
        return None
    place = SCHEDULES[plan.schedule].place
    parts = range(plan.pipeline * plan.virtual_stages)
    found = []
    for a, b in pairwise(place(part, plan.pipeline)[1] for part in parts):
        ends = np.stack((stages[a], stages[b]), axis=1).astype(np.int64).tobytes()
        found.append((0.0, 0.0) if a == b else slowest_message(topology, ends))
    late_s, byte_s = zip(*found, strict=True)
    back = not plan.forward_only
    return Pace(
        plan.schedule, plan.micro_batches, late_s, byte_s, plan.virtual_stages, back, replicas, room
    )


def replicas_of(plan: Plan, stack: Stack, wires: Wires, mesh: Mesh) -> Replicas | None:
    """Return what the replicas of a pipeline's stages share, and how fast they send it.

    Of the first stage's groups, all at the same time; None: there is no pipeline, or no update.
    """
    if plan.pipeline == 1 or plan.replicas or plan.forward_only:
        return None
    zero, gradients = plan.zero_stage, stack.gradients
    slices = zero > 0 and plan.hybrid_shard_size > 0
    along = (NEAR, NEAR) if slices else ("data", "beyond")
    groups = [mesh.groups(0, *mesh.along(name)) for name in along]
    far = mesh.groups(0, *mesh.along(FAR)) if slices else None

    def summed(of: Ranks) -> tuple[float, ...]:
        found = _seconds("reduce-scatter" if zero else "all-reduce", of, wires)
        if far is None:
            return found
        parts = _seconds("all-reduce", far, wires)
        each = np.interp(np.array(SIZES) / of.shape[1], SIZES, parts)
        return tuple(float(a + b) for a, b in zip(found, each, strict=True))

    some = groups[: 1 + (plan.expert > 1)]  # without experts both are the same
    sums = [summed(of) for of in some]
    gathers = [_seconds("all-gather", of, wires) if zero else _NOTHING for of in some]
    place = SCHEDULES[plan.schedule].place
    first, last = (
        place(part, plan.pipeline)[1] for part in (0, plan.pipeline * plan.virtual_stages - 1)
    )
    pairs = np.stack((mesh.replica(first), mesh.replica(last)), axis=1)
    overlap = stack.overlap.gradients
    return Replicas(
        zero_stage=zero,
        bucket_bytes=max(gradients.bucket, gradients.bucket_per_rank * plan.data),
        ranks=(groups[0].shape[1], groups[1].shape[1]),
        sums_beside=overlap is True,
        gathers_beside=overlap is not False,
        again=stack.zero.reshard_after_forward == "all",
        sizes=SIZES,
        sum_s=(sums[0], sums[-1]),
        gather_s=(gathers[0], gathers[-1]),
        tie_s=_NOTHING if first == last else _seconds("all-reduce", pairs, wires),
    )


_NOTHING = (0.0,) * len(SIZES)
_MOST_GROUPS = 64
"""So many groups tell of all: more take long to route, and lie farther away."""


def _seconds(op: str, groups: Ranks, wires: Wires) -> tuple[float, ...]:
    """Return the seconds of a collective of all groups at once, for every size."""
    if groups.shape[1] == 1:
        return _NOTHING
    # on a torus messages pass through nodes that their group is not in
    at_once = wires.at_once_s if wires.lying.torus else wires.together_s
    return tuple(sum(at_once(op, groups[:_MOST_GROUPS], size)) for size in SIZES)
