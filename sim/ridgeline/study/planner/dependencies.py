"""Dependencies of a plan class: the order of its ops on a device, and what waits for what.

`played` is a list of events for each direction: an op reads weights, runs, and has made gradients.
Only what of weights moves between replicas is told, and the first op of every unit that waits for
another unit. All layers are written out, also where few were priced: what a stage gathers and sums
in a bucket depends on where it begins. `links` says which unit waits for which, `crossing` what
units send each other wherever the network is cut, `waits` how long an expert exchange is exposed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ridgeline.parallel.checkpointing.ops import once
from ridgeline.parallel.partition.stage_of import HELD
from ridgeline.parallel.sharding.shard import COLLECTIVES
from ridgeline.study.planner.extrapolation import RepresentativeGraph
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
    op
        [E] the op that runs, by its place in the graph that tells of the network; -1: none does.
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
    op: Ints
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
    rows: list[tuple[float, ...]] = []  # kind, unit, value, added, op, shared, tied
    event_of: dict[int, int] = {}
    read: set[tuple[str, int]] = set()
    for i in ops:
        op, home = graph.ops[i], int(taken.home[i])
        for name in dict.fromkeys(op.inputs):
            if graph.tensors[name].role in _WEIGHTS and (name, home) not in read:
                read.add((name, home))
                of_experts, tied = name in taken.experts, several.get(name, -1)
                rows.append((READ, home, graph.tensors[name].bytes, 0.0, -1, of_experts, tied))
        event_of[i] = len(rows)
        rows.append((RUN, home, taken.seconds[i], taken.added_s[i], i, 0, -1))
        for name in sorted(parts.keys() & set(op.outputs)):
            size = graph.tensors[name].bytes
            rows.append((MADE, home, size, 0.0, -1, parts[name].of_experts, parts[name].tied))
    columns = np.array(rows, np.float64).reshape(-1, 7).T
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
    kind, _, value, added_s, op_of, shared, tied = columns[:, every]
    op_of, of_experts, several_have = (one.astype(np.int64) for one in (op_of, shared, tied))
    return ScheduleTrace(
        kind.astype(np.int64), unit, value, added_s, op_of, of_experts, several_have, reader, maker,
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


LEAD, TRAIL, LINK = range(3)
DIRECTIONS = 3
"""Forward, backward, and backward without gradients of weights."""


def links(graph: Graph, home: Ints, time_s: Floats) -> Floats:
    """Return which unit each one waits for in a micro-batch: see `PlanClass.around`."""
    n = int(home.max(initial=0)) + 1
    around = np.zeros((DIRECTIONS, n, 3))
    for direction in range(DIRECTIONS):
        ops = [i for i, op in enumerate(graph.ops) if _goes(op, graph, direction)]
        every = np.array(ops, np.int64)
        place = {i: at for at, i in enumerate(ops)}
        maker = {name: i for i in ops for name in graph.ops[i].outputs}
        of_unit: dict[int, list[int]] = {}
        for i in ops:
            of_unit.setdefault(int(home[i]), []).append(i)
        for u, mine in of_unit.items():
            for i in mine:
                of = [maker[name] for name in graph.ops[i].inputs if name in maker]
                of = [m for m in of if (home[m] < u if direction == 0 else home[m] > u)]
                if not of:
                    continue
                nearest = min(of, key=lambda m: (abs(int(home[m]) - u), -place[m]))
                v = int(home[nearest])
                # Beside its own: ops of units behind it that come first, as stretches of several
                # units do that are done again.
                behind = home[every] >= u if direction == 0 else home[every] <= u
                around[direction, u] = (
                    time_s[every[behind & (every < i)]].sum(),
                    sum(time_s[k] for k in of_unit[v] if k > nearest),
                    abs(v - u),
                )
                break
    return around


def _goes(op: Op, graph: Graph, direction: int) -> bool:
    """Whether an op is played in the blocks of a direction."""
    if op.pass_ is Pass.UPDATE or runs_once_per_step(op, graph):
        return False
    if direction == 0 or op.pass_ is Pass.FORWARD:
        return direction == 0 and op.pass_ is Pass.FORWARD
    return direction == 1 or op.pass_ is not Pass.WEIGHT_GRADIENT


_LEFT = HELD | {Role.WEIGHT_GRADIENT}  # sums over stages are left to collectives


class Crossing(NamedTuple):
    """Tensors that units read of others, an entry for each unit that reads one.

    Attributes
    ----------
    tensor, maker, reader
        [E] a number of the tensor; units.
    size_bytes
        [E] what a rank sends of it.
    """

    tensor: Ints
    maker: Ints
    reader: Ints
    size_bytes: Floats

    def between(self, part: Ints) -> Floats:
        """Return [P, P] bytes of a micro-batch from each part to each: a tensor goes once.

        Parameters
        ----------
        part
            [U] part of every unit.
        """
        n = int(part.max()) + 1
        source, target = part[self.maker], part[self.reader]
        goes = np.flatnonzero(source != target)
        _, first = np.unique(self.tensor[goes] * n + target[goes], return_index=True)
        found = np.zeros((n, n))
        np.add.at(found, (source[goes[first]], target[goes[first]]), self.size_bytes[goes[first]])
        return found


def crossing(told: RepresentativeGraph, taken: OpFacts, tensor: int) -> Crossing:
    """Return what units read of each other in a micro-batch, of ranks that share every op.

    What is computed again elsewhere is not sent, as a stage may keep what it got in the forward
    pass (`partition`).
    """
    graph, maker = told.graph, dict[str, int]()
    numbers: dict[str, int] = {}
    rows: dict[tuple[int, int, int], float] = {}
    for i, op in enumerate(graph.ops):
        if op.pass_ is Pass.UPDATE or taken.once[i]:
            continue
        reader = int(taken.home[i])
        for name in op.inputs:
            made = maker.get(name, reader)
            if made != reader and graph.tensors[name].role not in _LEFT and once(name) == name:
                size = graph.tensors[name].bytes / (1 if name in taken.divided else tensor)
                rows[numbers.setdefault(name, len(numbers)), made, reader] = size
        for name in op.outputs:
            maker.setdefault(name, reader)
    columns = np.array(list(rows), np.int64).reshape(-1, 3)
    number, made_in, read_in = columns.T
    sizes = np.array(list(rows.values()), np.float64)
    return _of_all_layers(told, Crossing(number, made_in, read_in, sizes))


def _of_all_layers(told: RepresentativeGraph, few: Crossing) -> Crossing:
    """Write out repeated layers: what one reads of the layer before, and of far ones, each does."""
    if not told.more:
        return few
    at, layer, more = told.at, told.per_layer, told.more
    ends = np.stack((few.maker, few.reader))
    repeated = (ends >= at) & (ends < at + layer)
    before = (ends >= at - layer) & (ends < at)
    later = ends >= at + layer
    copied = repeated.any(axis=0) & ~later.any(axis=0)
    moves = repeated | (before & repeated.any(axis=0))
    behind = (ends + (ends >= at) * more * layer)[:, ~copied]
    parts = [Crossing(few.tensor[~copied], behind[0], behind[1], few.size_bytes[~copied])]
    number = int(few.tensor.max(initial=0)) + 1
    for j in range(more + 1):
        moved = (ends + moves * j * layer)[:, copied]
        own = few.tensor[copied] + np.where(moves[0, copied], j * number, 0)
        parts.append(Crossing(own, moved[0], moved[1], few.size_bytes[copied]))
    return Crossing(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def waits(
    graph: Graph, home: Ints, time_s: Floats, added_s: Floats, sent: Mapping[int, float]
) -> Floats:
    """Return [ops, 2] least seconds that ops wait in the forward and in the backward pass.

    An all-to-all begins when that is made which it sends, and ops go on beside it until the first
    one that reads what it brings: that one waits for what is left of it. Those of one rank go one
    after the other, so that their times less what runs beside each may be added up: what runs
    beside two of them is taken off twice. Gradients of weights that read it do not count as the
    first, as a schedule may put them off. What is done again does not wait for the gradient that a
    stage gets, but what reads it may: so the time is that of the op that makes it.

    Parameters
    ----------
    home
        [ops] unit of every op.
    time_s, added_s
        [ops] seconds of every op, or collective that no op runs beside, and of adding its gradients
        to those of earlier micro-batches.
    sent
        Seconds of every collective that ops may run beside, by place; 0: not counted.
    """
    found = np.zeros((len(graph.ops), 2))
    for column, forward in enumerate((True, False) if sent else ()):
        played = [i for i, op in enumerate(graph.ops) if _is_played(op, graph, forward)]
        until = np.zeros(len(graph.ops) + 1)
        until[np.array(played, np.int64) + 1] = (time_s + added_s)[played]
        until = np.cumsum(until)
        maker = {name: i for i in played for name in graph.ops[i].outputs}
        for at, i in enumerate(played):
            if i not in sent:
                continue
            op = graph.ops[i]
            source = max((maker[name] for name in op.inputs if name in maker), default=i)
            reader = _first_reader(graph, played[at + 1 :], op, sent)
            if reader is None or not home[source] == home[i] == home[reader]:
                continue
            own_s = 0.0 if source in sent else float(time_s[source])
            beside_s = until[reader] - until[source] - own_s
            at_once = _is_again(graph.ops[source]) and not _is_again(graph.ops[reader])
            between = (graph.ops[k] for k in played if source < k < reader)
            if at_once and not all(_is_again(one) or one.kind in COLLECTIVES for one in between):
                continue  # what is made between them would be made as late
            found[source if at_once else reader, column] += max(0.0, sent[i] - float(beside_s))
    return found


def _is_played(op: Op, graph: Graph, forward: bool) -> bool:
    """Whether an op is played in the forward, or in the backward pass of a micro-batch."""
    if op.pass_ is Pass.UPDATE or runs_once_per_step(op, graph):
        return False
    return (op.pass_ is Pass.FORWARD) is forward


def _is_again(op: Op) -> bool:
    """Whether an op of the forward pass is repeated for the backward pass."""
    return op.pass_ is Pass.RECOMPUTE


def _first_reader(graph: Graph, later: list[int], of: Op, sent: Mapping[int, float]) -> int | None:
    """Return the first op that has to wait for what an all-to-all brings."""
    brought = set(of.outputs)
    for i in later:
        op = graph.ops[i]
        if op.pass_ is Pass.WEIGHT_GRADIENT or i in sent:
            continue
        if not brought.isdisjoint(op.inputs):
            return i
    return None
