"""Rank groups: devices that are simulated together, and the blocks of tasks that they run.

A team is the devices of one pipeline stage that go in lock step because every op is divided between
them; where equal devices are simulated once, it is one simulated rank that stands for all of them,
and where stages have unlike numbers of replicas, a replica.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ridgeline.engine.blocks import Block
from ridgeline.engine.builder import ProgramBuilder
from ridgeline.engine.program import Ints
from ridgeline.parallel.comm.comm_cost import Talk
from ridgeline.parallel.plan.layers import kind_of
from ridgeline.parallel.plan.mesh import Ranks
from ridgeline.parallel.sharding.experts import LOADS
from ridgeline.parallel.sharding.kv_head_replication import NEIGHBOURS
from ridgeline.parallel.sharding.spatial import PAIRS
from ridgeline.workload.graph import Op

COLLECTIVE = "collective"


def stream_of(dimension: str) -> str:
    """Name of the queue of a rank's communication along a dimension, or a level of it."""
    kind = kind_of(dimension)
    return "network" if kind in {"data", "beyond"} else f"network-{kind}"


@dataclass
class RankGroup:
    """One or several simulated ranks of a stage.

    Attributes
    ----------
    stage
        Number of the pipeline stage.
    members
        For every simulated rank the real ones that it stands for, itself first.
    replica, replicas
        Which of so many replicas of the stage it is, whose turn is every so many micro-batches;
        None: all replicas go in lock step, each with micro-batches of its own.
    carried
        Slots of a step that it does at the beginning of the next (`PipelineSchedule.carried`).
    ranks
        Numbers of the simulated ranks in the program.
    """

    builder: ProgramBuilder
    stage: int
    members: tuple[tuple[int, ...], ...]
    replica: int | None = None
    replicas: int = 1
    carried: int = 0
    ranks: list[int] = field(default_factory=list)
    _streams: dict[tuple[str, int], int] = field(default_factory=dict)
    _groups: dict[int, tuple[Ranks, list[tuple[int, list[int]]]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for members in self.members:
            self.ranks.append(self.builder.add_rank(len(members)))
        for r in range(len(self.members)):
            self.stream("compute", r)

    def share(self, micro_batches: int) -> Ints:
        """Return which micro-batches the team works on."""
        return np.arange(self.replica or 0, micro_batches, self.replicas)

    def __len__(self) -> int:
        return len(self.members)

    def of_groups(self, groups: Ranks) -> Iterator[tuple[int, list[int]]]:
        """Yield the groups that the team's ranks are in: their number, and these ranks."""
        known = self._groups.get(id(groups))
        if known is None or known[0] is not groups:
            known = self._groups[id(groups)] = groups, self._of_groups(groups)
        yield from known[1]

    def _of_groups(self, groups: Ranks) -> list[tuple[int, list[int]]]:
        """Find the groups; those whose members are equivalent to a group's are that one."""
        group_of = np.full(int(groups.max()) + 1, -1)
        group_of[groups] = np.arange(len(groups))[:, np.newaxis]
        stand_in = {rank: r for r, members in enumerate(self.members) for rank in members}
        found: dict[int, list[int]] = {}
        placed: set[int] = set()
        for r, members in enumerate(self.members):
            if r in placed or members[0] >= len(group_of) or group_of[members[0]] < 0:
                continue
            which = int(group_of[members[0]])
            mine = sorted({stand_in[rank] for rank in groups[which].tolist() if rank in stand_in})
            found[which] = mine
            placed.update(mine)
        return sorted(found.items())

    def multiplicity(self, r: int) -> int:
        """Return how many real ranks a simulated one stands for."""
        return len(self.members[r])

    def times(self, mine: Sequence[int], size: int) -> int:
        """Return how many groups of so many ranks these simulated ranks stand for."""
        return max(1, sum(len(self.members[r]) for r in mine) // size)

    @property
    def queues(self) -> Mapping[tuple[str, int], int]:
        """Queues that were asked for, in that order: name and rank, and number."""
        return self._streams

    def stream(self, name: str, r: int) -> int:
        """Return a queue of one simulated rank, which is made when it is first asked for."""
        if (name, r) not in self._streams:
            self._streams[name, r] = self.builder.add_stream(
                f"device{self.members[r][0]}/{name}", self.ranks[r]
            )
        return self._streams[name, r]


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """A collective of a block: what it is, whichever team plays it.

    Attributes
    ----------
    op, size_bytes, repeat
        As `Wires.collective`.
    dimension
        Of the plan.
    neighbours
        Size of the parts of each group that it goes on in; 0: the whole group.
    places
        Of its tasks in the block: one for each group that ranks of the team are in.
    """

    op: str
    dimension: str
    size_bytes: float
    repeat: int = 1
    neighbours: int = 0
    places: tuple[int, ...] = ()

    @classmethod
    def of(cls, op: Op) -> CollectiveCall:
        """Return the collective that an op of a divided graph stands for."""
        attrs = dict(op.attrs)
        return cls(
            " ".join([op.kind, *(str(attrs[name]) for name in (PAIRS, LOADS) if name in attrs)]),
            str(attrs["dimension"]),
            float(attrs["size_bytes"]),
            int(attrs["repeat"]),
            int(attrs.get(NEIGHBOURS, 0)),
        )

    @property
    def kind(self) -> str:
        """Name of the collective, without what it is made of."""
        return self.op.partition(" ")[0]


class EnqueuedCollective(NamedTuple):
    """Where a collective of some ranks is played.

    Attributes
    ----------
    row
        Its cost row.
    stream, group
        Queue of the first of the ranks; queues of all, -1: it is the only one.
    multiplicity
        How many such collectives it stands for.
    talk
        What it is.
    """

    row: int
    stream: int
    group: int
    multiplicity: int
    talk: Talk


@dataclass
class TeamBlock(Block):
    """A block of a team, which knows its collectives."""

    sent: list[CollectiveCall] = field(default_factory=list)


@dataclass
class EmittedBlock:
    """A block with the places that others have to know.

    Attributes
    ----------
    block
        The tasks.
    made
        Of every tensor that the block makes, the place of the task that makes it, by rank.
    tail
        Place of the last compute task, by rank; a port where the block computes nothing.
    waits
        The first of the ports of what it waits for besides.
    """

    block: TeamBlock
    made: dict[str, tuple[int, ...]]
    tail: tuple[int, ...]
    waits: int
