"""What the parts of a network cost: per unit that a pipeline does not cut, for one kind of plan.

Plans with the same micro-batch, tensor and sequence degree and recomputation have the same ops;
they are divided and priced once, by the same functions as the lowering. A network of many equal
layers is priced by a few of them, where that gives the FLOPs and the bytes of the whole exactly.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ridgeline.engine.builder import ProgramBuilder
from ridgeline.errors import RidgelineError
from ridgeline.hardware.cluster import Cluster
from ridgeline.kernels.cost import OpCost, op_energy_j
from ridgeline.network.topology import Topology, from_cluster
from ridgeline.parallel.experts import expert_weights, with_experts
from ridgeline.parallel.lower import _flops_per_byte
from ridgeline.parallel.mesh import Mesh
from ridgeline.parallel.plan import Plan
from ridgeline.parallel.prices import Prices
from ridgeline.parallel.recompute import Mode, with_recompute
from ridgeline.parallel.recompute_blocks import attention_cores
from ridgeline.parallel.ring import HOP, with_rings
from ridgeline.parallel.shard import COLLECTIVES, Sharded, shard
from ridgeline.parallel.sums import casts, sum_bytes
from ridgeline.parallel.wires import Wires
from ridgeline.study.planner.few import Told, few_layers, n_units
from ridgeline.study.planner.group import (
    ACCUMULATE,
    BACKWARD,
    ENERGY,
    FORWARD,
    WEIGHT_GRADIENT,
    Floats,
    Group,
    Ints,
)
from ridgeline.study.planner.held import KEPT, held_by_unit
from ridgeline.study.planner.links import is_once, links
from ridgeline.study.planner.screen import totals_of_more
from ridgeline.study.planner.space import divisors
from ridgeline.study.planner.waiting import exchanges, waits
from ridgeline.workload.autodiff import weight_gradients
from ridgeline.workload.graph import Graph, Op, Pass, Role
from ridgeline.workload.model import Model

_BETWEEN_REPLICAS = ("all-reduce", "reduce-scatter", "all-gather")
_TRIED = 3  # sizes, each a quarter of the one before, of which another algorithm may be the best


class Key(NamedTuple):
    """Plans of one key have the same ops."""

    micro_batch: int
    tensor: int
    sequence: bool
    recompute: Mode
    expert: int
    context: int = 1
    ring: bool = False


class Ops(NamedTuple):
    """What the ops of a group take.

    Attributes
    ----------
    told
        The graph.
    home
        [ops] unit of every op.
    seconds
        [ops] of a micro-batch.
    work, balanced, waited
        Of the units of `told`, as `Group`.
    """

    told: Told
    home: Ints
    seconds: Floats
    work: Floats
    balanced: Floats
    waited: Floats


class Groups:
    """Prices groups of plans of one model on so many devices of a cluster."""

    def __init__(self, model: Model, cluster: Cluster, devices: int, precision: str | None) -> None:
        self.model, self.cluster, self.devices = model, cluster, devices
        self.precision = precision or model.network.precision
        self.topology: Topology = from_cluster(cluster, devices)
        builder = ProgramBuilder()
        self.prices = Prices(cluster.device)
        self.prices.add_to(builder)
        far = self.prices.accounts[cluster.device.far_memory]
        self.wires = Wires(builder, self.topology, far, merge=True)
        self._groups: dict[Key, Group | None] = {}
        self._ops: dict[Key, Ops | None] = {}
        self._told: dict[Key, Told | None] = {}
        self._sharded: dict[tuple[Key, Model], Sharded] = {}
        self._collective_s: dict[tuple[str, int, int, float], float] = {}
        self._held: dict[tuple[int, Mode, int], Floats] = {}
        self._energies: dict[int, float] = {}  # by identity; `prices` keeps the prices alive
        self._times: dict[int, float] = {}  # likewise
        self._byte_s: dict[tuple[str, int, int, float], float] = {}
        self._flops_per_byte: dict[int, float] = {}
        self.few = few_layers(model, self.precision)

    def group(self, key: Key) -> Group | None:
        """Price a group; None where the model can not be divided so."""
        if key not in self._groups:
            self._groups[key] = self._price(key)
        return self._groups[key]

    def held_undivided(self, micro_batch: int, recompute: Mode, expert: int) -> Floats:
        """Return [9] what all units together hold, divided by experts alone, as `Group.held`.

        Activations are in proportion to the samples, but for what has none of them.
        """
        one, two = (self._undivided(size, recompute, expert) for size in (1, 2))
        total: Floats = one + (two - one) * (micro_batch - 1)
        return total

    def _undivided(self, micro_batch: int, recompute: Mode, expert: int) -> Floats:
        known = (micro_batch, recompute, expert)
        if known not in self._held:

            def made(model: Model) -> Graph:
                graph = with_experts(model.training(micro_batch, self.precision), expert)
                return with_recompute(graph, recompute)

            told = self.few.told(made)
            held = _held(told, _homes(told), expert)[:, : KEPT + 1]
            self._held[known] = told.whole(held).sum(axis=0)
        return self._held[known]

    @property
    def max_stages(self) -> int:
        """Parts that a pipeline can cut the model into."""
        return n_units(self.model, self.precision)

    def divides(self, tensor: int) -> bool:
        """Whether the model's heads can be shared by so many devices."""
        graph = self.few.smallest.training(1, self.precision)
        try:
            shard(graph, tensor)
        except RidgelineError:
            return False
        return True

    def expert_degrees(self) -> list[int]:
        """By how many ranks the model's experts can be shared; 1: it has none."""
        graph = self.few.smallest.training(1, self.precision)
        sent = (op for op in graph.ops if op.kind == "dispatch" and op.pass_ is Pass.FORWARD)
        found = math.gcd(*(graph.tensors[op.outputs[0]].shape[0] for op in sent))
        return divisors(found) if found else [1]

    def contexts(self) -> list[tuple[int, int]]:
        """By how many ranks positions can be shared, and whether in a ring; (1, 0): by one."""
        graph = self.few.smallest.training(1, self.precision)
        modes = (0, 1) if any(op.kind == "flash-attention" for op in graph.ops) else (0,)
        found = [(1, 0)]
        for n in divisors(self.devices)[1:] if graph.tokens_per_sample else ():
            try:
                shard(graph, n, dimension="context")
            except RidgelineError:
                continue
            found += [(n, ring) for ring in modes]
        return found

    def recomputations(self) -> list[Mode]:
        """Return what the model can compute again: scores of attention only where there is any.

        Stretches of layers (sqrt) only where layers are not all alike: how long they are depends on
        how many layers there are, of which a few would tell nothing.
        """
        some = attention_cores(self.few.smallest.training(1, self.precision))
        modes: list[Mode] = ["none", "selective", "full"] if some else ["none", "full"]
        return modes if self.few.fewer else [*modes, "sqrt"]

    def crossing_byte_s(self, data: int, tensor: int) -> float:
        """Return the least seconds a byte of any collective of `data` ranks, so many apart.

        Of all groups at once: what a node has not of a payload has to come in from others.
        """
        node = self.wires.node[: data * tensor].reshape(data, tensor)
        needed: dict[int, float] = {}
        for members in node.T if data > 1 else ():
            for number, n in zip(*np.unique(members, return_counts=True), strict=True):
                needed[int(number)] = needed.get(int(number), 0.0) + 1 - n / data
        inward = self._inward
        return min((part / inward[number] for number, part in needed.items()), default=0.0)

    @cached_property
    def _inward(self) -> Floats:
        """[N] bytes a second that can come into every node."""
        ends = [self.topology.node_of[end] for end in (self.topology.source, self.topology.target)]
        comes = (ends[0] != ends[1]) & (ends[1] >= 0)
        total = np.zeros(int(self.wires.node.max()) + 1)
        np.add.at(total, ends[1][comes], self.topology.bandwidth_bytes_per_s[comes])
        return np.where(total > 0, total, np.inf)

    def byte_s(self, op: str, data: int, tensor: int, most_bytes: float) -> float:
        """Return the least seconds a byte of a collective of `data` ranks, so many apart.

        Of all groups at once, as the engine plays it, for at most so many bytes; of the algorithms
        that are the best for some size.
        """
        if (op, data, tensor, most_bytes) not in self._byte_s:
            groups = np.arange(data * tensor).reshape(data, tensor).T
            sizes = [most_bytes / 4**k for k in range(_TRIED)]
            for name in _BETWEEN_REPLICAS:  # together, as all of them take the same rings
                times = [self.wires.together_s(name, groups, size) for size in sizes]
                # an algorithm that is the best for less has no lower latency here than there
                self._byte_s[name, data, tensor, most_bytes] = min(
                    busy_s / size + latency_s / most_bytes
                    for size, (latency_s, busy_s) in zip(sizes, times, strict=True)
                )
        return self._byte_s[op, data, tensor, most_bytes]

    def _price(self, key: Key) -> Group | None:
        ops = self._ops_of(key)
        if ops is None:
            return None
        told, whole = ops.told, ops.told.whole
        held = _held(told, ops.home, key.expert)
        around = links(told.graph, ops.home, ops.seconds).swapaxes(0, 1)
        return Group(
            whole(ops.work),
            whole(held),
            whole(ops.balanced),
            whole(around).swapaxes(0, 1),
            whole(ops.waited),
            _largest(told.graph),
        )

    def least(self, key: Key) -> Floats | None:
        """Return the first of `totals`, which are also a bound of any group that has more ops.

        None where the model can not be divided so.
        """
        ops = self._ops_of(key)
        if ops is None:
            return None
        return totals_of_more(ops.told.whole(ops.work), ops.told.whole(ops.waited))

    def least_again(self, key: Key) -> Floats | None:
        """Bound a group as `least`, by its ops without recomputation and those that it does again.

        Only the latter are priced.
        """
        before, told = self._ops_of(key._replace(recompute="none")), self._told_of(key)
        if before is None or told is None:
            return None
        graph = told.graph
        more = np.zeros((len(told.parts), before.work.shape[1]))
        for unit, part in enumerate(told.parts):
            for op in (graph.ops[i] for i in part.ops):
                if op.pass_ is Pass.RECOMPUTE:
                    cost = self.prices.cost(op, graph)
                    more[unit] += self._work(op, graph, key, frozenset(), cost, self._alone_s(cost))
        work, waited = before.told.whole(before.work), before.told.whole(before.waited)
        repeated = told.whole(more)
        return totals_of_more(work + repeated if len(work) == len(repeated) else work, waited)

    def _told_of(self, key: Key) -> Told | None:
        if key not in self._told:
            try:
                self._told[key] = self.few.told(
                    lambda model: with_recompute(self._shard(key, model).graph, key.recompute)
                )
            except RidgelineError:
                self._told[key] = None
        return self._told[key]

    def _shard(self, key: Key, model: Model) -> Sharded:
        known = (key._replace(recompute="none"), model)
        if known not in self._sharded:
            graph = model.training(key.micro_batch, self.precision)
            graph = shard(graph, key.context, dimension="context").graph
            if key.ring:
                graph = with_rings(graph, key.context)
            self._sharded[known] = shard(
                with_experts(graph, key.expert),
                key.tensor,
                sequence=key.sequence,
                flops_per_byte=self._intensity(key.tensor),
            )
        return self._sharded[known]

    def _intensity(self, tensor: int) -> float:
        if tensor not in self._flops_per_byte:
            data = self.devices // tensor
            plan = Plan(global_batch=data, data=data, tensor=tensor)
            self._flops_per_byte[tensor] = _flops_per_byte(
                plan, self.cluster, self.wires, Mesh.of(plan)
            )
        return self._flops_per_byte[tensor]

    # Costs of units

    def _ops_of(self, key: Key) -> Ops | None:
        """Price the ops of a group; None where the model can not be divided so."""
        if key not in self._ops:
            told = self._told_of(key)
            self._ops[key] = None if told is None else self._by_unit(told, key)
        return self._ops[key]

    def _by_unit(self, told: Told, key: Key) -> Ops:
        graph, parts = told.graph, told.parts
        gradients = frozenset(weight_gradients(graph).values())
        home = _homes(told)
        costs = self.prices.costs(graph)
        alone_s = [self._alone_s(cost) for cost in costs]
        inside = np.array([op.pass_ is not Pass.UPDATE for op in graph.ops])
        balanced: Floats = np.bincount(home, np.array(alone_s) * inside, len(parts)).astype(float)
        per_op = np.zeros((len(graph.ops), 5))
        for i, op in enumerate(graph.ops):
            if self._repeats(op, graph):
                per_op[i] = self._work(op, graph, key, gradients, costs[i], alone_s[i])
        sent = {i: self._group_s(op, key) for i, op in enumerate(graph.ops) if exchanges(op)}
        passes = np.maximum(alone_s, per_op[:, :ACCUMULATE].sum(axis=1))
        both = waits(graph, home, passes, np.maximum(per_op[:, ACCUMULATE], 0.0), sent)
        per_op[:, [FORWARD, BACKWARD]] += both
        columns = [np.bincount(home, column, len(parts)) for column in per_op.T]
        waited = np.zeros((len(parts), 2))
        np.add.at(waited, home, both)
        seconds = per_op[:, :ACCUMULATE].sum(axis=1)
        return Ops(told, home, seconds, np.stack(columns, axis=1), balanced, waited)

    def _repeats(self, op: Op, graph: Graph) -> bool:
        """Whether an op is done for every micro-batch.

        Sums of gradients may be left to a collective at the end, where stages share a weight.
        """
        sums = op.pass_ is Pass.WEIGHT_GRADIENT and op.kind == "add"
        return not (sums or op.pass_ is Pass.UPDATE or is_once(op, graph))

    def _alone_s(self, cost: OpCost) -> float:
        if id(cost) not in self._times:
            self._times[id(cost)] = cost.time_s(self.cluster.device)
        return self._times[id(cost)]

    def _work(
        self, op: Op, graph: Graph, key: Key, gradients: frozenset[str],
        cost: OpCost, alone_s: float,
    ) -> list[float]:  # fmt: skip
        """Return what an op of a micro-batch takes: a row of `Group.work`."""
        work = [0.0] * 5
        time_s = alone_s
        if op.kind in COLLECTIVES:
            time_s = 0.0 if exchanges(op) or op.kind == HOP else self._group_s(op, key)
        else:
            work[ENERGY] = self._energy_j(cost)
            kept = [name for name in op.outputs if name in gradients]
            if kept:
                more = self.prices.streaming(sum_bytes(op, graph, kept))
                instead_s = time_s if casts(op) else 0.0
                work[ACCUMULATE] = more.time_s(self.cluster.device) - instead_s
        phase = {Pass.FORWARD: FORWARD, Pass.WEIGHT_GRADIENT: WEIGHT_GRADIENT}
        work[phase.get(op.pass_, BACKWARD)] = time_s
        return work

    def _energy_j(self, cost: OpCost) -> float:
        if id(cost) not in self._energies:
            energy = op_energy_j(cost, self.cluster.device)
            self._energies[id(cost)] = energy["total"] - energy["static"]
        return self._energies[id(cost)]

    def _group_s(self, op: Op, key: Key) -> float:
        """Return the least seconds of a collective between ranks that share an op, or experts."""
        attrs = dict(op.attrs)
        size = float(str(attrs["size_bytes"]))
        members, apart = {
            "expert": (key.expert, key.tensor),
            "context": (key.context, key.tensor),
        }.get(str(attrs["dimension"]), (key.tensor, 1))
        known = (op.kind, members, apart, size)
        if known not in self._collective_s:
            self._collective_s[known] = min(
                self.wires.time_s(op.kind, group, size) for group in self._alike(members, apart)
            )
        return self._collective_s[known] * int(str(attrs["repeat"]))

    def _alike(self, members: int, apart: int) -> list[Ints]:
        """Return groups of so many ranks so far apart: one of those that lie alike in their nodes.

        Where links inside a node differ, or groups begin inside one, any may be the fastest.
        """
        starts = np.arange(self.devices).reshape(-1, members, apart)[:, 0]
        groups = starts.reshape(-1, 1) + np.arange(members) * apart
        _, unlike = np.unique(self.wires.place[groups], axis=0, return_index=True)
        return list(groups[unlike])


def _homes(told: Told) -> Ints:
    """Return [ops] the unit of every op."""
    home = np.zeros(len(told.graph.ops), np.int64)
    for u, unit in enumerate(told.parts):
        home[list(unit.ops)] = u
    return home


def _held(told: Told, home: Ints, expert: int) -> Floats:
    """Call `held_by_unit` with what ranks share as experts."""
    graph = told.graph
    experts = expert_weights(graph) if expert > 1 else frozenset[str]()
    return held_by_unit(graph, home, len(told.parts), weight_gradients(graph), experts)


def _largest(graph: Graph) -> float:
    """Bytes of the largest gradient of weights, or weight."""
    gradients = set(weight_gradients(graph).values())
    weights = {Role.WEIGHT, Role.WEIGHT_COPY}
    sizes = (t.bytes for t in graph.tensors.values() if t.role in weights or t.name in gradients)
    return float(max(sizes, default=0))
