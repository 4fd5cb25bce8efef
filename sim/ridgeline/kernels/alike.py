"""Which ops cost the same on every device, so that they are priced once."""

from __future__ import annotations

from functools import lru_cache

from ridgeline.kernels.traffic import streamed_bytes
from ridgeline.workload.graph import Graph, Op, Same, Tensor


class Alike:
    """Ops that cost the same on any device; hashed once for all devices that price them.

    Attributes
    ----------
    op, graph
        The first of them that was met; None of what is no op but moves so many bytes.
    streamed_bytes
        What an op without a contraction moves, which with its arithmetic is all that counts.
    """

    __slots__ = ("graph", "hash", "key", "op", "streamed_bytes")

    def __init__(
        self, key: tuple[object, ...], op: Op | None, graph: Graph | None, moved: float
    ) -> None:
        self.key, self.hash = key, hash(key)
        self.op, self.graph, self.streamed_bytes = op, graph, moved

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Alike) and other.key == self.key)


def moving(size_bytes: float) -> Alike:
    """Return what only moves so many bytes through all of the memory."""
    return Alike((size_bytes, 0), None, None, size_bytes)


def alike(op: Op, graph: Graph) -> Alike:
    """Return the ops that one op of a graph is priced with."""
    by_op, by_key = _known(Same(graph))
    found = by_op.get(id(op))
    if found is None or found[0] is not op:
        new = _alike(op, graph)
        found = by_op[id(op)] = op, by_key.setdefault(new, new)
    return found[1]


@lru_cache(maxsize=64)
def _known(same: Same) -> tuple[dict[int, tuple[Op, Alike]], dict[Alike, Alike]]:
    """Return what is known of a graph's ops, by identity and by key; points of a study share it."""
    return {}, {}


def _alike(op: Op, graph: Graph) -> Alike:
    moved = float(streamed_bytes(op, graph))
    if op.loops is None:
        return Alike((moved, op.vector_flops), op, graph, moved)
    tensors = graph.tensors
    key = (
        op.kind,
        op.pass_,
        op.loops,
        op.vector_flops,
        op.input_passes,
        op.output_passes,
        op.attrs,
        tuple(_look(tensors[n]) for n in op.inputs),
        tuple(_look(tensors[n]) for n in op.outputs),
    )
    return Alike(key, op, graph, moved)


def _look(tensor: Tensor) -> tuple[object, ...]:
    """Return what the price of a contraction may depend on."""
    return tensor.shape, tensor.format, tensor.sparsity
