"""What a step has besides the work of its micro-batches, unit by unit of the chain of its ops.

Copies of weights, updates and sums of gradients, and the host that issues ops. Where a pipeline is
cut decides which stage has how much of it (`simulated_cuts`). What replicas share of it, and how
fast they send it, is of a plan (`Replicas`); the rest is of the ops (`Overheads`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ridgeline.kernels.cache_residency import is_once
from ridgeline.parallel.emit.buckets import copies_gradients, passed_bytes, sent_bytes
from ridgeline.parallel.emit.grad_accumulation import adds, casts, sum_bytes
from ridgeline.parallel.emit.host_launches import experts_of
from ridgeline.parallel.partition.chain import PASS_COLUMN
from ridgeline.parallel.partition.memory_footprint import UnitMemory, unit_memory
from ridgeline.parallel.sharding.shard import COLLECTIVES
from ridgeline.software.stack import Stack
from ridgeline.workload.autodiff import gradient_parts, weight_gradients
from ridgeline.workload.graph import Graph, Op, Pass, Role
from ridgeline.workload.ops.shape import LAYOUT

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

BEGIN_LAUNCH, END_LAUNCH = 0, 1
BEGIN, UPDATE, SWEEP, COPY, GRADIENT, COMPUTED, AGAIN = 2, 4, 6, 8, 10, 12, 14
"""Columns of `Overheads.each`; from `BEGIN` on two each: of what all replicas hold, of experts."""
N_COLUMNS = 16
_WEIGHTS = frozenset({Role.WEIGHT, Role.WEIGHT_COPY})
_SILENT = COLLECTIVES | {LAYOUT.name}  # which the host does not issue


@dataclass(frozen=True, eq=False)
class Overheads:
    """What the units of a chain add to a step besides the work of its micro-batches.

    Attributes
    ----------
    each
        [N, 16] of every unit: launch seconds at the beginning (copies of weights) and at the end
        (updates); of what all replicas hold and of experts: the other seconds of these copies, of
        updates, of passes over gradients that a rank holds, of copies into buckets and back; bytes
        of gradients as they are sent; bytes of the weights that ops compute with, and that those of
        the backward pass do.
    holds
        [K, N] which units share each of K weights.
    shared
        [K, 16] what is of these: once for every part that has some of their units.
    issued_s
        [N, 3] seconds in which the host issues the ops of a micro-batch: forward, backward,
        gradients of weights.
    added_s
        [N] seconds more in which gradients are added to those of earlier micro-batches.
    copied_s
        [N, 2] seconds in which weights that are gathered for a pass, forward and backward, are
        copied out of a buffer.
    memory
        What the units hold; None: it is not known.
    """

    each: Floats
    holds: Bools
    shared: Floats
    issued_s: Floats
    added_s: Floats
    copied_s: Floats
    memory: UnitMemory | None = None

    def of_more(self, whole: Callable[[Floats], Floats]) -> Overheads:
        """Return those of a chain with more units: `whole` writes out what is known of each."""
        memory = self.memory
        if memory is not None:
            memory = memory._replace(held=whole(memory.held))
        return replace(
            self,
            memory=memory,
            each=whole(self.each),
            holds=whole(self.holds.T.astype(np.float64)).T > 0.0,
            issued_s=whole(self.issued_s),
            added_s=whole(self.added_s),
            copied_s=whole(self.copied_s),
        )


class Replicas(NamedTuple):
    """Ranks that hold the same weights: what they share of a step's ends, and how they send it.

    Attributes
    ----------
    zero_stage, bucket_bytes
        As a plan has them.
    ranks
        Ranks that have the same of most weights, and of experts.
    sums_beside, gathers_beside
        Whether ops run beside sums of gradients, and beside gathers of weights.
    again
        Whether weights are gathered again for the backward pass (ZeRO stage 3).
    sizes
        [S] bytes, from few to many, that the following are known for.
    sum_s, gather_s
        [2][S] seconds in which these ranks sum, and gather, so many bytes.
    tie_s
        [S] seconds in which the first and the last stage add up a weight's gradients.
    """

    zero_stage: int
    bucket_bytes: float
    ranks: tuple[int, int]
    sums_beside: bool
    gathers_beside: bool
    again: bool
    sizes: tuple[float, ...]
    sum_s: tuple[tuple[float, ...], tuple[float, ...]]
    gather_s: tuple[tuple[float, ...], tuple[float, ...]]
    tie_s: tuple[float, ...]


ALONE = Replicas(
    0, 0.0, (1, 1), True, True, True, (0.0, 1.0), ((0.0, 0.0),) * 2, ((0.0, 0.0),) * 2, (0.0, 0.0)
)
"""One rank, that sends nothing."""


class OpTimes(NamedTuple):
    """Seconds of the ops of a graph.

    Attributes
    ----------
    time_s, launch_s
        Of every op on the device, and how much of it is its launch.
    move_s, byte_s
        To launch what moves bytes through the device's memory, and to move each of them.
    issue_s
        Of the host to issue an op ahead of the device; 0: it issues none so.
    """

    time_s: tuple[float, ...]
    launch_s: tuple[float, ...]
    move_s: float
    byte_s: float
    issue_s: float = 0.0


def overheads_of(
    graph: Graph,
    home: Sequence[int],
    n_units: int,
    times: OpTimes,
    stack: Stack,
    experts: frozenset[str],
) -> Overheads:
    """Add up what every unit of a chain has besides the work of a micro-batch.

    Parameters
    ----------
    home
        [ops] unit of every op (`stage_of`).
    experts
        Weights, and copies of them, of experts that ranks share.
    """
    found = _Adding(graph, home, n_units, times, stack, experts)
    found.add_once()
    found.add_reads()
    found.add_gradients()
    issued_s = _issued_s(graph, home, n_units, times.issue_s, stack)
    added_s = _added_s(graph, home, n_units, times)
    memory = unit_memory(
        graph, np.array(home), n_units, weight_gradients(graph), experts, tuple(found.several)
    )
    return Overheads(
        found.each, found.holds, found.shared, issued_s, added_s, found.copied_s, memory
    )


class _Adding:
    """Adds up `Overheads.each` and `Overheads.shared`, op by op and weight by weight."""

    def __init__(
        self, graph: Graph, home: Sequence[int], n_units: int, times: OpTimes, stack: Stack,
        experts: frozenset[str],
    ) -> None:  # fmt: skip
        self.graph, self.home, self.times = graph, home, times
        self.stack, self.experts = stack, experts
        maker = {name: i for i, op in enumerate(graph.ops) for name in op.outputs}
        self.made_in = {  # the units that make gradients of each weight
            weight: sorted({home[maker[name]] for name in parts if name in maker})
            for weight, parts in gradient_parts(graph).items()
        }
        shared = (weight for weight, found in self.made_in.items() if len(found) > 1)
        self.several = {weight: k for k, weight in enumerate(shared)}
        self.each = np.zeros((n_units, N_COLUMNS))
        self.shared = np.zeros((len(self.several), N_COLUMNS))
        self.holds = np.zeros((len(self.several), n_units), np.bool_)
        for weight, k in self.several.items():
            self.holds[k, self.made_in[weight]] = True
        self.copied_s = np.zeros((n_units, 2))
        self.original: dict[str, str] = {}  # copies: of which weight
        self.updates: dict[str, list[Op]] = {}  # of each weight

    def _row(self, weight: str, unit: int) -> Floats:
        k = self.several.get(weight)
        found: Floats = self.each[unit] if k is None else self.shared[k]
        return found

    def add_once(self) -> None:
        """Add the ops that are done once a step: copies of weights, and updates."""
        of = {name: weight for weight, name in weight_gradients(self.graph).items()}
        for i, op in enumerate(self.graph.ops):
            if not is_once(op, self.graph):
                continue
            at_end = op.pass_ is Pass.UPDATE
            if at_end:
                weight = next((of[name] for name in op.inputs if name in of), op.name)
                of.update(dict.fromkeys(op.outputs, weight))
                self.updates.setdefault(weight, []).append(op)
            else:
                weight = self.original.get(op.inputs[0], op.inputs[0])
                self.original.update(dict.fromkeys(op.outputs, weight))
            kind = int(not self.experts.isdisjoint((weight, *op.inputs, *op.outputs)))
            found, launch_s = self._row(weight, self.home[i]), self.times.launch_s[i]
            found[END_LAUNCH if at_end else BEGIN_LAUNCH] += launch_s
            found[(UPDATE if at_end else BEGIN) + kind] += self.times.time_s[i] - launch_s

    def add_reads(self) -> None:
        """Add the weights that ops of micro-batches compute with."""
        reads = list(_reads(self.graph, self.home, self.original))
        readers = Counter((column, name) for _, _, column, name in reads)
        computed: set[tuple[int, str]] = set()
        copies = 2.0 * self.times.byte_s if self.stack.zero.gather_copies else 0.0  # read, written
        for weight, unit, column, name in reads:
            size = self.graph.tensors[name].bytes
            self.copied_s[unit, int(column == AGAIN)] += size * copies
            is_shared = weight in self.several and readers[column, name] > 1
            if not is_shared or (column, name) not in computed:
                found = self._row(weight, unit) if is_shared else self.each[unit]
                found[column + int(name in self.experts)] += size
                computed.add((column, name))

    def add_gradients(self) -> None:
        """Add gradients as they are sent, and what is done with them before the updates."""
        gradients, byte_s = self.stack.gradients, self.times.byte_s
        for weight, gradient in weight_gradients(self.graph).items():
            if not self.made_in[weight]:
                continue
            tensor, kind = self.graph.tensors[gradient], int(weight in self.experts)
            found = self._row(weight, self.made_in[weight][0])
            sent = sent_bytes(tensor, gradients.reduce_dtype)
            held, mine = passed_bytes(self.stack, self.updates.get(weight, ()), self.graph)
            found[GRADIENT + kind] += sent
            found[SWEEP + kind] += held * byte_s
            found[UPDATE + kind] += mine * byte_s
            if copies_gradients(self.stack):
                found[COPY + kind] += 2.0 * (tensor.bytes + sent) * byte_s


def _reads(
    graph: Graph, home: Sequence[int], original: Mapping[str, str]
) -> Iterator[tuple[str, int, int, str]]:
    """Yield the weights that ops of a micro-batch compute with, once for each unit and column.

    The weight that it is a copy of, the unit, the column of `Overheads.each`, its own name.
    """
    read: set[tuple[str, int, int]] = set()
    for i, op in enumerate(graph.ops):
        if op.pass_ is Pass.UPDATE or op.kind in COLLECTIVES or is_once(op, graph):
            continue
        column = COMPUTED if op.pass_ is Pass.FORWARD else AGAIN
        for name in op.inputs:
            key = name, column, home[i]
            if graph.tensors[name].role in _WEIGHTS and key not in read:
                read.add(key)
                yield original.get(name, name), home[i], column, name


def _added_s(graph: Graph, home: Sequence[int], n_units: int, times: OpTimes) -> Floats:
    """Return [N] seconds in which gradients are added up; what only casts them adds instead."""
    gradients, found = frozenset(weight_gradients(graph).values()), np.zeros(n_units)
    for i, op in enumerate(graph.ops):
        kept = [name for name in op.outputs if name in gradients]
        if kept and op.kind not in COLLECTIVES and not adds(op):
            more_s = times.move_s + sum_bytes(op, graph, kept) * times.byte_s
            found[home[i]] += more_s - (times.time_s[i] if casts(op) else 0.0)
    return found


def _issued_s(
    graph: Graph, home: Sequence[int], n_units: int, issue_s: float, stack: Stack
) -> Floats:
    """Return [N, 3] seconds in which the host issues the ops of every unit."""
    found = np.zeros((n_units, 3))
    if not issue_s:
        return found
    several = {} if stack.moe.grouped_gemm else experts_of(graph)
    for i, op in enumerate(graph.ops):
        if not (op.kind in _SILENT or is_once(op, graph)):
            count = op.kernels * several.get(op.name, 1)
            found[home[i], PASS_COLUMN.get(op.pass_, 1)] += count * issue_s
    return found


class OfParts(NamedTuple):
    """What every part of a chain would have besides its work, as `simulated_cuts` takes it."""

    once: Floats
    how: Ints
    held: Ints
    tie_s: Floats


def of_parts(besides: Overheads | None, replicas: Replicas | None, made_s: Floats) -> OfParts:
    """Return what every part would have besides its work.

    Parameters
    ----------
    made_s
        [N] seconds of the pass that makes the gradients of weights.
    """
    from ridgeline.parallel.partition.part_ends import N_TABLES, part_ends, seconds_of
    from ridgeline.parallel.partition.simulated_cuts import AT_BEGIN, BOTH_WAYS, FORWARD, NEVER

    n = len(made_s)
    if besides is None:
        none = np.zeros((N_TABLES, n + 1, n + 1))
        return OfParts(none, np.zeros(4, np.int64), np.zeros((0, n + 1), np.int64), np.zeros(0))
    of = replicas or ALONE
    several = np.array(of.ranks) > 1
    states, gradients = (
        np.where(of.zero_stage >= stage, 1.0 / np.array(of.ranks), 1.0) for stage in (1, 2)
    )

    def parts(of_rows: Floats) -> tuple[Floats, Floats]:
        """Return seconds before and after all; bytes that are summed, gathered, and again."""
        of_kind = {column: of_rows[:, column : column + 2] for column in range(BEGIN, N_COLUMNS, 2)}
        begin_s = of_rows[:, BEGIN_LAUNCH] + of_kind[BEGIN] @ states
        end_s = of_rows[:, END_LAUNCH] + of_kind[UPDATE] @ states + of_kind[SWEEP] @ gradients
        if of.zero_stage < 2:
            end_s = end_s + of_kind[COPY] @ several
        gathered = several & (of.zero_stage > 0)
        moved = of_kind[GRADIENT] * several, of_kind[COMPUTED] * gathered, of_kind[AGAIN] * gathered
        return np.stack((begin_s, end_s)), np.stack([size.T for size in moved])

    sizes, sum_s, gather_s = (np.array(row) for row in (of.sizes, of.sum_s, of.gather_s))
    once = part_ends(
        *parts(besides.each),
        besides.holds,
        *parts(besides.shared),
        made_s,
        sizes,
        np.stack((sum_s, gather_s, gather_s)),
        of.bucket_bytes,
        of.sums_beside,
    )
    gathers = NEVER
    if several.any() and of.zero_stage:
        in_passes = BOTH_WAYS if of.again else FORWARD
        gathers = in_passes if of.zero_stage == 3 else AT_BEGIN
    each = several.any() and of.zero_stage >= 2
    how = np.array([gathers, each, not of.sums_beside, not of.gathers_beside], np.int64)
    held = np.zeros((len(besides.holds), n + 1), np.int64)
    held[:, 1:] = np.cumsum(besides.holds, axis=1)
    tied = besides.shared[:, GRADIENT] / (of.ranks[0] if of.zero_stage else 1)
    tie_s = [seconds_of(size, sizes, np.array(of.tie_s)) for size in tied.tolist()]
    return OfParts(once, how, held, np.array(tie_s, np.float64))
