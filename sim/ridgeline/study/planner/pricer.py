"""Pricer of plan classes: cost of a network's parts, by pipeline unit.

Plans with the same micro-batch, tensor and sequence degree and recomputation have the same ops;
they are divided, rewritten and priced once, by the same functions as the lowering. A network of
many equal layers is priced by a few of them, where that gives the FLOPs and the bytes of the whole
exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ridgeline.engine.builder import ProgramBuilder
from ridgeline.errors import RidgelineError
from ridgeline.kernels.cost import OpCost, op_energy_j, peak_rates
from ridgeline.network.cluster_topology import from_cluster
from ridgeline.network.topology import Topology
from ridgeline.parallel.checkpointing.recompute import with_recompute
from ridgeline.parallel.comm.comm_cost import FarMemory, Wires
from ridgeline.parallel.emit.block_emitter import SILENT
from ridgeline.parallel.emit.grad_accumulation import adds, casts, sum_bytes
from ridgeline.parallel.emit.rank_group import CollectiveCall
from ridgeline.parallel.lower import Moving, moving
from ridgeline.parallel.op_pricer import FEW_GRAPHS, OpPricer
from ridgeline.parallel.pace import with_waits
from ridgeline.parallel.partition.chain import pass_times
from ridgeline.parallel.partition.memory_footprint import KEPT, unit_memory
from ridgeline.parallel.partition.overheads import OpTimes, Overheads, overheads_of
from ridgeline.parallel.partition.stage_of import places
from ridgeline.parallel.plan.layers import kind_of
from ridgeline.parallel.plan.mesh import Mesh
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.sharding.divide import ShardedGraph, ShardingSpec, divide
from ridgeline.parallel.sharding.experts import expert_weights, with_experts
from ridgeline.parallel.sharding.ring_attention import HOP
from ridgeline.parallel.sharding.shard import COLLECTIVES
from ridgeline.parallel.shorter_cut import NAMED
from ridgeline.study.planner.bounds import HELD, TOTALS, held_of_all, totals_of_more
from ridgeline.study.planner.comm_bounds import CommBounds
from ridgeline.study.planner.dependencies import (
    OpFacts,
    Unlike,
    crossing,
    done_once,
    links,
    played,
    runs_once_per_step,
    waits,
)
from ridgeline.study.planner.extrapolation import (
    ReducedModel,
    RepresentativeGraph,
    few_layers,
)
from ridgeline.study.planner.plan_class import (
    ACCUMULATE,
    BACKWARD,
    BEST,
    ENERGY,
    FORWARD,
    WEIGHT_GRADIENT,
    CostCache,
    CostKey,
    Floats,
    GroupKey,
    Ints,
    OpCosts,
    PlacedOps,
    PlanClass,
)
from ridgeline.study.planner.settings import PlanSettings
from ridgeline.study.planner.space import Limits
from ridgeline.workload.autodiff import weight_gradients
from ridgeline.workload.graph import Gemm, Graph, Op, Pass
from ridgeline.workload.model import Model

OnKinds = tuple[OpCost, ...]
"""Price of an op on each kind of device."""


class PlanPricer:
    """Prices groups of plans of one model on so many devices of a cluster.

    Parameters
    ----------
    runs
        How the stack runs them.
    like
        Groups of the same model and cluster on another number of devices: what both have in common
        is not made again.
    """

    def __init__(self, runs: PlanSettings, precision: str, like: PlanPricer | None = None) -> None:
        self.runs, self.model = runs, runs.written
        self.cluster, self.devices, self.precision = runs.cluster, runs.devices, precision
        self.topology: Topology = from_cluster(self.cluster, self.devices)
        if like is None:
            self.made = CostCache(few_layers(self.model, self.precision))
        else:
            self.made = like.made
        self.few = self.made.few
        every = self.cluster.kinds_of_devices
        self._slow = tuple((every.index(d), runs.slower, runs.idle_s) for d in runs.kinds)
        for slow, device in zip(self._slow, runs.kinds, strict=True):
            self.made.prices.setdefault(slow, OpPricer(device, *slow[1:]))
        self.kinds = tuple(self.made.prices[slow] for slow in self._slow)
        self.limits = Limits(self.model, self.few, self.precision, self.devices, runs.cut)
        builder = ProgramBuilder()
        first = self.kinds[0]
        first.add_to(builder)
        name = self.cluster.device.far_memory
        far = FarMemory(first.accounts[name], first.resources[name])
        self.wires = Wires(builder, self.topology, far)
        self.between = CommBounds(self.wires, self.topology, runs.unlike, runs.sizes)
        self._groups: dict[GroupKey, PlanClass | None] = {}
        self._ops: dict[GroupKey, OpCosts | None] = {}
        self._collective_s: dict[tuple[str, int, int, float], float] = {}
        self._exchanged: dict[tuple[object, ...], tuple[PlacedOps, ...]] = {}
        self._moving: dict[int, Moving] = {}
        self._meshes: dict[GroupKey, Mesh] = {}
        self._work_at_peak: Floats | None = None

    def group(self, key: GroupKey) -> PlanClass | None:
        """Price a group; None where the model can not be divided so."""
        if key not in self._groups:
            self._groups[key] = self._price(key)
        return self._groups[key]

    def held_undivided(self, micro_batch: int, recompute: str, expert: int) -> Floats:
        """Return [10] what all units together hold, divided by experts alone (`held_of_all`).

        Activations are in proportion to the samples, but for what has none of them; the most of one
        unit grows at least so.
        """
        one, two = (self._undivided(size, recompute, expert) for size in (1, 2))
        total: Floats = one + (two - one) * (micro_batch - 1)
        if recompute == "sqrt":  # where its stretches end may be another with more samples
            total[KEPT:] = 0.0
        return total

    def _undivided(self, micro_batch: int, recompute: str, expert: int) -> Floats:
        known = (micro_batch, recompute, expert)
        if known not in self.made.held:

            def made(model: Model) -> Graph:
                graph = with_experts(model.training(micro_batch, self.precision), expert)
                return self.runs.rewritten(with_recompute(graph, recompute))

            like = GroupKey(1, 1, False, "none", min(expert, self.limits.least_expert))
            told = self.few.told(made, self._first_told(like._replace(micro_batch=2)))
            held = _held(told, _homes(told), expert)
            self.made.held[known] = held_of_all(told.whole(held))
        return self.made.held[known]

    def _price(self, key: GroupKey) -> PlanClass | None:
        ops = self._ops_of(key)
        if ops is None:
            return None
        known = self._like(ops.told, key)
        if known not in self.made.groups:
            self.made.groups[known] = self._group_of(ops, key)
        return self.made.groups[known]

    def _group_of(self, ops: OpCosts, key: GroupKey) -> PlanClass:
        told, whole, graph = ops.told, ops.told.whole, ops.told.graph
        balanced, besides = self._balanced(ops, key)
        assert besides.memory is not None
        held = besides.memory.counted_once(besides.holds)
        around = links(graph, ops.home, ops.seconds).swapaxes(0, 1)
        taken = OpFacts(
            ops.home, ops.seconds, ops.added_s, [runs_once_per_step(op, graph) for op in graph.ops],
            self.made.divided[self._told_as(key)], _experts(graph, key.expert),
        )  # fmt: skip
        try:
            events = played(told, taken)
        except Unlike:  # all layers have to be told
            told = self.made.told[self._told_as(key)] = self._tell(
                key, ReducedModel(self.model, ())
            )
            ops = self._ops[key] = self._by_unit(told, key)
            self.made.ops[self._like(told, key)] = ops  # in the place of those of few layers
            return self._group_of(ops, key)
        starts = whole(told.starts(self.runs.cut)) if self.runs.cut != "even" else None
        return PlanClass(
            whole(ops.work),
            whole(held),
            whole(balanced),
            whole(around).swapaxes(0, 1),
            whole(ops.waited),
            key.tensor,
            events,
            whole(ops.once_s),
            crossing(told, taken, key.tensor),
            whole(self._issued_s(told, ops.home)),
            whole(np.array([float(unit.send_bytes) for unit in told.parts])),
            besides.of_more(whole),
            starts,
            self._named(told) if starts is None else None,
            ops.placed,
        )

    @staticmethod
    def _named(told: RepresentativeGraph) -> tuple[Floats, ...] | None:
        """Return where layers begin by every cut that a plan can name, if so many layers tell."""
        if not all(map(told.tells_cuts, NAMED)):
            return None
        return tuple(told.whole(told.starts(cut)) for cut in NAMED)

    def exchanged_at_least(self, key: GroupKey) -> tuple[PlacedOps, ...]:
        """Return what ranks that share experts exchange at least, nothing divided.

        Of rows that no op runs beside the exchange of. A group's devices may share each of them,
        and as many rows as experts have for one sample may be one more than they need.
        """
        who = self._who("expert", key)
        if key.expert == 1 or who is None or self.runs.load > 1 or self.runs.pairs_passes:
            return ()
        parts = key.tensor * key.context * math.prod(key.images)
        known = key.micro_batch, parts, key.expert, who
        if known not in self._exchanged:
            self._exchanged[known] = self._exchanges(key.micro_batch / parts, key.expert, who)
        return self._exchanged[known]

    def _exchanges(self, share: float, expert: int, who: tuple[int, int]) -> tuple[PlacedOps, ...]:
        """Price the exchanges of a share of a sample in the groups of every kind."""
        if expert not in self.made.exchanges:
            self.made.exchanges[expert] = self._exchanges_of_a_sample(expert)
        calls = self.made.exchanges[expert]
        if not calls or not all(size for _, size in calls):
            return ()
        groups = self.between.alike(*who)
        each = np.array(
            [[self.wires.time_s(op, g, size * share) for op, size in calls] for g in groups]
        )
        least, often = each.min(axis=0), np.array(list(calls.values()))
        ratio = (each / least).min(axis=1)
        return (PlacedOps(*who, float(least @ often), ratio, np.zeros((0, 0))),)

    def _exchanges_of_a_sample(self, expert: int) -> dict[tuple[str, float], float]:
        """Count all-to-alls of a sample by their op and least bytes."""
        once = self.runs.stack.moe.dispatch == "node-limited"

        def made(model: Model) -> Graph:
            graph = with_experts(model.training(1, self.precision), expert, once=once)
            return self.runs.rewritten(graph)

        told = self.few.told(made)
        graph = told.graph
        found: dict[tuple[str, float], Floats] = {}
        for op, unit in zip(graph.ops, _homes(told).tolist(), strict=True):
            if op.kind not in COLLECTIVES or self.runs.is_beside(op):
                continue
            call = CollectiveCall.of(op)
            rows = min(graph.tensors[name].shape[1] for name in (*op.inputs, *op.outputs))
            size = call.size_bytes * (1 - 1 / max(rows, 1))
            counts = found.setdefault((call.op, size), np.zeros(len(told.parts)))
            counts[unit] += call.repeat
        return {known: float(told.whole(each).sum()) for known, each in found.items()}

    def least_at_peak(self, key: GroupKey) -> Floats:
        """Return seconds as `totals`, nothing divided: products with each engine at its peak.

        However a group divides them, and whatever it does again, its devices share this work.
        Networks with zeros do less, and other ops than products may have kernels that do.
        """
        if self._work_at_peak is None:
            network, work = self.model.network, np.zeros(len(TOTALS) - HELD)
            if network.weight_sparsity == "none" and network.relu_density == 1.0:
                told = self.few.told(lambda model: model.training(1, self.precision))
                each = np.zeros(len(told.parts))
                np.add.at(each, _homes(told), [self._at_peak_s(op, told) for op in told.graph.ops])
                work[FORWARD] = told.whole(each).sum()
            self._work_at_peak = work
        parts = key.tensor * key.context * math.prod(key.images)
        return self._work_at_peak * (key.micro_batch / parts)

    def _at_peak_s(self, op: Op, told: RepresentativeGraph) -> float:
        """Return seconds of a product on the engine that is fastest at its format."""
        if not isinstance(op.loops, Gemm) or op.pass_ is Pass.UPDATE:
            return 0.0
        rates = [rate for kind in self.kinds for rate in peak_rates(kind.device).items()]
        suffix = f".{told.graph.tensors[op.inputs[0]].format}"
        own = [rate for name, rate in rates if name.endswith(suffix)]
        return op.matrix_flops / max(own or [rate for _, rate in rates])

    def least(self, key: GroupKey) -> Floats | None:
        """Return the first of `totals`, which are also a bound of any group that has more ops.

        None where the model can not be divided so.
        """
        ops = self._ops_of(key)
        if ops is None:
            return None
        return totals_of_more(ops.told.whole(ops.work), ops.told.whole(ops.waited))

    def placed(self, key: GroupKey) -> tuple[PlacedOps, ...]:
        """Return the collectives of a group, of which `least` is known, that take unlike long."""
        ops = self._ops_of(key)
        return () if ops is None else ops.placed

    def leasts(self, keys: Sequence[GroupKey]) -> list[Floats | None]:
        """Return `least` of many groups, priced a few at a time."""
        found: list[Floats | None] = []
        for start in range(0, len(keys), FEW_GRAPHS):
            some = keys[start : start + FEW_GRAPHS]
            graphs = [told.graph for key in some if (told := self._told_of(key))]
            for prices in self.kinds:
                prices.look_up(graphs)
            found += map(self.least, some)
        return found

    def family(self, key: GroupKey) -> GroupKey:
        """Return the group that has ops of this one and no others: it recomputes nothing."""
        return key._replace(recompute="none") if self.runs.grows else key

    def least_again(self, key: GroupKey) -> Floats | None:
        """Bound a group as `least`, by its ops without recomputation and those that it does again.

        Only the latter are priced.
        """
        before, told = self._ops_of(key._replace(recompute="none")), self._told_of(key)
        if before is None or told is None:
            return None
        graph = told.graph
        more = np.zeros((len(told.parts), before.work.shape[1]))
        again = [
            (unit, graph.ops[i])
            for unit, part in enumerate(told.parts)
            for i in part.ops
            if graph.ops[i].pass_ is Pass.RECOMPUTE
        ]
        costs = self._least_costs([op for _, op in again], graph)
        for (unit, op), cost in zip(again, costs, strict=True):
            more[unit] += self._work(
                op, graph, key, frozenset(), cost, self._least_s(cost, key.kind)
            )
        work, waited = before.told.whole(before.work), before.told.whole(before.waited)
        repeated = told.whole(more)
        found = totals_of_more(work + repeated if len(work) == len(repeated) else work, waited)
        if key.grid is not None:  # a product in panels is cut elsewhere where it is done again
            found[-1] = totals_of_more(work, waited)[-1]
        return found

    def _told_of(self, key: GroupKey) -> RepresentativeGraph | None:
        try:
            known, told = self._told_as(key), self.made.told
        except RidgelineError:
            return None
        if known not in told:
            try:
                told[known] = self._tell(key, self.few)
            except RidgelineError:
                told[known] = None
        return told[known]

    def _tell(self, key: GroupKey, few: ReducedModel) -> RepresentativeGraph:
        told = few.told(self._maker(key), self._first_told(key) if few is self.few else 0)
        whole = ReducedModel(self.model, ())
        return told if told.tells_cuts(self.runs.cut) else whole.told(self._maker(key))

    def _maker(self, key: GroupKey) -> Callable[[Model], Graph]:
        def made(model: Model) -> Graph:
            sharded = self._shard(key, model)
            self.made.divided[self._told_as(key)] = sharded.divided
            return self.runs.rewritten(with_recompute(sharded.graph, key.recompute))

        return made

    def _first_told(self, key: GroupKey) -> int:
        """Return the place in `few.fewer` of the number of layers likely to tell of a group.

        That of the smallest group which has the same dimensions: how many layers at the ends are
        unlike the others follows from which collectives there are, less often from their sizes.
        """
        s = self.limits
        like = key._replace(
            micro_batch=1, tensor=min(key.tensor, s.least_tensor),
            expert=min(key.expert, s.least_expert),
        )  # fmt: skip
        if like == key:
            return 0
        known = self.made.first
        if like not in known:
            try:
                known[like] = self.few.place_of(self.few.told(self._maker(like)))
            except RidgelineError:
                known[like] = 0
        return known[like]

    def _told_as(self, key: GroupKey) -> tuple[GroupKey, Moving]:
        """Return what the graph of a group follows from: the same on all kinds of devices."""
        return key._replace(kind=BEST), self._of_group(key.tensor)

    def _shard(self, key: GroupKey, model: Model) -> ShardedGraph:
        of_group, sharded = self._of_group(key.tensor), self.made.sharded
        known = (key._replace(recompute="none", kind=BEST), model, of_group)
        if known not in sharded:
            graph = model.training(key.micro_batch, self.precision)
            division = ShardingSpec(
                expert=key.expert, context=key.context, tensor=key.tensor, sequence=key.sequence,
                **of_group._asdict(), ring=key.ring, grid=key.images, two=key.grid,
                shared_statistics=self.runs.stack.kernels.sync_batch_norm,
                imbalance=self.runs.load,
                once=self.runs.stack.moe.dispatch == "node-limited",
                folded=0 < self.runs.folds(key) < key.tensor,
            )  # fmt: skip
            sharded[known] = divide(graph, division)
        return sharded[known]

    def _of_group(self, tensor: int) -> Moving:
        if tensor not in self._moving:
            data = self.devices // tensor
            plan = Plan(global_batch=data, data=data, tensor=tensor)
            self._moving[tensor] = moving(plan, self.cluster, self.wires, Mesh.of(plan))
        return self._moving[tensor]

    # Costs of units

    def _ops_of(self, key: GroupKey) -> OpCosts | None:
        """Price the ops of a group; None where the model can not be divided so."""
        if key not in self._ops:
            told = self._told_of(key)
            self._ops[key] = None if told is None else self._ops_like(told, key)
        return self._ops[key]

    def _ops_like(self, told: RepresentativeGraph, key: GroupKey) -> OpCosts:
        """Price the ops of a group, unless they cost the same on another number of devices."""
        known, ops = self._like(told, key), self.made.ops
        if known not in ops:
            ops[known] = self._by_unit(told, key)
        return ops[known]

    def _like(self, told: RepresentativeGraph, key: GroupKey) -> CostKey:
        """Return all that the costs of a group follow from."""
        collectives = [op for op in told.graph.ops if op.kind in COLLECTIVES]
        sent = [self._group_s(op, key) for op in collectives if op.kind != HOP]
        nothing = [0.0] * len(collectives)
        mesh, stack = self._mesh(key), self.runs.stack
        sent += with_waits(collectives, nothing, self.wires, mesh, stack)
        return key, self._of_group(key.tensor), self._slow, tuple(sent)

    def _by_unit(self, told: RepresentativeGraph, key: GroupKey) -> OpCosts:
        graph, parts = told.graph, told.parts
        gradients = frozenset(weight_gradients(graph).values())
        home = _homes(told)
        costs = self._least_costs(graph.ops, graph)
        alone_s = [self._least_s(of_kinds, key.kind) for of_kinds in costs]
        per_op = np.zeros((len(graph.ops), 5))
        for i, op in enumerate(graph.ops):
            if self._repeats(op, graph):
                per_op[i] = self._work(op, graph, key, gradients, costs[i], alone_s[i])
        beside = {i: op for i, op in enumerate(graph.ops) if self.runs.is_beside(op)}
        kinds = {kind_of(CollectiveCall.of(op).dimension) for op in beside.values()}
        several = len(kinds) > 1  # which need not wait for each other
        paired = key.expert > 1 and self.runs.pairs_passes
        sent = {
            i: 0.0
            if paired or (several and kind_of(CollectiveCall.of(op).dimension) == "tensor")
            else self._group_s(op, key)
            for i, op in beside.items()
        }
        passes = np.maximum(alone_s, per_op[:, :ACCUMULATE].sum(axis=1))
        both = waits(graph, home, passes, np.maximum(per_op[:, ACCUMULATE], 0.0), sent)
        per_op[:, [FORWARD, BACKWARD]] += both
        columns = [np.bincount(home, column, len(parts)) for column in per_op.T]
        waited = np.zeros((len(parts), 2))
        np.add.at(waited, home, both)
        seconds = per_op[:, :ACCUMULATE].sum(axis=1)
        once_s = np.zeros((len(parts), 2))
        for i, unit in done_once(graph, home).items():
            once_s[unit, int(graph.ops[i].pass_ is Pass.UPDATE)] += alone_s[i]
        by_unit: Floats = np.stack(columns, axis=1).astype(np.float64)
        added_s: Floats = per_op[:, ACCUMULATE].astype(np.float64)
        placed = self._placed(told, key, home)
        return OpCosts(told, home, seconds, added_s, by_unit, waited, once_s, placed)

    def _placed(
        self, told: RepresentativeGraph, key: GroupKey, home: Ints
    ) -> tuple[PlacedOps, ...]:
        """Return the collectives that groups take unlike long for, by who takes part in them."""
        graph = told.graph
        of: dict[tuple[int, int], list[int]] = {}
        for i, op in enumerate(graph.ops):
            counts = op.kind in COLLECTIVES and op.kind != HOP and not self.runs.is_beside(op)
            if counts and op.pass_ is not Pass.WEIGHT_GRADIENT and self._repeats(op, graph):
                who = self._who(CollectiveCall.of(op).dimension, key)
                if who is not None and len(self.between.alike(*who)) > 1:
                    of.setdefault(who, []).append(i)
        found = []
        for (members, apart), ops in of.items():
            each = np.array([self._by_kind_s(graph.ops[i], members, apart) for i in ops]).T
            least = each.min(axis=0)
            more_s = np.zeros((len(each), len(graph.ops)))
            more_s[:, ops] = each - least
            of_units: Floats = np.bincount(home[ops], least, len(told.parts)).astype(np.float64)
            some = least > 0
            ratio = (each[:, some] / least[some]).min(axis=1, initial=np.inf)
            if some.any() and (ratio > 1).any():
                total = float(told.whole(of_units).sum())
                found.append(PlacedOps(members, apart, total, ratio, more_s))
        return tuple(found)

    def _balanced(self, ops: OpCosts, key: GroupKey) -> tuple[Floats, Overheads]:
        """Return by what stages are cut, `PlanClass.balanced` of the graph, and its overheads."""
        graph, parts = ops.told.graph, ops.told.parts
        first = self.kinds[0]  # by whose times stages are cut
        usual = first.costs(graph)
        usual_s = [self._alone_s(0, cost) for cost in usual]
        each_s = with_waits(graph.ops, usual_s, self.wires, self._mesh(key), self.runs.stack)
        launch = tuple(cost.latency_s for cost in usual)
        times = OpTimes(tuple(usual_s), launch, *first.moving_s(), self.runs.issue_s)
        experts, home = _experts(graph, key.expert), ops.home.tolist()
        besides = overheads_of(graph, home, len(parts), times, self.runs.stack, experts)
        return pass_times(graph, each_s, [part.ops for part in parts]), besides

    def _issued_s(self, told: RepresentativeGraph, home: Ints) -> Floats:
        """Return [units] seconds in which the host launches ops of a micro-batch ahead of them."""
        count = np.zeros(len(told.parts))
        for op, unit in zip(told.graph.ops, home.tolist(), strict=True):
            if self._repeats(op, told.graph) and op.kind not in SILENT:
                count[unit] += op.kernels
        return count * self.runs.issue_s

    def _repeats(self, op: Op, graph: Graph) -> bool:
        """Whether an op is done for every micro-batch.

        Sums of gradients may be left to a collective at the end, where stages share a weight.
        """
        sums = op.pass_ is Pass.WEIGHT_GRADIENT and op.kind == "add"
        return not (sums or op.pass_ is Pass.UPDATE or runs_once_per_step(op, graph))

    def _least_costs(self, ops: Sequence[Op], graph: Graph) -> list[OnKinds]:
        """Price some ops of a graph at least, on each kind of device."""
        return list(zip(*(prices.least_costs(ops, graph) for prices in self.kinds), strict=True))

    def _least_s(self, costs: OnKinds, kind: int) -> float:
        """Return what an op takes on a kind of device, or on the one that is fastest at it."""
        kinds = range(len(costs)) if kind == BEST else (kind,)
        return min(self._alone_s(kind, costs[kind]) for kind in kinds)

    def _alone_s(self, kind: int, cost: OpCost) -> float:
        if id(cost) not in self.made.times:
            self.made.times[id(cost)] = cost.time_s(self.kinds[kind].device)
        return self.made.times[id(cost)]

    def _work(
        self, op: Op, graph: Graph, key: GroupKey, gradients: frozenset[str],
        costs: OnKinds, alone_s: float,
    ) -> list[float]:  # fmt: skip
        """Return what an op of a micro-batch takes: a row of `PlanClass.work`."""
        work = [0.0] * 5
        time_s = alone_s
        if op.kind in COLLECTIVES:
            beside = self.runs.is_beside(op) or op.kind == HOP
            time_s = 0.0 if beside else self._group_s(op, key)
        else:
            work[ENERGY] = min(self._energy_j(kind, cost) for kind, cost in enumerate(costs))
            kept = [name for name in op.outputs if name in gradients and not adds(op)]
            if kept:
                added, instead = sum_bytes(op, graph, kept), casts(op)
                work[ACCUMULATE] = min(
                    self.kinds[kind].streaming(added).time_s(self.kinds[kind].device)
                    - (self._alone_s(kind, costs[kind]) if instead else 0.0)
                    for kind in (range(len(costs)) if key.kind == BEST else (key.kind,))
                )
        phase = {Pass.FORWARD: FORWARD, Pass.WEIGHT_GRADIENT: WEIGHT_GRADIENT}
        work[phase.get(op.pass_, BACKWARD)] = time_s
        return work

    def _energy_j(self, kind: int, cost: OpCost) -> float:
        if id(cost) not in self.made.energies:
            energy = op_energy_j(cost, self.kinds[kind].device)
            self.made.energies[id(cost)] = energy["total"] - energy["static"]
        return self.made.energies[id(cost)]

    def _mesh(self, key: GroupKey) -> Mesh:
        """Return the ranks of a plan of a group: the first of them share ops as in any other."""
        if key not in self._meshes:
            (high, wide), grid = key.images, key.grid
            data = self.devices // (key.tensor * key.context * high * wide)
            plan = Plan(
                global_batch=data * key.micro_batch, data=data, tensor=key.tensor,
                context=key.context, expert=key.expert, spatial=f"{high}x{wide}",
                tensor_rows=grid.rows if grid else 1, tensor_mode=grid.mode if grid else "gather",
                micro_batch=key.micro_batch, expert_tensor_parallel=self.runs.folds(key),
                sequence=key.tensor if key.sequence else 1,
            )  # fmt: skip
            self._meshes[key] = Mesh.of(plan)
        return self._meshes[key]

    def _group_s(self, op: Op, key: GroupKey) -> float:
        """Return the least seconds of a collective between ranks that share an op, or samples."""
        sent = CollectiveCall.of(op)
        who = self._who(sent.dimension, key)
        return 0.0 if who is None else self.group_s(sent.op, *who, sent.size_bytes) * sent.repeat

    def _by_kind_s(self, op: Op, members: int, apart: int) -> list[float]:
        """Return the seconds of a collective in a group of each kind."""
        sent = CollectiveCall.of(op)
        groups = self.between.alike(members, apart)
        return [self.wires.time_s(sent.op, g, sent.size_bytes) * sent.repeat for g in groups]

    def _who(self, dimension: str, key: GroupKey) -> tuple[int, int] | None:
        """Return how many ranks take part in a collective, and how far they are apart.

        None: not known, as they lie across dimensions.
        """
        high, wide = key.images
        if dimension == "expert" and self.runs.folds(key):
            return None
        rows = key.grid.rows if key.grid else 1
        return {
            "expert": (key.expert, key.tensor * high * wide),
            "context": (key.context, key.tensor),
            "spatial.columns": (wide, key.tensor),
            "spatial.rows": (high, key.tensor * wide),
            "tensor.columns": (key.tensor // rows, 1),
            "tensor.rows": (rows, key.tensor // rows),
        }.get(dimension, (key.tensor, 1))

    def group_s(self, kind: str, members: int, apart: int, size_bytes: float) -> float:
        """Return the least seconds of a collective of so many ranks so far apart."""
        known = (kind, members, apart, size_bytes)
        if known not in self._collective_s:
            self._collective_s[known] = min(
                self.wires.time_s(kind, group, size_bytes)
                for group in self.between.alike(members, apart)
            )
        return self._collective_s[known]


def _units(told: RepresentativeGraph) -> Ints:
    """Return [ops] the unit that every op belongs to, by whose times stages are balanced."""
    unit = np.zeros(len(told.graph.ops), np.int64)
    for u, one in enumerate(told.parts):
        unit[list(one.ops)] = u
    return unit


def _homes(told: RepresentativeGraph) -> Ints:
    """Return [ops] the unit on whose stage every op is done."""
    return np.array(places(told.graph, _units(told).tolist()), np.int64)


def _held(told: RepresentativeGraph, home: Ints, expert: int) -> Floats:
    """Call `unit_memory` with what ranks share as experts."""
    graph, experts = told.graph, _experts(told.graph, expert)
    return unit_memory(graph, home, len(told.parts), weight_gradients(graph), experts).held


def _experts(graph: Graph, expert: int) -> frozenset[str]:
    """Name weights, and copies of them, of experts that ranks share."""
    return expert_weights(graph) if expert > 1 else frozenset()
