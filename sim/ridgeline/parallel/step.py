"""One training step as tasks: blocks of every stage, their copies, messages and reductions.

Tasks are numbered in this order: the copies of all teams, the messages between stages, the
collectives at the end of the step. So the number of everything is known before it is written, and a
block may wait for what has a higher number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from ridgeline.engine.blocks import NOTHING, Block, lengths, port
from ridgeline.engine.builder import Phase
from ridgeline.engine.program import Ints
from ridgeline.parallel.buckets import Bucket, gradient_buckets
from ridgeline.parallel.copies import BACKWARD, BEGIN, END, FORWARD, WEIGHTS, Blocks, Copies
from ridgeline.parallel.divide import Divided, roots
from ridgeline.parallel.endless import is_endless, period_before, steady_orders, under_way
from ridgeline.parallel.experts import expert_weights
from ridgeline.parallel.labels import base
from ridgeline.parallel.offload import with_offload
from ridgeline.parallel.partition import Partition, Receipt
from ridgeline.parallel.plan import Plan
from ridgeline.parallel.schedules import SCHEDULES, SlotArrays, slot_arrays
from ridgeline.parallel.shard import COLLECTIVES
from ridgeline.parallel.step_end import Ends
from ridgeline.parallel.team import COLLECTIVE, Piece, Team, Writer
from ridgeline.parallel.wires import Talk
from ridgeline.parallel.zero import SHARD, with_sharding
from ridgeline.workload.autodiff import weight_gradients
from ridgeline.workload.graph import Graph, Op, Pass, Role, Same
from ridgeline.workload.liveness import MEMORY_KINDS, memory_entries

_FINE = 100_000  # tasks up to which memory is followed op by op, not block by block


class Step:
    """Writes all tasks of one step.

    Parameters
    ----------
    sharded
        How the graph is divided.
    fold
        Simulate one of each class of equivalent ranks.
    """

    def __init__(
        self, plan: Plan, writer: Writer, cut: Partition, sharded: Divided, *, fold: bool
    ) -> None:
        self.plan, self.writer, self.cut, self.sharded = plan, writer, cut, sharded
        self.builder, self.wires, self.mesh = writer.builder, writer.wires, writer.mesh
        self.ends = Ends(plan, writer, cut)
        self.unlike = False
        self.endless = is_endless(plan.schedule, plan.pipeline)
        self.splits = plan.pipeline > 1 and SCHEDULES[plan.schedule].splits_backward
        n_tasks = sum(len(part.graph.ops) for part in cut.parts) * plan.micro_batches
        self.fine = n_tasks <= _FINE
        self.teams = [
            Team(self.builder, stage, self._members(stage, fold)) for stage in range(plan.pipeline)
        ]

    def _members(self, stage: int, fold: bool) -> tuple[tuple[int, ...], ...]:
        """Return the ranks that each simulated rank of a stage stands for."""
        ranks = self.mesh.stage(stage).tolist()
        if not fold:
            return tuple((rank,) for rank in ranks)
        first = self._slowest(stage)
        return ((first, *(rank for rank in ranks if rank != first)),)

    def _slowest(self, stage: int) -> int:
        """Return a rank whose groups inside a node are the slowest, which all others wait for.

        On most machines all are alike; where they are not (cube meshes), the rank stands for the
        others as an upper bound, and the step says so (`unlike`).
        """
        ranks = self.mesh.stage(stage)
        total_s = dict.fromkeys(ranks.tolist(), 0.0)
        for dimension in ("tensor", "context", "data"):
            for time_s, group in self.wires.inside_times(self.mesh.groups(stage, dimension)):
                for rank in group:
                    total_s[rank] += time_s
        slowest: int = max(total_s, key=lambda rank: (total_s[rank], -rank))
        self.unlike = self.unlike or total_s[slowest] > min(total_s.values()) * (1 + 1e-9)
        return slowest

    def write(self) -> None:
        """Write the whole step."""
        slots = self._slots()
        played: list[Copies] = []
        number = self.builder.n_tasks
        for team in self.teams:
            chunks = [self._blocks(team, chunk) for chunk in range(self.plan.chunks)]
            self._hold(team, chunks)
            played.append(self._arrange(team, chunks, slots, number))
            sizes = lengths([piece.block for piece in played[-1].pieces])
            number += int(sizes[played[-1].order].sum())
        messages = self._messages(played, number)
        number += sum(len(first) for _, first, _ in messages)
        ends = self.ends.collect(played, number)
        if self.endless:  # sums of the period before, in order
            ends = [replace(end, deps=tuple(d for d in end.deps if d >= number)) for end in ends]
        for copies in played:
            blocks = [piece.block for piece in copies.pieces]
            self.builder.add_copies(blocks, copies.order, copies.first, copies.ports)
        for block, first, ports in messages:
            self.builder.add_copies([block], np.zeros(len(first), np.int64), first, ports)
        for end in ends:
            self.ends.add(end)

    def _slots(self) -> SlotArrays:
        plan = self.plan
        if self.endless:
            return slot_arrays(steady_orders(plan.pipeline, plan.micro_batches))
        name = plan.schedule if plan.pipeline > 1 or plan.schedule == "gpipe" else "1f1b"
        return slot_arrays(SCHEDULES[name](plan.pipeline, plan.micro_batches, plan.chunks))

    # Blocks

    def _blocks(self, team: Team, chunk: int) -> Blocks:
        """Write the blocks of one part of the model."""
        number = chunk * self.plan.pipeline + team.stage
        plan, part = self.plan, self.cut.parts[number]
        graph = with_offload(part.graph, plan.offload)
        holders = self._holders(graph)
        graph = self._shared(graph, holders)
        if self.splits:
            graph = _as_played(Same(graph))
        part = replace(part, graph=graph)
        persist = plan.micro_batches > 1
        kept = self._sent(number) if plan.keep_outputs else frozenset()
        memory = memory_entries(graph, gradients_persist=persist, kept=kept)
        phases = _phases(graph, self.splits)
        receipts = {
            FORWARD: [receipt for receipt in part.receipts if receipt.forward],
            BACKWARD: [receipt for receipt in part.receipts if not receipt.forward],
        }
        buckets = self._buckets(graph, holders) if plan.sharding < 2 else {}
        ties = [tie for tie in self.cut.ties if number in tie.gradients]
        n_waits = len(ties) * len(team) + sum(
            len(list(team.of_groups(self.writer.groups(team, along)))) for along in buckets
        )
        gradients = frozenset(weight_gradients(graph).values()) if persist else frozenset()
        once = [graph.ops[i].outputs for i in phases.get(BEGIN, ()) if _sends(graph.ops[i])]
        pieces: dict[tuple[int, bool], Piece] = {}
        for phase, ops in phases.items():
            begun = once if phase == FORWARD else []
            differs = begun or phase in {BACKWARD, WEIGHTS}
            for later in (False, True) if differs and persist else (False,):
                came = [receipt.tensors for receipt in receipts.get(phase, ())]
                pieces[phase, later] = self.writer.write(
                    team,
                    graph,
                    ops,
                    memory,
                    receipts=came if later else [*came, *begun],
                    gathered=self._gathered(receipts.get(phase, ())),
                    waits=n_waits if phase == END else 0,
                    accumulated=gradients if later else (),
                    fine=self.fine,
                    together=phase in {BEGIN, END},
                )
        held = Counter(memory.initial)
        if self.endless:
            forward = [memory.entries[i] for i in phases.get(FORWARD, ())]
            held.update(under_way(plan.schedule, team.stage, plan.pipeline, graph, forward))
        return Blocks(part, pieces, receipts, once, buckets, n_waits, held)

    def _sent(self, number: int) -> frozenset[str]:
        """Tensors that a part of the model sends to others in the forward pass."""
        receipts = [r for part in self.cut.parts for r in part.receipts]
        sent = (r.tensors for r in receipts if r.forward and r.source == number)
        return frozenset(name for names in sent for name in names)

    def _holders(self, graph: Graph) -> dict[str, frozenset[str]]:
        """Weights, and copies of them, by the dimension along which ranks hold the same.

        Experts are held by fewer ranks than all else, and layers that divide samples where others
        divide features by more. The last has all that no other has.
        """
        of_weights = {Role.WEIGHT, Role.WEIGHT_COPY}
        rest = frozenset(t.name for t in graph.tensors.values() if t.role in of_weights)
        found: dict[str, frozenset[str]] = {}
        if self.plan.expert > 1:
            found["beyond"] = expert_weights(graph) & rest
        root = roots(graph)
        for level in sorted(set(self.sharded.apart.values())):
            alike = {w for w in rest if self.sharded.apart.get(root.get(w, w)) == level}
            found[f"data.{level}"] = frozenset(alike)
        found = {along: weights for along, weights in found.items() if weights}
        return {**found, "data": rest.difference(*found.values())}

    def _replicas(self, along: str) -> int:
        """Ranks that hold the same weights along a dimension."""
        return int(self.mesh.groups(0, *self.mesh.along(along)).shape[1])

    def _shared(self, graph: Graph, holders: dict[str, frozenset[str]]) -> Graph:
        """Let the ranks that hold the same weights share them, as the plan says."""
        for along, weights in holders.items():
            others = frozenset().union(*holders.values()) - weights
            graph = with_sharding(
                graph, self.plan.sharding, self._replicas(along), self.plan.bucket,
                dimension=along, without=others,
            )  # fmt: skip
        return graph

    def _buckets(
        self, graph: Graph, holders: dict[str, frozenset[str]]
    ) -> dict[str, tuple[Bucket, ...]]:
        """Gradients to be reduced at the end, by the dimension whose ranks hold the weight."""
        of = {weight: along for along, weights in holders.items() for weight in weights}
        along_of = {  # an update may read a part of a weight, by another name
            gradient: of.get(weight) or of.get(base(weight), "data")
            for weight, gradient in weight_gradients(graph).items()
        }
        found = {}
        for along in holders:
            others = frozenset(g for g, other in along_of.items() if other != along)
            if self._replicas(along) > 1:
                found[along] = gradient_buckets(graph, self.plan.bucket, others)
        return {along: buckets for along, buckets in found.items() if buckets}

    def _hold(self, team: Team, chunks: list[Blocks]) -> None:
        """Say what the ranks of a team hold from the beginning, of all chunks together."""
        for kind in MEMORY_KINDS:
            size = sum(blocks.held.get(kind, 0) for blocks in chunks)
            reserved = round(self.plan.reserved) if kind == "workspace" else 0
            for rank in team.ranks:
                self.builder.set_initial_memory(rank, kind, size + reserved)

    def _gathered(self, receipts: Sequence[Receipt]) -> frozenset[str]:
        """Tensors that the ranks of a stage have alike: each sends a part, which is gathered."""
        if self.plan.tensor == 1:
            return frozenset()
        pieces = self.plan.pieces
        names = (
            name
            for receipt in receipts
            if pieces == "both" or (pieces == "forward" and receipt.forward)
            for name in receipt.tensors
        )
        return frozenset(name for name in names if name not in self.sharded.divided)

    # Copies

    def _arrange(self, team: Team, chunks: list[Blocks], slots: SlotArrays, number: int) -> Copies:
        """Put the blocks of a team in the order of the schedule, and number their tasks."""
        pieces: list[Piece] = []
        index = np.full((END + 1, len(chunks), 2), NOTHING, np.int64)
        for c, blocks in enumerate(chunks):
            for (kind, later), piece in blocks.pieces.items():
                index[kind, c, int(later) :] = len(pieces)
                pieces.append(piece)
        of_stage = slice(int(slots.stage_ptr[team.stage]), int(slots.stage_ptr[team.stage + 1]))
        once = np.arange(len(chunks))
        phase = np.concatenate(
            (np.full(len(once), BEGIN), slots.phase[of_stage], np.full(len(once), END))
        ).astype(np.int64)
        chunk = np.concatenate((once, slots.chunk[of_stage], once)).astype(np.int64)
        zero = np.zeros(len(once), np.int64)
        micro_batch = np.concatenate((zero, slots.micro_batch[of_stage], zero)).astype(np.int64)
        order = index[phase, chunk, (micro_batch > 0).astype(np.int64)]
        there = order != NOTHING
        order, phase, chunk, micro_batch = (a[there] for a in (order, phase, chunk, micro_batch))
        sizes = lengths([piece.block for piece in pieces])[order]
        first = number + np.cumsum(sizes) - sizes
        copies = Copies(team, chunks, pieces, order, phase, chunk, micro_batch, first)
        copies.ports = np.full((len(order), self._n_ports(team, chunks)), NOTHING, np.int64)
        for r in range(len(team)):
            tail = np.array([piece.tail[r] for piece in pieces], np.int64)[order]
            last = np.where(tail >= 0, first + tail, NOTHING)
            copies.ports[1:, r] = np.maximum.accumulate(last)[:-1]
        for c, blocks in enumerate(chunks):
            self._connect_beginning(copies, c, blocks)
        return copies

    def _connect_beginning(self, copies: Copies, chunk: int, blocks: Blocks) -> None:
        """Let the first forward block wait for what is gathered at the beginning of the step."""
        if not blocks.begun:
            return
        begin, first = int(copies.rows(BEGIN, chunk)[0]), int(copies.rows(FORWARD, chunk)[0])
        piece, size = copies.pieces[int(copies.order[begin])], len(copies.team)
        for q, names in enumerate(blocks.begun, start=len(blocks.receipts[FORWARD])):
            for r, place in enumerate(piece.made[names[0]]):
                copies.ports[first, (q + 1) * size + r] = copies.first[begin] + place

    def _n_ports(self, team: Team, chunks: list[Blocks]) -> int:
        most = max(
            len(part) + len(blocks.begun) for blocks in chunks for part in blocks.receipts.values()
        )
        waits = max(blocks.n_waits for blocks in chunks)
        return len(team) * (most + 2) + waits

    # Messages

    def _messages(self, played: list[Copies], number: int) -> list[tuple[Block, Ints, Ints]]:
        """Write the messages between stages: (block, first tasks, ports) of each kind."""
        messages = []
        for copies in played:
            size = len(copies.team)
            for chunk, blocks in enumerate(copies.chunks):
                for phase, receipts in blocks.receipts.items():
                    rows = copies.rows(phase, chunk)
                    for q, receipt in enumerate(receipts):
                        from_chunk, stage = divmod(receipt.source, self.plan.pipeline)
                        source = played[stage]
                        for r in range(size):
                            made = [source.task(n, from_chunk, r) for n in receipt.tensors]
                            ports = np.unique(np.stack(made, axis=1), axis=1)
                            if self.endless:
                                ports = period_before(ports)
                            n_ports = ports.shape[1]  # one task may make several tensors
                            block = self._message(
                                blocks, receipt, source.team, copies.team, r, n_ports
                            )
                            first = number + np.arange(len(ports))
                            messages.append((block, first, ports))
                            came = period_before(first) if self.endless else first
                            copies.ports[rows, (q + 1) * size + r] = came[copies.micro_batch[rows]]
                            number += len(ports)
        return messages

    def _message(
        self, blocks: Blocks, receipt: Receipt, source: Team, target: Team, r: int, n_ports: int
    ) -> Block:
        """Write one task: what a rank sends to the one at its place in another stage."""
        gathered = self._gathered([receipt])
        size = sum(
            blocks.part.graph.tensors[n].bytes / (self.plan.tensor if n in gathered else 1)
            for n in receipt.tensors
        )
        pipeline = self.mesh.order.index("pipeline")
        ends = [
            np.take(self.mesh.ranks, team.stage, axis=pipeline).ravel() for team in (source, target)
        ]
        which = int(np.flatnonzero(ends[0] == source.members[r][0])[0])
        if source.stage == target.stage:
            row = self.builder.add_cost([Phase()])
        else:
            row = self.wires.message(ends[0], ends[1], which, size)
        block = Block()
        more = f" +{len(receipt.tensors) - 1}" if len(receipt.tensors) > 1 else ""
        label = f"send {receipt.tensors[0]}{more}"
        if source.stage != target.stage:
            self.wires.talks[row, label] = Talk("send", size)
        self.builder.add_to_block(
            block,
            COLLECTIVE,
            label,
            cost=row,
            stream=source.stream(f"network-to-stage{target.stage}", r),
            deps=[port(k) for k in range(n_ports)],
            multiplicity=source.multiplicity,
        )
        return block


def _phases(graph: Graph, splits: bool) -> dict[int, list[int]]:
    """Ops of a part by phase, in order.

    Where the backward pass is split, what it reads of the gradients of weights is made in it.
    """
    phase_of = [END] * len(graph.ops)
    read: set[str] = set()  # by the ops of the backward pass that follow
    for i in reversed(range(len(graph.ops))):
        op = graph.ops[i]
        if op.pass_ is Pass.FORWARD:
            phase_of[i] = BEGIN if _begins(op, graph) else FORWARD
        elif op.pass_ is not Pass.UPDATE:
            waits = splits and op.pass_ is Pass.WEIGHT_GRADIENT and read.isdisjoint(op.outputs)
            phase_of[i] = WEIGHTS if waits else BACKWARD
            if not waits:
                read.update(op.inputs)
    phases: dict[int, list[int]] = {p: [] for p in (BEGIN, FORWARD, BACKWARD, WEIGHTS, END)}
    for i, phase in enumerate(phase_of):
        phases[phase].append(i)
    return {phase: ops for phase, ops in phases.items() if ops}


@lru_cache(maxsize=64)
def _as_played(same: Same) -> Graph:
    """Put the gradients of weights behind the backward pass: so long does what they read live."""
    graph = same.graph
    order = [i for ops in _phases(graph, True).values() for i in ops]
    return replace(graph, ops=tuple(graph.ops[i] for i in order))


def _sends(op: Op) -> bool:
    return op.kind in COLLECTIVES


def _begins(op: Op, graph: Graph) -> bool:
    """Whether an op of the forward pass makes or gathers weights: done once a step."""
    if not op.outputs:
        return False
    made = graph.tensors[op.outputs[0]]
    return made.role in {Role.WEIGHT, Role.WEIGHT_COPY} or made.name.endswith(SHARD)
