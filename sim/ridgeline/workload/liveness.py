"""How much memory a graph holds while its ops run in order.

A tensor that the step makes is allocated when the op that writes it starts and given back when the
last op that reads it ends; an op that works in place passes the storage on. A mini-batch is
allocated when the first op that reads it starts. Weights, their 16-bit copies, running statistics
and optimizer state are held all the time. Nothing is added for what an allocator or a library
needs (alignment, fragmentation, convolution workspaces).

=============  ====================================================================================
memory kind    tensors
=============  ====================================================================================
weights        weights, weight copies, running statistics
gradients      gradients of weights and of weight copies
optimizer      optimizer state
activations    mini-batch, outputs of forward ops
workspace      gradients of activations: buffers between neighbouring ops of the backward pass
=============  ====================================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from ridgeline.workload.autodiff import weight_gradients
from ridgeline.workload.graph import Graph, Pass, Role, Same

MEMORY_KINDS = ("weights", "gradients", "optimizer", "activations", "workspace")

KIND_OF_ROLE: Mapping[Role, str] = MappingProxyType(
    {
        Role.WEIGHT: "weights",
        Role.WEIGHT_COPY: "weights",
        Role.BUFFER: "weights",
        Role.WEIGHT_GRADIENT: "gradients",
        Role.STATE: "optimizer",
        Role.INPUT: "activations",
        Role.ACTIVATION: "activations",
        Role.ACTIVATION_GRADIENT: "workspace",
    }
)
_AFTER = frozenset({Pass.RECOMPUTE, Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT})
STATIC_ROLES = frozenset({Role.WEIGHT, Role.WEIGHT_COPY, Role.BUFFER, Role.STATE})


class MemoryEntry(NamedTuple):
    """What one op does to one memory kind: bytes taken at its start, change at its end (<= 0)."""

    kind: str
    start_bytes: int
    end_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Memory of a graph: what is held from the beginning, and what each op takes and gives back.

    Attributes
    ----------
    held
        Bytes of each tensor that is held all the time, but for sums.
    sums
        Of each gradient that is held all the time, the op that makes it first, the last one that
        reads it, and its bytes.
    spans
        Of each other tensor, the ops that take it and give it back, and its bytes.
    """

    initial: Mapping[str, int]
    entries: tuple[tuple[MemoryEntry, ...], ...]
    held: tuple[int, ...]
    sums: tuple[tuple[int, int, int], ...]
    spans: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """The fullest moment: while `op` runs, `bytes_by_kind` are held."""

    op: str
    bytes_by_kind: Mapping[str, int]

    @property
    def total(self) -> int:
        """Bytes of all kinds."""
        return sum(self.bytes_by_kind.values())


def memory_entries(
    graph: Graph,
    *,
    gradients_persist: bool = False,
    kept: frozenset[str] = frozenset(),
    beside: frozenset[str] = frozenset(),
    waiting: frozenset[str] = frozenset(),
    buffers: tuple[frozenset[str], ...] = (),
    staged: tuple[tuple[int, int, int], ...] = (),
) -> MemoryPlan:
    """Return what each op of a graph allocates and frees.

    Parameters
    ----------
    gradients_persist
        Hold the weight gradients that the updates read all the time, as when they are accumulated
        over micro-batches or live in flat buffers; otherwise each lives from the op that makes it
        to the end of its update, as in PyTorch with ``zero_grad(set_to_none=True)``.
    kept
        Tensors of the forward pass that are held until the backward pass begins.
    beside
        Tensors that are held all the time besides.
    waiting
        Tensors that are held until the first weight is updated.
    buffers
        Gradients that lie in one buffer each, which is there from the first to the last of them.
    staged
        Further copies of gradients: the ops that take and give them back, and their bytes.
    """
    held_so = (gradients_persist, kept, beside, waiting, buffers, staged)
    return _memory_entries(Same(graph), *held_so)


