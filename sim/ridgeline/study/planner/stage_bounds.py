"""Bounds of plans whose stages are known: all plans of one group that are cut alike share them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ridgeline.parallel.partition.memory_footprint import (
    BESIDE,
    COMPUTED,
    EARLY,
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
from ridgeline.parallel.schedule import SCHEDULES
from ridgeline.study.planner.lower_bounds import ROUNDING, Bound
from ridgeline.study.planner.plan_class import ENERGY, Floats, PlanClass
from ridgeline.study.planner.step_bound import RankShares, Sends, Timed, TimeOf, splits, timed

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class StageBounds:
    """One group of plans, cut into stages of a schedule.

    Many plans are known not to fit by what they hold: what a step takes is found when it is asked
    for.

    Attributes
    ----------
    sends
        What messages between stages take.
    cut
        [chunks * stages + 1] the first unit of every part, and the number of units.
    energy_j
        Of one micro-batch on one rank of every stage, together.
    issued_s
        In which the host launches the ops of one micro-batch, on the stage that has most.
    held
        As `PlanClass`, but by stage: [chunks, stages, 14].
    beside
        [3, stages] what an op of the first backward pass has beside what is kept, at least: no
        sharding, of gradients, of weights too.
    """

    group: PlanClass
    name: str
    stages: int
    chunks: int
    sends: Sends
    cut: Ints
    energy_j: float
    issued_s: float
    held: Floats
    beside: Floats

    @cached_property
    def time(self) -> Timed:
        """What a step takes at least."""
        return timed(self.group, self.name, self.stages, self.chunks, self.sends, self.cut)

    def bound(
        self, micro_batches: int, shares: RankShares, time_of: TimeOf | None, *, alone: bool = False
    ) -> Bound:
        """Return the bounds of one plan; without `time_of`, nothing waits for replicas.

        `alone`: every rank is simulated, so that messages meet those of others.
        """
        least = self.time.step_s(micro_batches, shares, time_of)
        if alone and self.stages > 1:
            least = max(least, micro_batches * self.time.contended_s)
        least = max(least, micro_batches * self.issued_s)
        energy = self.energy_j * micro_batches
        memory = self.memory_bytes(micro_batches, shares)
        return Bound(least * (1 - ROUNDING), energy * (1 - ROUNDING), memory)

    def memory_bytes(self, m: int, shares: RankShares) -> float:
        """Return the least bytes of the fullest rank."""
        held = self.held.sum(axis=0)
        data, expert, sharding = shares.data, shares.expert, shares.sharding
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
        if splits(
            self.name, self.stages
        ):  # each stage is as many gradients of weights late as there are before it
            late = np.minimum(np.arange(self.stages), m - each[0])
            fullest = fullest + late * held[:, LATE]
        if m > 1 and shares.keeps:
            fullest = fullest + gradients
        # what the updates read is there when the last backward pass has ended
        return float(np.maximum(fullest, states + gradients).max())


def staged(
    group: PlanClass, name: str, stages: int, chunks: int, sends: Sends, cut: Ints
) -> StageBounds:
    """Cut a group of plans."""
    work, held = group.by_stage(cut)
    issued = np.add.reduceat(group.issued_s, cut[:-1])
    return StageBounds(
        group=group,
        name=name,
        stages=stages,
        chunks=chunks,
        sends=sends,
        cut=cut,
        energy_j=float(work[:, ENERGY].sum()),
        issued_s=float(issued.reshape(chunks, stages).sum(axis=0).max()),
        held=held.reshape(chunks, stages, -1),
        beside=np.zeros((3, stages)) if splits(name, stages) else _beside(group, stages, cut),
    )


def _beside(group: PlanClass, stages: int, cut: Ints) -> Floats:
    """Return `StageBounds.beside`: that of a unit, less what is kept of others and not needed then.

    That is all of later units of the stage, whose backward pass is done, and what is EARLY of those
    before. Of the last chunk, which turns back first.
    """
    until = np.cumsum(group.held[:, KEPT])
    gone = np.cumsum(group.held[:, EARLY]) - group.held[:, EARLY]
    found = np.zeros((3, stages))
    for stage, (a, b) in enumerate(pairwise(cut[-stages - 1 :].tolist())):
        others = until[b - 1] - until[a:b] + gone[a:b] - gone[a]
        for row, column in enumerate((BESIDE, SCATTERED, GATHERED)):
            found[row, stage] = (group.held[a:b, column] - others).max(initial=0.0)
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
