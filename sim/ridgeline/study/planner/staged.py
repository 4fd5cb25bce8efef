"""Bounds of plans whose stages are known: all plans of one group that are cut alike share them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ridgeline.parallel.schedules import SCHEDULES
from ridgeline.study.planner.group import (
    ACCUMULATE,
    BACKWARD,
    ENERGY,
    FORWARD,
    WEIGHT_GRADIENT,
    Floats,
    Group,
)
from ridgeline.study.planner.held import (
    BESIDE,
    COMPUTED,
    EXPERT_COMPUTED,
    EXPERT_GRADIENT,
    EXPERT_STATE,
    GATHERED,
    GRADIENT,
    KEPT,
    LATE,
    MASTER,
    OTHER,
    SCATTERED,
    STATE,
)
from ridgeline.study.planner.large import READ, SENT, Wire
from ridgeline.study.planner.screen import ROUNDING, Bound

Ints = npt.NDArray[np.int64]


WireOf = Callable[[str, str], Wire]
"""What a collective takes at least, by its name and along which dimension it goes: between all
data-parallel ranks ("data"), or between those that have the same experts ("beyond")."""


class Shares(NamedTuple):
    """Which ranks share what.

    Attributes
    ----------
    data
        Data-parallel ranks.
    expert
        How many of them share experts.
    sharding
        As in `Plan`.
    """

    data: int
    expert: int
    sharding: int


@dataclass(frozen=True)
class Staged:
    """One group of plans, cut into stages of a schedule.

    Attributes
    ----------
    work, held
        As `Group`, but by stage: [stages, 5]; [chunks, stages, 13].
    large, again
        As `Large`, but by stage: [stages, 4, sizes]; [stages, 2].
    begin
        [stages] when a stage can begin, if it then never waits for the one before.
    rest
        (stage, seconds): what follows its last backward block, from the end of that on.
    beside
        [3, stages] what an op of the first backward pass has beside what is kept, at least: no
        sharding, of gradients, of weights too.
    """

    name: str
    stages: int
    chunks: int
    work: Floats
    held: Floats
    large: Floats
    again: Floats
    begin: Floats
    rest: tuple[tuple[int, float], ...]
    beside: Floats

    def bound(self, micro_batches: int, shares: Shares, wire_of: WireOf | None) -> Bound:
        """Return the bounds of one plan; without `wire_of`, nothing waits for replicas."""
        m, work = micro_batches, self.work
        passes = work[:, FORWARD] + work[:, BACKWARD]
        added = work[:, ACCUMULATE] * (m - 1 if shares.sharding < 2 else 0)
        busy = m * (passes + work[:, WEIGHT_GRADIENT]) + added
        least = float((self.begin + busy).max())
        hurried = m * passes if self.splits else busy
        for stage, rest_s in self.rest:
            least = max(least, float(self.begin[stage] + hurried[stage]) + rest_s)
        if shares.data > 1 and wire_of is not None:
            least = max(least, self._with_wire(busy, m, shares, wire_of))
        energy = float(work[:, ENERGY].sum()) * m
        memory = self._memory(m, shares)
        return Bound(least * (1 - ROUNDING), energy * (1 - ROUNDING), memory)

    @property
    def splits(self) -> bool:
        """Whether gradients of weights wait."""
        return SCHEDULES[self.name].splits_backward and self.stages > 1

    def _with_wire(self, busy: Floats, m: int, shares: Shares, wire_of: WireOf) -> float:
        """Return the least time of gradients and weights on the network, beside what can hide them.

        What is sent at the end can only hide behind the backward pass of the last micro-batch, what
        is gathered at the beginning behind the forward pass of the first. One rank's collectives of
        what experts hold and of all else go one after the other.
        """
        held, work = self.held.sum(axis=0), self.work
        sharding = shares.sharding

        def wire_s(op: str, size: Floats, experts: Floats, kind: int) -> Floats:
            """Of all bytes, those of experts, and what of them is large: `kind`, and the next."""
            every = wire_of(op, "data").seconds(size - experts, self.large[:, kind])
            if 1 < shares.expert < shares.data:
                every = every + wire_of(op, "beyond").seconds(experts, self.large[:, kind + 1])
            return every

        chunked = self.chunks > 1
        # Without accumulation in front of the last one: it is part of what may hide.
        last = work[:, BACKWARD] + work[:, WEIGHT_GRADIENT] + work[:, ACCUMULATE]
        later = m * work[:, WEIGHT_GRADIENT]  # may all be at the end
        inner = np.maximum(busy - last * (m if chunked else 1) - later, 0.0)
        sums = held[:, GRADIENT], held[:, EXPERT_GRADIENT], SENT
        if sharding == 0:
            return float((self.begin + inner + wire_s("all-reduce", *sums)).max())
        gathered = wire_s("all-gather", held[:, COMPUTED], held[:, EXPERT_COMPUTED], READ)
        sent = wire_s("reduce-scatter", *sums)
        if sharding == 1:
            hidden = work[:, FORWARD] * (m if chunked else 1)
            beside = gathered + sent + np.maximum(inner - hidden, 0.0)
            return float(np.maximum(beside, self.begin + inner + sent).max())
        if sharding == 2:
            return float((gathered + m * sent).max())
        bytes_, nothing = self.again, np.zeros_like(self.large[:, READ])
        again = wire_of("all-gather", "data").seconds(bytes_[:, 0], nothing)
        if 1 < shares.expert < shares.data:
            again = again + wire_of("all-gather", "beyond").seconds(bytes_[:, 1], nothing)
        return float((m * (gathered + again + sent)).max())

    def _memory(self, m: int, shares: Shares) -> float:
        """Return the least bytes of the fullest rank."""
        held = self.held.sum(axis=0)
        data, expert, sharding = shares
        more = expert - 1  # ranks share experts with that many fewer

        def share(whole: Floats, of_experts: int, least: int) -> Floats:
            return (whole + more * held[:, of_experts]) / data if sharding >= least else whole

        states = held[:, OTHER] + share(held[:, STATE] + held[:, MASTER], EXPERT_STATE, 1)
        states = states + share(held[:, COMPUTED], EXPERT_COMPUTED, 3)
        gradients = share(held[:, GRADIENT], EXPERT_GRADIENT, 2)
        each = in_flight(self.name, self.stages, m, self.chunks)
        # experts that no other rank has are not sharded
        beside = self.beside[max(sharding - 1, 0) if data > expert else 0]
        fullest = states + (each * self.held[:, :, KEPT]).sum(axis=0) + beside
        if self.splits:  # each stage is as many gradients of weights late as there are before it
            late = np.minimum(np.arange(self.stages), m - each[0])
            fullest = fullest + late * held[:, LATE]
        if m > 1:
            fullest = fullest + gradients
        # what the updates read is there when the last backward pass has ended
        return float(np.maximum(fullest, states + gradients).max())


def staged(group: Group, name: str, stages: int, chunks: int) -> Staged:
    """Cut a group of plans."""
    n = stages * chunks
    work, held = group.by_stage(n)
    splits = SCHEDULES[name].splits_backward and stages > 1
    return Staged(
        name=name,
        stages=stages,
        chunks=chunks,
        work=work.reshape(chunks, stages, -1).sum(axis=0),
        held=held.reshape(chunks, stages, -1),
        large=_of_stages(group.large.counts, group, stages, chunks),
        again=_of_stages(group.large.again, group, stages, chunks),
        begin=_begin(group, stages, n),
        rest=tuple(_rest(group, stages, n, 2 if splits else 1)),
        beside=np.zeros((3, stages)) if splits else _beside(group, stages, n),
    )


def _of_stages(by_unit: Floats, group: Group, stages: int, chunks: int) -> Floats:
    """Return sums over the units of each stage."""
    parts = np.add.reduceat(by_unit, group.cut(stages * chunks)[:-1])
    found: Floats = parts.reshape(chunks, stages, *by_unit.shape[1:]).sum(axis=0)
    return found


def _begin(group: Group, stages: int, n: int) -> Floats:
    """Return `Staged.begin` of the first chunks."""
    seconds = np.add.reduceat(group.seconds(0), group.cut(n)[:-1])
    came, begin = np.zeros(stages), np.zeros(stages)
    waits = group.waits(n, 0)
    for s in range(stages):
        source, lead_s, trail_s = waits[s]
        if source >= 0:
            # from the moment at which the source got what it waits for to what this one waits for
            inside = seconds[source] - waits[source].lead_s - trail_s
            came[s] = came[source] + max(inside, 0.0)
            begin[s] = max(came[s] - lead_s, 0.0)
    return begin


def _rest(group: Group, stages: int, n: int, direction: int) -> list[tuple[int, float]]:
    """Return `Staged.rest`, of the first chunks."""
    seconds = np.add.reduceat(group.seconds(direction), group.cut(n)[:-1])
    waits = group.waits(n, direction)
    found, after = [], np.zeros(stages)
    for r in range(stages):
        # of a stage that waits: from that moment to the end of the step
        after[r] = max(after[r], seconds[r] - waits[r].lead_s)
        source = waits[r].source
        if 0 <= source < stages:
            found.append((source, after[r] - waits[r].trail_s))
            inside = seconds[source] - waits[source].lead_s - waits[r].trail_s
            after[source] = max(after[source], max(inside, 0.0) + after[r])
    return found


def _beside(group: Group, stages: int, n: int) -> Floats:
    """Return `Staged.beside`: that of a unit, less what is kept of later units of the stage.

    Their backward pass is done by then. Of the last chunk, which turns back first.
    """
    until = np.cumsum(group.held[:, KEPT])
    cut = group.cut(n)[-stages - 1 :].tolist()
    found = np.zeros((3, stages))
    for stage, (a, b) in enumerate(pairwise(cut)):
        later = until[b - 1] - until[a:b]
        for row, column in enumerate((BESIDE, SCATTERED, GATHERED)):
            found[row, stage] = (group.held[a:b, column] - later).max(initial=0.0)
    return found


def in_flight(name: str, stages: int, m: int, chunks: int) -> Ints:
    """Return [chunks, stages] micro-batches of which a stage keeps activations, at its fullest.

    Where the backward pass is split, those before their backward pass: in the order of 1F1B.
    """
    if stages == 1:
        return np.ones((1, 1), np.int64)
    schedule = SCHEDULES["1f1b" if SCHEDULES[name].splits_backward else name]
    flights = np.array([schedule.in_flight(s, stages, m, chunks) for s in range(stages)])
    if chunks == 1:
        return flights[None, :]
    # What is in flight came in groups of K micro-batches, chunk after chunk.
    chunk = np.arange(chunks)[:, None]
    rounds, rest = np.divmod(flights, chunks * stages)
    each: Ints = rounds * stages + np.clip(rest - chunk * stages, 0, stages)
    return each


def spread(name: str, stages: int, m: int, chunks: int) -> float:
    """Return the sum over stages of one over the micro-batches in flight of its emptiest chunk."""
    least = np.maximum(in_flight(name, stages, m, chunks).min(axis=0), 1)
    return float((1.0 / least).sum())
