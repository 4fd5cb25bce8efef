"""Point-to-point messages between pipeline stages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ridgeline.engine.blocks import NOTHING, Block, port
from ridgeline.engine.builder import WorkPhase
from ridgeline.engine.program import Ints
from ridgeline.parallel.comm.comm_cost import Talk
from ridgeline.parallel.emit.async_pipeline import period_before
from ridgeline.parallel.emit.block_emitter import BlockEmitter
from ridgeline.parallel.emit.microbatch_instances import Blocks, Copies
from ridgeline.parallel.emit.rank_group import COLLECTIVE, RankGroup
from ridgeline.parallel.partition.pipeline_partition import Receipt
from ridgeline.parallel.plan.resolved import ResolvedPlan
from ridgeline.parallel.schedule import SCHEDULES
from ridgeline.parallel.sharding.divide import ShardedGraph


class Messages:
    """Writes what stages send each other.

    Parameters
    ----------
    sharded
        How the graph is divided.
    endless
        Whether what a stage waits for was sent in the period before.
    """

    def __init__(
        self, plan: ResolvedPlan, writer: BlockEmitter, sharded: ShardedGraph, *, endless: bool
    ) -> None:
        self.plan, self.sharded, self.endless = plan, sharded, endless
        self.builder, self.wires, self.mesh = writer.builder, writer.wires, writer.mesh

    def write(self, played: Sequence[Copies], number: int) -> list[tuple[Block, Ints, Ints]]:
        """Return (block, first tasks, ports) of each kind, and let their receivers wait for them.

        Parameters
        ----------
        number
            Of the first task.
        """
        messages = []
        for copies in played:
            for chunk, blocks in enumerate(copies.chunks):
                for phase, receipts in blocks.receipts.items():
                    rows = copies.rows(phase, chunk)
                    for q, receipt in enumerate(receipts):
                        came = np.full((len(copies.team), self.plan.micro_batches), NOTHING)
                        for found in self._received(copies, blocks, receipt, played, number, came):
                            messages.append(found)
                            number += len(found[1])
                        for r, of_rank in enumerate(came):
                            first = (q + 1) * len(copies.team) + r
                            copies.ports[rows, first] = of_rank[copies.micro_batch[rows]]
        return messages

    def _received(
        self,
        copies: Copies,
        blocks: Blocks,
        receipt: Receipt,
        played: Sequence[Copies],
        number: int,
        came: Ints,
    ) -> list[tuple[Block, Ints, Ints]]:
        """Write what one team gets of a receipt; `came` is told of each micro-batch what brings it.

        Each micro-batch comes from the replica that works on it.
        """
        found = []
        own = copies.team.share(self.plan.micro_batches)
        chunk, stage = SCHEDULES[self.plan.schedule].place(receipt.source, self.plan.pipeline)
        for source in (one for one in played if one.team.stage == stage):
            theirs = source.team.share(self.plan.micro_batches)
            both = np.intersect1d(own, theirs)
            for r in range(len(copies.team) if len(both) else 0):
                made = [source.task(name, chunk, r) for name in receipt.tensors]
                every = np.unique(np.stack(made, axis=1), axis=1)
                if self.endless:
                    every[theirs] = period_before(every[theirs])
                block = self._message(blocks, receipt, source.team, copies.team, r, every.shape[1])
                first = number + np.arange(len(both))
                number += len(both)
                came[r, both] = first
                found.append((block, first, every[both]))
        if self.endless:
            came[:, own] = period_before(came[:, own].T).T
        return found

    def _message(
        self,
        blocks: Blocks,
        receipt: Receipt,
        source: RankGroup,
        target: RankGroup,
        r: int,
        makers: int,
    ) -> Block:
        """Write one task: what a rank sends to the one at its place in another stage.

        It waits for so many tasks, which may be fewer than tensors: one op can make several.
        """
        gathered = self.gathered([receipt])
        size = sum(
            blocks.part.graph.tensors[n].bytes / (self.plan.tensor if n in gathered else 1)
            for n in receipt.tensors
        )
        ends = [self.mesh.replica(team.stage, team.replica) for team in (source, target)]
        which = int(np.flatnonzero(ends[0] == source.members[r][0])[0])
        if source.stage == target.stage:
            row = self.builder.add_cost([WorkPhase()])
        else:
            row = self.wires.message(ends[0], ends[1], which, size)
        block = Block()
        more = f" +{len(receipt.tensors) - 1}" if len(receipt.tensors) > 1 else ""
        label = f"send {receipt.tensors[0]}{more}"
        if source.stage != target.stage:
            self.wires.talks[row, label] = Talk("send", size, 2)
        self.builder.add_to_block(
            block,
            COLLECTIVE,
            label,
            cost=row,
            stream=source.stream(f"network-to-stage{target.stage}", r),
            deps=[port(k) for k in range(makers)],
            multiplicity=source.multiplicity(r),
        )
        return block

    def gathered(self, receipts: Sequence[Receipt]) -> frozenset[str]:
        """Tensors that the ranks of a stage have alike: each sends a part, which is gathered."""
        if self.plan.tensor == 1:
            return frozenset()
        pieces = self.plan.stack.pipeline.p2p_scatter_gather
        names = (
            name
            for receipt in receipts
            if pieces == "both" or (pieces == "forward" and receipt.forward)
            for name in receipt.tensors
        )
        return frozenset(name for name in names if name not in self.sharded.divided)
