"""Gradient buckets: gradients are reduced in groups, in the order in which backward makes them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ridgeline.workload.autodiff import weight_gradients
from ridgeline.workload.graph import Graph


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are reduced together.

    Attributes
    ----------
    tensors
        Names of the gradient tensors.
    size_bytes
        Their total size.
    ready
        Index of the op in the graph that completes the bucket.
    """

    tensors: tuple[str, ...]
    size_bytes: int
    ready: int


def gradient_buckets(
    graph: Graph, bucket_bytes: float, without: Collection[str] = ()
) -> tuple[Bucket, ...]:
    """Collect the gradients that backward leaves to the update in buckets of a least size.

    A bucket is closed as soon as it has reached the size (PyTorch DDP: Li et al., "PyTorch
    Distributed", VLDB 13(12), 2020, section 3.2.3); the last one may be smaller.

    Parameters
    ----------
    without
        Gradients that are left out.
    """
    wanted = set(weight_gradients(graph).values()).difference(without)
    last_writer = {n: i for i, op in enumerate(graph.ops) for n in op.outputs if n in wanted}
    buckets: list[Bucket] = []
    names: list[str] = []
    size = 0
    ready = 0
    for name in sorted(wanted, key=lambda name: (last_writer[name], name)):
        names.append(name)
        size += graph.tensors[name].bytes
        ready = last_writer[name]
        if size >= bucket_bytes:
            buckets.append(Bucket(tuple(names), size, ready))
            names, size = [], 0
    if names:
        buckets.append(Bucket(tuple(names), size, ready))
    return tuple(buckets)
