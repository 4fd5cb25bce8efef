"""Lower bound on a rank's memory, by pipeline unit.

Ops of one stage are played in the order of the graph, so that while an op of the backward pass runs
everything is there that an op of the same unit has made and that it, or a later one, reads. What
collectives make and read is counted only as far as ops need it: they may be early or late.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ridgeline.kernels.cache_residency import makes_weights
from ridgeline.parallel.sharding.shard import COLLECTIVES
from ridgeline.workload.graph import Graph, Pass, Role
from ridgeline.workload.liveness import storages

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
STATE, MASTER, COMPUTED, GRADIENT, OTHER = range(5)
EXPERT_STATE, EXPERT_COMPUTED, EXPERT_GRADIENT = range(5, 8)
KEPT, BESIDE, SCATTERED, GATHERED, LATE, EARLY, LATE_GRADIENTS = range(8, 15)
COLUMNS = 15
"""Columns of `held`. EXPERT_...: how much of STATE and MASTER together, of COMPUTED and of GRADIENT
is of experts that ranks share, and so held alike by fewer ranks than all else. After KEPT: what an
op of a unit's backward pass has beside what is kept of the unit, at most; the same with its
gradients of weights; and with its weights, too. LATE: what is kept for gradients of weights. EARLY:
what is kept and no longer needed when later units have not ended their backward pass.
LATE_GRADIENTS: what the backward pass has made and ops for gradients of weights read."""
_KINDS = {Role.STATE: STATE, Role.WEIGHT_COPY: COMPUTED, Role.BUFFER: OTHER}
_OF_EXPERTS = {
    **{STATE: EXPERT_STATE, MASTER: EXPERT_STATE},
    **{COMPUTED: EXPERT_COMPUTED, GRADIENT: EXPERT_GRADIENT},
}
_MOVING = frozenset({Role.ACTIVATION, Role.ACTIVATION_GRADIENT})
_NOT_BACKWARD = frozenset({Pass.FORWARD, Pass.UPDATE, Pass.WEIGHT_GRADIENT})


class UnitMemory(NamedTuple):
    """What the units of a chain hold, in full; sharding divides it later.

    Attributes
    ----------
    held
        [N, 15] bytes of every unit, without states of weights that several units share.
    shared
        [T, 15] bytes of the states of each of these, which every stage that has some of its units
        holds.
    """

    held: Floats
    shared: Floats

    def counted_once(self, holds: npt.NDArray[np.bool_]) -> Floats:
        """Return [N, 15] bytes where what units share is held by the first of them alone."""
        found = self.held.copy()
        np.add.at(found, np.argmax(holds, axis=1), self.shared)
        return found


def unit_memory(
    graph: Graph,
    home: Ints,
    n_units: int,
    gradients: dict[str, str],
    experts: frozenset[str],
    several: Sequence[str] = (),
) -> UnitMemory:
    """Return the bytes that the units of a chain hold.

    Parameters
    ----------
    home
        Unit of every op.
    gradients
        Of every weight, the one that is handed to its update.
    experts
        Weights, and copies of them, of experts that ranks share.
    several
        Weights that several units share.
    """
    memory = UnitMemory(np.zeros((n_units, COLUMNS)), np.zeros((len(several), COLUMNS)))
    handed = frozenset(gradients.values())
    of_experts = experts.union(gradients[w] for w in experts if w in gradients)
    once = [op.pass_ is Pass.FORWARD and makes_weights(op, graph) for op in graph.ops]
    shared = _states_of(graph, gradients, several)
    for name, unit, column, size in _states(graph, home, handed, of_experts, once):
        found = memory.shared[shared[name]] if name in shared else memory.held[unit]
        found[column] += size
    held, storage = memory.held, storages(graph)
    keeper = _add_kept(graph, home, once, storage, held)
    _add_beside(graph, home, handed, once, storage, keeper, held)
    return memory


def _states_of(graph: Graph, gradients: dict[str, str], weights: Sequence[str]) -> dict[str, int]:
    """Return the tensors that are states of each of some weights: it, its copies, and so on."""
    found = {weight: k for k, weight in enumerate(weights)}
    found |= {gradients[weight]: k for k, weight in enumerate(weights)}
    for op in graph.ops if weights else ():
        mine = next((found[name] for name in op.inputs if name in found), None)
        if mine is None:
            continue
        states = [name for name in op.inputs if graph.tensors[name].role is Role.STATE]
        copies = [name for name in op.outputs if graph.tensors[name].role is Role.WEIGHT_COPY]
        found |= dict.fromkeys((*copies, *(states if op.pass_ is Pass.UPDATE else ())), mine)
    return found


def _states(
    graph: Graph, home: Ints, gradients: frozenset[str], of_experts: frozenset[str],
    once: list[bool],
) -> Iterator[tuple[str, int, int, int]]:  # fmt: skip
    """Yield the states that ops touch first: name, unit, column of `held`, bytes."""
    copied = {
        op.inputs[0]
        for op in graph.ops
        if op.outputs and graph.tensors[op.outputs[0]].role is Role.WEIGHT_COPY
    }
    seen: set[str] = set()
    for i, op in enumerate(graph.ops):
        if once[i]:
            continue
        for name in (*op.inputs, *op.outputs):
            if name in seen:
                continue
            tensor = graph.tensors[name]
            column = _KINDS.get(tensor.role)
            if tensor.role is Role.WEIGHT:
                column = MASTER if name in copied else COMPUTED
            if name in gradients:
                column = GRADIENT
            if column is None:
                continue
            seen.add(name)
            yield name, int(home[i]), column, tensor.bytes
            updated = column == STATE and not of_experts.isdisjoint(op.inputs)
            if (name in of_experts or updated) and column in _OF_EXPERTS:
                yield name, int(home[i]), _OF_EXPERTS[column], tensor.bytes


def _add_kept(
    graph: Graph, home: Ints, once: list[bool], storage: dict[str, str], held: Floats
) -> dict[str, int]:
    """Add what the backward pass of a unit reads of what its forward pass has made or read.

    What several units read counts for the one whose backward pass comes last. Returned is, of every
    such storage, which unit that is.
    """
    there: dict[str, set[int]] = {}  # units that have made or read it in the forward pass
    keeper: dict[str, int] = {}
    for i, op in enumerate(graph.ops):
        u = int(home[i])
        if op.pass_ is Pass.FORWARD:
            for name in () if once[i] else op.outputs:
                if graph.tensors[storage[name]].role is Role.ACTIVATION:
                    there.setdefault(storage[name], set())
            for root in (storage[name] for name in (*op.inputs, *op.outputs)):
                if root in there:
                    there[root].add(u)
        elif op.pass_ is not Pass.UPDATE:
            for root in (storage[name] for name in op.inputs):
                if u in there.get(root, ()):
                    keeper[root] = min(keeper.get(root, u), u)
    late = _read_late(graph, storage)
    for root, unit in keeper.items():
        held[unit, KEPT] += graph.tensors[root].bytes
        held[unit, LATE] += graph.tensors[root].bytes if root in late else 0
    made = {
        storage[name]: int(home[i])
        for i, op in reversed(list(enumerate(graph.ops)))
        if op.pass_ not in _NOT_BACKWARD
        for name in op.outputs
    }
    for root in late.intersection(made):
        if root not in keeper and graph.tensors[root].role in _MOVING:
            held[made[root], LATE_GRADIENTS] += graph.tensors[root].bytes
    return keeper


def _read_late(graph: Graph, storage: dict[str, str]) -> frozenset[str]:
    """Name the storages that ops read on which only updates, and others like them, depend."""
    needed: set[str] = set()
    late: set[str] = set()
    for op in reversed(graph.ops):
        if op.pass_ is Pass.WEIGHT_GRADIENT and needed.isdisjoint(op.outputs):
            late.update(storage[name] for name in op.inputs)
        elif op.pass_ not in {Pass.FORWARD, Pass.UPDATE}:
            needed.update(op.inputs)
    return frozenset(late)


def _add_beside(
    graph: Graph, home: Ints, gradients: frozenset[str], once: list[bool],
    storage: dict[str, str], keeper: dict[str, int], held: Floats,
) -> None:  # fmt: skip
    """Add the most that ops of a unit's backward pass have beside what is kept of the unit.

    Of what units share each counts only what it touches itself, and so long: another one may be on
    another stage.
    """
    ops = [
        i
        for i, op in enumerate(graph.ops)
        if op.pass_ not in {Pass.FORWARD, Pass.UPDATE} and op.kind not in COLLECTIVES
    ]
    first: dict[tuple[str, int], int] = {}
    last: dict[tuple[str, int], int] = {}
    for i in ops:
        u = int(home[i])
        for root in (storage[name] for name in (*graph.ops[i].inputs, *graph.ops[i].outputs)):
            if graph.tensors[root].role in _MOVING and root not in gradients:
                first.setdefault((root, u), i)
                last[root, u] = i
    ends = np.zeros(len(held), np.int64)  # of the backward passes of units
    ends[home[ops]] = ops
    later = np.append(np.maximum.accumulate(ends[::-1])[::-1], 0)[1:]
    more: dict[int, float] = {}  # what an op has more, and what the one behind it has less
    less: dict[int, float] = {}
    starts = {int(home[i]): i for i in reversed(ops)}
    for (root, u), i in _moved_on(graph, home, storage, keeper, first, starts).items():
        if i > last.get((root, u), -1):
            last.pop((root, u), None)
            more[i] = more.get(i, 0.0) - graph.tensors[root].bytes
            held[u, EARLY] += graph.tensors[root].bytes if i < later[u] else 0
    for (root, u), i in last.items():
        size = graph.tensors[root].bytes
        if keeper.get(root, u) != u:
            continue  # counts there
        less[i] = less.get(i, 0.0) + size
        if root not in keeper:
            begin = first[root, u]
            more[begin] = more.get(begin, 0.0) + size
        elif i < later[u]:
            held[u, EARLY] += size
    live = np.zeros(len(held))
    weights = frozenset({Role.WEIGHT, Role.WEIGHT_COPY})
    for i in ops:
        u, op = int(home[i]), graph.ops[i]
        live[u] += more.get(i, 0.0)
        made = sum(graph.tensors[n].bytes for n in op.outputs if n in gradients)
        read = sum(graph.tensors[n].bytes for n in op.inputs if graph.tensors[n].role in weights)
        held[u, BESIDE] = max(held[u, BESIDE], live[u])
        held[u, SCATTERED] = max(held[u, SCATTERED], live[u] + made)
        held[u, GATHERED] = max(held[u, GATHERED], live[u] + made + read)
        live[u] -= less.get(i, 0.0)


def _moved_on(
    graph: Graph, home: Ints, storage: dict[str, str], keeper: dict[str, int],
    first: dict[tuple[str, int], int], starts: dict[int, int],
) -> dict[tuple[str, int], int]:  # fmt: skip
    """Return from which op on a unit need not have what is kept of it and collectives read.

    A collective may be early. What it makes is there then, up to the first op that reads it, where
    that counts itself; where this is less, it does not stand for what was read.

    Parameters
    ----------
    first
        The first op of a unit that touches a storage.
    starts
        The first op of the backward pass of every unit.
    """
    found: dict[tuple[str, int], int] = {}
    for i, op in enumerate(graph.ops):
        u = int(home[i])
        if op.kind not in COLLECTIVES or op.pass_ in {Pass.FORWARD, Pass.UPDATE} or u not in starts:
            continue
        read = {storage[name] for name in op.inputs}
        kept = [root for root in read if keeper.get(root) == u]
        made = [storage[name] for name in op.outputs]
        until = min((first.get((root, u), starts[u]) for root in made), default=starts[u])
        sizes = (sum(graph.tensors[root].bytes for root in roots) for roots in (kept, made))
        if next(sizes) > next(sizes):
            until = starts[u]
        for root in kept:
            found[root, u] = max(found.get((root, u), 0), until)
    return found
