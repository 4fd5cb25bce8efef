"""Execution order of a plan class on a device, and the dependencies of its ops.

A list of events for each direction: an op reads weights, runs, and has made gradients. Only what
of weights moves between replicas is told, and the first op of every unit that waits for another
unit. All layers are written out, also where few were priced: what a stage gathers and sums in a
bucket depends on where it begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ridgeline.study.planner.layer_extrapolation import RepresentativeGraph
from ridgeline.workload.autodiff import gradient_parts, weight_gradients
from ridgeline.workload.graph import Graph, Op, Pass, Role

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
FORWARD, WHOLE, SHORT, LATE = range(4)
"""Directions: forward, backward; backward without gradients of weights, and these alone."""
RUN, READ, MADE = range(3)
"""Kinds of events."""
_WEIGHTS = frozenset({Role.WEIGHT, Role.WEIGHT_COPY})


class ScheduleTrace(NamedTuple):
    """One direction: E events in order, U units.

    Attributes
    ----------
    kind, unit
        [E] of every event.
    value
        [E] seconds of an op that runs; bytes of a weight that is read, or of a gradient.
    added_s
        [E] seconds more for adding gradients to those of earlier micro-batches.
    shared
        [E] 1: a weight, or gradient, of experts that ranks share.
    tied
        [E] which of the weights that several units read, or whose gradient they make; -1: none.
    reader, maker
        [U] the first op of a unit that waits for another unit, and the op that it waits for
        (events); -1: it waits for none.
    source
        [U] that other unit.
    sent
        [U, 2] bytes that it gets from there: of what tensor-parallel ranks have alike, and else.
    """

    kind: Ints
    unit: Ints
    value: Floats
    added_s: Floats
    shared: Ints
    tied: Ints
    reader: Ints
    maker: Ints
    source: Ints
    sent: Floats


class Unlike(Exception):
    """Layers that were taken to be alike are not played in turn."""


class OpFacts(NamedTuple):
    """What is known of the ops of a graph.

    Attributes
    ----------
    home
        [ops] unit of every op.
    seconds, added_s
        [ops] of a micro-batch; of adding its gradients to those of earlier ones.
    once
        Whether an op is done once a step.
    divided
        Tensors that tensor-parallel ranks divide.
    experts
        Weights, and copies of them, of experts that ranks share.
    """

    home: Ints
    seconds: Floats
    added_s: Floats
    once: Sequence[bool]
    divided: frozenset[str]
    experts: frozenset[str]


def runs_once_per_step(op: Op, graph: Graph) -> bool:
    """Whether an op is done once a step: it makes or gathers copies of weights."""
    return (
        op.pass_ is Pass.FORWARD
        and bool(op.outputs)
        and graph.tensors[op.outputs[0]].role in _WEIGHTS
    )


def done_once(graph: Graph, home: Ints) -> dict[int, int]:
    """Return the ops that are done once a step, each with its unit: updates, copies of weights.

    Copies that nothing reads are not made.
    """
    read = {name for op in graph.ops for name in op.inputs}
    return {
        i: int(home[i])
        for i, op in enumerate(graph.ops)
        if op.pass_ is Pass.UPDATE
        or (runs_once_per_step(op, graph) and not read.isdisjoint(op.outputs))
    }


def played(told: RepresentativeGraph, taken: OpFacts) -> tuple[ScheduleTrace, ...]:
    """Return the events of every direction.

    Raises
    ------
    Unlike
        If layers that were taken to be alike are not played in turn.
    """
    weights, gradients = _several(told.graph, taken), _parts(told.graph, taken)
    directions, either = _directions(told.graph, taken.home)
    seconds, added_s = taken.seconds.copy(), taken.added_s.copy()
    seconds[list(either)] = added_s[list(either)] = 0.0  # in whichever of two blocks it is
    split = taken._replace(seconds=seconds, added_s=added_s)
    return tuple(
        _direction(
            told, split if k == LATE else taken,
            [i for i, all_ in enumerate(directions) if k in all_ and not taken.once[i]],
            k, weights, gradients,
        )
        for k in range(4)
    )  # fmt: skip


def _directions(graph: Graph, home: Ints) -> tuple[list[frozenset[int]], frozenset[int]]:
    """Return the directions of every op that is done for every micro-batch, as `phases.phases_of`.

    And those whose turn depends on the cut: gradients of weights are made in the backward pass
    where another part gets something of them; sums of what several parts make do not count, as
    these are left to a collective.
    """
    maker = {name: int(home[i]) for i, op in enumerate(graph.ops) for name in op.outputs}
    found: list[frozenset[int]] = [frozenset()] * len(graph.ops)
    either: set[int] = set()
    read: set[str] = set()  # by what is done in the backward pass, and by another unit
    away: set[str] = set()
    for i in reversed(range(len(graph.ops))):
        op = graph.ops[i]
        if op.pass_ is Pass.FORWARD:
            found[i] = frozenset({FORWARD})
        elif op.pass_ is Pass.WEIGHT_GRADIENT and read.isdisjoint(op.outputs):
            found[i] = frozenset({WHOLE, LATE})
            if not away.isdisjoint(op.outputs):
                either.add(i)
                away.update(op.inputs)
            if op.kind != "add":
                away.update(name for name in op.inputs if maker.get(name, home[i]) != home[i])
        elif op.pass_ is not Pass.UPDATE:
            found[i] = frozenset({WHOLE, SHORT})
            read.update(op.inputs)
    return found, frozenset(either)


class _Part(NamedTuple):
    """A gradient, or one of several that are summed to it: its sum, -1: it is all of it."""

    tied: int
    of_experts: bool


def _several(graph: Graph, taken: OpFacts) -> dict[str, int]:
    """Return a number for each weight that several units read."""
    units: dict[str, set[int]] = {}
    for i, op in enumerate(graph.ops):
        if op.pass_ is not Pass.UPDATE and not taken.once[i]:
            for name in op.inputs:
                if graph.tensors[name].role in _WEIGHTS:
                    units.setdefault(name, set()).add(int(taken.home[i]))
    several = (name for name, found in units.items() if len(found) > 1)
    return {name: k for k, name in enumerate(several)}


def _parts(graph: Graph, taken: OpFacts) -> dict[str, _Part]:
    """Return the gradients that ops make for updates; sums may be left to a collective."""
    gradients, found = weight_gradients(graph), {}
    for k, (weight, parts) in enumerate(gradient_parts(graph).items()):
        for name in parts:
            tied = k if name != gradients[weight] else -1
            found[name] = _Part(tied, weight in taken.experts)
    return found


def _direction(
    told: RepresentativeGraph,
    taken: OpFacts,
    ops: list[int],
    direction: int,
    several: dict[str, int],
    parts: dict[str, _Part],
) -> ScheduleTrace:
    graph = told.graph
    rows: list[tuple[float, ...]] = []  # kind, unit, value, added, shared, tied
    event_of: dict[int, int] = {}
    read: set[tuple[str, int]] = set()
    for i in ops:
        op, home = graph.ops[i], int(taken.home[i])
        for name in dict.fromkeys(op.inputs):
            if graph.tensors[name].role in _WEIGHTS and (name, home) not in read:
                read.add((name, home))
                of_experts, tied = name in taken.experts, several.get(name, -1)
                rows.append((READ, home, graph.tensors[name].bytes, 0.0, of_experts, tied))
        event_of[i] = len(rows)
        rows.append((RUN, home, taken.seconds[i], taken.added_s[i], 0, -1))
        for name in sorted(parts.keys() & set(op.outputs)):
            size = graph.tensors[name].bytes
            rows.append((MADE, home, size, 0.0, parts[name].of_experts, parts[name].tied))
    columns = np.array(rows, np.float64).reshape(-1, 6).T
    home = columns[1].astype(np.int64)
    every, unit = _whole(told, home, columns[0], reverse=direction != FORWARD)
    links, source = _linked(
        told, _links(told, taken, ops, event_of, _counted(home), direction), direction
    )
    order = np.argsort(unit, kind="stable")
    first = np.searchsorted(unit[order], np.arange(len(links) + 1))
    at_reader, at_maker = links[:, 1:3].astype(np.int64).T
    reader, maker = np.full((2, len(links)), -1, np.int64)
    some = np.flatnonzero(source >= 0)
    reader[some] = order[first[some] + at_reader[some]]
    maker[some] = order[first[source[some]] + at_maker[some]]
    kind, _, value, added_s, shared, tied = columns[:, every]
    of_experts, several_have = (one.astype(np.int64) for one in (shared, tied))
    return ScheduleTrace(
        kind.astype(np.int64), unit, value, added_s, of_experts, several_have, reader, maker,
        source, np.ascontiguousarray(links[:, 3:]),
    )  # fmt: skip


def _counted(home: Ints) -> Ints:
    """Return [E] how many events of the same unit come before each one."""
    order = np.argsort(home, kind="stable")
    ordered = home[order]
    count = np.empty(len(home), np.int64)
    count[order] = np.arange(len(home)) - np.searchsorted(ordered, ordered)
    return count


def _whole(
    told: RepresentativeGraph, home: Ints, kind: Floats, *, reverse: bool
) -> tuple[Ints, Ints]:
    """Return the events of all layers in order: which event of the graph each is, and its unit.

    Where a layer is repeated, each event of it comes as long after that of the layer before as it
    does in the graph.
    """
    every = np.arange(len(home))
    if not told.more:
        return every, home
    at, layer, more = told.at, told.per_layer, told.more
    mine, twin = (np.flatnonzero((home >= a) & (home < a + layer)) for a in (at, at - layer))
    if len(mine) != len(twin):
        raise Unlike
    pairs = [one[np.argsort(home[one], kind="stable")] for one in (mine, twin)]
    shifts = np.unique(pairs[1] - pairs[0] if reverse else pairs[0] - pairs[1])
    if len(shifts) > 1 or (kind[pairs[0]] != kind[pairs[1]]).any():
        raise Unlike
    shift = int(shifts[0]) if len(shifts) else 0
    later = (home < at) if reverse else (home >= at)
    # what comes behind all that is repeated, as sums of gradients that the last layers make, too
    later = later | (every > (twin if reverse else mine).max(initial=-1))
    copies = np.arange(more)
    place = np.concatenate(
        (
            every + later * more * shift,
            (mine + ((more - copies) if reverse else copies)[:, None] * shift).ravel(),
        )
    )
    unit = np.concatenate(
        (home + (home >= at) * more * layer, (home[mine] + copies[:, None] * layer).ravel())
    )
    order = np.argsort(place, kind="stable")
    if (np.diff(place[order]) == 0).any():
        raise Unlike
    return np.concatenate((every, np.tile(mine, more)))[order], unit[order]


def _linked(told: RepresentativeGraph, found: Floats, direction: int) -> tuple[Floats, Ints]:
    """Return what `_links` says of all layers: [U, 5], and which unit each one waits for."""
    of = told.whole(np.arange(len(found), dtype=np.float64)).astype(np.int64)
    at, layer, more = told.at, told.per_layer, told.more
    if direction != FORWARD:  # copied layers wait for one of their like, which comes behind them
        of[at : at + more * layer] = np.tile(np.arange(at - layer, at), more)
    links = found[of]
    away = links[:, 0].astype(np.int64)
    far = of + away
    far += (far >= at) * more * layer
    source = np.where(np.abs(away) <= max(layer, 1), np.arange(len(of)) + away, far)
    return links, np.where(away != 0, source, -1)


def _links(
    told: RepresentativeGraph,
    taken: OpFacts,
    ops: list[int],
    event_of: dict[int, int],
    count: Ints,
    direction: int,
) -> Floats:
    """Return, of every unit, the nearest other one whose work the first op that waits waits for.

    [units, 5]: how far it is; the places of the op and of the one that it waits for among the
    events of their units; bytes, as `ScheduleTrace.sent`.
    """
    graph, home = told.graph, taken.home
    found = np.zeros((len(told.parts), 5))
    if direction == LATE:  # what it needs is there since the backward pass
        return found
    maker = {name: i for i in ops for name in graph.ops[i].outputs}
    done: set[int] = set()
    for i in ops:
        u = int(home[i])
        if u in done:
            continue
        of = [maker[name] for name in graph.ops[i].inputs if name in maker]
        of = [m for m in of if (home[m] < u if direction == FORWARD else home[m] > u)]
        if not of:
            continue
        done.add(u)
        nearest = min(of, key=lambda m: (abs(int(home[m]) - u), -event_of[m]))
        v = int(home[nearest])
        read = {
            n for k in told.parts[u].ops if event_of.get(k, -1) >= 0 for n in graph.ops[k].inputs
        }
        sent = [n for n in read if n in maker and home[maker[n]] == v]
        size = [0.0, 0.0]
        for name in sent:
            size[name in taken.divided] += graph.tensors[name].bytes
        found[u] = v - u, count[event_of[i]], count[event_of[nearest]], *size
    return found
