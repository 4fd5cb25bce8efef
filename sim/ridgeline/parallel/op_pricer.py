"""Op pricer: cost of a graph's ops on a device, and as rows of a Program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ridgeline.engine.builder import ProgramBuilder
from ridgeline.engine.late_pricing import Filling, filled, with_rows
from ridgeline.engine.program import Account, Program
from ridgeline.hardware.device import Device
from ridgeline.kernels import OpCost
from ridgeline.kernels.cache_residency import (
    NONE_STAY,
    STAYING_SHARES,
    ResidenceKey,
    Staying,
    can_stay,
    is_once,
    nearest_found,
    residence,
    residence_key,
)
from ridgeline.kernels.cost import op_energy_j, peak_rates, places, price_of_place
from ridgeline.kernels.fusion.fused_cost import fused_cost
from ridgeline.kernels.measured_kernels import check_kernels
from ridgeline.kernels.op_signature import OpSignature, moving, op_signatures
from ridgeline.kernels.pricing import price_all
from ridgeline.parallel.sharding.shard import COLLECTIVES
from ridgeline.workload.fused_op import FusedOp
from ridgeline.workload.graph import Graph, Op, Pass, Same

LOWER_VOLTAGE = "lower voltage"
"""The place in the ledger of joules that clock and voltage below full ones save."""
_ROUNDING = 1e-12
_MANY_BYTES = 1e9
_FREE = OpCost(0.0)
_NOTHING = OpSignature((), 0, None, None)


OnKinds = tuple[OpSignature, ...]
"""An op as it is priced on each kind of device that a step runs on."""


class OpenRows:
    """Cost rows of ops in a program that is written before anything is priced.

    Attributes
    ----------
    devices
        The kinds of devices that the step runs on, each once.
    staying
        Memory level -> most bytes of weights of a graph that stay there over all micro-batches.
    """

    def __init__(self, builder: ProgramBuilder, devices: Sequence[Device]) -> None:
        self.builder, self.devices = builder, devices
        self.numbers: dict[OnKinds, int] = {}
        self.staying: dict[str, float] = {}

    def of(self, graph: Graph, staying: Staying = NONE_STAY) -> Callable[[int], int]:
        """Return what gives the cost row of an op of a graph, by its index there."""
        first = self.devices[0]
        if staying.share and not can_stay(graph, first, staying):
            staying = NONE_STAY  # its ranks share weights: they are others, as it is played
        found = [_distinct(Same(graph), _Caches(device), staying) for device in self.devices]
        for level, size in residence(graph, first, staying).staying.items():
            self.staying[level] = max(self.staying.get(level, 0.0), size)
        if len(found) == 1:
            kinds, chosen = found[0]
            return lambda i: self._number((kinds[chosen[i]],))
        return lambda i: self._number(tuple(kinds[chosen[i]] for kinds, chosen in found))

    def moving(self, size_bytes: float, kernels: int = 1, launched: int = 0) -> int:
        """Return the cost row of what only moves so many bytes (`kernels.op_signature.moving`)."""
        return self._number((moving(size_bytes, kernels, launched),) * len(self.devices))

    def nothing(self) -> int:
        """Return the cost row of what takes no time."""
        return self._number((_NOTHING,) * len(self.devices))

    def _number(self, kind: OnKinds) -> int:
        if kind not in self.numbers:
            self.numbers[kind] = self.builder.add_open_cost()
        return self.numbers[kind]


class OpPricer:
    """What ops cost on a device.

    Parameters
    ----------
    slower
        Time of the device's work over that of a typical device (`parallel.comm.stragglers`).
    idle_s
        What the device waits for before each op of the forward and backward pass.

    Attributes
    ----------
    resources
        Engines by format and memory levels with a bandwidth, by name: their place among the
        resources of a program. They only bound how fast a task is, so equal devices have one.
    accounts
        Engines by format and memory levels: their place among the accounts of a program.
    """

    def __init__(self, device: Device, slower: float = 1.0, idle_s: float = 0.0) -> None:
        check_kernels(device)
        self.device, self.slower, self.idle_s = device, slower, idle_s
        self._costs: dict[OpSignature, OpCost] = {_NOTHING: _FREE}
        self._capacities = peak_rates(device)
        self._lines = {place: _line(device, place) for place in places(device)} | _saved(device)
        self.resources = {name: number for number, name in enumerate(self._capacities)}
        self.accounts = {place: number for number, place in enumerate(self._lines)}

    def add_to(self, builder: ProgramBuilder) -> None:
        """Add the device's resources and accounts to a builder that has none."""
        for name, capacity in self._capacities.items():
            builder.add_resource(f"device/{name}", capacity)
        for line in self._lines.values():
            builder.add_account(line.component, line.place, line.unit, line.price_j)

    @property
    def kept(self) -> tuple[object, ...]:
        """What a program that is filled must have been written with: all but the numbers.

        And the sizes of caches that keep tensors: equal ops differ in what these hold for them.
        """
        lines = [(line.component, line.place, line.unit) for line in self._lines.values()]
        return tuple(self.resources), tuple(lines), _kept(self.device)

    def least_costs(self, ops: Sequence[Op], graph: Graph) -> list[OpCost]:
        """Price some ops of a graph at least: each finds its operands as near as they fit.

        A stage has fewer tensors than the whole network, so that levels on chip may keep more of
        them. A collective costs nothing here.
        """
        able = [op for op in ops if op.kind not in COLLECTIVES]
        found = iter(self._of(op_signatures(able, graph, nearest_found(able, graph, self.device))))
        return [_FREE if op.kind in COLLECTIVES else next(found) for op in ops]

    def look_up(self, graphs: Iterable[Graph]) -> None:
        """Price the ops of a few graphs together: one by one takes longer."""
        caches = _Caches(self.device)
        self._of(tuple(kind for one in graphs for kind in _distinct(Same(one), caches)[0]))

    def staying(self, graph: Graph, micro_batches: int, parts: int) -> Staying:
        """Choose how many weights of a graph stay on chip while its micro-batches pass.

        The least time of all ops of a step counts; of equal times, the fewest bytes of the farthest
        memory. The same shares of the weights are looked at whatever the device is, so that more of
        any resource is never slower for it.

        Parameters
        ----------
        micro_batches
            How often a device does the ops of the graph, but for those that are done once a step.
        parts
            See `residence.Staying`.
        """
        best, least_s, fewest = Staying(0, parts), math.inf, math.inf
        if micro_batches == 1:
            return best
        for share in range(STAYING_SHARES + 1):
            one = Staying(share, parts)
            if not can_stay(graph, self.device, one):
                break
            time_s, _, moved = self.totals(graph, micro_batches, one)
            is_faster = time_s < least_s * (1 - _ROUNDING)
            as_fast = time_s <= least_s * (1 + _ROUNDING)
            if is_faster or (as_fast and moved < fewest * (1 - _ROUNDING)):
                best, least_s, fewest = one, min(time_s, least_s), moved
        return best

    def totals(
        self, graph: Graph, micro_batches: int, staying: Staying = NONE_STAY
    ) -> tuple[float, float, float]:
        """Return seconds, joules and bytes of the farthest memory of a step's ops, one by one."""
        times = [1 if is_once(op, graph) else micro_batches for op in graph.ops]
        far, rates = self.device.far_memory, self._capacities
        costs = list(zip(times, self.costs(graph, staying), strict=True))
        return (
            math.fsum(n * cost.spans(rates).time_s for n, cost in costs),
            math.fsum(n * op_energy_j(cost, self.device)["total"] for n, cost in costs),
            math.fsum(n * cost.traffic_bytes.get(far, 0.0) for n, cost in costs),
        )

    def costs(self, graph: Graph, staying: Staying = NONE_STAY) -> list[OpCost]:
        """Price all ops of a graph."""
        kinds, chosen = _distinct(Same(graph), _Caches(self.device), staying)
        found = [*self._of(kinds), _FREE]
        return [found[number] for number in chosen]

    def streaming(self, size_bytes: float) -> OpCost:
        """Return the price of what only moves so many bytes through all of the memory."""
        return self._of((moving(size_bytes),))[0]

    def moving_s(self) -> tuple[float, float]:
        """Return the seconds of launching what only moves bytes, and of moving each of them."""
        one = self.streaming(_MANY_BYTES)
        time_s = one.spans(self._capacities).time_s
        return one.latency_s, (time_s - one.latency_s) / _MANY_BYTES

    def fill(
        self, program: Program, rows: Mapping[OnKinds, int], kind: int = 0
    ) -> tuple[Program, list[OpCost]]:
        """Price the open rows of a program that was written with these resources and accounts.

        Parameters
        ----------
        kind
            Which of the kinds of devices this one is, of several.

        Returns
        -------
        Program, list of OpCost
            The same program for this device, and the prices in the order of `rows`.
        """
        costs = self._of(tuple(key[kind] for key in rows))
        capacities, lines = list(self._capacities.values()), tuple(self._lines.values())
        filling = self._filling(costs, list(rows.values()))
        return filled(program, filling, capacities, lines), costs

    def appended(
        self, program: Program, rows: Mapping[OnKinds, int], kind: int
    ) -> tuple[Program, list[OpCost]]:
        """Add rows for this device, with resources and accounts of its own, behind all others."""
        costs = self._of(tuple(key[kind] for key in rows))
        names = tuple(f"device/{name}" for name in self._capacities)
        capacities, lines = list(self._capacities.values()), tuple(self._lines.values())
        filling = self._filling(
            costs, [], len(program.resource_names), len(program.accounts)
        )  # fmt: skip
        return with_rows(program, filling, names, capacities, lines), costs

    def _filling(
        self, costs: Sequence[OpCost], rows: list[int], resources: int = 0, accounts: int = 0
    ) -> Filling:
        """Return what rows get, with resources and accounts counted from those before."""
        filling = Filling(rows, [cost.latency_s for cost in costs])
        work_resource, work_amount = filling.work_resource, filling.work_amount
        event_account, event_count = filling.event_account, filling.event_count

        def resource(name: str) -> int:
            return resources + self.resources[name]

        def account(name: str) -> int:
            return accounts + self.accounts[name]

        for cost in costs:
            for works in (cost.engine_work, cost.level_work):
                work_resource += map(resource, works)
                work_amount += works.values()
            filling.work_ptr.append(len(work_resource))
            for counts in (cost.flops, cost.traffic_bytes):
                event_account += map(account, counts)
                event_count += counts.values()
            for component, saved_j in cost.saved_j.items():
                event_account.append(account(_saving(component)))
                event_count.append(saved_j)
            filling.event_ptr.append(len(event_account))
        return filling

    def _of(self, kinds: Sequence[OpSignature]) -> list[OpCost]:
        known = list(map(self._costs.get, kinds))
        missing = [kind for kind, cost in zip(kinds, known, strict=True) if cost is None]
        if not missing:
            return [cost for cost in known if cost is not None]
        missing = list(dict.fromkeys(missing))
        costs: Iterable[OpCost] = _priced(missing, self.device)
        if self.slower != 1.0 or self.idle_s:
            costs = map(self._issued, missing, map(self._slowed, costs))
        self._costs.update(zip(missing, costs, strict=True))
        return [self._costs[kind] for kind in kinds]

    def _issued(self, kind: OpSignature, cost: OpCost) -> OpCost:
        if not self.idle_s or kind.op is None or kind.op.pass_ is Pass.UPDATE:
            return cost  # updates are issued together
        parts, idle_s = cost.latency_parts, self.idle_s * len(kind.op.parts)
        if parts is not None:
            parts = parts._replace(launch_s=parts.launch_s + idle_s)
        return replace(cost, latency_s=cost.latency_s + idle_s, latency_parts=parts)

    def _slowed(self, cost: OpCost) -> OpCost:
        if self.slower == 1.0:
            return cost
        return replace(
            cost,
            engine_work={name: work * self.slower for name, work in cost.engine_work.items()},
            level_work={name: work * self.slower for name, work in cost.level_work.items()},
        )


