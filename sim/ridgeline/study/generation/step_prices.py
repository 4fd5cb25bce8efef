"""Prices of the steps of generation, each found once: what rows take, and what attention takes.

A step computes some rows (tokens) through all layers, and attention of each sequence over its own
cache. Rows are priced by playing a step on the plan's devices as any other step, with the kernels
and collectives of training, at powers of two and the middles between them; between these a step is
interpolated. Attention, which alone depends on the context, is priced op by op for the sequences of
the step at their mean context, between powers of two of it, in between which its cost is a straight
line.

A pipeline has a group of the sequences in each stage: the step of all of them takes as long as one
group takes through all stages, or as the slowest stage with every group.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware.cluster import Cluster
from ridgeline.kernels.cost import op_energy_j
from ridgeline.kernels.pricing import price
from ridgeline.network.framework_all_reduce import frameworks, has_one_shot
from ridgeline.network.topology import Topology
from ridgeline.parallel.plan.plan import Plan
from ridgeline.report.accounting import energy_account, memory_account, time_account
from ridgeline.simulation import SimulatedStep, matrix_peak, play_step, shared_topology
from ridgeline.software.stack import Stack
from ridgeline.study.generation.batching import GenerationWork, StepPrice
from ridgeline.workload import numerics
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.generation import generation_model, learned_positions
from ridgeline.workload.generation_step import CachedLayer, GenerationStep
from ridgeline.workload.graph import Gemm, Graph, Op
from ridgeline.workload.model import Model
from ridgeline.workload.ops.cached_attention import cached_attention
from ridgeline.workload.ops.sparse_attention import INDEX_SCORES, index_scores

_ATTENTION = frozenset({"flash-attention", "latent-attention", INDEX_SCORES.name})
_SHORT = 1
"""Context of the steps by which rows are priced."""


class RowPrice(NamedTuple):
    """What rows take through all layers, without attention.

    Attributes
    ----------
    compute_s, exposed_s
        Time in which a device computes, and in which it waits for others.
    energy_j
        Of events on all devices.
    """

    compute_s: float
    exposed_s: float
    energy_j: float


class _AttentionOp(NamedTuple):
    """Attention of one layer on one device, whatever its batch and context are."""

    heads: int
    kv_heads: int
    size: int
    value_size: int
    window: int
    chunk: int
    latent: bool
    index_heads: int = 0


@dataclass
class StepPrices:
    """Times of all steps of a replica of a network on a cluster.

    Attributes
    ----------
    plan
        Degrees of one replica: tensor, pipeline, expert with as many data-parallel ranks, each of
        which has its own sequences, and precision.
    library
        Framework whose kernels and all-reduces are used; "": what is known of all, and NCCL.
    two_batches
        Whether two halves of a batch alternate between computing and communicating (dual-batch
        overlap: DeepSeek-AI, DeepSeek-V3/R1 inference system overview, 2025).
    """

    model: Model
    cluster: Cluster
    plan: Plan
    stack: Stack
    kv_format: str = "bf16"
    library: str = ""
    two_batches: bool = False
    _rows: dict[tuple[int, bool], RowPrice] = field(default_factory=dict)
    _attention: dict[tuple[int, int, int], StepPrice] = field(default_factory=dict)
    _templates: dict[bool, dict[_AttentionOp, int]] = field(default_factory=dict)
    memory_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """Data-parallel ranks that step together, since they share experts."""
        return self.plan.data

    @cached_property
    def topology(self) -> Topology:
        """Devices of a replica, with the framework's all-reduce where the links have one."""
        drawn = shared_topology(self.cluster, self.plan.devices)
        if self.library in frameworks() and has_one_shot(drawn):
            return replace(drawn, all_reduce=self.library)
        return drawn

    def step(self, tokens: int, context: int) -> GenerationStep:
        """Return a step of this replica."""
        return GenerationStep(tokens, context, self.kv_format, self.library, self.plan.expert)

    def cached_layers(self, precision: str) -> tuple[CachedLayer, ...]:
        """Return what the layers keep of a sequence."""
        return generation_model(self.model, self.step(1, _SHORT)).cached(precision)

    def played(self, sequences: int, tokens: int, context: int) -> SimulatedStep:
        """Play a step of so many sequences of each rank, exactly."""
        model = generation_model(self.model, self.step(tokens, context))
        fields = {"global_batch": sequences * self.plan.data, "micro_batch": sequences}
        plan = self.plan.model_copy(update={**fields, "forward_only": True})
        return play_step(model, self.cluster, plan, self.stack, topology=self.topology)

    def price(self, work: GenerationWork) -> StepPrice:
        """Return what a step takes: of all ranks, which share its sequences evenly."""
        decoding, prefilled = work
        shares = self.ranks * self.plan.pipeline
        tokens = len(decoding) + sum(new for new, _ in prefilled)
        groups: list[tuple[int, int, int]] = []
        if len(decoding):
            groups.append((-(-len(decoding) // shares), 1, round(float(decoding.mean())) + 1))
        if prefilled:
            new = max(1, round(sum(n for n, _ in prefilled) / len(prefilled)))
            before = round(sum(n for _, n in prefilled) / len(prefilled))
            groups.append((-(-len(prefilled) // shares), new, before + new))
        of_rows = self.rows(-(-tokens // shares), decodes=not prefilled)
        parts = [self.attention(*group) for group in groups]
        compute_s = of_rows.compute_s + math.fsum(part.time_s for part in parts)
        time_s = compute_s + of_rows.exposed_s
        if self.two_batches:
            half = self.rows(-(-tokens // (2 * shares)), decodes=not prefilled)
            attending = math.fsum(part.time_s for part in parts) / 2
            halves = (half.compute_s + attending, half.exposed_s)
            time_s = min(time_s, 2 * max(halves))
        events = of_rows.energy_j + math.fsum(part.energy_j for part in parts)
        return StepPrice(time_s + self.stack.host.step_wait, events * self.plan.pipeline)

    @cached_property
    def peak_flops(self) -> float:
        """Dense peak of all devices of the replica, of the format that most products are in."""
        lowered = self.played(1, 1, _SHORT).lowered
        return matrix_peak(lowered, self.cluster.device) * self.plan.devices

    # Rows

    def rows(self, count: int, *, decodes: bool) -> RowPrice:
        """Return what so many tokens of a rank take without attention, interpolated."""
        low, high = grid_around(count)
        first = self._row(low, decodes)
        if low == high:
            return first
        second, share = self._row(high, decodes), (count - low) / (high - low)
        return RowPrice(*(a + share * (b - a) for a, b in zip(first, second, strict=True)))

    def _row(self, count: int, decodes: bool) -> RowPrice:
        key = (count, decodes or count == 1)
        if key not in self._rows:
            self._rows[key] = self._play_rows(*key)
        return self._rows[key]

    def _play_rows(self, count: int, decodes: bool) -> RowPrice:
        parts = -(-count // (learned_positions(self.model) or count))  # of one sequence each
        played = self.played(count, 1, _SHORT) if decodes else self.played(parts, count // parts, 0)
        lowered, timeline, device = played.lowered, played.timeline, self.cluster.device
        account = time_account(lowered, timeline, device).parts_s
        ops = lowered.graph.ops
        attends = [i for i, op in enumerate(ops) if op.kind in _ATTENTION]
        attention_s = math.fsum(lowered.op_costs[i].time_s(device) for i in attends)
        joules = energy_account(timeline, 0.0, played.run.devices)["total"]
        devices = self.plan.devices // self.plan.pipeline
        joules -= devices * math.fsum(
            op_energy_j(lowered.op_costs[i], device)["total"]
            - op_energy_j(lowered.op_costs[i], device)["static"]
            for i in attends
        )
        memory = memory_account(timeline)
        self._templates.setdefault(decodes, _templates(lowered.graph))
        for name, size in memory.items():
            self.memory_bytes[name] = max(size, self.memory_bytes.get(name, 0))
        waits = account["exposed_communication"]
        total = timeline.makespan_s
        return RowPrice(max(0.0, total - waits - attention_s), waits, max(0.0, joules))

    # Attention

    def templates(self, *, decodes: bool) -> dict[_AttentionOp, int]:
        """Return the kinds of attention on a device, and how many layers have each.

        Latent vectors are attended to as they are in decode alone; prefill forms keys and values.
        """
        if decodes not in self._templates:
            step = (1, 1, _SHORT) if decodes else (1, 2, 0)
            self._templates[decodes] = _templates(self.played(*step).lowered.graph)
        return self._templates[decodes]

    def attention(self, sequences: int, new: int, keys: int) -> StepPrice:
        """Return what attention of equal sequences takes in all layers, on one rank's devices.

        Parameters
        ----------
        keys
            Of each sequence, its new ones included.
        """
        before = keys - new
        if before <= _SHORT:
            return self._attend(sequences, new, before)
        low = 1 << (before.bit_length() - 1)
        first = self._attend(sequences, new, low)
        if low == before:
            return first
        second, share = self._attend(sequences, new, 2 * low), before / low - 1
        return StepPrice(*(a + share * (b - a) for a, b in zip(first, second, strict=True)))

    def _attend(self, sequences: int, new: int, context: int) -> StepPrice:
        key = (sequences, new, context)
        if key not in self._attention:
            time_s = energy_j = 0.0
            for template, count in self.templates(decodes=new == 1).items():
                each = self._attend_once(template, *key)
                time_s += count * each.time_s
                energy_j += count * each.energy_j
            devices = self.plan.devices // self.plan.pipeline
            self._attention[key] = StepPrice(time_s, devices * energy_j)
        return self._attention[key]

    def _attend_once(self, of: _AttentionOp, n: int, new: int, context: int) -> StepPrice:
        device = self.cluster.device
        b = GraphBuilder("attention", n, numerics.find("bf16-true"))
        b.generation = self.step(new, context)
        if of.index_heads:
            q = b.input("q", (n, new, of.index_heads * of.size), "bf16")
            k = b.input("k", (n, new, of.size), "bf16")
            weights = b.input("weights", (n, new, of.index_heads), "bf16")
            y = index_scores(b, "index", q, k, weights)
        else:
            q = b.input("q", (n, new, of.heads * of.size), "bf16")
            k = b.input("k", (n, new, of.kv_heads * of.size), "bf16")
            v = b.input("v", (n, new, of.kv_heads * of.value_size), "bf16")
            y = cached_attention(
                b, "attention", q, k, v, of.heads, of.kv_heads,
                window=of.window, chunk=of.chunk, latent=of.latent,
            )  # fmt: skip
        graph = Graph(b.name, n, "bf16-true", b.tensors, tuple(b.ops), y)
        cost = price(graph.ops[0], graph, device)
        joules = op_energy_j(cost, device)
        return StepPrice(cost.time_s(device), joules["total"] - joules["static"])


def _templates(graph: Graph) -> dict[_AttentionOp, int]:
    found: dict[_AttentionOp, int] = {}
    for op in graph.ops:
        if op.kind in _ATTENTION:
            of = _template(op, graph)
            found[of] = found.get(of, 0) + 1
    return found


def _template(op: Op, graph: Graph) -> _AttentionOp:
    attrs = dict(op.attrs)
    q, k, v = (graph.tensors[name] for name in op.inputs)
    if op.kind == INDEX_SCORES.name:
        size = k.shape[-1]
        return _AttentionOp(1, 1, size, size, 0, 0, True, q.shape[-1] // size)
    size = int(attrs["size"])
    kv_heads = k.shape[-1] // size
    assert isinstance(op.loops, Gemm)
    return _AttentionOp(
        q.shape[-1] // size,
        kv_heads,
        size,
        v.shape[-1] // kv_heads,
        int(attrs.get("window", 0)),
        int(attrs.get("chunk", 0)),
        op.kind == "latent-attention",
    )


def grid_around(count: int) -> tuple[int, int]:
    """Return the numbers of rows that are priced on either side of a number, or twice itself."""
    if count < 1:
        raise RidgelineError(f"a step of {count} tokens")
    low = 1 << (count.bit_length() - 1)
    grid = [low, low * 3 // 2, 2 * low] if low > 1 else [1, 2]
    at = bisect_left(grid, count)
    return (count, count) if grid[at] == count else (grid[at - 1], grid[at])


def check_generation_plan(plan: Plan) -> None:
    """Refuse a plan that a replica cannot generate with.

    Raises
    ------
    ConfigError
        With the field.
    """
    for name, why in (
        ("context", "a step of generation divides no positions"),
        ("zero_stage", "there is no state of an optimizer"),
        ("virtual_stages", "stages of generation have one part each"),
    ):
        if getattr(plan, name) > (0 if name == "zero_stage" else 1):
            raise ConfigError(f"{name}={getattr(plan, name)}: {why}", field=f"plan.{name}")
    if plan.layers or plan.replicas or plan.spatial != "1" or plan.tensor_rows > 1:
        raise ConfigError("generation takes tensor, pipeline, data and expert", field="plan")
    if plan.data % plan.expert:
        raise ConfigError(
            f"data={plan.data} is no multiple of expert={plan.expert}", field="plan.expert"
        )
