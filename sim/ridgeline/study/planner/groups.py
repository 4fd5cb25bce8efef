"""What the parts of a network cost: per unit that a pipeline does not cut, for one kind of plan.

Plans with the same micro-batch, tensor and sequence degree and recomputation have the same ops; they
are divided and priced once, by the same functions as the lowering. A network of many equal layers is
priced by a few of them, where that gives the FLOPs and the weights of the whole exactly.
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
from ridgeline.kernels.cost import op_energy_j
from ridgeline.network.topology import Topology, from_cluster
from ridgeline.parallel.lower import _flops_per_byte
from ridgeline.parallel.mesh import Mesh
from ridgeline.parallel.plan import Plan
from ridgeline.parallel.recompute import Mode, with_recompute
from ridgeline.parallel.shard import COLLECTIVES, Sharded, shard
from ridgeline.parallel.stages import balance, units
from ridgeline.parallel.team import Prices
from ridgeline.parallel.wires import Wires
from ridgeline.workload.autodiff import weight_gradients
from ridgeline.workload.graph import Graph, Op, Pass, Role
from ridgeline.workload.model import Model

Floats = npt.NDArray[np.float64]
_FEW_LAYERS, _MANY_LAYERS = 6, 12
_HUGE_BYTES = 2.0**42  # a collective of which only the bandwidth counts
_WEIGHTS = frozenset({Role.WEIGHT, Role.WEIGHT_COPY})

FORWARD, BACKWARD, WEIGHT_GRADIENT, ACCUMULATE, ENERGY = range(5)
LEAD_F, TRAIL_F, LEAD_B, TRAIL_B, LEAD_I, TRAIL_I = range(6)
STATE, MASTER, COMPUTED, GRADIENT, OTHER, KEPT = range(6)


class Key(NamedTuple):
    """Plans of one key have the same ops."""

    micro_batch: int
    tensor: int
    sequence: bool
    recompute: Mode


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
        [U, 6] seconds of the ops before the first one that waits for the unit before it and of
        those after the one that the next unit waits for: of the forward pass, of the backward
        pass, and of the latter without gradients of weights.
    chained
        Whether each unit waits for the one before it, and backward for the one after it.
    """

    work: Floats
    held: Floats
    balanced: Floats
    around: Floats
    chained: bool = True
    _cuts: dict[int, npt.NDArray[np.int64]] = field(default_factory=dict)

    def cut(self, stages: int) -> npt.NDArray[np.int64]:
        """Return [stages + 1] the first unit of every stage, and the number of units."""
        if stages not in self._cuts:
            parts = balance(self.balanced.tolist(), stages)
            self._cuts[stages] = np.array([p.first for p in parts] + [parts[-1].stop], np.int64)
        return self._cuts[stages]

    def by_stage(self, stages: int) -> tuple[Floats, Floats, Floats, Floats]:
        """Return `work` and `held` of each stage, the path through it, and what is beside it.

        The path [stages, 3] is what lies between waiting for the neighbour and letting the next
        one go on: forward, backward, and backward without gradients of weights. Beside it [., 3]
        is the forward work before the former and the backward work after the latter, with and
        without gradients of weights.
        """
        cut = self.cut(stages)
        first, last = cut[:-1], cut[1:] - 1
        work, held = np.add.reduceat(self.work, first), np.add.reduceat(self.held, first)
        if not self.chained:
            return work, held, np.zeros((stages, 3)), np.zeros((stages, 3))
        around = self.around
        beside = around[first][:, [LEAD_F, TRAIL_B, TRAIL_I]]
        path = np.stack(
            (
                work[:, FORWARD] - around[first, LEAD_F] - around[last, TRAIL_F],
                work[:, BACKWARD]
                + work[:, WEIGHT_GRADIENT]
                - around[last, LEAD_B]
                - around[first, TRAIL_B],
                work[:, BACKWARD] - around[last, LEAD_I] - around[first, TRAIL_I],
            ),
            axis=1,
        )
        return work, held, np.maximum(path, 0.0), beside


