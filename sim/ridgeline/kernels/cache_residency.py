"""Cache residency: which memory level an op finds its operands in.

Ops of a step follow each other in the graph's order, and a step follows a step. A cache that evicts
what is oldest still holds a tensor if what was touched since, and the tensor itself, are no more
than it has room for (the stack property: Mattson et al., "Evaluation techniques for storage
hierarchies", IBM Systems Journal 9(2), 1970). What an op writes lies where an allocator puts it: in
the memory that was given back last, as heaps that keep lists of free blocks do.

Software that fills a buffer itself can do at least this, op by op: nothing is held longer than that
cache holds it. A schedule that knows the whole step may do better; none is searched for.

Where a step has several micro-batches, such software may set weights aside instead: they stay while
all micro-batches pass, and everything else shares the room that is left (`Staying`).

A mini-batch comes from outside in every step. Processors of a host write it themselves, so that
their caches may hold it; any other device finds it in its farthest memory.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from ridgeline.hardware.device import Device, MemoryLevel
from ridgeline.kernels.broadcast_grid import Ring, unheld_share
from ridgeline.kernels.cost import OperandBytes
from ridgeline.kernels.traffic import is_private
from ridgeline.workload.fused_op import FUSED_LAYERS
from ridgeline.workload.graph import Graph, Op, Pass, Role, Same
from ridgeline.workload.liveness import STATIC_ROLES, lifetimes, storages

Found = tuple[float, ...]
"""Of the inputs and then the outputs of an op: how many keeping caches do not hold it. Less than 0:
the processing elements themselves hold all but this share and one."""

# The first fills the caches. State of an optimizer is allocated at the end of the first step, so
# that the second still takes memory that was never touched.
_STEPS, _STEPS_ON_HOST = 3, 2
_TILED = frozenset({"systolic", "broadcast-grid", "spatial"})
"""Kinds of engines before buffers that software fills with tiles."""
_FILLED = _TILED | {"bsp"}
"""Kinds of engines before buffers that software fills, so that it can choose what stays."""
_BESIDE_TILES = 0.5
STAYING_SHARES = 4
"""Weights stay in so many steps: none, a quarter of them and so on; so that a sweep is monotone."""


class Staying(NamedTuple):
    """Which weights stay on chip while the micro-batches of a step pass.

    Attributes
    ----------
    share
        Of `STAYING_SHARES` parts of the weights that may, in the order of their first use.
    parts
        Graphs that the device does in turn, each with as many weights of its own.
    """

    share: int = 0
    parts: int = 1


NONE_STAY = Staying()


class Residence(NamedTuple):
    """Where the ops of a graph find their operands.

    Attributes
    ----------
    found
        By the identity of the op; empty without caches.
    staying
        Memory level -> bytes of weights that stay there while all micro-batches pass.
    """

    found: dict[int, Found]
    staying: dict[str, float]


def keeping(device: Device) -> tuple[str, ...]:
    """Names of the levels that keep what ops have touched, from near to far; not the farthest.

    None where the processing elements keep it: their shares are `unheld_of`.
    """
    if _ring_of(device) is not None:
        return ()
    return tuple(
        name
        for name, level in device.memory.items()
        if name != device.far_memory and _keeps(level, device)
    )


def _keeps(level: MemoryLevel, device: Device) -> bool:
    """Tell whether a level keeps tensors between ops; see `MemoryLevel.keeps`.

    By default no level of a measured device does: the shares that its kernels reach were measured
    with what its caches held. Nor do levels whose parts serve one processor each, since the next op
    deals its tiles out anew, nor rooms of single operands, where no result can be an operand.
    """
    if level.keeps is not None:
        return level.keeps
    if device.achievable or level.kind != "sram" or level.partitions or len(level.holds) < 3:
        return False
    return not is_private(level, device)


def _is_tiled(device: Device) -> bool:
    return any(engine.kind in _TILED for engine in device.engines.values())


def _is_filled(device: Device) -> bool:
    return not on_host(device) and any(engine.kind in _FILLED for engine in device.engines.values())


def room(device: Device, name: str) -> float:
    """Bytes of a level that tensors of several ops share; see `MemoryLevel.kept_share`."""
    level = device.memory[name]
    if level.kept_share is not None:
        return level.capacity.value * level.kept_share.value
    return level.capacity.value * (_BESIDE_TILES if _is_tiled(device) else 1.0)


def residence(graph: Graph, device: Device, staying: Staying = NONE_STAY) -> Residence:
    """Return where every op of a graph finds its operands.

    Raises
    ------
    ValueError
        If no level has room for the weights that are to stay (`can_stay`).
    """
    if (ring := _ring_of(device)) is not None:
        return Residence(_in_elements(Same(graph), ring), {})
    rooms = rooms_of(device)
    if not rooms:
        return Residence({}, {})
    if is_settled(graph):
        return Residence({id(op): op.found for op in graph.ops if op.found is not None}, {})
    if staying.share:
        found = _with_staying(Same(graph), rooms, staying)
        if found is None:
            raise ValueError("no level has room for the weights that are to stay")
        return found
    # What a near level keeps, a far one does, too.
    sizes = tuple(accumulate((size for _, size in rooms), max))
    weights = any("b" in device.memory[name].holds for name, _ in rooms)
    return Residence(_residence(Same(graph), sizes, on_host(device), weights), {})


def is_settled(graph: Graph) -> bool:
    """Tell whether a schedule of the whole step says where ops find their operands."""
    return any(op.found is not None or op.kind == FUSED_LAYERS for op in graph.ops)


def last_touched(graph: Graph, device: Device) -> list[list[int]]:
    """Return the op of this step that touched the memory of each operand last, by op and operand.

    -1: one of the step before, or none. Of a device whose levels keep tensors (`residence`).
    """
    weights = any("b" in device.memory[name].holds for name, _ in rooms_of(device))
    return _touches(Same(graph), frozenset(), on_host(device), weights).since


def nearest_found(ops: Sequence[Op], graph: Graph, device: Device) -> list[Found | None]:
    """Return where ops find their operands at best, whatever else the device does.

    Each operand lies in the nearest level that has room for it, or in the processing elements. None
    of a device that keeps nothing between ops.
    """
    if _ring_of(device) is not None:
        return [(-1.0,) * (len(op.inputs) + len(op.outputs)) for op in ops]
    rooms = rooms_of(device)
    if not rooms:
        return [None] * len(ops)
    sizes = tuple(accumulate((size for _, size in rooms), max))
    weights = any("b" in device.memory[name].holds for name, _ in rooms)

    def place(name: str, share: float) -> float:
        tensor = graph.tensors[name]
        if not weights and tensor.role in STATIC_ROLES:
            return float(len(sizes))
        return float(bisect_left(sizes, share * tensor.bytes))

    return [tuple(place(name, share) for name, share in _operands(op)) for op in ops]


def can_stay(graph: Graph, device: Device, staying: Staying) -> bool:
    """Tell whether a device can let so many weights of a graph stay: software fills a level."""
    if on_host(device) or _ring_of(device) is not None or not _is_filled(device):
        return False
    if is_settled(graph):
        return False
    rooms = rooms_of(device)
    weights = any("b" in device.memory[name].holds for name, _ in rooms)
    return weights and _with_staying(Same(graph), rooms, staying) is not None


ResidenceKey = tuple[tuple[tuple[str, float], ...], bool, bool, bool]


def residence_key(device: Device) -> ResidenceKey:
    """Return what decides where ops find their operands: equal on devices where they do alike."""
    if (ring := _ring_of(device)) is not None:
        elements = ("elements", ring.elements * ring.local_bytes), ("cores", float(ring.cores))
        return elements, False, True, False
    rooms = rooms_of(device)
    weights = any("b" in device.memory[name].holds for name, _ in rooms)
    return rooms, on_host(device), weights, _is_filled(device)


def rooms_of(device: Device) -> tuple[tuple[str, float], ...]:
    """Return the levels that keep tensors, from near to far, and the bytes of each for these."""
    return tuple((name, room(device, name)) for name in keeping(device))


def on_host(device: Device) -> bool:
    """Tell whether a device is the host's processors, which write a mini-batch themselves."""
    return any(engine.kind == "cores" for engine in device.engines.values())