_MOST = 1 << 15  # kinds of ops whose prices on a device are kept


@dataclass(frozen=True, eq=False)
class EqualDevice:
    """A device as a key of a cache: clusters of other sizes have equal ones."""

    device: Device

    def __hash__(self) -> int:
        # Points of a study differ in few numbers: devices are compared only where these are equal.
        device = self.device
        levels = [
            (level.capacity.value, level.bandwidth and level.bandwidth.value)
            for level in device.memory.values()
        ]
        arrays = [
            (array.rows.value, array.columns.value, array.count.value, tuple(array.dataflows))
            for engine in device.engines.values()
            if (array := engine.array) is not None
        ]
        return hash((device.name, tuple(levels), tuple(arrays)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EqualDevice) and (
            self.device is other.device or self.device == other.device
        )


@lru_cache(maxsize=8)
def _prices(device: EqualDevice) -> dict[OpSignature, OpCost]:
    """Return what is known of prices on a device; steps share it."""
    return {}


def _priced(kinds: Sequence[OpSignature], device: Device) -> list[OpCost]:
    """Price ops on a device; those that were priced on it before are looked up."""
    known = _prices(EqualDevice(device))
    costs = list(map(known.get, kinds))
    places = [place for place, cost in enumerate(costs) if cost is None]
    if places:
        missing = [kinds[place] for place in places]
        found = _priced_anew(missing, device)
        if len(known) + len(found) > _MOST:
            known.clear()
        known.update(zip(missing, found, strict=True))
        for place, cost in zip(places, found, strict=True):
            costs[place] = cost
    return [cost for cost in costs if cost is not None]


def _priced_anew(kinds: Sequence[OpSignature], device: Device) -> list[OpCost]:
    """Price ops, of which some may be fused layers."""
    single = iter(price_all([k for k in kinds if not isinstance(k.op, FusedOp)], device))
    return [
        fused_cost(kind.op, device) if isinstance(kind.op, FusedOp) else next(single)
        for kind in kinds
    ]


def _line(device: Device, place: str) -> Account:
    component, unit, price_j = price_of_place(device, place)
    return Account(component, place, unit, price_j)


def _saved(device: Device) -> dict[str, Account]:
    """Return the accounts of what lower clocks under a power limit save; a joule is one less."""
    if device.board_limit is None:
        return {}
    components = dict.fromkeys(_line(device, place).component for place in places(device))
    return {_saving(name): Account(name, LOWER_VOLTAGE, "J", -1.0) for name in components}


def _saving(component: str) -> str:
    return f"{LOWER_VOLTAGE}, {component}"


def _kept(device: Device) -> ResidenceKey:
    return residence_key(device)


def _kinds(
    ops: Sequence[Op], graph: Graph, device: Device, staying: Staying = NONE_STAY
) -> list[OpSignature]:
    """Return the ops that each is priced with, which find their operands in the same caches."""
    places = residence(graph, device, staying).found
    return op_signatures(ops, graph, [places.get(id(op)) for op in ops])


@dataclass(frozen=True, eq=False)
class _Caches:
    """A device as a key: equal to those with the same caches that keep tensors."""

    device: Device

    def __hash__(self) -> int:
        return hash(_kept(self.device))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Caches) and _kept(other.device) == _kept(self.device)


FEW_GRAPHS = 8
"""So many are remembered, with what is priced of them."""


@lru_cache(maxsize=FEW_GRAPHS)
def _distinct(
    same: Same, caches: _Caches, staying: Staying = NONE_STAY
) -> tuple[tuple[OpSignature, ...], tuple[int, ...]]:
    """Return the different ops of a graph, and for each op which it is: -1 of a collective."""
    graph = same.graph
    ops = [op for op in graph.ops if op.kind not in COLLECTIVES]
    found = iter(_kinds(ops, graph, caches.device, staying))
    kinds: dict[OpSignature, int] = {}
    chosen = [
        -1 if op.kind in COLLECTIVES else kinds.setdefault(next(found), len(kinds))
        for op in graph.ops
    ]
    return tuple(kinds), tuple(chosen)
