"""Micro-batch instances: the blocks of one stage part, and where they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ridgeline.engine.blocks import NOTHING
from ridgeline.engine.program import Ints
from ridgeline.parallel.emit.buckets import Bucket
from ridgeline.parallel.emit.rank_group import EmittedBlock, RankGroup
from ridgeline.parallel.memory.allocator import Life
from ridgeline.parallel.partition.pipeline_partition import Receipt, StagePart
from ridgeline.parallel.schedule import PHASES

FORWARD, BACKWARD, WEIGHTS = range(len(PHASES))
BEGIN, END = len(PHASES), len(PHASES) + 1
"""What is done once, before and after."""


@dataclass
class Blocks:
    """The blocks of one part of the model on one team.

    Attributes
    ----------
    pieces
        By phase, for the first micro-batch and for the others, which add to its gradients.
    receipts
        By phase, what comes from other stages.
    begun
        What is gathered at the beginning of the step, together.
    buckets
        Gradients that are reduced together at the end of the step, by dimension.
    n_waits
        How much the updates wait for: collectives at the end.
    held
        Bytes that are held from the beginning, by kind.
    left
        Bytes that the forward pass of a micro-batch leaves, by kind.
    life
        When its tensors are there.
    """

    part: StagePart
    pieces: dict[tuple[int, bool], EmittedBlock]
    receipts: dict[int, list[Receipt]]
    begun: list[tuple[str, ...]]
    buckets: dict[str, tuple[Bucket, ...]]
    n_waits: int
    held: Mapping[str, int]
    left: Mapping[str, int]
    life: Life

    def maker(self, tensor: str) -> int:
        """Phase in which a tensor is made."""
        for phase in (FORWARD, BACKWARD, WEIGHTS):
            piece = self.pieces.get((phase, False))
            if piece is not None and tensor in piece.made and piece.made[tensor][0] >= 0:
                return phase
        raise KeyError(tensor)


@dataclass
class Copies:
    """Where the blocks of one team are played: one entry for each copy, in order."""

    team: RankGroup
    chunks: list[Blocks]
    pieces: list[EmittedBlock]
    order: Ints
    phase: Ints
    chunk: Ints
    micro_batch: Ints
    first: Ints
    ports: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    def rows(self, phase: int, chunk: int) -> Ints:
        """Return the copies of one phase of a chunk."""
        return np.flatnonzero((self.phase == phase) & (self.chunk == chunk))

    def task(self, tensor: str, chunk: int, r: int) -> Ints:
        """Return [M] the task of each micro-batch that makes a tensor on a rank."""
        phase = self.chunks[chunk].maker(tensor)
        rows = self.rows(phase, chunk)
        places = (piece.made.get(tensor) for piece in self.pieces)
        place = np.array([NOTHING if at is None else at[r] for at in places])
        made = np.full(int(self.micro_batch.max()) + 1, NOTHING, np.int64)
        made[self.micro_batch[rows]] = self.first[rows] + place[self.order[rows]]
        return made

    def last(self, r: int, phases: Sequence[int], chunk: int) -> int:
        """Return the last compute task of a chunk's phases on a rank, before the step's end."""
        rows = np.flatnonzero(np.isin(self.phase, phases) & (self.chunk == chunk))
        ends = self.rows(END, chunk)
        rows = rows[rows < ends[-1]] if len(ends) else rows
        row = int(rows[-1])
        return int(self.first[row]) + self.pieces[int(self.order[row])].tail[r]