def stayed(passed: Sequence[OperandBytes], levels: Sequence[str]) -> dict[str, float]:
    """Bytes that an op finds in each of the levels that keep tensors; see `passing`."""
    past = [moved.total for moved in passed]
    return {
        name: before - beyond
        for name, before, beyond in zip(levels, past, past[1:], strict=False)
        if before > beyond
    }


def passing(op: Op, graph: Graph, found: Found, levels: int) -> list[OperandBytes]:
    """Bytes of an op's operands, each as often as it is streamed, that pass each level.

    Of the first level that keeps tensors, all of them; of each other, and of the memory behind,
    those that come from there or beyond.

    Parameters
    ----------
    levels
        How many keep tensors.
    """
    names = (*op.inputs, *op.outputs)
    reads = op.input_passes or (1,) * len(op.inputs)
    writes = op.output_passes or (1,) * len(op.outputs)
    whole = [
        float(passes * graph.tensors[name].bytes)
        for name, passes in zip(names, (*reads, *writes), strict=True)
    ]
    inputs = min(len(op.inputs), 2)
    each = []
    for level in range(levels + 1):
        sizes = [
            size * min(1.0, max(0.0, at - level + 1.0))
            for size, at in zip(whole, found, strict=True)
        ]
        a, b = (sizes[i] if i < inputs else 0.0 for i in range(2))
        each.append(OperandBytes(a, b, sum(sizes[inputs:])))
    return each


