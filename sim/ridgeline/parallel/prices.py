"""What the ops of a graph cost in a Program: equal ops are priced once."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ridgeline.engine.builder import Phase, ProgramBuilder
from ridgeline.hardware.device import Device
from ridgeline.kernels import OpCost, price
from ridgeline.kernels.cost import places, price_of_place
from ridgeline.kernels.residence import Found, keeping, residence
from ridgeline.kernels.streams import check_kernels
from ridgeline.parallel.shard import COLLECTIVES
from ridgeline.workload.graph import Graph, Op, Pass, Same, Tensor


class Prices:
    """What the ops of a graph cost on a device: equal ops are priced once.

    Parameters
    ----------
    slower
        Time of the device's work over that of a typical device (`parallel.spread`).
    idle_s
        What the device waits for before each op of the forward and backward pass.
    """

    def __init__(
        self, builder: ProgramBuilder, device: Device, slower: float = 1.0, idle_s: float = 0.0
    ) -> None:
        check_kernels(device)
        self.builder, self.device, self.slower, self.idle_s = builder, device, slower, idle_s
        self.cost_of_row: dict[int, OpCost] = {}
        self._costs: dict[object, OpCost] = {}
        self._by_op: dict[int, tuple[Op, OpCost]] = {}
        self._rows: dict[int, int] = {}
        self._caches = keeping(device)
        self.accounts = self._accounts()
        self._resources = self._engines_and_levels()

    def cost(self, op: Op, graph: Graph) -> OpCost:
        """Price an op; a collective costs nothing here."""
        known = self._by_op.get(id(op))
        if known is None or known[0] is not op:
            known = self._by_op[id(op)] = op, self._cost(op, graph)
        return known[1]

    def _cost(self, op: Op, graph: Graph) -> OpCost:
        found = residence(graph, self.device).get(id(op)) if self._caches else None
        key = _signature(op, graph), found
        if key not in self._costs:
            free = op.kind in COLLECTIVES
            self._costs[key] = OpCost(0.0) if free else self._issued(op, graph, found)
        return self._costs[key]

    def row(self, cost: OpCost) -> int:
        """Return the cost row of an op's price."""
        if id(cost) not in self._rows:
            works = {**cost.engine_work, **cost.level_work}
            counts = {**cost.flops, **cost.traffic_bytes}
            row = self.builder.add_cost(
                [Phase(cost.latency_s, {self._resources[n]: w for n, w in works.items()})],
                {self.accounts[place]: count for place, count in counts.items()},
            )
            self._rows[id(cost)] = row
            self.cost_of_row[row] = cost
        return self._rows[id(cost)]

    def streaming(self, size_bytes: float) -> OpCost:
        """Return the price of an op that only moves so many bytes through all of the memory."""
        key = ("streaming", size_bytes)
        if key not in self._costs:
            cost = OpCost(self.device.launch_latency.value)
            for name, level in self.device.memory.items():
                cost.traffic_bytes[name] = size_bytes
                if level.bandwidth is not None:
                    cost.level_work[name] = size_bytes / level.achievable.value
            self._costs[key] = self._slowed(cost)
        return self._costs[key]

    def _issued(self, op: Op, graph: Graph, found: Found | None) -> OpCost:
        cost = self._slowed(price(op, graph, self.device, found=found))
        if not self.idle_s or op.pass_ is Pass.UPDATE:  # updates are issued together
            return cost
        return replace(cost, latency_s=cost.latency_s + self.idle_s)

    def _slowed(self, cost: OpCost) -> OpCost:
        if self.slower == 1.0:
            return cost
        return replace(
            cost,
            engine_work={name: work * self.slower for name, work in cost.engine_work.items()},
            level_work={name: work * self.slower for name, work in cost.level_work.items()},
        )

    def _accounts(self) -> dict[str, int]:
        """Open a ledger account for every engine and format and every memory level."""
        accounts = {}
        for place in places(self.device):
            component, unit, price_j = price_of_place(self.device, place)
            accounts[place] = self.builder.add_account(component, place, unit, price_j)
        return accounts

    def _engines_and_levels(self) -> dict[str, int]:
        """Resources of a device; they only bound how fast a task is, so equal devices have one."""
        resources: dict[str, int] = {}
        for engine_name, engine in self.device.engines.items():
            for format_, rate in engine.rates.items():
                key = f"{engine_name}.{format_}"
                resources[key] = self.builder.add_resource(f"device/{key}", rate.value)
        for name, level in self.device.memory.items():
            if level.bandwidth is not None:
                resources[name] = self.builder.add_resource(f"device/{name}", level.bandwidth.value)
        return resources


class _Signature:
    """What the price of an op depends on, hashed once for all devices that price it."""

    __slots__ = ("hash", "key")

    def __init__(self, key: tuple[object, ...]) -> None:
        self.key, self.hash = key, hash(key)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Signature) and other.key == self.key


@lru_cache(maxsize=64)
def _known_signatures(same: Same) -> dict[int, tuple[Op, _Signature]]:
    """Return the signatures of a graph's ops that are known; points of a study share them."""
    return {}


def _signature(op: Op, graph: Graph) -> _Signature:
    known = _known_signatures(Same(graph))
    found = known.get(id(op))
    if found is None or found[0] is not op:
        tensors = graph.tensors
        key = (
            op.kind,
            op.pass_,
            op.loops,
            op.vector_flops,
            op.input_passes,
            op.output_passes,
            op.attrs,
            tuple(_look(tensors[n]) for n in op.inputs),
            tuple(_look(tensors[n]) for n in op.outputs),
        )
        found = known[id(op)] = op, _Signature(key)
    return found[1]


def _look(tensor: Tensor) -> tuple[object, ...]:
    """Return what the price of an op may depend on."""
    return tensor.shape, tensor.format, tensor.sparsity
