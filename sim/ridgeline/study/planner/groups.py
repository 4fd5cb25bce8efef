"""What the parts of a network cost: per unit that a pipeline does not cut, for one kind of plan.

Plans with the same micro-batch, tensor and sequence degree and recomputation have the same ops;
they are divided and priced once, by the same functions as the lowering. A network of many equal
layers is priced by a few of them, where that gives the FLOPs and the bytes of the whole exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ridgeline.engine.builder import ProgramBuilder
from ridgeline.errors import RidgelineError
from ridgeline.hardware.cluster import Cluster
from ridgeline.kernels.cost import OpCost, op_energy_j
from ridgeline.network.topology import Topology, from_cluster
from ridgeline.parallel.lower import _flops_per_byte
from ridgeline.parallel.mesh import Mesh
from ridgeline.parallel.plan import Plan
from ridgeline.parallel.prices import Prices
from ridgeline.parallel.recompute import Mode, with_recompute
from ridgeline.parallel.shard import COLLECTIVES, Sharded, shard
from ridgeline.parallel.stages import balance, units
from ridgeline.parallel.wires import Wires
from ridgeline.study.planner.links import LEAD, LINK, TRAIL, is_once, links
from ridgeline.workload.autodiff import weight_gradients
from ridgeline.workload.graph import Graph, Op, Pass, Role
from ridgeline.workload.model import Model

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_FEW_LAYERS, _MANY_LAYERS = 4, 8
_HUGE_BYTES = 2.0**42  # a collective of which only the bandwidth counts

FORWARD, BACKWARD, WEIGHT_GRADIENT, ACCUMULATE, ENERGY = range(5)
STATE, MASTER, COMPUTED, GRADIENT, OTHER, KEPT = range(6)


class Key(NamedTuple):
    """Plans of one key have the same ops."""

    micro_batch: int
    tensor: int
    sequence: bool
    recompute: Mode


class Wait(NamedTuple):
    """That a stage waits for another one.

    Attributes
    ----------
    source
        Number of the stage that it waits for; -1: for none.
    lead_s
        What it can do before.
    trail_s
        What the other one does after that which is waited for.
    """

    source: int
    lead_s: float
    trail_s: float


@dataclass(frozen=True)
class Group:
    """Costs of one kind of plan by unit.

    Attributes
    ----------
    work
        [U, 5] by unit: seconds of one micro-batch forward, backward without gradients of weights,
        gradients of weights, of adding gradients to those of earlier micro-batches; joules.
    held
        [U, 6] bytes: optimizer state, weights that have a copy in another format, what is computed
        with, gradients, other; kept of a micro-batch until the backward pass.
    balanced
        [U] time by which stages are balanced.
    around
        [3, U, 3] forward, backward, backward without gradients of weights: seconds of the ops
        before the first one that waits for another unit, seconds of the ops of that unit after the
        one that it waits for, and how many units away that is (0: it waits for none).
    """

    work: Floats
    held: Floats
    balanced: Floats
    around: Floats
    _cuts: dict[int, Ints] = field(default_factory=dict)

    def cut(self, stages: int) -> Ints:
        """Return [stages + 1] the first unit of every stage, and the number of units."""
        if stages not in self._cuts:
            parts = balance(self.balanced.tolist(), stages)
            self._cuts[stages] = np.array([p.first for p in parts] + [parts[-1].stop], np.int64)
        return self._cuts[stages]

    def by_stage(self, stages: int) -> tuple[Floats, Floats]:
        """Return `work` and `held` summed over the units of each stage: [stages, 5] and [., 6]."""
        first = self.cut(stages)[:-1]
        return np.add.reduceat(self.work, first), np.add.reduceat(self.held, first)

    def seconds(self, direction: int) -> Floats:
        """Return [U] what the blocks of a direction take of each unit."""
        if direction == 0:
            return self.work[:, FORWARD]
        backward = self.work[:, BACKWARD]
        return backward + self.work[:, WEIGHT_GRADIENT] if direction == 1 else backward

    def waits(self, stages: int, direction: int) -> list[Wait]:
        """Return for which other stage each one waits in one direction, and where in its work."""
        cut, around = self.cut(stages), self.around[direction]
        total = np.concatenate(([0.0], np.cumsum(self.seconds(direction))))
        found = []
        for s in range(stages):
            a, b = int(cut[s]), int(cut[s + 1])
            order = range(a, b) if direction == 0 else range(b - 1, a - 1, -1)
            wait = Wait(-1, 0.0, 0.0)
            for u in order:
                v = u - int(around[u, LINK]) if direction == 0 else u + int(around[u, LINK])
                if a <= v < b:
                    continue
                source = int(np.searchsorted(cut, v, side="right")) - 1
                if direction == 0:
                    lead, trail = total[u] - total[a], total[cut[source + 1]] - total[v + 1]
                else:
                    lead, trail = total[b] - total[u + 1], total[v] - total[cut[source]]
                wait = Wait(source, lead + around[u, LEAD], trail + around[u, TRAIL])
                break
            found.append(wait)
        return found

    def linked_s(self) -> float:
        """Return seconds of the units that all later ones wait for, forward and backward."""
        both = np.ones(len(self.work), np.bool_)
        seconds = np.zeros(len(self.work))
        for direction in (0, 1):
            around, n = self.around[direction], len(self.work)
            u = n - 1 if direction == 0 else 0
            on = np.zeros(n, np.bool_)
            part = np.zeros(n)
            part += self.seconds(direction)
            while True:
                on[u] = True
                part[u] -= around[u, LEAD]
                away = int(around[u, LINK])
                if away == 0:
                    break
                v = u - away if direction == 0 else u + away
                part[v] -= around[u, TRAIL]
                u = v
            both &= on
            seconds += np.maximum(part, 0.0)
        return float(seconds[both].sum())


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
        self._sharded: dict[tuple[int, int, bool, bool], Sharded | None] = {}
        self._collective_s: dict[tuple[str, int, float], float] = {}
        self._energies: dict[int, float] = {}  # by identity; `prices` keeps the prices alive
        self._byte_s: dict[tuple[str, int, int], float] = {}
        self._flops_per_byte: dict[int, float] = {}
        self.few = self._few_layers()

    def group(self, key: Key) -> Group | None:
        """Price a group; None where the model can not be divided so."""
        if key not in self._groups:
            self._groups[key] = self._price(key)
        return self._groups[key]

    @property
    def max_stages(self) -> int:
        """Parts that a pipeline can cut the model into."""
        return _n_units(self.model, self.precision)

    def divides(self, tensor: int) -> bool:
        """Whether the model's heads can be shared by so many devices."""
        return self._shard(Key(1, tensor, False, "none"), self.few is not None) is not None

    def byte_s(self, op: str, data: int, tensor: int) -> float:
        """Return the least seconds a byte of a collective between data-parallel ranks."""
        known = (op, data, tensor)
        if known not in self._byte_s:
            group = np.arange(data) * tensor
            self._byte_s[known] = self.wires.time_s(op, group, _HUGE_BYTES) / _HUGE_BYTES
        return self._byte_s[known]

    # How a network of many layers is told by a few of them

    def _few_layers(self) -> Model | None:
        """Return the model with fewer layers if it is the same besides."""
        layers = getattr(self.model.network, "layers", None)
        if not isinstance(layers, int) or layers < _MANY_LAYERS:
            return None
        try:
            network = self.model.network.model_copy(update={"layers": _FEW_LAYERS})
            few = Model(self.model.name, network)
            counted = [_counted(m, self.precision) for m in (self.model, few)]
            one = _counted(
                Model(few.name, network.model_copy(update={"layers": _FEW_LAYERS - 1})),
                self.precision,
            )
        except RidgelineError:
            return None
        whole, part = counted
        more = layers - _FEW_LAYERS
        same = all(w == p + more * (p - o) for w, p, o in zip(whole, part, one, strict=True))
        return few if same else None

    def _expanded(self, per_unit: Floats, few: int, more: int) -> Floats:
        """Repeat a layer in the middle of [U, ...] so often."""
        middle = (len(per_unit) - few) // 2
        layer = per_unit[middle : middle + few]
        return np.concatenate((per_unit[:middle], *[layer] * more, per_unit[middle:]))

    def _price(self, key: Key) -> Group | None:
        few = self.few is not None
        sharded = self._shard(key, few)
        if sharded is None:
            return None
        graph = with_recompute(sharded.graph, key.recompute)
        found = self._by_unit(graph, key)
        if self.few is None:
            return Group(*found)
        layers = int(getattr(self.model.network, "layers"))  # noqa: B009
        per_layer = self._units_per_layer(key)
        if per_layer is None:
            return Group(*found)
        more = layers - _FEW_LAYERS
        work, held, balanced, around = found
        each = [self._expanded(part, per_layer, more) for part in around]
        return Group(
            self._expanded(work, per_layer, more),
            self._expanded(held, per_layer, more),
            self._expanded(balanced, per_layer, more),
            np.stack(each),
        )

    def _units_per_layer(self, key: Key) -> int | None:
        assert self.few is not None
        network = self.few.network.model_copy(update={"layers": _FEW_LAYERS - 1})
        return _n_units(self.few, self.precision) - _n_units(
            Model(self.few.name, network), self.precision
        )

    def _shard(self, key: Key, few: bool) -> Sharded | None:
        known = (key.micro_batch, key.tensor, key.sequence, few)
        if known not in self._sharded:
            model = self.few if self.few is not None and few else self.model
            graph = model.training(key.micro_batch, self.precision)
            try:
                self._sharded[known] = shard(
                    graph,
                    key.tensor,
                    sequence=key.sequence,
                    flops_per_byte=self._intensity(key.tensor),
                )
            except RidgelineError:
                self._sharded[known] = None
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

    def _by_unit(self, graph: Graph, key: Key) -> tuple[Floats, Floats, Floats, Floats]:
        parts = units(graph)
        gradients = frozenset(weight_gradients(graph).values())
        work, held = np.zeros((len(parts), 5)), np.zeros((len(parts), 6))
        balanced = np.zeros(len(parts))
        home = np.zeros(len(graph.ops), np.int64)
        for u, unit in enumerate(parts):
            home[list(unit.ops)] = u
            balanced[u] = sum(
                self._alone_s(graph.ops[i], graph)
                for i in unit.ops
                if graph.ops[i].pass_ is not Pass.UPDATE
            )
        time_s = np.zeros(len(graph.ops))
        for i, op in enumerate(graph.ops):
            before = work[home[i], :ACCUMULATE].sum()
            self._add_work(op, graph, key.tensor, gradients, work[home[i]])
            time_s[i] = work[home[i], :ACCUMULATE].sum() - before
        self._add_held(graph, home, gradients, held)
        return work, held, balanced, links(graph, home, time_s)

    def _alone_s(self, op: Op, graph: Graph) -> float:
        return self.prices.cost(op, graph).time_s(self.cluster.device)

    def _add_work(
        self, op: Op, graph: Graph, tensor: int, gradients: frozenset[str], work: Floats
    ) -> None:
        """Add what an op of a micro-batch takes; what is done once a step does not count."""
        if op.pass_ is Pass.UPDATE or is_once(op, graph):
            return
        if op.pass_ is Pass.WEIGHT_GRADIENT and op.kind == "add":
            return  # may be left to a collective at the end, where the stages share a weight
        if op.kind in COLLECTIVES:
            attrs = dict(op.attrs)
            size = float(str(attrs["size_bytes"]))
            time_s = self._tensor_s(op.kind, tensor, size) * int(str(attrs["repeat"]))
        else:
            cost = self.prices.cost(op, graph)
            time_s = cost.time_s(self.cluster.device)
            work[ENERGY] += self._energy_j(cost)
            kept = [name for name in op.outputs if name in gradients]
            if kept:
                more = self.prices.streaming(3.0 * sum(graph.tensors[n].bytes for n in kept))
                work[ACCUMULATE] += more.time_s(self.cluster.device)
        phase = {Pass.FORWARD: FORWARD, Pass.WEIGHT_GRADIENT: WEIGHT_GRADIENT}
        work[phase.get(op.pass_, BACKWARD)] += time_s

    def _energy_j(self, cost: OpCost) -> float:
        if id(cost) not in self._energies:
            energy = op_energy_j(cost, self.cluster.device)
            self._energies[id(cost)] = energy["total"] - energy["static"]
        return self._energies[id(cost)]

    def _tensor_s(self, kind: str, tensor: int, size: float) -> float:
        known = (kind, tensor, size)
        if known not in self._collective_s:
            self._collective_s[known] = self.wires.time_s(kind, np.arange(tensor), size)
        return self._collective_s[known]

    def _add_held(self, graph: Graph, home: Ints, gradients: frozenset[str], held: Floats) -> None:
        """Add what a rank holds, in full; sharding divides it later."""
        copied = {
            op.inputs[0]
            for op in graph.ops
            if op.outputs and graph.tensors[op.outputs[0]].role is Role.WEIGHT_COPY
        }
        seen: set[str] = set()
        made: dict[str, int] = {}
        for i, op in enumerate(graph.ops):
            once = is_once(op, graph)
            for name in (*op.inputs, *op.outputs) if not once else ():
                tensor = graph.tensors[name]
                if name in seen:
                    continue
                column = {
                    Role.STATE: STATE,
                    Role.WEIGHT: MASTER if name in copied else COMPUTED,
                    Role.WEIGHT_COPY: COMPUTED,
                    Role.BUFFER: OTHER,
                }.get(tensor.role)
                if name in gradients:
                    column = GRADIENT
                if column is not None:
                    seen.add(name)
                    held[home[i], column] += tensor.bytes
            if op.pass_ is Pass.FORWARD and not once and not op.in_place:
                for name in op.outputs:
                    if graph.tensors[name].role is Role.ACTIVATION:
                        made[name] = int(home[i])
            elif op.pass_ not in {Pass.FORWARD, Pass.UPDATE}:
                for name in op.inputs:
                    if made.get(name) == home[i]:
                        held[home[i], KEPT] += graph.tensors[name].bytes
                        del made[name]


@lru_cache(maxsize=16)
def _n_units(model: Model, precision: str) -> int:
    return len(units(model.training(1, precision)))


def _counted(model: Model, precision: str) -> tuple[int, int, int]:
    """FLOPs, bytes and number of ops of a model: what equal layers add equally to."""
    graph = model.training(1, precision)
    return (
        graph.flops(),
        sum(t.bytes for t in graph.tensors.values()),
        len(graph.ops),
    )