class Groups:
    """Prices groups of plans of one model on so many devices of a cluster."""

    def __init__(
        self, model: Model, cluster: Cluster, devices: int, precision: str | None
    ) -> None:
        self.model, self.cluster, self.devices = model, cluster, devices
        self.precision = precision or model.network.precision
        self.topology: Topology = from_cluster(cluster, devices)
        builder = ProgramBuilder()
        self.prices = Prices(builder, cluster.device)
        far = self.prices.accounts[cluster.device.far_memory]
        self.wires = Wires(builder, self.topology, far, merge=True)
        self._groups: dict[Key, Group | None] = {}
        self._sharded: dict[tuple[int, int, bool, bool], Sharded | None] = {}
        self._collective_s: dict[tuple[str, int, float], float] = {}
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
        same = all(
            w == p + more * (p - o) for w, p, o in zip(whole, part, one, strict=True)
        )
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
        *found, chained = self._by_unit(graph, key)
        if self.few is None:
            return Group(*found, chained=chained)
        layers = int(getattr(self.model.network, "layers"))  # noqa: B009
        per_layer = self._units_per_layer(key)
        if per_layer is None:
            return Group(*found, chained=chained)
        more = layers - _FEW_LAYERS
        expanded = (self._expanded(part, per_layer, more) for part in found)
        return Group(*expanded, chained=chained)

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

    def _by_unit(
        self, graph: Graph, key: Key
    ) -> tuple[Floats, Floats, Floats, Floats, bool]:
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
        return work, held, balanced, *waits(graph, home, time_s)

    def _alone_s(self, op: Op, graph: Graph) -> float:
        return self.prices.cost(op, graph).time_s(self.cluster.device)

    def _add_work(
        self, op: Op, graph: Graph, tensor: int, gradients: frozenset[str], work: Floats
    ) -> None:
        """Add what an op of a micro-batch takes; what is done once a step does not count."""
        if op.pass_ is Pass.UPDATE or _is_once(op, graph):
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
            energy = op_energy_j(cost, self.cluster.device)
            work[ENERGY] += energy["total"] - energy["static"]
            kept = [name for name in op.outputs if name in gradients]
            if kept:
                more = self.prices.streaming(3.0 * sum(graph.tensors[n].bytes for n in kept))
                work[ACCUMULATE] += more.time_s(self.cluster.device)
        phase = {Pass.FORWARD: FORWARD, Pass.WEIGHT_GRADIENT: WEIGHT_GRADIENT}
        work[phase.get(op.pass_, BACKWARD)] += time_s

    def _tensor_s(self, kind: str, tensor: int, size: float) -> float:
        known = (kind, tensor, size)
        if known not in self._collective_s:
            self._collective_s[known] = self.wires.time_s(kind, np.arange(tensor), size)
        return self._collective_s[known]

    def _add_held(
        self, graph: Graph, home: npt.NDArray[np.int64], gradients: frozenset[str], held: Floats
    ) -> None:
        """Add what a rank holds, in full; sharding divides it later."""
        copied = {
            op.inputs[0]
            for op in graph.ops
            if op.outputs and graph.tensors[op.outputs[0]].role is Role.WEIGHT_COPY
        }
        seen: set[str] = set()
        made: dict[str, int] = {}
        for i, op in enumerate(graph.ops):
            once = _is_once(op, graph)
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


def _is_once(op: Op, graph: Graph) -> bool:
    """Whether an op is done once a step: it makes or gathers copies of weights."""
    return (
        op.pass_ is Pass.FORWARD
        and bool(op.outputs)
        and graph.tensors[op.outputs[0]].role in _WEIGHTS
    )


def waits(
    graph: Graph, home: npt.NDArray[np.int64], time_s: Floats
) -> tuple[Floats, bool]:
    """Return what each unit does before and after its neighbours wait for it (`Group.around`)."""
    n = int(home.max(initial=0)) + 1
    around = np.zeros((n, 6))
    chained = True
    for forward in (True, False):
        ops = [
            i
            for i, op in enumerate(graph.ops)
            if op.pass_ is not Pass.UPDATE
            and (op.pass_ is Pass.FORWARD) is forward
            and not _is_once(op, graph)
        ]
        maker = {name: i for i in ops for name in graph.ops[i].outputs}
        reader = np.full(n, -1)
        source = np.full(n, -1)
        step = 1 if forward else -1
        for i in ops:
            u = int(home[i])
            if reader[u] >= 0:
                continue
            of = [maker[name] for name in graph.ops[i].inputs if name in maker]
            of = [m for m in of if home[m] == u - step]
            if of:
                reader[u], source[u - step] = i, max(of)
        inner = range(1, n) if forward else range(n - 1)
        chained = chained and all(reader[u] >= 0 for u in inner)
        for i in ops:
            u = int(home[i])
            leads, trails = reader[u] > i, 0 <= source[u] < i
            columns = (LEAD_F,) if forward else (LEAD_B, LEAD_I)
            for column in columns:
                if column == LEAD_I and graph.ops[i].pass_ is Pass.WEIGHT_GRADIENT:
                    continue
                around[u, column] += time_s[i] * leads
                around[u, column + 1] += time_s[i] * trails
    return around, chained


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


