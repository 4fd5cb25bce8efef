"""Buffers of NCCL's communicators as part of what a program takes of a device's memory."""

from __future__ import annotations

from ridgeline.network.communicators import communicator_bytes
from ridgeline.network.topology import Topology
from ridgeline.parallel.plan.mesh import Mesh
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.plan.resolved import ResolvedPlan
from ridgeline.software.stack import Stack


def runtime_bytes(plan: Plan, stack: Stack, topology: Topology) -> float:
    """Return what a program takes of a device besides tensors, with its communicators.

    They count where what the program takes of a device besides tensors is given at all.
    """
    memory = stack.memory
    if not memory.runtime or not memory.communicators:
        return memory.runtime
    mesh = Mesh.of(plan)
    stages = range(plan.pipeline)
    members = {
        "world": tuple(range(plan.devices)),
        "tensor": tuple(mesh.groups(0, "tensor")[0].tolist()),
        "data": tuple(mesh.groups(0, "data")[0].tolist()),
        "model": tuple(int(r) for stage in stages for r in mesh.groups(stage, "tensor")[0]),
    }
    groups = {members[name] for name in memory.communicators}
    return memory.runtime + sum(communicator_bytes(topology, group) for group in groups)


def with_communicators(plan: ResolvedPlan, topology: Topology) -> ResolvedPlan:
    """Return a plan whose program's memory counts the communicators that its stack names."""
    runtime = runtime_bytes(plan, plan.stack, topology)
    if runtime == plan.stack.memory.runtime:
        return plan
    stack = plan.stack.with_settings({"memory.runtime": runtime})
    return plan.model_copy(update={"stack": stack})