@lru_cache(maxsize=8)
def _memory_entries(
    same: Same, gradients_persist: bool, kept: frozenset[str], beside: frozenset[str],
    waiting: frozenset[str], buffers: tuple[frozenset[str], ...],
    staged: tuple[tuple[int, int, int], ...],
) -> MemoryPlan:  # fmt: skip
    """Make the plan; the same graph is planned once."""
    graph = same.graph
    held = {t.name for t in graph.tensors.values() if t.role in STATIC_ROLES} | beside
    storage, summed = storages(graph), set[str]()
    if gradients_persist:  # a sum of gradients lies where the first of them was made
        summed = {storage[name] for name in weight_gradients(graph).values()}
        held |= summed
    initial: Counter[str] = Counter()
    for name in held:
        initial[KIND_OF_ROLE[graph.tensors[name].role]] += graph.tensors[name].bytes
    taken: list[dict[str, int]] = [{} for _ in graph.ops]
    given: list[dict[str, int]] = [{} for _ in graph.ops]
    spans: list[tuple[int, int, int]] = []
    sums: list[tuple[int, int, int]] = []
    end = len(graph.ops) - 1
    backward = next((i for i, op in enumerate(graph.ops) if op.pass_ in _AFTER), end)
    updated = next((i for i, op in enumerate(graph.ops) if op.kind == "optimizer"), end)
    until = dict.fromkeys((storage[name] for name in kept), backward)
    until |= dict.fromkeys((storage.get(name, name) for name in waiting), updated)
    lives = {
        name: (first, max(last, until.get(name, last)))
        for name, (first, last) in lifetimes(graph).items()
    }
    whole = []
    for names in filter(None, buffers):
        firsts, lasts = zip(*map(lives.pop, names), strict=True)
        size = sum(graph.tensors[name].bytes for name in names)
        whole.append((min(firsts), max(lasts), size))
    for name, (first, last) in lives.items():
        tensor = graph.tensors[name]
        if name not in held and tensor.role is not Role.HOST:
            _take(taken, given, KIND_OF_ROLE[tensor.role], first, last, tensor.bytes)
            spans.append((first, last, tensor.bytes))
        elif name in summed:
            sums.append((first, last, tensor.bytes))
    for span in (*whole, *staged):
        _take(taken, given, "gradients", *span)
        spans.append(span)
    entries = tuple(
        tuple(MemoryEntry(kind, t.get(kind, 0), -g.get(kind, 0)) for kind in t | g)
        for t, g in zip(taken, given, strict=True)
    )
    sizes = tuple(graph.tensors[name].bytes for name in sorted(held - summed))
    by_kind = {kind: initial[kind] for kind in MEMORY_KINDS}
    return MemoryPlan(by_kind, entries, sizes, tuple(sums), tuple(spans))


def _take(
    taken: list[dict[str, int]], given: list[dict[str, int]], kind: str, first: int, last: int,
    size: int,
) -> None:  # fmt: skip
    """Let an op take so many bytes of one kind, and another give them back."""
    taken[first][kind] = taken[first].get(kind, 0) + size
    given[last][kind] = given[last].get(kind, 0) + size


def peak(graph: Graph, *, gradients_persist: bool = False) -> MemoryPeak:
    """Return the fullest moment of a graph whose ops run in order."""
    plan = memory_entries(graph, gradients_persist=gradients_persist)
    now = dict(plan.initial)
    total, fullest = -1, MemoryPeak("", plan.initial)
    for op, entries in zip(graph.ops, plan.entries, strict=True):
        for entry in entries:
            now[entry.kind] += entry.start_bytes
        if sum(now.values()) > total:
            total, fullest = sum(now.values()), MemoryPeak(op.name, dict(now))
        for entry in entries:
            now[entry.kind] += entry.end_bytes
    return fullest


def storages(graph: Graph) -> dict[str, str]:
    """Return the storage of each tensor, named by the first tensor that lies there."""
    storage: dict[str, str] = {}
    for op in graph.ops:
        if op.in_place:
            storage[op.outputs[0]] = storage.setdefault(op.inputs[0], op.inputs[0])
        for name in (*op.inputs, *op.outputs):
            storage.setdefault(name, name)
    return storage


def lifetimes(graph: Graph) -> dict[str, tuple[int, int]]:
    """Return the first and last op of each storage, which is named by its first tensor."""
    storage = storages(graph)
    spans: dict[str, tuple[int, int]] = {}
    for i, op in enumerate(graph.ops):
        for name in (*op.inputs, *op.outputs):
            root = storage[name]
            spans[root] = (spans[root][0] if root in spans else i, i)
    return spans
