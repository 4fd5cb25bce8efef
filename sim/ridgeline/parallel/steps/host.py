"""The host's side of a block: it issues the ops of a device one after another.

A framework that runs op by op spends some time of one processor core on each (Python, dispatch,
autograd, the driver's launch), ahead of the device. While ops are longer than that, nothing is seen
of it; a step of small ops takes as long as issuing them. Ops are issued a few at a time here, which
is what a block's program grows by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.engine.blocks import Block
from ridgeline.engine.builder import Phase, ProgramBuilder

ISSUE = "issue"
"""Kind of the host's tasks."""
HOST = "host"
"""Name of the queue of a rank's host thread."""
_TOGETHER = 8


@dataclass
class Host:
    """Writes the host's tasks of all blocks.

    Attributes
    ----------
    issue_s
        Of one op; 0 where the host is never waited for.
    waits
        Whether the host waits for the device before every block, as Megatron-LM does around the
        messages of a pipeline.
    updating
        Time to issue an op of an update, over that of another.
    """

    builder: ProgramBuilder
    issue_s: float
    waits: bool
    updating: float

    def row(self, count: float) -> int:
        """Return the cost row of issuing so many ops."""
        return self.builder.add_cost([Phase(count * self.issue_s, {})], {})


@dataclass
class Issuing:
    """The host's queues while one block is written.

    Attributes
    ----------
    streams, multiplicity
        The host's queue of each simulated rank, and how many real ranks each stands for.
    after
        By rank, what the host waits for before it begins.
    """

    host: Host
    block: Block
    streams: Sequence[int]
    multiplicity: int
    after: Sequence[Sequence[int]]
    pending: float = 0.0

    def add(self, label: str, *, last: bool, count: float = 1.0) -> list[tuple[int, ...]]:
        """Issue one more op, or so many; return by rank what it has to wait for."""
        self.pending += count
        if self.pending < _TOGETHER and not last:
            return [()] * len(self.streams)
        row = self.host.row(self.pending)
        places = [
            self.host.builder.add_to_block(
                self.block,
                ISSUE,
                label,
                cost=row,
                stream=stream,
                deps=deps,
                multiplicity=self.multiplicity,
            )
            for stream, deps in zip(self.streams, self.after, strict=True)
        ]
        self.pending = 0.0
        self.after = [(place,) for place in places]
        return [(place,) for place in places]
