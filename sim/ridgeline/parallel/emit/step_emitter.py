"""Step emitter: blocks of every stage, their copies, messages and reductions.

Tasks are numbered in this order: the copies of all teams, the messages between stages, the
collectives at the end of the step. So the number of everything is known before it is written, and a
block may wait for what has a higher number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ridgeline.engine.blocks import NOTHING, lengths
from ridgeline.engine.program import Ints
from ridgeline.kernels.cache_residency import Staying
from ridgeline.parallel.checkpointing.host_updates import with_host_updates
from ridgeline.parallel.checkpointing.offload import with_offload
from ridgeline.parallel.comm.messages import Messages
from ridgeline.parallel.emit.async_pipeline import is_endless, left_by, steady_orders, under_way
from ridgeline.parallel.emit.block_emitter import BlockEmitter
from ridgeline.parallel.emit.buckets import (
    Bucket,
    BucketTraffic,
    gradient_buckets,
    held_bytes,
    moved,
)
from ridgeline.parallel.emit.grad_accumulation import copied, lasting
from ridgeline.parallel.emit.grad_sync import GradSyncEmitter
from ridgeline.parallel.emit.microbatch_instances import (
    BACKWARD,
    BEGIN,
    END,
    FORWARD,
    WEIGHTS,
    Blocks,
    Copies,
)
from ridgeline.parallel.emit.overlapped_1f1b import in_pace, more_waits, side_by_side
from ridgeline.parallel.emit.phases import as_played, phases_of, sends
from ridgeline.parallel.emit.rank_group import EmittedBlock, RankGroup
from ridgeline.parallel.emit.stage_dedup import Look, again, look_of
from ridgeline.parallel.emit.zero import with_sharding
from ridgeline.parallel.memory.allocator import life_of, lost_bytes
from ridgeline.parallel.partition.pipeline_partition import PipelinePartition, Receipt
from ridgeline.parallel.passes.optimizer_kernels import TOGETHER
from ridgeline.parallel.plan.mesh import FAR, NEAR
from ridgeline.parallel.plan.replicas import counts_of, in_flight, replica_orders
from ridgeline.parallel.plan.resolved import ResolvedPlan
from ridgeline.parallel.schedule import PHASES, SCHEDULES, SlotArrays, slot_arrays
from ridgeline.parallel.schedule.one_f_one_b import further_ahead
from ridgeline.parallel.sharding.axes import base
from ridgeline.parallel.sharding.divide import ShardedGraph, roots
from ridgeline.parallel.sharding.experts import expert_weights
from ridgeline.workload.autodiff import weight_gradients
from ridgeline.workload.graph import Graph, Role, Same
from ridgeline.workload.liveness import MEMORY_KINDS, memory_entries

_FINE = 100_000  # tasks up to which memory is followed op by op, not block by block


class StepEmitter:
    """Writes all tasks of one step.

    Parameters
    ----------
    sharded
        How the graph is divided.
    staying
        Of each part, the weights that stay on chip over micro-batches.
    """

    def __init__(
        self,
        plan: ResolvedPlan,
        writer: BlockEmitter,
        cut: PipelinePartition,
        sharded: ShardedGraph,
        staying: Sequence[Staying],
    ) -> None:
        self.plan, self.writer, self.cut, self.sharded = plan, writer, cut, sharded
        self.staying = staying
        self.builder, self.wires, self.mesh = writer.builder, writer.wires, writer.mesh
        self.ends = GradSyncEmitter(plan, writer, cut)
        self.endless = is_endless(plan.schedule, plan.pipeline)
        self.messages = Messages(plan, writer, sharded, endless=self.endless)
        self.counts = counts_of(plan.replicas)
        self.rounds = self.endless and bool(self.counts)  # an update after each of a replica's own
        self.splits = plan.pipeline > 1 and SCHEDULES[plan.schedule].splits_backward
        n_tasks = sum(len(part.graph.ops) for part in cut.parts) * plan.micro_batches
        self.fine = n_tasks <= _FINE
        self.teams = self._teams()
        # else blocks differ by stage, or by more of their ops' names than `look_of` looks at
        carries = any(team.carried for team in self.teams)
        plain = not (plan.layers or plan.replicas or self.endless or carries)
        offloads = plan.offload != "none" or plan.optimizer_offload > 0
        self.repeats = plain and not offloads and len(cut.parts) > 1
        self._looks: dict[tuple[object, ...], tuple[Look, Blocks, RankGroup]] = {}

    def _teams(self) -> list[RankGroup]:
        """Return what is simulated: a team a stage, or a replica of one where stages are unlike."""
        if not self.counts:
            stages = range(self.plan.pipeline)
            return [
                RankGroup(
                    self.builder, stage, self._members(stage), carried=self._carried(stage)
                )
                for stage in stages
            ]  # fmt: skip
        return [
            RankGroup(
                self.builder, stage, tuple((int(r),) for r in self.mesh.replica(stage, replica)),
                replica, count,
            )
            for stage, count in enumerate(self.counts)
            for replica in range(count)
        ]  # fmt: skip

    def _carried(self, stage: int) -> int:
        """Return how many slots of a step a stage does at the beginning of the next one."""
        plan = self.plan
        how = SCHEDULES[plan.schedule].carried
        return how(stage, plan.pipeline, plan.micro_batches, 1) if plan.pipeline > 1 else 0

    def _members(self, stage: int) -> tuple[tuple[int, ...], ...]:
        """Return the ranks that each simulated rank of a stage stands for."""
        symmetry = self.wires.symmetry
        if symmetry is None:
            return tuple((rank,) for rank in self.mesh.stage(stage).tolist())
        ranks = self.mesh.replica(stage)
        return tuple(tuple(ranks[places].tolist()) for places in symmetry.members)

    def write(self) -> None:
        """Write the whole step."""
        slots = self._slots()
        played: list[Copies] = []
        number = self.builder.n_tasks
        for k, team in enumerate(self.teams):
            chunks = [self._blocks(team, chunk) for chunk in range(self.plan.virtual_stages)]
            played.append(self._arrange(k, chunks, slots, number))
            self._hold(played[-1])
            sizes = lengths([piece.block for piece in played[-1].pieces])
            number += int(sizes[played[-1].order].sum())
        messages = self.messages.write(played, number)
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
            counts = self.counts or (1,) * plan.pipeline
            return slot_arrays(steady_orders(counts, plan.micro_batches))
        if self.counts:
            return slot_arrays(replica_orders(plan.schedule, self.counts, plan.micro_batches))
        if plan.ahead:
            return further_ahead(plan.pipeline, plan.micro_batches, plan.ahead)
        name = plan.schedule if plan.pipeline > 1 or plan.schedule == "gpipe" else "1f1b"
        return SCHEDULES[name].arrays(plan.pipeline, plan.micro_batches, plan.virtual_stages)

    # Blocks

    def _blocks(self, team: RankGroup, chunk: int) -> Blocks:
        """Write the blocks of one part of the model, or copy those of one that looks the same."""
        number = SCHEDULES[self.plan.schedule].part(chunk, team.stage, self.plan.pipeline)
        part, kept = self.cut.parts[number], self._kept(number)
        receipts = {
            FORWARD: [receipt for receipt in part.receipts if receipt.forward],
            BACKWARD: [receipt for receipt in part.receipts if not receipt.forward],
        }
        if not self.repeats:
            return self._written(team, number, receipts, kept)
        ties = sum(number in tie.gradients for tie in self.cut.ties)
        sent = self._sent(number, forward=False)
        gathered = self.messages.gathered(part.receipts)
        experts = self.writer.host.experts(part.graph) if self.writer.host else {}
        look = look_of(part, kept, sent, gathered, ties, experts)
        key = (*look.key, self.staying[number])
        known = self._looks.get(key)
        names = known[0].names(look) if known is not None else None
        if known is not None and names is not None:
            return again(self.writer, known[1], known[2], team, part, receipts, names)
        blocks = self._written(team, number, receipts, kept)
        self._looks.setdefault(key, (look, blocks, team))
        return blocks

    def _written(
        self, team: RankGroup, number: int, receipts: dict[int, list[Receipt]], kept: frozenset[str]
    ) -> Blocks:
        """Write the blocks of one part of the model."""
        plan, part = self.plan, self.cut.parts[number]
        graph = with_offload(part.graph, plan.offload)
        holders = self._holders(graph)
        graph = self._shared(team.stage, graph, holders)
        graph = with_host_updates(graph, plan.optimizer_offload)
        sent = self._sent(number, forward=False)
        if self.splits:
            graph = as_played(Same(graph), sent)
        persist = plan.micro_batches > team.replicas and not self.rounds
        copies = copied(graph, plan.stack.gradients.main_grads)
        memory = memory_entries(
            graph,
            gradients_persist=persist or bool(copies.beside),
            kept=kept,
            **copies._asdict(),
        )
        phases = phases_of(graph, self.splits, sent)
        buckets = self._buckets(team.stage, graph, holders) if plan.zero_stage < 2 else {}
        ties = [tie for tie in self.cut.ties if number in tie.gradients]
        n_waits = len(ties) * len(team) + sum(
            len(list(team.of_groups(self.writer.groups(team, along)))) for along in buckets
        )
        gradients = frozenset(weight_gradients(graph).values()) if persist else frozenset()
        at_end = moved(plan, graph, buckets)
        once = [graph.ops[i].outputs for i in phases.get(BEGIN, ()) if sends(graph.ops[i])]
        pieces: dict[tuple[int, bool], EmittedBlock] = {}
        for phase, ops in phases.items():
            begun = once if phase == FORWARD else []
            waits = more_waits(phase, len(team)) if plan.overlaps_experts else 0
            differs = begun or phase in {BACKWARD, WEIGHTS}
            for later in (False, True) if differs and persist else (False,):
                came = [receipt.tensors for receipt in receipts.get(phase, ())]
                pieces[phase, later] = self.writer.write(
                    team,
                    graph,
                    ops,
                    memory,
                    receipts=came if later else [*came, *begun],
                    gathered=self.messages.gathered(receipts.get(phase, ())),
                    waits=n_waits if phase == END else waits,
                    accumulated=gradients if later else (),
                    fine=self.fine,
                    together=phase == BEGIN
                    or (phase == END and plan.stack.optimizer.impl in TOGETHER),
                    moves=at_end if phase == END else BucketTraffic(),
                    checked=plan.stack.optimizer.loss_scale_check and phase == END,
                    staying=self.staying[number],
                )
                if plan.overlaps_experts:
                    in_pace(pieces[phase, later].block)
        held = Counter(memory.initial)
        # what the slots that are carried over, and the end of the step behind them, give back
        carried = {WEIGHTS: team.carried, END: int(team.carried > 0)}
        for phase, times in carried.items():
            for entry in (entry for i in phases.get(phase, ()) for entry in memory.entries[i]):
                held[entry.kind] -= times * (entry.start_bytes + entry.end_bytes)
        forward = [memory.entries[i] for i in phases.get(FORWARD, ())]
        if self.endless:
            depth = in_flight(self.counts or (1,) * plan.pipeline, team.stage)
            held.update(under_way(plan.schedule, depth, graph, forward))
        left = left_by(forward)
        life = life_of(
            memory,
            phases,
            lasting=lasting(plan.stack.gradients.main_grads),
            begun=copies.begun(graph),
        )
        return Blocks(part, pieces, receipts, once, buckets, n_waits, held, left, life)

    def _kept(self, number: int) -> frozenset[str]:
        """Tensors that a part of the model keeps: what it sends to others in the forward pass."""
        if self.plan.stack.pipeline.deallocate_outputs:
            return frozenset()
        return self._sent(number, forward=True)

    def _sent(self, number: int, *, forward: bool) -> frozenset[str]:
        """Tensors that other parts of the model get of one in the forward or the backward pass."""
        receipts = [r for part in self.cut.parts for r in part.receipts]
        sent = (r.tensors for r in receipts if r.forward is forward and r.source == number)
        return frozenset(name for names in sent for name in names)

    def _holders(self, graph: Graph) -> dict[str, frozenset[str]]:
        """Weights, and copies of them, by the dimension along which ranks hold the same.

        Experts are held by fewer ranks than all else, and layers that divide samples where others
        divide features by more. The last has all that no other has.
        """
        of_weights = {Role.WEIGHT, Role.WEIGHT_COPY}
        rest = frozenset(t.name for t in graph.tensors.values() if t.role in of_weights)
        experts = expert_weights(graph) & rest if self.plan.expert > 1 else frozenset()
        root, found = roots(graph), {"beyond": set(experts)}
        for weight in sorted(rest - experts):
            found.setdefault(self._along(root.get(weight, weight)), set()).add(weight)
        last = found.pop("data", set())
        held = {along: frozenset(found[along]) for along in sorted(found) if found[along]}
        return {**held, "data": frozenset(last)}

    def _along(self, weight: str) -> str:
        """Return the dimension of the mesh along which a weight that no expert has is the same."""
        along, level = self.sharded.own_rows.get(weight, "data"), self.sharded.apart.get(weight)
        return along if level is None else f"{along}.{level}"

    def _replicas(self, stage: int, along: str) -> int:
        """Ranks of a stage that hold the same weights along a dimension."""
        return int(self.mesh.groups(stage, *self.mesh.along(along)).shape[1])

    def _shared(self, stage: int, graph: Graph, holders: dict[str, frozenset[str]]) -> Graph:
        """Let the ranks that hold the same weights share them, as the plan says."""
        for along, weights in holders.items():
            others = frozenset().union(*holders.values()) - weights
            near, far = (NEAR, FAR) if self.plan.hybrid_shard_size else (along, "")
            zero = self.plan.stack.zero
            graph = with_sharding(
                graph, self.plan.zero_stage, self._replicas(stage, near), self.plan.bucket_bytes,
                dimension=near, without=others, beyond=far, copies=zero.gather_copies,
                regather=zero.reshard_after_forward,
            )  # fmt: skip
        return graph

    def _buckets(
        self, stage: int, graph: Graph, holders: dict[str, frozenset[str]]
    ) -> dict[str, tuple[Bucket, ...]]:
        """Gradients to be reduced at the end, by the dimension whose ranks hold the weight."""
        of = {weight: along for along, weights in holders.items() for weight in weights}
        tied = {g for tie in self.cut.ties for g in tie.gradients.values() if self.counts}
        along_of = {  # an update may read a part of a weight, by another name
            gradient: of.get(weight) or of.get(base(weight), "data")
            for weight, gradient in weight_gradients(graph).items()
        }
        found = {}
        for along in holders:
            others = tied.union(g for g, other in along_of.items() if other != along)
            if self._replicas(stage, along) > 1:
                found[along] = gradient_buckets(
                    graph, self.plan.bucket_bytes, others, self.plan.stack.gradients.reduce_dtype
                )
        return {along: buckets for along, buckets in found.items() if buckets}

    def _hold(self, copies: Copies) -> None:
        """Say what the ranks of a team hold from the beginning, of all chunks together."""
        team, chunks, lost = copies.team, copies.chunks, 0
        if self.plan.stack.memory.allocator == "caching":
            lives = [blocks.life for blocks in chunks]
            room = self.writer.rows.devices[0].capacity_bytes - self.plan.stack.memory.runtime
            lost = lost_bytes(lives, copies.phase, copies.chunk, copies.micro_batch, room)
        spare = self._spare_buffers(team.stage)
        for kind in MEMORY_KINDS:
            size = sum(b.held.get(kind, 0) + spare * b.left.get(kind, 0) for b in chunks)
            if kind == "workspace":
                held = sum(held_bytes(self.plan, blocks.buckets) for blocks in chunks)
                size += held + round(self.plan.stack.memory.runtime) + max(lost, 0)
            elif kind == "gradients":  # sums of them that are given back make room for others
                size += min(lost, 0)
            for rank in team.ranks:
                self.builder.set_initial_memory(rank, kind, size)

    def _spare_buffers(self, stage: int) -> int:
        """Return how many buffers of a stage no micro-batch of its own is ever in."""
        plan = self.plan
        if not plan.pipeline_buffers or stage == plan.pipeline - 1:
            return 0
        used = SCHEDULES[plan.schedule].in_flight(stage, plan.pipeline, plan.micro_batches, 1)
        return plan.pipeline_buffers - used

    # Copies

    def _arrange(self, k: int, chunks: list[Blocks], slots: SlotArrays, number: int) -> Copies:
        """Put the blocks of a team in the order of the schedule, and number their tasks."""
        team = self.teams[k]
        pieces: list[EmittedBlock] = []
        index = np.full((END + 1, len(chunks), 2), NOTHING, np.int64)
        for c, blocks in enumerate(chunks):
            for (kind, later), piece in blocks.pieces.items():
                index[kind, c, int(later) :] = len(pieces)
                pieces.append(piece)
        phase, chunk, micro_batch = self._in_order(k, slots)
        order = index[phase, chunk, (micro_batch >= team.replicas).astype(np.int64)]
        there = order != NOTHING
        order, phase, chunk, micro_batch = (a[there] for a in (order, phase, chunk, micro_batch))
        sizes = lengths([piece.block for piece in pieces])[order]
        first = number + np.cumsum(sizes) - sizes
        copies = Copies(team, chunks, pieces, order, phase, chunk, micro_batch, first)
        copies.ports = np.full((len(order), self._n_ports(team, chunks)), NOTHING, np.int64)
        tail = np.array([piece.tail for piece in pieces], np.int64).reshape(-1, len(team))[order]
        last = np.where(tail >= 0, first[:, np.newaxis] + tail, NOTHING)
        last = np.maximum.accumulate(last)
        copies.ports[1:, : len(team)] = last[:-1]
        if self.plan.overlaps_experts:
            side_by_side(copies, last)
        for c, blocks in enumerate(chunks):
            self._connect_beginning(copies, c, blocks)
        return copies

    def _in_order(self, k: int, slots: SlotArrays) -> tuple[Ints, Ints, Ints]:
        """Return phase, chunk and micro-batch of what a team does, with beginnings and ends."""
        at = slice(int(slots.stage_ptr[k]), int(slots.stage_ptr[k + 1]))
        slot = np.stack((slots.phase[at], slots.chunk[at], slots.micro_batch[at])).astype(np.int64)
        once = np.arange(self.plan.virtual_stages)
        begin, end = (np.stack((np.full(len(once), p), once, 0 * once)) for p in (BEGIN, END))
        each = len(PHASES) - 1  # forward and backward
        parts = np.split(slot, range(each, slot.shape[1], each), axis=1) if self.rounds else [slot]
        if carried := self.teams[k].carried:  # ends the step before, and begins this one
            return tuple(
                np.concatenate((slot[:, -carried:], end, begin, slot[:, :-carried]), axis=1)
            )
        phase, chunk, micro_batch = np.concatenate(
            [piece for part in parts for piece in (begin, part, end)], axis=1
        )
        return phase, chunk, micro_batch

    def _connect_beginning(self, copies: Copies, chunk: int, blocks: Blocks) -> None:
        """Let the first forward block wait for what is gathered at the beginning of the step."""
        if not blocks.begun:
            return
        begin, first = int(copies.rows(BEGIN, chunk)[0]), int(copies.rows(FORWARD, chunk)[0])
        piece, size = copies.pieces[int(copies.order[begin])], len(copies.team)
        for q, names in enumerate(blocks.begun, start=len(blocks.receipts[FORWARD])):
            for r, place in enumerate(piece.made[names[0]]):
                copies.ports[first, (q + 1) * size + r] = copies.first[begin] + place

    def _n_ports(self, team: RankGroup, chunks: list[Blocks]) -> int:
        most = max(
            len(part) + len(blocks.begun) for blocks in chunks for part in blocks.receipts.values()
        )
        waits = max(blocks.n_waits for blocks in chunks)
        return len(team) * (most + 2) + waits
