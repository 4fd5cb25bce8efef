"""Gradient synchronisation at the end of a step, over replicas and tied stages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ridgeline.engine.builder import WorkPhase
from ridgeline.engine.program import Ints
from ridgeline.network.schedule import CollectiveSchedule
from ridgeline.parallel.comm.comm_cost import Talk
from ridgeline.parallel.emit.async_pipeline import is_endless
from ridgeline.parallel.emit.block_emitter import BlockEmitter
from ridgeline.parallel.emit.buckets import Bucket
from ridgeline.parallel.emit.microbatch_instances import BACKWARD, END, WEIGHTS, Copies
from ridgeline.parallel.emit.rank_group import COLLECTIVE, RankGroup, stream_of
from ridgeline.parallel.partition.pipeline_partition import PipelinePartition, Tie
from ridgeline.parallel.plan.resolved import ResolvedPlan
from ridgeline.parallel.schedule import SCHEDULES

Members = list[tuple[int, int]]
"""Ranks, each by the number of its team and its place there."""


@dataclass(frozen=True, slots=True)
class End:
    """A collective at the end of the step."""

    label: str
    row: int
    streams: tuple[int, ...]
    deps: tuple[int, ...]
    multiplicity: int


@dataclass
class _List:
    """What is collected at the end of one step, as it is written down.

    Attributes
    ----------
    played
        Copies of every team.
    first
        Task that the first collective will be.
    ends
        The collectives.
    waits
        Tasks that the updates of a team and chunk wait for.
    """

    played: list[Copies]
    first: int
    ends: list[End] = field(default_factory=list)
    waits: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def add(self, end: End) -> int:
        """Write a collective down, and return the task that it will be."""
        self.ends.append(end)
        return self.first + len(self.ends) - 1

    def members(self, teams: Iterable[int], groups: Ints) -> list[tuple[int, Members]]:
        """Return the groups that ranks of some teams are in, and these ranks of each."""
        found: dict[int, Members] = {}
        for k in teams:
            for which, mine in self.played[k].team.of_groups(groups):
                found.setdefault(which, []).extend((k, r) for r in mine)
        return sorted(found.items())

    def streams(self, members: Members) -> tuple[int, ...]:
        """Return the streams of ranks on which data-parallel collectives run."""
        return tuple(self.played[k].team.stream(stream_of("data"), r) for k, r in members)


class GradSyncEmitter:
    """Writes the collectives at the end of one step.

    Attributes
    ----------
    schedules
        Of these collectives, in the order in which they are issued.
    """

    def __init__(self, plan: ResolvedPlan, writer: BlockEmitter, cut: PipelinePartition) -> None:
        self.plan, self.writer, self.cut = plan, writer, cut
        self.builder, self.wires, self.mesh = writer.builder, writer.wires, writer.mesh
        self.schedules: list[CollectiveSchedule] = []

    def collect(self, played: list[Copies], number: int) -> list[End]:
        """List the collectives of the gradients, and tell the updates what to wait for."""
        listed = _List(played, number)
        for stage in range(self.plan.pipeline):
            teams = [k for k, copies in enumerate(played) if copies.team.stage == stage]
            for chunk in reversed(range(self.plan.virtual_stages)):
                self._reduce(listed, teams, chunk)
        for tie in self.cut.ties:
            write = self._tie_unlike if self.plan.replicas else self._tie
            write(listed, tie)
        if is_endless(self.plan.schedule, self.plan.pipeline):
            return listed.ends  # updates take what was summed in the period before
        for (k, chunk), tasks in listed.waits.items():
            copies = played[k]
            rows = copies.rows(END, chunk)
            for place, task in enumerate(tasks):
                copies.ports[rows, len(copies.team) + place] = task
        return listed.ends

    def _reduce(self, listed: _List, teams: Sequence[int], chunk: int) -> None:
        """Reduce the gradients of one part over its replicas; say what each team waits for."""
        op = "reduce-scatter" if self.plan.zero_stage else "all-reduce"
        listed.waits.update({(k, chunk): [] for k in teams})
        one = listed.played[teams[0]]
        buckets = one.chunks[chunk].buckets
        for along in buckets:
            groups = self.writer.groups(one.team, along)
            for which, members in listed.members(teams, groups):
                previous: list[int] = []
                for bucket in buckets[along] * self._rounds(one.team):
                    row, schedule = self.wires.collective(
                        op, groups, which, float(bucket.size_bytes), along
                    )
                    self.schedules.append(schedule)
                    label = f"{op} {bucket.tensors[0]}"
                    if len(bucket.tensors) > 1:
                        label += f" +{len(bucket.tensors) - 1}"
                    talk = Talk(op, float(bucket.size_bytes), groups.shape[1])
                    self.wires.talks[row, label] = talk
                    ready = [self._ready(listed.played[k], chunk, r, bucket) for k, r in members]
                    many = max(
                        1,
                        sum(listed.played[k].team.multiplicity(r) for k, r in members)
                        // groups.shape[1],
                    )
                    if self.plan.stack.gradients.fusion_cycle_time and bucket is buckets[along][-1]:
                        ready = self._noticed(listed, members, ready)
                    deps = tuple(dict.fromkeys([*ready, *previous]))
                    previous = [listed.add(End(label, row, listed.streams(members), deps, many))]
                for k in dict.fromkeys(k for k, _ in members):
                    listed.waits[k, chunk] += previous

    def _noticed(self, listed: _List, members: Members, ready: list[int]) -> list[int]:
        """Let the last gradients wait until the coordinator looks: half a cycle on average.

        Those before are waited for beside the backward pass, or while others are reduced.
        """
        row = self.builder.add_cost([WorkPhase(self.plan.stack.gradients.fusion_cycle_time / 2)])
        self.wires.dimension_of_row[row] = "data"
        teams = [(listed.played[k].team, r) for k, r in members]
        streams = tuple(team.stream("coordinator", r) for team, r in teams)
        many = teams[0][0].multiplicity(teams[0][1])
        end = End("wait for cycle", row, streams, tuple(ready), many)
        return [listed.add(end)]

    def _rounds(self, team: RankGroup) -> int:
        """Return how many updates of a stage are played: replicas that take turns update apart."""
        endless = is_endless(self.plan.schedule, self.plan.pipeline)
        return self.plan.micro_batches // team.replicas if endless and self.plan.replicas else 1

    def _ready(self, copies: Copies, chunk: int, r: int, bucket: Bucket) -> int:
        """Return the task that completes a bucket, of the micro-batch whose turn is last."""
        if self.plan.stack.overlap.gradients is not True:
            return copies.last(r, (BACKWARD, WEIGHTS), chunk)
        made = copies.task(bucket.tensors[-1], chunk, r)  # the last to be made
        made = made[copies.team.share(self.plan.micro_batches)]
        if copies.team.carried:  # micro-batches that come behind the updates are of the next step
            made = made[made < copies.first[copies.rows(END, chunk)[-1]]]
            if not len(made):
                return copies.last(r, (BACKWARD, WEIGHTS), chunk)
        return int(made.max())

    def _tie(self, listed: _List, tie: Tie) -> None:
        """Add up the gradients of a weight that several stages hold."""
        schedule, stages_ = SCHEDULES[self.plan.schedule], self.plan.pipeline
        parts = [schedule.place(part, stages_) for part in sorted(tie.gradients)]
        stages = sorted({stage for _, stage in parts})
        groups = np.stack([self.mesh.replica(stage) for stage in stages], axis=1)
        last = (BACKWARD, WEIGHTS)
        added = []
        for r in range(len(listed.played[0].team)):
            holder = listed.played[stages[0]].team
            deps = [listed.played[stage].last(r, last, chunk) for chunk, stage in parts]
            deps += [task for chunk, stage in parts for task in listed.waits[stage, chunk]]
            which = int(np.flatnonzero(groups[:, 0] == holder.members[r][0])[0])
            members = [(stage, r) for stage in stages]
            many = holder.multiplicity(r)
            added.append(self._tied(listed, tie, groups, which, members, deps, many))
        for chunk, stage in parts:
            listed.waits[stage, chunk] = [*listed.waits[stage, chunk], *added]

    def _tie_unlike(self, listed: _List, tie: Tie) -> None:
        """Add up the gradients of a weight over all replicas of unlike stages that hold it."""
        along = self.mesh.along("data")
        held = [self.mesh.groups(stage, *along) for stage in sorted(tie.gradients)]
        groups = np.concatenate(held, axis=1)
        teams = [k for k, one in enumerate(listed.played) if one.team.stage in tie.gradients]
        for which, members in listed.members(teams, groups):
            deps = [listed.played[k].last(r, (BACKWARD, WEIGHTS), 0) for k, r in members]
            task = self._tied(listed, tie, groups, which, members, deps, 1)
            for k in dict.fromkeys(k for k, _ in members):
                listed.waits[k, 0] = [*listed.waits[k, 0], task]

    def _tied(
        self,
        listed: _List,
        tie: Tie,
        groups: Ints,
        which: int,
        members: Members,
        deps: Sequence[int],
        many: int,
    ) -> int:
        """Write down the sum of a weight's gradients over one group, and return its task."""
        row, size_bytes = self._tied_row(groups, which, tie)
        label = f"all-reduce tied {tie.weight}"
        if size_bytes:
            self.wires.talks[row, label] = Talk("all-reduce", size_bytes, groups.shape[1])
        streams, once = listed.streams(members), tuple(dict.fromkeys(deps))
        return listed.add(End(label, row, streams, once, many))

    def _tied_row(self, groups: Ints, which: int, tie: Tie) -> tuple[int, float]:
        """Return the cost row, and the bytes that are added up, 0 where one stage has all."""
        if groups.shape[1] == 1:
            return self.builder.add_cost([WorkPhase()]), 0.0
        sharing = (self.plan.hybrid_shard_size or self.plan.data) * self.plan.context
        shares = sharing if self.plan.zero_stage else 1
        size = tie.size_bytes / shares
        row, schedule = self.wires.collective("all-reduce", groups, which, size, "pipeline")
        self.schedules.append(schedule)
        return row, size

    def add(self, end: End) -> None:
        """Write one of them."""
        alone = len(end.streams) == 1
        self.builder.add_task(
            COLLECTIVE,
            end.label,
            stream=end.streams[0] if alone else -1,
            group=-1 if alone else self.builder.add_group(end.streams),
            cost=end.row,
            deps=end.deps,
            multiplicity=end.multiplicity,
        )
