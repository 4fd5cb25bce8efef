"""Gradient buckets: gradients are reduced in groups, in the order in which backward makes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ridgeline.parallel.plan.resolved import ResolvedPlan
from ridgeline.software.stack import Stack
from ridgeline.workload import optimizers
from ridgeline.workload.autodiff import weight_gradients
from ridgeline.workload.formats import bytes_of
from ridgeline.workload.graph import Graph, Op, Pass, Role, Tensor

_ADDED = 3  # passes over gradients that add them to those of the batch before


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are reduced together.

    Attributes
    ----------
    tensors
        Names of the gradient tensors.
    size_bytes
        Their total size as they are sent.
    made_bytes
        Their total size as the backward pass makes them.
    ready
        Index of the op in the graph that completes the bucket.
    """

    tensors: tuple[str, ...]
    size_bytes: int
    made_bytes: int
    ready: int


def gradient_buckets(
    graph: Graph, bucket_bytes: float, without: Collection[str] = (), format_: str = ""
) -> tuple[Bucket, ...]:
    """Collect the gradients that backward leaves to the update in buckets of a least size.

    A bucket is closed as soon as it has reached the size (PyTorch DDP: Li et al., "PyTorch
    Distributed", VLDB 13(12), 2020, section 3.2.3); the last one may be smaller.

    Parameters
    ----------
    without
        Gradients that are left out.
    format_
        In which gradients are sent that need more bytes otherwise; "": their own.
    """
    wanted = set(weight_gradients(graph).values()).difference(without)
    last_writer = {n: i for i, op in enumerate(graph.ops) for n in op.outputs if n in wanted}
    buckets: list[Bucket] = []
    names: list[str] = []
    size = made = ready = 0
    for name in sorted(wanted, key=lambda name: (last_writer[name], name)):
        names.append(name)
        tensor = graph.tensors[name]
        size += sent_bytes(tensor, format_)
        made += tensor.bytes
        ready = last_writer[name]
        if size >= bucket_bytes:
            buckets.append(Bucket(tuple(names), size, made, ready))
            names, size, made = [], 0, 0
    if names:
        buckets.append(Bucket(tuple(names), size, made, ready))
    return tuple(buckets)


def sent_bytes(tensor: Tensor, format_: str) -> int:
    """Return the bytes of a gradient that is sent in this format if its own needs more; "": own."""
    narrower = format_ and bytes_of(format_) < bytes_of(tensor.format)
    return replace(tensor, format=format_).bytes if narrower else tensor.bytes


@dataclass(frozen=True, slots=True)
class BucketTraffic:
    """What moves gradients before the update.

    Attributes
    ----------
    size_bytes
        That are read and written.
    kernels
        How many, one after the other, each of which the host issues.
    chunked_bytes
        That kernels for many tensors read and write besides, in launches of chunks
        (`parallel.passes.optimizer_kernels`).
    """

    size_bytes: float = 0.0
    kernels: int = 0
    chunked_bytes: float = 0.0


def moved(
    plan: ResolvedPlan, graph: Graph, buckets: Mapping[str, tuple[Bucket, ...]]
) -> BucketTraffic:
    """Return what copies gradients into their buckets and back, and streams them at a step's end.

    Each copy reads every byte once and writes it once, in the format that it is to have; each
    gradient has a kernel of its own both ways (PyTorch, torch/csrc/distributed/c10d/reducer.cpp,
    mark_variable_ready_dense and finalize_bucket_dense; Horovod before 0.21, fusion buffer). All
    passes are one kernel.
    """
    updates = [op for op in graph.ops if op.pass_ is Pass.UPDATE]
    (size_bytes, own_bytes), kernels = passed_bytes(plan.stack, updates, graph), 0
    chunked = plan.stack.optimizer.impl == "fused"
    size_bytes += 0.0 if chunked else own_bytes
    if copies_gradients(plan.stack):
        copied = [bucket for along in buckets.values() for bucket in along]
        size_bytes += 2.0 * (sum(bucket.made_bytes for bucket in copied) + _bytes(buckets))
        kernels = 2 * sum(len(bucket.tensors) for bucket in copied)
    return BucketTraffic(size_bytes, max(kernels, 1), own_bytes if chunked else 0.0)


def passed_bytes(stack: Stack, updates: Sequence[Op], graph: Graph) -> tuple[float, float]:
    """Return what the framework's passes over gradients read or write before these updates.

    Over all that a rank holds, which are what its updates begin with (of shared gradients, ZeRO 2
    and 3, its part), and over those that it updates weights with: of shared states its part.
    To scale gradients back reads and writes them once. The two are returned apart.
    """
    optimizer, gradients = stack.optimizer, stack.gradients
    added = round(_ADDED * (1.0 - 1.0 / max(gradients.update_interval, 1)))
    passes = gradients.sweeps + added + (2 if optimizer.loss_scale_check else 0)
    if not passes and not optimizer.clip_sweeps:
        return 0.0, 0.0
    given = {n for op in updates for n in op.inputs}.difference(
        n for op in updates for n in op.outputs
    )
    tensors = [graph.tensors[name] for name in given]
    held = sum(t.bytes for t in tensors if t.role is Role.WEIGHT_GRADIENT)
    mine = sum(map(partial(_updating_bytes, graph), updates))
    return float(passes * held), float(optimizer.clip_sweeps * mine)


def _updating_bytes(graph: Graph, op: Op) -> float:
    """Return the bytes of the gradient that an update reads, once."""
    if op.kind != "optimizer":
        return 0.0
    rule = optimizers.find(str(dict(op.attrs)["rule"]))
    gradient = graph.tensors[op.inputs[1]]
    return gradient.bytes * float(op.input_passes[1]) / rule.gradient_passes


def held_bytes(plan: ResolvedPlan, buckets: Mapping[str, tuple[Bucket, ...]]) -> int:
    """Return the memory of buckets that are copied into: all of them, or Horovod's one buffer."""
    if not copies_gradients(plan.stack):
        return 0
    return (
        min(_bytes(buckets), round(plan.bucket_bytes))
        if plan.stack.gradients.fusion_cycle_time
        else _bytes(buckets)
    )


def copies_gradients(stack: Stack) -> bool:
    """Whether gradients are copied to be sent, if only into another format."""
    return stack.gradients.bucket_copies or bool(stack.gradients.reduce_dtype)


def _bytes(buckets: Mapping[str, tuple[Bucket, ...]]) -> int:
    return sum(bucket.size_bytes for along in buckets.values() for bucket in along)
