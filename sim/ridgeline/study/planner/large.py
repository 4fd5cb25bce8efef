"""Gradients and weights that fill a bucket alone: each is a message of its own.

Buckets are closed as soon as they have reached their size (`parallel.buckets`, `parallel.zero`), so
no two of these are in one, however a pipeline is cut. A message takes at least as long as the
large tensor in it alone, and what else is in it at least what its bytes take without latency.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from ridgeline.study.planner.held import Floats, Ints
from ridgeline.study.planner.links import is_once
from ridgeline.workload.autodiff import weight_gradients
from ridgeline.workload.graph import Graph, Pass, Role

SENT, EXPERT_SENT, READ, EXPERT_READ = range(4)
"""Gradients that are summed, those of experts that ranks share; weights that ops read first."""
_WEIGHTS = frozenset({Role.WEIGHT, Role.WEIGHT_COPY})


class Large(NamedTuple):
    """Messages between replicas that no bucket joins.

    Attributes
    ----------
    sizes
        In bytes.
    counts
        [U, 4, sizes] how many tensors of each size every unit has.
    again
        [U, 2] bytes of weights, and of those of experts that ranks share, that the backward pass
        reads: of what the forward pass reads, not all (tables, biases).
    """

    sizes: tuple[float, ...]
    counts: Floats
    again: Floats


class Wire(NamedTuple):
    """What messages of one kind between some ranks take at least.

    Messages of G bytes in all, each of at most some size, take ``G byte_s``. A tensor that is a
    message of its own takes ``longer_s`` more than its bytes at ``slope_s``, at which any further
    byte is sent; so they also take ``G slope_s + sum(longer_s)``.
    """

    byte_s: float
    slope_s: float
    longer_s: Floats

    def seconds(self, size_bytes: Floats, counts: Floats) -> Floats:
        """Return what so many bytes take; of them so many tensors [..., sizes] go alone."""
        several: Floats = size_bytes * self.slope_s + counts @ self.longer_s
        return np.maximum(size_bytes * self.byte_s, several)


def large_by_unit(
    graph: Graph, home: Ints, n_units: int, experts: frozenset[str], bucket_bytes: float
) -> Large:
    """Count what fills a bucket of this size alone.

    Parameters
    ----------
    home
        [ops] unit of every op.
    experts
        Weights, and copies of them, of experts that ranks share.
    """
    found: Counter[tuple[int, int, float]] = Counter()
    gradients = weight_gradients(graph)
    of_experts = {gradients[weight] for weight in experts if weight in gradients}
    writer = {name: i for i, op in enumerate(graph.ops) for name in op.outputs}
    for name in gradients.values():
        i = writer.get(name, -1)
        if i < 0 or graph.ops[i].kind == "add":  # a sum, of which stages may have parts each
            continue
        kind = EXPERT_SENT if name in of_experts else SENT
        found[int(home[i]), kind, float(graph.tensors[name].bytes)] += 1
    again = np.zeros((n_units, 2))
    seen: set[str] = set()
    seen_again: set[str] = set()
    for i, op in enumerate(graph.ops):
        if op.pass_ is Pass.UPDATE or is_once(op, graph):
            continue
        read = {n for n in op.inputs if graph.tensors[n].role in _WEIGHTS}
        for name in read - seen_again if op.pass_ is not Pass.FORWARD else ():
            again[home[i], int(name in experts)] += graph.tensors[name].bytes
            seen_again.add(name)
        read -= seen
        seen |= read
        for kind, names in ((EXPERT_READ, read & experts), (READ, read - experts)):
            found[int(home[i]), kind, float(sum(graph.tensors[n].bytes for n in names))] += 1
    sizes = sorted({size for _, _, size in found if size >= bucket_bytes})
    counts = np.zeros((n_units, 4, len(sizes)))
    for (unit, kind, size), times in found.items():
        if size >= bucket_bytes:
            counts[unit, kind, sizes.index(size)] += times
    return Large(tuple(sizes), counts, again)
