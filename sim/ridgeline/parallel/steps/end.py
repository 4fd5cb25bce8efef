"""The end of the step: gradients are summed over replicas and over the stages that share them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.engine.builder import Phase
from ridgeline.engine.program import Ints
from ridgeline.network.schedule import Schedule
from ridgeline.parallel.plans.plan import Plan
from ridgeline.parallel.sending.wires import Talk
from ridgeline.parallel.stages.partition import Partition, Tie
from ridgeline.parallel.stages.schedules import SCHEDULES
from ridgeline.parallel.steps.buckets import Bucket
from ridgeline.parallel.steps.copies import BACKWARD, END, WEIGHTS, Copies
from ridgeline.parallel.steps.endless import is_endless
from ridgeline.parallel.steps.team import COLLECTIVE, Team, stream_of
from ridgeline.parallel.steps.writer import Writer


@dataclass(frozen=True, slots=True)
class End:
    """A collective at the end of the step."""

    label: str
    row: int
    streams: tuple[int, ...]
    deps: tuple[int, ...]
    multiplicity: int


class Ends:
    """Writes the collectives at the end of one step.

    Attributes
    ----------
    schedules
        Of these collectives, in the order in which they are issued.
    """

    def __init__(self, plan: Plan, writer: Writer, cut: Partition) -> None:
        self.plan, self.writer, self.cut = plan, writer, cut
        self.builder, self.wires, self.mesh = writer.builder, writer.wires, writer.mesh
        self.schedules: list[Schedule] = []

    def collect(self, played: list[Copies], number: int) -> list[End]:
        """List the collectives of the gradients, and tell the updates what to wait for."""
        ends: list[End] = []
        waits: dict[tuple[int, int], list[int]] = {}
        for stage in range(self.plan.pipeline):
            of_stage = [k for k, copies in enumerate(played) if copies.team.stage == stage]
            for chunk in reversed(range(self.plan.chunks)):
                self._reduce({k: played[k] for k in of_stage}, chunk, ends, number, waits)
        for tie in self.cut.ties:
            write = self._tie_unlike if self.plan.replicas else self._tie
            write(tie, played, ends, number, waits)
        if is_endless(self.plan.schedule, self.plan.pipeline):
            return ends  # updates take what was summed in the period before
        for (k, chunk), tasks in waits.items():
            copies = played[k]
            rows = copies.rows(END, chunk)
            for place, task in enumerate(tasks):
                copies.ports[rows, len(copies.team) + place] = task
        return ends

    def _reduce(
        self,
        played: dict[int, Copies],
        chunk: int,
        ends: list[End],
        number: int,
        waits: dict[tuple[int, int], list[int]],
    ) -> None:
        """Reduce the gradients of one part over its replicas; say what each team waits for."""
        op = "reduce-scatter" if self.plan.sharding else "all-reduce"
        waits.update({(k, chunk): [] for k in played})
        teams = [copies.team for copies in played.values()]
        buckets = next(iter(played.values())).chunks[chunk].buckets
        for along in buckets:
            groups = self.writer.groups(teams[0], along)
            found: dict[int, list[tuple[int, int]]] = {}
            for k, copies in played.items():
                for which, mine in copies.team.of_groups(groups):
                    found.setdefault(which, []).extend((k, r) for r in mine)
            for which, members in sorted(found.items()):
                previous: list[int] = []
                for bucket in buckets[along] * self._rounds(teams[0]):
                    row, schedule = self.wires.collective(
                        op, groups, which, float(bucket.size_bytes), along
                    )
                    self.schedules.append(schedule)
                    label = f"{op} {bucket.tensors[0]}"
                    if len(bucket.tensors) > 1:
                        label += f" +{len(bucket.tensors) - 1}"
                    self.wires.talks[row, label] = Talk(op, float(bucket.size_bytes))
                    ready = [self._ready(played[k], chunk, r, bucket) for k, r in members]
                    streams = tuple(played[k].team.stream(stream_of("data"), r) for k, r in members)
                    many = max(1, teams[0].multiplicity * len(members) // groups.shape[1])
                    if self.plan.cycle and bucket is buckets[along][-1]:
                        ready = self._noticed(played, members, ready, ends, number)
                    deps = tuple(dict.fromkeys([*ready, *previous]))
                    ends.append(End(label, row, streams, deps, many))
                    previous = [number + len(ends) - 1]
                for k in dict.fromkeys(k for k, _ in members):
                    waits[k, chunk] += previous

    def _noticed(
        self,
        played: dict[int, Copies],
        members: Sequence[tuple[int, int]],
        ready: list[int],
        ends: list[End],
        number: int,
    ) -> list[int]:
        """Let the last gradients wait until the coordinator looks: half a cycle on average.

        Those before are waited for beside the backward pass, or while others are reduced.
        """
        row = self.builder.add_cost([Phase(self.plan.cycle / 2)])
        self.wires.dimension_of_row[row] = "data"
        teams = [(played[k].team, r) for k, r in members]
        streams = tuple(team.stream("coordinator", r) for team, r in teams)
        ends.append(End("wait for cycle", row, streams, tuple(ready), teams[0][0].multiplicity))
        return [number + len(ends) - 1]

    def _rounds(self, team: Team) -> int:
        """Return how many updates of a stage are played: replicas that take turns update apart."""
        endless = is_endless(self.plan.schedule, self.plan.pipeline)
        return self.plan.micro_batches // team.replicas if endless and self.plan.replicas else 1

    def _ready(self, copies: Copies, chunk: int, r: int, bucket: Bucket) -> int:
        """Return the task that completes a bucket, of the micro-batch whose turn is last."""
        if not self.plan.overlap:
            return copies.last(r, (BACKWARD, WEIGHTS), chunk)
        made = copies.task(bucket.tensors[-1], chunk, r)  # the last to be made
        made = made[copies.team.share(self.plan.micro_batches)]
        if copies.team.carried:  # micro-batches that come behind the updates are of the next step
            made = made[made < copies.first[copies.rows(END, chunk)[-1]]]
            if not len(made):
                return copies.last(r, (BACKWARD, WEIGHTS), chunk)
        return int(made.max())

    def _tie(
        self,
        tie: Tie,
        played: list[Copies],
        ends: list[End],
        number: int,
        waits: dict[tuple[int, int], list[int]],
    ) -> None:
        """Add up the gradients of a weight that several stages hold."""
        schedule, stages_ = SCHEDULES[self.plan.schedule], self.plan.pipeline
        parts = [schedule.place(part, stages_) for part in sorted(tie.gradients)]
        stages = sorted({stage for _, stage in parts})
        groups = np.stack([self.mesh.replica(stage) for stage in stages], axis=1)
        last = (BACKWARD, WEIGHTS)
        for r in range(len(played[0].team)):
            holders = [played[stage] for stage in stages]
            deps = [played[stage].last(r, last, chunk) for chunk, stage in parts]
            deps += [task for chunk, stage in parts for task in waits[stage, chunk]]
            which = int(np.flatnonzero(groups[:, 0] == holders[0].team.members[r][0])[0])
            row, size_bytes = self._tied_row(groups, which, tie)
            streams = tuple(holder.team.stream(stream_of("data"), r) for holder in holders)
            label = f"all-reduce tied {tie.weight}"
            if size_bytes:
                self.wires.talks[row, label] = Talk("all-reduce", size_bytes)
            many = holders[0].team.multiplicity
            ends.append(End(label, row, streams, tuple(dict.fromkeys(deps)), many))
        for chunk, stage in parts:
            many_ends = range(len(ends) - len(played[0].team), len(ends))
            waits[stage, chunk] = [*waits[stage, chunk], *(number + k for k in many_ends)]

    def _tie_unlike(
        self,
        tie: Tie,
        played: list[Copies],
        ends: list[End],
        number: int,
        waits: dict[tuple[int, int], list[int]],
    ) -> None:
        """Add up the gradients of a weight over all replicas of unlike stages that hold it."""
        along = self.mesh.along("data")
        held = [self.mesh.groups(stage, *along) for stage in sorted(tie.gradients)]
        groups = np.concatenate(held, axis=1)
        found: dict[int, list[tuple[int, int]]] = {}
        for k, copies in enumerate(played):
            if copies.team.stage in tie.gradients:
                for which, mine in copies.team.of_groups(groups):
                    found.setdefault(which, []).extend((k, r) for r in mine)
        for which, members in sorted(found.items()):
            row, size_bytes = self._tied_row(groups, which, tie)
            label = f"all-reduce tied {tie.weight}"
            self.wires.talks[row, label] = Talk("all-reduce", size_bytes)
            deps = tuple(played[k].last(r, (BACKWARD, WEIGHTS), 0) for k, r in members)
            streams = tuple(played[k].team.stream(stream_of("data"), r) for k, r in members)
            ends.append(End(label, row, streams, deps, 1))
            for k in dict.fromkeys(k for k, _ in members):
                waits[k, 0] = [*waits[k, 0], number + len(ends) - 1]

    def _tied_row(self, groups: Ints, which: int, tie: Tie) -> tuple[int, float]:
        """Return the cost row, and the bytes that are added up, 0 where one stage has all."""
        if groups.shape[1] == 1:
            return self.builder.add_cost([Phase()]), 0.0
        shares = self.plan.data * self.plan.context if self.plan.sharding else 1
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
