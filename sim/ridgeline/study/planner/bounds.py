"""Lower bounds of plans: a closed form over the whole space, then the stages of one plan.

`screen` is the compiled closed form over all plans: of a pipeline it only knows the sums over all
units; `StageBounds` knows the stages, as blocks in the order of a schedule (`max_plus`). Both leave
out what can only add to the engine's answer (waiting for messages, shared links, launches of what
is done once a step), so neither is ever above it. All plans of one class that are cut alike share
their stages.

A micro-batch takes x_s on stage s, and M of them pass each stage one after the other; before the
first one the stages before have to be passed forward, after the last one backward. So
``T >= sum(x_r for r < s) + M x_s`` for every s, of which follows for any split of W = sum(x_s) over
K stages: ``T >= W / (1 - (1 - 1/M)**K)``, with equality where each takes 1 - 1/M of the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ridgeline._jit import kernel
from ridgeline.parallel.partition import memory_footprint
from ridgeline.parallel.partition.memory_footprint import (
    BESIDE,
    COMPUTED,
    EXPERT_COMPUTED,
    EXPERT_GRADIENT,
    EXPERT_STATE,
    GATHERED,
    GRADIENT,
    KEPT,
    MASTER,
    OTHER,
    SCATTERED,
    STATE,
)
from ridgeline.parallel.schedule import SCHEDULES, SlotArrays
from ridgeline.study.planner.dependencies import FORWARD, LATE, MADE, READ, SHORT, WHOLE
from ridgeline.study.planner.max_plus import (
    AHEAD,
    EARLY,
    NEVER,
    NOTHING,
    bucketed,
    parts_of,
    played_s,
    rows,
    waits_of,
)
from ridgeline.study.planner.plan_class import (
    BACKWARD,
    ENERGY,
    WEIGHT_GRADIENT,
    Floats,
    Ints,
    PlacedOps,
    PlanClass,
)

ROUNDING = 1e-9  # relative: what sums in another order may differ by
TOTALS = (
    *("forward", "backward", "weights", "accumulate", "energy", "path", "longest"),
    *("state", "master", "computed", "gradient", "other"),
    *("expert_state", "expert_computed", "expert_gradient", "kept", "beside"),
)
HELD = BESIDE + 1  # so many of the last are bytes


class Bound(NamedTuple):
    """Least step time and energy of a plan, and bytes that its fullest rank holds at least."""

    time_s: float
    energy_j: float
    memory_bytes: float


def least_bound(bounds: Iterable[Bound]) -> Bound:
    """Return the bound of a step that is one of some."""
    return Bound(*map(min, zip(*bounds, strict=True)))


def totals(group: PlanClass) -> Floats:
    """Return what `screen` knows of a group: see `TOTALS`."""
    work = group.work.sum(axis=0)
    longest = (group.seconds(0) + group.seconds(1)).max(initial=0.0)
    return np.array([*work, group.linked_s(), longest, *held_of_all(group.held)])


def held_of_all(held: Floats) -> Floats:
    """Return [HELD] bytes of all units, of `PlanClass.held`, and the most that one has beside."""
    return np.append(held[:, : KEPT + 1].sum(axis=0), held[:, BESIDE].max(initial=0.0))


def totals_of_more(work: Floats, waited: Floats) -> Floats:
    """Return seconds and joules, as `totals`, of any group with these ops and more.

    More ops may hide what is waited for, several such waits at once, and may be done before that
    which a stage waits for: waits and the path do not count.

    Parameters
    ----------
    work, waited
        As `PlanClass`.
    """
    known = np.zeros(len(TOTALS) - HELD)
    known[: ENERGY + 1] = work.sum(axis=0)
    known[:2] -= waited.sum(axis=0)
    if not waited.any():
        known[-1] = work[:, [FORWARD, BACKWARD, WEIGHT_GRADIENT]].sum(axis=1).max(initial=0.0)
    return known


@kernel
def screen(  # type: ignore[no-untyped-def]
    group, known, micro_batches, stages, data, expert, sharding, drains, splits, spread, longer,
    byte_s, out
):  # fmt: skip
    """Write the bounds of all plans into out [P, 3]: seconds, joules without idle power, bytes.

    Parameters
    ----------
    group, known
        [P] row of `known` [G, 17] (`totals`) of each plan.
    micro_batches, stages, data, expert, sharding
        [P] of each plan.
    drains
        [P] whether a stage's last work of the step is a whole backward pass.
    splits
        [P] whether gradients of weights wait.
    spread
        [P] sum over stages of one over the micro-batches in flight (`in_flight`).
    longer
        [P] how much longer the mean stage takes for the place of its groups (`stretched`).
    byte_s
        [P] least seconds a byte of a collective between replicas (`CommBounds.crossing_byte_s`).
    """
    for i in range(len(group)):
        t = known[group[i]]
        m, k, d, s = micro_batches[i], stages[i], data[i], sharding[i]
        whole = t[0] + t[1] + t[2]
        added = t[3] * (m - 1) if s < 2 else 0.0
        time_s = max((m * whole + added) / k, m * whole * longer[i] / k, m * t[6])
        if k > 1 and drains[i]:
            # the path leaves out what does not wait; every stage has at most that much more
            time_s = max(time_s, t[5] / (1.0 - (1.0 - 1.0 / m) ** k))
        if s >= 1:  # what is gathered and what is sent of all but experts, one after the other
            gathered, sent = t[9] - t[13], t[10] - t[14]
            often = m if s >= 2 else 1.0
            more = (m if s == 3 else 1.0) * gathered + often * sent
            time_s = max(time_s, more * byte_s[i] / k)
        out[i, 0] = time_s
        out[i, 1] = t[4] * m
        more = expert[i] - 1  # ranks share experts with that many fewer
        held = (t[7] + t[8] + more * t[12]) / d if s >= 1 else t[7] + t[8]
        held += ((t[9] + more * t[13]) / d if s >= 3 else t[9]) + t[11]
        if m > 1:
            held += (t[10] + more * t[14]) / d if s >= 2 else t[10]
        # the fullest stage has at least the mean; least is kept where stages keep equally much
        out[i, 2] = max((held + t[15]) / k, t[15] / spread[i])
        if not splits[i]:  # a stage keeps what its first backward pass reads, and has this beside
            out[i, 2] = max(out[i, 2], t[16])


class RankShares(NamedTuple):
    """Which ranks share what, and how it moves between them.

    Attributes
    ----------
    data
        Data-parallel ranks.
    expert
        How many of them share experts.
    sharding
        As in `Plan`.
    bucket
        Bytes that close a bucket.
    again
        Whether sharded weights are gathered again for the backward pass.
    beside
        Whether gradients are summed beside the backward pass; else behind it, or no op runs beside.
    gathers_beside
        Whether ops run beside gathers of weights.
    keeps
        Whether their sums over micro-batches take room beside activations.
    offloads
        Whether activations wait in the host's memory, so that none is known to take room.
    """

    data: int
    expert: int
    sharding: int
    bucket: float = 0.0
    again: bool = True
    beside: bool = True
    gathers_beside: bool = True
    keeps: bool = True
    offloads: bool = False


class Sends(Protocol):
    """What messages of a pipeline take at least."""

    def message(self, source: int, target: int) -> tuple[float, float]:
        """Return latency and seconds a byte of a message from one stage to another."""

    def in_parts(self, *, back: bool) -> bool:
        """Whether the ranks of an op send in parts what they have alike."""

    def gather_s(self, size_bytes: float) -> float:
        """Return in which time the ranks of an op gather what they got in parts."""

    def contended_s(self, sent_bytes: Floats) -> float:
        """Return what the fullest link needs for [K, K] bytes from each rank of a stage to another.

        Where every rank is simulated.
        """

    def kinds(self, placed: PlacedOps) -> Ints | None:
        """Return [K] of which kind the groups of a stage are that are waited for; None: of any."""


TimeOf = Callable[[str, str, int, float], float]
"""Least seconds of a collective, by its name, along which dimension it goes, its stage and bytes:
between all data-parallel ranks ("data"), or those that have the same experts ("beyond")."""


def stretched(whole_s: float, placed: Sequence[PlacedOps], kinds: Sequence[Ints]) -> float:
    """Return how much longer the mean stage takes than where all groups are fastest, at least.

    Stage s does c_s of other work, and of the collectives d what takes a_ds in the fastest groups
    and f_ds times that in its own. For any F_d, with w_s = max(1, F_d / f_ds over all d) the least
    time t of the fullest stage has ``t sum(w_s) >= sum(w_s (c_s + sum(f_ds a_ds))) >= sum(c_s) +
    sum(F_d a_ds)``, however the work is divided over the stages.

    Parameters
    ----------
    whole_s
        Seconds of a micro-batch, the collectives in the fastest groups.
    kinds
        [K] of the groups of each stage (`PlacedOps.ratio`), for each of `placed`.
    """
    factors = np.array([one.ratio[of] for one, of in zip(placed, kinds, strict=True)])
    sums = np.array([one.least_s for one in placed])
    longest = 1.0
    for most in np.quantile(factors, (0.25, 0.5, 0.75, 1.0), axis=1, method="lower"):
        weights = np.maximum(1.0, (most[:, None] / factors).max(axis=0))
        more_s = float(((most - 1.0) * sums).sum())
        longest = max(longest, (whole_s + more_s) / weights.mean() / whole_s)
    return longest


class _Rows(NamedTuple):
    """Longest paths through a block of every part (`stage_max_plus.rows`); `made` by who waits."""

    end: Floats
    queue: Floats
    made: Floats


class _Moved(NamedTuple):
    """Buckets of what moves between replicas in one direction, see `stage_max_plus.bucketed`.

    `seconds`: [E] of the collective of the bucket that is there; 0: none is.
    """

    first: Ints
    after: Ints
    ends: Ints
    seconds: Floats


@dataclass
class Timed:
    """One group of plans, cut into the parts of a schedule.

    Attributes
    ----------
    name, stages, chunks
        Of the schedule.
    part
        [U] part of every unit.
    first, of, marks
        [4, P] by direction: the op of every part that waits for another one, that one, and its op
        that is waited for; -1: none.
    sent_s, gather_s
        [2, P] forward and backward: seconds of the message that each part waits for; of gathering
        what came in parts.
    sends
        What messages take.
    kinds
        [K] of the groups of each stage, for each of `PlanClass.placed`; (): any may be waited for.
    """

    group: PlanClass
    name: str
    stages: int
    chunks: int
    part: Ints
    first: Ints
    of: Ints
    marks: Ints
    sent_s: Floats
    gather_s: Floats
    sends: Sends
    kinds: tuple[Ints, ...] = ()
    _plain: dict[tuple[int, bool], _Rows] = field(default_factory=dict)
    _alone_s: dict[tuple[int, bool, bool], float] = field(default_factory=dict)
    _placed: dict[int, Floats] = field(default_factory=dict)

    @property
    def splits(self) -> bool:
        """Whether gradients of weights wait."""
        return splits(self.name, self.stages)

    def step_s(self, m: int, shares: RankShares, time_of: TimeOf | None) -> float:
        """Return the least seconds of a step of m micro-batches.

        Without `time_of`, nothing waits for replicas.
        """
        sharding, alone = shares.sharding, shares.data == 1
        adds, whole = sharding < 2 or alone, sharding == 0 or alone
        if time_of is None or alone:  # no more is asked of what ranks share
            if (m, adds, whole) not in self._alone_s:
                self._alone_s[m, adds, whole] = self._played_s(m, adds, whole, shares, None)
            return self._alone_s[m, adds, whole]
        return self._played_s(m, adds, whole, shares, time_of)

    def _played_s(
        self, m: int, adds: bool, whole: bool, shares: RankShares, time_of: TimeOf | None
    ) -> float:
        """Play the schedule."""
        slots = slots_of(self.name, self.stages, m, self.chunks)
        last = m > 1 and self.name != "gpipe"  # which goes back to the first micro-batch
        backward = SHORT if self.splits else WHOLE
        if time_of is None:
            on = [self._rows(FORWARD, later=False)] * 3
            back = [self._rows(backward, later=adds and k > 0) for k in range(3)]
            late = [self._rows(LATE, later=adds and k > 0) for k in range(3)]
        else:
            on, back, late = self._with_replicas(backward, adds, last, shares, time_of)
        phases = (on, back, late)
        end, queue, made = (
            np.array([[rows_[k] for rows_ in phase] for phase in phases]) for k in range(3)
        )
        directions = [FORWARD, backward]
        begin_s, end_s = self._once(whole=whole)
        ends, queues = np.empty(self.stages), np.empty(self.stages)
        found: float = played_s(
            slots.stage_ptr, slots.phase, slots.micro_batch, slots.chunk, m, begin_s, end_s,
            self.of[directions], self.sent_s, self.gather_s, end, queue, made, ends, queues,
        )  # fmt: skip
        return found

    @cached_property
    def contended_s(self) -> float:
        """What the fullest link needs for the messages of a micro-batch, all ranks played."""
        of_parts = self.group.crossing.between(self.part)
        n = (self.chunks, self.stages)
        return self.sends.contended_s(of_parts.reshape(*n, *n).sum(axis=(0, 2)))

    def _once(self, *, whole: bool) -> tuple[Floats, Floats]:
        """Return [K] what stages do before and after all blocks; none of it, where it is shared."""
        if not whole:
            return np.zeros(self.stages), np.zeros(self.stages)
        of_parts = np.zeros((self.stages * self.chunks, 2))
        np.add.at(of_parts, self.part, self.group.once_s)
        of_stages = of_parts.reshape(self.chunks, self.stages, 2).sum(axis=0)
        return of_stages[:, 0].copy(), of_stages[:, 1].copy()

    def _with_replicas(
        self, backward: int, adds: bool, last: bool, shares: RankShares, time_of: TimeOf
    ) -> list[list[_Rows]]:
        """Return the rows of every phase, as `pipeline_recurrence.played_s` takes them."""
        beyond = 1 < shares.expert < shares.data
        wanted = np.array([True, beyond or shares.expert == 1])

        def moved(direction: int, kind: int, op: str) -> _Moved:
            bucket = shares.bucket
            return self._moved(direction, kind, wanted, bucket, lambda *of: time_of(op, *of))

        sharding, ends = shares.sharding, LATE if self.splits else backward
        sums = moved(ends, MADE, "reduce-scatter" if sharding else "all-reduce")
        if not shares.beside and sharding < 2:
            sums = self._behind(ends, sums)
        on = self._rows(FORWARD)
        first = later = on
        if sharding:
            read = moved(FORWARD, READ, "all-gather")
            how = AHEAD if sharding == 3 else EARLY
            first = self._rows(FORWARD, shares, gathers=how, read=read)
            later = first if sharding == 3 else on
        forward = [first, later, later]
        if sharding < 2:
            back = [self._rows(backward, later=k > 0) for k in range(3)]
            late = [self._rows(LATE, later=k > 0) for k in range(3)]
            (late if self.splits else back)[2] = self._rows(ends, shares, later=last, sums=sums)
            return [forward, back, late]
        gathers = sharding == 3 and shares.again
        again = moved(backward, READ, "all-gather") if gathers else None
        none = None if self.splits else sums
        how = AHEAD if again else NOTHING
        each = self._rows(backward, shares, gathers=how, read=again, sums=none)
        late = [self._rows(LATE, shares, sums=sums if self.splits else None)] * 3
        return [forward, [each] * 3, late]

    def _moved(
        self, direction: int, kind: int, wanted: npt.NDArray[np.bool_], least: float,
        time_of: Callable[[str, int, float], float],
    ) -> _Moved:  # fmt: skip
        """Put weights that are read, or gradients that are made, into buckets."""
        p = self.group.played[direction]
        (after, ends), total = np.empty((2, len(p.kind)), np.int64), np.empty(len(p.kind))
        first = bucketed(
            kind, wanted, p.kind, p.unit, p.value, p.shared, p.tied, self.part, least,
            after, total, ends,
        )  # fmt: skip
        some, seconds = np.flatnonzero(total), np.zeros(len(total))
        beyond = p.shared[some] * int(wanted[1])
        stages = self.part[p.unit[some]] % self.stages
        columns = some, beyond, stages, total[some]
        for e, own, stage, size in zip(*(one.tolist() for one in columns), strict=True):
            seconds[e] = time_of("beyond" if own else "data", stage, size)
        return _Moved(first, after, ends, seconds)

    def _behind(self, direction: int, sums: _Moved) -> _Moved:
        """Sum the gradients of a part when the last of them is made."""
        p, seconds = self.group.played[direction], np.zeros(len(sums.seconds))
        made = np.flatnonzero(p.kind == MADE)
        of = self.part[p.unit[made]]
        last = np.full(self.stages * self.chunks, -1)
        np.maximum.at(last, of, made)
        np.add.at(seconds, last[of], sums.seconds[made])
        return sums._replace(seconds=seconds)

    def _values(self, direction: int) -> Floats:
        """Return [E] seconds and bytes of a direction, the collectives in the groups of a stage."""
        p = self.group.played[direction]
        if not self.kinds:
            return p.value
        if direction not in self._placed:
            runs, value = np.flatnonzero(p.op >= 0), p.value.copy()
            stage, op = self.part[p.unit[runs]] % self.stages, p.op[runs]
            for one, of in zip(self.group.placed, self.kinds, strict=True):
                value[runs] += one.more_s[of[stage], op]
            self._placed[direction] = value
        return self._placed[direction]

    def _rows(
        self, direction: int, shares: RankShares | None = None, *, later: bool = False,
        gathers: int = NOTHING, read: _Moved | None = None, sums: _Moved | None = None,
    ) -> _Rows:  # fmt: skip
        """Return the longest paths through a block of every part, of what moves as ranks share."""
        plain = read is None and sums is None
        if plain and (direction, later) in self._plain:
            return self._plain[direction, later]
        p, n_parts = self.group.played[direction], self.stages * self.chunks
        nothing = np.zeros(len(p.kind))
        if read is None:
            never = np.full(len(p.kind), -1)
            read = _Moved(np.full((n_parts, 2), -1), never, never, nothing)
        found = _Rows(*(np.full((n_parts, 3), NEVER) for _ in range(3)))
        blocks = np.zeros(2, np.bool_)
        if shares is not None and sums is not None:
            blocks[1] = not shares.beside and shares.sharding >= 2
        if shares is not None:
            blocks[0] = not shares.gathers_beside
        rows(
            p.kind, p.unit, self._values(direction), p.added_s, p.shared, self.part, later,
            self.first[direction],
            self.marks[direction], gathers, blocks, *read,
            nothing if sums is None else sums.seconds, *found,
        )  # fmt: skip
        if plain:
            self._plain[direction, later] = found
        return found


def splits(name: str, stages: int) -> bool:
    """Whether gradients of weights wait in a schedule of so many stages."""
    return SCHEDULES[name].splits_backward and stages > 1


@lru_cache(maxsize=64)
def slots_of(name: str, stages: int, m: int, chunks: int) -> SlotArrays:
    """Return the slots of a schedule."""
    name = name if stages > 1 or name == "gpipe" else "1f1b"
    return SCHEDULES[name].arrays(stages, m, chunks)


def timed(group: PlanClass, name: str, stages: int, chunks: int, sends: Sends, cut: Ints) -> Timed:
    """Cut a group of plans."""
    n = stages * chunks
    part = np.empty(len(group.work), np.int64)
    parts_of(cut, part)
    first, of, marks = np.full((3, 4, n), -1, np.int64)
    sent_s, gather_s = np.zeros((2, 2, n))
    for direction in (FORWARD, SHORT if splits(name, stages) else WHOLE):
        p, size = group.played[direction], np.zeros((n, 2))
        waits_of(
            part, p.reader, p.maker, p.source, p.sent, first[direction], marks[direction],
            of[direction], size,
        )  # fmt: skip
        back = int(direction != FORWARD)
        for k in np.flatnonzero(of[direction] >= 0).tolist():
            source, target = int(of[direction, k]) % stages, k % stages
            alike, own = size[k]
            whole = not sends.in_parts(back=bool(back))
            if alike and not whole:
                gather_s[back, k] = sends.gather_s(alike)
            if source != target:
                late_s, byte_s = sends.message(source, target)
                sent_s[back, k] = late_s + byte_s * (own + alike / (1 if whole else group.tensor))
    kinds = [kind for one in group.placed if (kind := sends.kinds(one)) is not None]
    return Timed(
        group, name, stages, chunks, part, first, of, marks, sent_s, gather_s, sends, tuple(kinds)
    )


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
        if shares.offloads:
            return float((states + gradients).max())
        each = in_flight(self.name, self.stages, m, self.chunks)
        # experts that no other rank has are not sharded
        beside = self.beside[max(sharding - 1, 0) if data > expert else 0]
        fullest = states + (each * self.held[:, :, KEPT]).sum(axis=0) + beside
        if splits(
            self.name, self.stages
        ):  # each stage is as many gradients of weights late as there are before it
            late = np.minimum(np.arange(self.stages), m - each[0])
            fullest = fullest + late * held[:, memory_footprint.LATE]
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
    gone = np.cumsum(group.held[:, memory_footprint.EARLY]) - group.held[:, memory_footprint.EARLY]
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