def unheld_of(found: Found | None) -> tuple[float, float, float] | None:
    """Return the shares of a product's operands that the processing elements do not hold.

    Of a, b and the rest. None where nothing is known of it: the engine has no memories that
    tensors stay in.
    """
    if not found or min(found) >= 0:
        return None
    a, b, *rest = (at + 1.0 for at in found)
    return a, b, max(rest)


def _ring_of(device: Device) -> Ring | None:
    """Return the cores whose elements keep what all ops need, if a device has them."""
    for engine in device.engines.values():
        grid = engine.grid
        if grid is not None and grid.spill_words_per_cycle is not None:
            return Ring(grid.cores.value, grid.side.value, grid.local_memory.value)
    return None


@lru_cache(maxsize=8)
def _in_elements(same: Same, ring: Ring) -> dict[int, Found]:
    """Share the elements' memories out: activations first, then weights (Li and Pedram, 2017).

    The vectors of one sample are gathered on every core. Weights, their gradients and states have
    what is left, and what they leave is for the vectors of the other samples, each on one core. All
    of a kind share alike.
    """
    graph = same.graph
    mine = [graph.tensors[root] for root in set(storages(graph).values())]
    moving = math.fsum(t.bytes for t in mine if t.role in {Role.ACTIVATION, Role.INPUT})
    standing = math.fsum(t.bytes for t in mine if t.role in _STANDING)
    one, room = moving / graph.batch, ring.elements * ring.local_bytes
    spilled = unheld_share(standing, one, 0.0, ring)
    left = room - one * ring.cores - (1 - spilled) * standing
    others = max(0.0, moving - one - max(0.0, left)) + max(0.0, one - room / ring.cores)
    lost = others / moving if moving else 0.0
    return {
        id(op): tuple(
            (spilled if graph.tensors[name].role in _STANDING else lost) - 1.0
            for name in (*op.inputs, *op.outputs)
        )
        for op in graph.ops
    }


_STANDING = frozenset(
    {Role.WEIGHT, Role.WEIGHT_COPY, Role.WEIGHT_GRADIENT, Role.STATE, Role.BUFFER}
)


