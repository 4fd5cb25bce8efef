"""Block emitter: tasks of one rank group for one micro-batch, or once a step.

A block (`ridgeline.engine.blocks`) is compute tasks one after the other, collectives beside them.
Ports 0 ... R-1 of a block are the last compute tasks of the R ranks before it; R further ports for
everything that it receives follow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.engine.blocks import port
from ridgeline.engine.builder import ProgramBuilder, WorkPhase
from ridgeline.kernels.cache_residency import NONE_STAY, Staying
from ridgeline.parallel.checkpointing.host_updates import BACK, OUT, HostRate, is_host_update
from ridgeline.parallel.checkpointing.host_updates import HOST as HOST_BYTES
from ridgeline.parallel.checkpointing.offload import COPIES, Copying
from ridgeline.parallel.comm.comm_cost import Talk, Wires
from ridgeline.parallel.emit.buckets import BucketTraffic
from ridgeline.parallel.emit.grad_accumulation import adds, casts, sum_bytes
from ridgeline.parallel.emit.host_launches import HOST, HostEmitter, Issuing
from ridgeline.parallel.emit.memory_events import block_entries
from ridgeline.parallel.emit.rank_group import (
    COLLECTIVE,
    CollectiveCall,
    EmittedBlock,
    EnqueuedCollective,
    RankGroup,
    TeamBlock,
    stream_of,
)
from ridgeline.parallel.op_pricer import OpenRows
from ridgeline.parallel.passes.optimizer_kernels import CHUNKS, ISSUED
from ridgeline.parallel.plan.layers import kind_of
from ridgeline.parallel.plan.mesh import Mesh, Ranks
from ridgeline.parallel.sharding.inserted_ops import GRID
from ridgeline.parallel.sharding.ring_attention import HOP
from ridgeline.parallel.sharding.shard import COLLECTIVES
from ridgeline.workload.graph import Graph, Op
from ridgeline.workload.liveness import MemoryEntry, MemoryPlan
from ridgeline.workload.ops.shape import LAYOUT

SILENT = COLLECTIVES | COPIES | {LAYOUT.name}
"""Kinds of ops that the host does not issue."""
_NOTHING = BucketTraffic()


@dataclass(frozen=True)
class BlockEmitter:
    """Writes blocks of a team.

    Attributes
    ----------
    blocking
        Dimensions of the plan, and kinds, of the collectives that no op runs beside.
    host
        Issues the ops; None: is never waited for.
    host_rate
        What a device has of the host's memory; None: the host does no updates.
    """

    builder: ProgramBuilder
    rows: OpenRows
    wires: Wires
    mesh: Mesh
    blocking: frozenset[tuple[str, str]]
    host: HostEmitter | None = None
    host_rate: HostRate | None = None

    def write(
        self,
        team: RankGroup,
        graph: Graph,
        ops: Sequence[int],
        memory: MemoryPlan,
        *,
        receipts: Sequence[Sequence[str]] = (),
        gathered: Collection[str] = (),
        waits: int = 0,
        accumulated: Collection[str] = (),
        fine: bool = True,
        together: bool = False,
        moves: BucketTraffic = _NOTHING,
        checked: bool = False,
        staying: Staying = NONE_STAY,
    ) -> EmittedBlock:
        """Write what a team does with some ops of a graph.

        Parameters
        ----------
        ops
            Indices of the ops, in order.
        memory
            Of the whole graph, op by op.
        receipts
            Tensors that come by each group of ports.
        gathered
            Those of them that every rank has only a part of, and needs whole.
        waits
            Further ports that the first compute task waits for.
        accumulated
            Gradients that are added to what earlier micro-batches have made of them.
        fine
            Take and give back memory op by op; else for the whole block its fullest moment.
        together
            The host issues all of it at once, as frameworks do with updates of many tensors.
        moves
            What is read and written by copies before the first op.
        checked
            The host waits for these copies before it issues the first op.
        staying
            Which weights stay on chip over micro-batches.
        """
        block, size = TeamBlock(), len(team)
        chain = [port(r) for r in range(size)]
        made = self._received(block, team, graph, receipts, gathered)
        before = tuple(port((len(receipts) + 1) * size + k) for k in range(waits))
        inner: list[tuple[int, ...]] = []
        entries = block_entries(memory, ops, fine)
        copying = Copying()
        before = self._bucket_copies(block, team, graph.ops[ops[0]], moves, chain, before)
        awaited_first = chain if checked else None
        issuing = None if together else self._issuing(block, team, awaited_first, graph, ops)
        row_of = self.rows.of(graph, staying)
        for i, changes in zip(ops, entries, strict=True):
            op = graph.ops[i]
            copying.come_to(op)
            if op.kind in COPIES or is_host_update(op):
                after = [*(made[name] for name in op.inputs if name in made), chain]
                after += [(place,) * size for place in before]
                made.update(self._by_host(block, team, op, graph, after, changes, copying))
                continue
            if op.kind in COLLECTIVES:
                blocks = (kind_of(str(dict(op.attrs)["dimension"])), op.kind) in self.blocking
                sources = _sources(op, made, tuple(chain), blocks=blocks)
                sources += [(place,) * size for place in before]
                there = self._collective_op(block, team, op, sources, changes)
                made.update(dict.fromkeys(op.outputs, there))
                if not op.outputs:
                    inner.append(there)
                if blocks:
                    chain = list(there)
                if _in_grid(op) and not set(op.outputs).isdisjoint(accumulated):
                    self._accumulate(block, team, op, graph, op.outputs, chain, there)
                    made.update(dict.fromkeys(op.outputs, tuple(chain)))
                continue
            issued = (
                issuing.issue(op, chain)
                if issuing and op.kind != LAYOUT.name  # which the library launches
                else [()] * size
            )
            awaited = [made[name] for name in op.inputs if name in made]
            awaited += [*inner, *copying.pending]
            kept = [name for name in op.outputs if name in accumulated and not adds(op)]
            row, label, kept = self._unless_added(row_of(i), op, graph, kept)
            for r in range(size):
                needs = {chain[r], *before, *(there[r] for there in awaited), *issued[r]}
                chain[r] = self._compute(block, team, r, op, row, sorted(needs), changes, label)
            before, inner, copying.pending = (), [], []
            made.update(dict.fromkeys(op.outputs, tuple(chain)))
            if kept:
                self._accumulate(block, team, op, graph, kept, chain, chain)
                made.update(dict.fromkeys(kept, tuple(chain)))
        if last := [*copying.end(), *copying.late]:
            self._join(block, team, graph.ops[ops[-1]], last, chain)
        return EmittedBlock(block, made, tuple(chain), (len(receipts) + 1) * size)

    def _bucket_copies(
        self,
        block: TeamBlock,
        team: RankGroup,
        op: Op,
        moves: BucketTraffic,
        chain: list[int],
        before: tuple[int, ...],
    ) -> tuple[int, ...]:
        """Move gradients to their buckets and back before an op; return what it waits for yet."""
        rows = []
        if moves.size_bytes:
            rows.append(("bucket copies", self.rows.moving(moves.size_bytes, moves.kernels)))
        if moves.chunked_bytes:
            rows.append(("clipping", self.rows.moving(moves.chunked_bytes, launched=CHUNKS)))
        if not rows:
            return before
        issuing = self._issuing(block, team, None)
        issued: Sequence[tuple[int, ...]] = [()] * len(team)
        if issuing:
            issued = issuing.add("bucket copies", last=True, count=ISSUED * moves.kernels)
        for label, row in rows:
            for r in range(len(team)):
                deps = sorted({chain[r], *before, *issued[r]})
                chain[r] = self._compute(block, team, r, op, row, deps, (), label)
        return ()

    def _received(
        self,
        block: TeamBlock,
        team: RankGroup,
        graph: Graph,
        receipts: Sequence[Sequence[str]],
        gathered: Collection[str],
    ) -> dict[str, tuple[int, ...]]:
        """Return where what a block receives comes from, by rank; gather what came in parts."""
        made: dict[str, tuple[int, ...]] = {}
        size = len(team)
        for q, names in enumerate(receipts):
            came = tuple(port((q + 1) * size + r) for r in range(size))
            made.update(dict.fromkeys(names, came))
            whole = [name for name in names if name in gathered]
            if whole:
                total = sum(graph.tensors[name].bytes for name in whole)
                sent = CollectiveCall("all-gather", "tensor", float(total))
                there = self._collective(block, team, sent, f"gather {whole[0]}", [came])
                made.update(dict.fromkeys(whole, there))
        return made

    def _issuing(
        self,
        block: TeamBlock,
        team: RankGroup,
        awaited: Sequence[int] | None,
        graph: Graph | None = None,
        ops: Sequence[int] = (),
    ) -> Issuing | None:
        """Begin to issue a block: at once, when a task is done, or when the device has no more."""
        if self.host is None:
            return None
        ranks = range(len(team))
        if awaited is None and self.host.waits:
            awaited = [port(r) for r in ranks]
        after: list[tuple[int, ...]] = [() if awaited is None else (awaited[r],) for r in ranks]
        streams = [team.stream(HOST, r) for r in ranks]
        many = [team.multiplicity(r) for r in ranks]
        issuing = Issuing(self.host, block, streams, many, after)
        if graph:
            issuing.begin(graph, [i for i in ops if graph.ops[i].kind not in SILENT])
        return issuing

    def _compute(
        self,
        block: TeamBlock,
        team: RankGroup,
        r: int,
        op: Op,
        row: int,
        deps: Sequence[int],
        changes: Iterable[MemoryEntry],
        label: str = "",
    ) -> int:
        return self.builder.add_to_block(
            block,
            op.pass_.value,
            label or op.name,
            cost=row,
            stream=team.stream("compute", r),
            deps=deps,
            multiplicity=team.multiplicity(r),
            memory=[(team.ranks[r], *change) for change in changes],
        )

    def _collective_op(
        self,
        block: TeamBlock,
        team: RankGroup,
        op: Op,
        deps: Sequence[Sequence[int]],
        changes: Iterable[MemoryEntry],
    ) -> tuple[int, ...]:
        """Add the collective that an op of a divided graph stands for."""
        return self._collective(block, team, CollectiveCall.of(op), op.name, deps, changes)

    def _copy(
        self,
        block: TeamBlock,
        team: RankGroup,
        op: Op,
        graph: Graph,
        deps: Sequence[Sequence[int]],
        changes: Iterable[MemoryEntry],
    ) -> tuple[int, ...]:
        """Add a copy to the host or back: each device has one engine for both."""
        size_bytes = float(graph.tensors[op.inputs[0]].bytes)
        places = []
        every = self.mesh.stage(team.stage)
        for r, members in enumerate(team.members):
            which = int(np.flatnonzero(every == members[0])[0])
            row = self.wires.copy(every, which, size_bytes, out=op.kind == "offload")
            self.wires.talks[row, op.name] = Talk("copy", size_bytes, 1)
            place = self.builder.add_to_block(
                block,
                COLLECTIVE,
                op.name,
                cost=row,
                stream=team.stream("copy", r),
                deps=tuple(dict.fromkeys(before[r] for before in deps)),
                multiplicity=team.multiplicity(r),
                memory=[(team.ranks[r], *change) for change in changes],
            )
            places.append(place)
        return tuple(places)

    def _by_host(
        self,
        block: TeamBlock,
        team: RankGroup,
        op: Op,
        graph: Graph,
        after: Sequence[Sequence[int]],
        changes: Iterable[MemoryEntry],
        copying: Copying,
    ) -> dict[str, tuple[int, ...]]:
        """Add what goes over the link to the host; return what it has made there or back."""
        if is_host_update(op):
            copying.late.append(self._update_on_host(block, team, op, after, changes))
            return {}
        there = self._copy(block, team, op, graph, [*after, *copying.pending], changes)
        copying.beside.append(there)
        return dict.fromkeys(op.outputs, there)

    def _update_on_host(
        self,
        block: TeamBlock,
        team: RankGroup,
        op: Op,
        deps: Sequence[Sequence[int]],
        changes: Iterable[MemoryEntry],
    ) -> tuple[int, ...]:
        """Add an update on the host: a gradient there, the update, weights back; queues of each."""
        assert self.host_rate is not None
        said = {name: float(value) for name, value in op.attrs if name in {HOST_BYTES, OUT, BACK}}
        every = self.mesh.stage(team.stage)
        places = []
        for r, members in enumerate(team.members):
            which = int(np.flatnonzero(every == members[0])[0])
            update_s = self.host_rate.update_s(said[HOST_BYTES])
            rows = (
                ("host-out", OUT, self.wires.copy(every, which, said[OUT], out=True)),
                ("host-update", HOST_BYTES, self.builder.add_cost([WorkPhase(update_s, {})], {})),
                ("host-back", BACK, self.wires.copy(every, which, said[BACK], out=False)),
            )
            waits = tuple(dict.fromkeys(before[r] for before in deps))
            memory = [(team.ranks[r], *change) for change in changes]
            for stream, what, row in rows:
                label = f"{op.name}.{stream}"
                self.wires.dimension_of_row[row] = "host"
                self.wires.talks[row, label] = Talk("copy", said[what], 1)
                place = self.builder.add_to_block(
                    block, COLLECTIVE, label, cost=row, stream=team.stream(stream, r), deps=waits,
                    multiplicity=team.multiplicity(r), memory=memory,
                )  # fmt: skip
                waits, memory = (place,), []
            places.append(place)
        return tuple(places)

    def _join(
        self,
        block: TeamBlock,
        team: RankGroup,
        op: Op,
        copies: list[tuple[int, ...]],
        chain: list[int],
    ) -> None:
        """Let what follows the block wait for copies that its last layer has begun."""
        row = self.rows.nothing()
        for r in range(len(team)):
            needs = sorted({chain[r], *(there[r] for there in copies)})
            chain[r] = self._compute(block, team, r, op, row, needs, (), "copies end")

    def _unless_added(
        self, row: int, op: Op, graph: Graph, kept: list[str]
    ) -> tuple[int, str, list[str]]:
        """Return the cost row and label of an op, and which gradients are yet to be added.

        What it only casts is added as it is, instead.
        """
        if not kept or not casts(op):
            return row, "", kept
        return self.rows.moving(sum_bytes(op, graph, kept)), f"{op.name}.accumulate", []

    def _accumulate(
        self,
        block: TeamBlock,
        team: RankGroup,
        op: Op,
        graph: Graph,
        kept: Sequence[str],
        chain: list[int],
        made: Sequence[int],
    ) -> None:
        """Add gradients, which are made at these places, to those of the micro-batches before."""
        row, label = self.rows.moving(sum_bytes(op, graph, kept)), f"{op.name}.accumulate"
        for r in range(len(team)):
            deps = sorted({chain[r], made[r]})
            chain[r] = self._compute(block, team, r, op, row, deps, (), label)

    def _collective(
        self,
        block: TeamBlock,
        team: RankGroup,
        sent: CollectiveCall,
        label: str,
        deps: Sequence[Sequence[int]],
        changes: Iterable[MemoryEntry] = (),
    ) -> tuple[int, ...]:
        """Add a collective of each group of a team's devices; return its place for every rank.

        Parameters
        ----------
        deps
            Places that it waits for, each by rank.
        """
        places = [0] * len(team)
        written = []
        for mine, queued in self.queued(team, sent):
            self.wires.talks[queued.row, label] = queued.talk
            place = self.builder.add_to_block(
                block,
                COLLECTIVE,
                label,
                cost=queued.row,
                stream=-1 if queued.group >= 0 else queued.stream,
                group=queued.group,
                deps=tuple(dict.fromkeys(before[r] for before in deps for r in mine)),
                multiplicity=queued.multiplicity,
                memory=[(team.ranks[r], *change) for r in mine for change in changes],
            )
            written.append(place)
            for r in mine:
                places[r] = place
        block.sent.append(replace(sent, places=tuple(written)))
        return tuple(places)

    def queued(
        self, team: RankGroup, sent: CollectiveCall
    ) -> Iterator[tuple[list[int], EnqueuedCollective]]:
        """Yield the ranks of a team that are in a group of a collective, and where it is played."""
        groups = self.groups(team, sent.dimension, sent.neighbours)
        name = stream_of(sent.dimension)
        for which, mine in team.of_groups(groups):
            row, _ = self.wires.collective(
                sent.op, groups, which, sent.size_bytes, sent.dimension, sent.repeat
            )
            streams = [team.stream(name, r) for r in mine]
            group = -1 if len(streams) == 1 else self.builder.add_group(streams)
            many = team.times(mine, groups.shape[1])
            talk = Talk(sent.kind, sent.size_bytes * sent.repeat, groups.shape[1])
            yield mine, EnqueuedCollective(row, streams[0], group, many, talk)

    def groups(self, team: RankGroup, dimension: str, neighbours: int = 0) -> Ranks:
        """Return the groups of a team's stage along a dimension of the plan, or parts of them."""
        return self.mesh.groups(team.stage, *self.mesh.along(dimension), neighbours=neighbours)


def _sources(
    op: Op, made: Mapping[str, tuple[int, ...]], chain: tuple[int, ...], *, blocks: bool
) -> list[tuple[int, ...]]:
    """Return what a collective waits for: what it reads, and all before it where that is said."""
    sources = [made[name] for name in op.inputs if name in made] or [chain]
    if blocks or op.kind == HOP:  # which fills the buffer of the step before
        sources.append(chain)
    return sources


def _in_grid(op: Op) -> bool:
    """Whether a collective is between the rows or the columns of a grid."""
    return dict(op.attrs)["dimension"] in GRID
