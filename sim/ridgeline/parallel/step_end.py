"""The end of the step: gradients are summed over replicas and over the stages that share them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.engine.builder import Phase
from ridgeline.engine.program import Ints
from ridgeline.network.schedule import Schedule
from ridgeline.parallel.buckets import Bucket
from ridgeline.parallel.copies import BACKWARD, END, WEIGHTS, Copies
from ridgeline.parallel.endless import is_endless
from ridgeline.parallel.partition import Partition, Tie
from ridgeline.parallel.plan import Plan
from ridgeline.parallel.team import COLLECTIVE, Team, Writer, stream_of
from ridgeline.parallel.wires import Talk


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
        for copies in played:
            for chunk in reversed(range(self.plan.chunks)):
                last = self._reduce(copies, chunk, ends, number)
                waits[copies.team.stage, chunk] = last
        for tie in self.cut.ties:
            self._tie(tie, played, ends, number, waits)
        if is_endless(self.plan.schedule, self.plan.pipeline):
            return ends  # updates take what was summed in the period before
        for (stage, chunk), tasks in waits.items():
            copies = played[stage]
            rows = copies.rows(END, chunk)
            for k, task in enumerate(tasks):
                copies.ports[rows, len(copies.team) + k] = task
        return ends

    def _reduce(self, copies: Copies, chunk: int, ends: list[End], number: int) -> list[int]:
        """Reduce the gradients of one part over its replicas; return the last collectives."""
        blocks, team = copies.chunks[chunk], copies.team
        if not blocks.buckets:
            return []
        op = "reduce-scatter" if self.plan.sharding else "all-reduce"
        last = []
        each = [
            (along, groups, which, mine)
            for along in blocks.buckets
            for groups in [self.writer.groups(team, along)]
            for which, mine in team.of_groups(groups)
        ]
        for along, groups, which, mine in each:
            previous: list[int] = []
            for bucket in blocks.buckets[along]:
                row, schedule = self.wires.collective(
                    op, groups, which, float(bucket.size_bytes), along
                )
                self.schedules.append(schedule)
                label = f"{op} {bucket.tensors[0]}"
                if len(bucket.tensors) > 1:
                    label += f" +{len(bucket.tensors) - 1}"
                self.wires.talks[row, label] = Talk(op, float(bucket.size_bytes))
                ready = [self._ready(copies, chunk, r, bucket) for r in mine]
                streams = tuple(team.stream(stream_of("data"), r) for r in mine)
                many = max(1, team.multiplicity * len(mine) // groups.shape[1])
                if self.plan.cycle and bucket is blocks.buckets[along][-1]:
                    ready = self._noticed(team, mine, ready, ends, number)
                deps = tuple(dict.fromkeys([*ready, *previous]))
                ends.append(End(label, row, streams, deps, many))
                previous = [number + len(ends) - 1]
            last += previous
        return last

    def _noticed(
        self, team: Team, mine: Sequence[int], ready: list[int], ends: list[End], number: int
    ) -> list[int]:
        """Let the last gradients wait until the coordinator looks: half a cycle on average.

        Those before are waited for beside the backward pass, or while others are reduced.
        """
        row = self.builder.add_cost([Phase(self.plan.cycle / 2)])
        self.wires.dimension_of_row[row] = "data"
        streams = tuple(team.stream("coordinator", r) for r in mine)
        ends.append(End("wait for cycle", row, streams, tuple(ready), team.multiplicity))
        return [number + len(ends) - 1]

    def _ready(self, copies: Copies, chunk: int, r: int, bucket: Bucket) -> int:
        """Return the task that completes a bucket, of the last micro-batch."""
        blocks = copies.chunks[chunk]
        if not self.plan.overlap:
            return copies.last(r, (BACKWARD, WEIGHTS), chunk)
        made = blocks.part.graph.ops[bucket.ready].outputs
        tensor = next(name for name in made if name in bucket.tensors)
        return int(copies.task(tensor, chunk, r)[-1])

    def _tie(
        self,
        tie: Tie,
        played: list[Copies],
        ends: list[End],
        number: int,
        waits: dict[tuple[int, int], list[int]],
    ) -> None:
        """Add up the gradients of a weight that several stages hold."""
        parts = [divmod(part, self.plan.pipeline) for part in sorted(tie.gradients)]
        stages = sorted({stage for _, stage in parts})
        pipeline = self.mesh.order.index("pipeline")
        groups = np.stack(
            [np.take(self.mesh.ranks, stage, axis=pipeline).ravel() for stage in stages], axis=1
        )
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