@lru_cache(maxsize=8)
def _residence(
    same: Same, capacities: tuple[float, ...], is_host: bool = True, weights: bool = True
) -> dict[int, Found]:
    """Compare what was touched since with the capacities.

    Parameters
    ----------
    weights
        Whether the levels hold weights, or these have memories of their own.
    """
    depths = _touches(same, frozenset(), is_host, weights).depths
    return {
        id(op): tuple([bisect_left(capacities, depth) for depth in found])
        for op, found in zip(same.graph.ops, depths, strict=True)
    }


@lru_cache(maxsize=32)
def _with_staying(
    same: Same, rooms: tuple[tuple[str, float], ...], staying: Staying
) -> Residence | None:
    """Let some weights stay in the nearest level that has room for them; None if none has.

    Updates read and write them in the farthest memory, once a step.
    """
    graph = same.graph
    weights = staying_weights(graph)
    chosen = weights[: math.ceil(len(weights) * staying.share / STAYING_SHARES)]
    size = math.fsum(graph.tensors[name].bytes for name in chosen)
    held = staying.parts * size
    place = next((i for i, (_, capacity) in enumerate(rooms) if held <= capacity), None)
    if place is None:
        return None
    left = [capacity - held * (i == place) for i, (_, capacity) in enumerate(rooms)]
    capacities = tuple(accumulate(left, max))
    found = dict[int, Found]()
    aside, storage = frozenset(chosen), storages(graph)
    touches = _touches(same, aside, False, True)
    for op, depths in zip(graph.ops, touches.depths, strict=True):
        names = (*op.inputs, *op.outputs)
        at = len(rooms) if op.pass_ is Pass.UPDATE else place
        found[id(op)] = tuple(
            at if storage[name] in aside else bisect_left(capacities, depth)
            for name, depth in zip(names, depths, strict=True)
        )
    return Residence(found, {rooms[place][0]: size} if chosen else {})


class _Touches(NamedTuple):
    """By op and operand: bytes touched since the last touch, and the op of that, -1 before."""

    depths: list[list[float]]
    since: list[list[int]]


@lru_cache(maxsize=32)
def _touches(same: Same, staying: frozenset[str], is_host: bool, weights: bool) -> _Touches:
    """Play the touches of some steps; return those of the last, the same for all capacities."""
    memory = _Memory(same.graph, is_host, weights, staying)
    for _ in range(_STEPS_ON_HOST if is_host else _STEPS):
        touches = memory.step()
    return touches


def staying_weights(graph: Graph) -> list[str]:
    """Return the weights that products read in every micro-batch, in the order of their first use.

    Not those that are made or gathered anew in each.
    """
    storage = storages(graph)
    again = [op for op in graph.ops if not is_once(op, graph)]
    made = {storage[name] for op in again for name in op.outputs}
    read = (storage[name] for op in again if op.loops is not None for name in op.inputs)
    return [
        name
        for name in dict.fromkeys(read)
        if graph.tensors[name].role in _OF_WEIGHTS and name not in made
    ]


def is_once(op: Op, graph: Graph) -> bool:
    """Tell whether an op is done once a step, not in every micro-batch."""
    return op.pass_ is Pass.UPDATE or (op.pass_ is Pass.FORWARD and makes_weights(op, graph))


def makes_weights(op: Op, graph: Graph) -> bool:
    """Tell whether an op makes or gathers weights: copies in the format of products, shards."""
    return bool(op.outputs) and graph.tensors[op.outputs[0]].role in _OF_WEIGHTS


_OF_WEIGHTS = frozenset({Role.WEIGHT, Role.WEIGHT_COPY})


class _Memory:
    """Blocks of memory in the order of their last touch, and the free ones in that of their end."""

    def __init__(
        self, graph: Graph, is_host: bool, weights: bool, staying: frozenset[str] = frozenset()
    ) -> None:
        self.graph, self.is_host, self.weights = graph, is_host, weights
        self.staying = staying  # set aside: they touch nothing of what the others share
        self.storage = storages(graph)
        spans = lifetimes(graph)
        self.ends: list[list[str]] = [[] for _ in graph.ops]
        for name, (_, last) in spans.items():
            if graph.tensors[name].role not in STATIC_ROLES:
                self.ends[last].append(name)
        touches = sum(len(op.inputs) + len(op.outputs) for op in graph.ops)
        # A touch moves a block to a new place; what is left of a divided block takes none.
        self.sums = _Sums(_STEPS * touches + 1)
        self.now = 0
        self.done = 0  # ops, of all steps
        self.touched_by: list[int] = []  # by place
        self.blocks: dict[str, tuple[float, int]] = {}  # storage -> bytes touched, place
        self.free: list[tuple[float, int]] = []  # size, place; what was freed last at the end

    def step(self) -> _Touches:
        """Play one step; bytes are those of an operand itself, too.

        Memory that was never touched before is infinitely far away.
        """
        depths, since, begun = [], [], self.done
        for op, ends in zip(self.graph.ops, self.ends, strict=True):
            found = [self._touch(name, share) for name, share in _operands(op)]
            depths.append([depth for depth, _ in found])
            since.append([max(-1, before - begun) for _, before in found])
            for name in ends:
                if name in self.blocks:
                    self.free.append(self.blocks.pop(name))
            self.done += 1
        return _Touches(depths, since)

    def _touch(self, name: str, share: float) -> tuple[float, int]:
        """Return the bytes touched since, and the op that touched it last."""
        root = self.storage[name]
        if root in self.staying:
            return 0.0, -1
        if not self.weights and self.graph.tensors[root].role in STATIC_ROLES:
            return float("inf"), -1
        size = share * self.graph.tensors[name].bytes
        if root in self.blocks:
            held, place = self.blocks[root]
            self.sums.add(place, -held)
            depth = self.sums.after(place) + size
            size = max(size, held)
        else:
            depth, place = self._allocate(size)
            if not self.is_host and self.graph.tensors[root].role is Role.INPUT:
                depth = float("inf")
        before = self.touched_by[place] if place >= 0 else -1
        self.blocks[root] = (size, self.now)
        self.touched_by.append(self.done)
        self.sums.add(self.now, size)
        self.now += 1
        return depth, before

    def _allocate(self, size: float) -> tuple[float, int]:
        """Take free memory, the last freed first; return how far its farthest part is, and where.

        The place of new memory is -1.
        """
        missing, farthest = size, -1
        while missing > 0 and self.free:
            held, place = self.free.pop()
            taken = min(held, missing)
            self.sums.add(place, -taken)
            if taken < held:
                self.free.append((held - taken, place))
            missing -= taken
            farthest = place if farthest < 0 else min(farthest, place)
        if missing > 0 or farthest < 0:
            return float("inf"), -1
        return self.sums.after(farthest) + size, farthest


def _operands(op: Op) -> list[tuple[str, float]]:
    """Name inputs and outputs of an op, and which share of each it touches."""
    reads = op.input_passes or (1,) * len(op.inputs)
    writes = op.output_passes or (1,) * len(op.outputs)
    return [
        (name, min(1.0, float(passes)))
        for names, times in ((op.inputs, reads), (op.outputs, writes))
        for name, passes in zip(names, times, strict=True)
    ]


class _Sums:
    """Sums over the end of a sequence whose elements change (Fenwick, 1994)."""

    def __init__(self, size: int) -> None:
        self.tree = [0.0] * (size + 1)
        self.total = 0.0

    def add(self, place: int, value: float) -> None:
        """Add to one element."""
        self.total += value
        place += 1
        while place < len(self.tree):
            self.tree[place] += value
            place += place & -place

    def after(self, place: int) -> float:
        """Sum of all elements behind one."""
        before, place = 0.0, place + 1
        while place:
            before += self.tree[place]
            place -= place & -place
        return self.total - before
