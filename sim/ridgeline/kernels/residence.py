"""Where an op finds its operands: in a level that has kept them, or farther away.

Ops of a step follow each other in the graph's order, and a step follows a step. A cache that evicts
what is oldest still holds a tensor if what was touched since, and the tensor itself, are no more
than it has room for (the stack property: Mattson et al., "Evaluation techniques for storage
hierarchies", IBM Systems Journal 9(2), 1970). What an op writes lies where an allocator puts it: in
the memory that was given back last, as heaps that keep lists of free blocks do.

Software that fills a buffer itself can do at least this, op by op: nothing is held longer than that
cache holds it. A schedule that knows the whole step may do better; none is searched for.

A mini-batch comes from outside in every step. Processors of a host write it themselves, so that
their caches may hold it; any other device finds it in its farthest memory.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from ridgeline.hardware.device import Device, MemoryLevel
from ridgeline.kernels.broadcast_grid import Ring, unheld_share
from ridgeline.kernels.cost import Moved
from ridgeline.kernels.traffic import is_private
from ridgeline.workload.graph import Graph, Op, Role, Same
from ridgeline.workload.liveness import STATIC_ROLES, lifetimes, storages

Found = tuple[float, ...]
"""Of the inputs and then the outputs of an op: how many keeping caches do not hold it. Less than 0:
the processing elements themselves hold all but this share and one."""

# The first fills the caches. State of an optimizer is allocated at the end of the first step, so
# that the second still takes memory that was never touched.
_STEPS, _STEPS_ON_HOST = 3, 2
_TILED = frozenset({"systolic", "broadcast-grid", "spatial"})
"""Kinds of engines before buffers that software fills with tiles."""
_BESIDE_TILES = 0.5


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


def room(device: Device, name: str) -> float:
    """Bytes of a level that tensors of several ops share; see `MemoryLevel.kept_share`."""
    level = device.memory[name]
    if level.kept_share is not None:
        return level.capacity.value * level.kept_share.value
    return level.capacity.value * (_BESIDE_TILES if _is_tiled(device) else 1.0)


def residence(graph: Graph, device: Device) -> dict[int, Found]:
    """Return by the identity of every op where it finds its operands; empty without caches."""
    if (ring := _ring_of(device)) is not None:
        return _in_elements(Same(graph), ring)
    rooms = rooms_of(device)
    if not rooms:
        return {}
    # What a near level keeps, a far one does, too.
    sizes = tuple(accumulate((size for _, size in rooms), max))
    weights = any("b" in device.memory[name].holds for name, _ in rooms)
    return _residence(Same(graph), sizes, on_host(device), weights)


def residence_key(device: Device) -> tuple[tuple[tuple[str, float], ...], bool, bool]:
    """Return what decides where ops find their operands: equal on devices where they do alike."""
    if (ring := _ring_of(device)) is not None:
        return (
            (("elements", ring.elements * ring.local_bytes), ("cores", float(ring.cores))),
            False,
            True,
        )
    rooms = rooms_of(device)
    return rooms, on_host(device), any("b" in device.memory[name].holds for name, _ in rooms)


def rooms_of(device: Device) -> tuple[tuple[str, float], ...]:
    """Return the levels that keep tensors, from near to far, and the bytes of each for these."""
    return tuple((name, room(device, name)) for name in keeping(device))


def on_host(device: Device) -> bool:
    """Tell whether a device is the host's processors, which write a mini-batch themselves."""
    return any(engine.kind == "cores" for engine in device.engines.values())


def stayed(op: Op, graph: Graph, found: Found, levels: Sequence[str]) -> dict[str, float]:
    """Bytes that an op finds in each of the levels that keep tensors."""
    past = [passing(op, graph, found, at).total for at in range(len(levels) + 1)]
    return {
        name: before - beyond
        for name, before, beyond in zip(levels, past, past[1:], strict=False)
        if before > beyond
    }


def passing(op: Op, graph: Graph, found: Found, level: int) -> Moved:
    """Bytes of an op's operands, each as often as it is streamed, that come from a level or beyond.

    Parameters
    ----------
    level
        Its place among the caches that keep tensors; their number is that of the memory behind.
    """
    reads = op.input_passes or (1,) * len(op.inputs)
    writes = op.output_passes or (1,) * len(op.outputs)
    sizes = [
        float(passes * graph.tensors[name].bytes) * min(1.0, max(0.0, at - level + 1.0))
        for name, passes, at in zip(
            (*op.inputs, *op.outputs), (*reads, *writes), found, strict=True
        )
    ]
    inputs = len(op.inputs)
    a, b = (sizes[i] if i < min(inputs, 2) else 0.0 for i in range(2))
    return Moved(a, b, sum(sizes[min(inputs, 2) :]))


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
    """Play the touches of two steps; the same graph is played once.

    Parameters
    ----------
    weights
        Whether the levels hold weights, or these have memories of their own.
    """
    memory = _Memory(same.graph, is_host, weights)
    for _ in range(_STEPS_ON_HOST if is_host else _STEPS):
        depths = memory.step()
    return {
        id(op): tuple(bisect_left(capacities, depth) for depth in found)
        for op, found in zip(same.graph.ops, depths, strict=True)
    }


class _Memory:
    """Blocks of memory in the order of their last touch, and the free ones in that of their end."""

    def __init__(self, graph: Graph, is_host: bool, weights: bool) -> None:
        self.graph, self.is_host, self.weights = graph, is_host, weights
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
        self.blocks: dict[str, tuple[float, int]] = {}  # storage -> bytes touched, place
        self.free: list[tuple[float, int]] = []  # size, place; what was freed last at the end

    def step(self) -> list[list[float]]:
        """Play one step; return by op and operand the bytes that were touched since, its own too.

        Memory that was never touched before is infinitely far away.
        """
        found = []
        for op, ends in zip(self.graph.ops, self.ends, strict=True):
            found.append([self._touch(name, share) for name, share in _operands(op)])
            for name in ends:
                if name in self.blocks:
                    self.free.append(self.blocks.pop(name))
        return found

    def _touch(self, name: str, share: float) -> float:
        root = self.storage[name]
        if not self.weights and self.graph.tensors[root].role in STATIC_ROLES:
            return float("inf")
        size = share * self.graph.tensors[name].bytes
        if root in self.blocks:
            held, place = self.blocks[root]
            self.sums.add(place, -held)
            depth = self.sums.after(place) + size
            size = max(size, held)
        else:
            depth = self._allocate(size)
            if not self.is_host and self.graph.tensors[root].role is Role.INPUT:
                depth = float("inf")
        self.blocks[root] = (size, self.now)
        self.sums.add(self.now, size)
        self.now += 1
        return depth

    def _allocate(self, size: float) -> float:
        """Take free memory, the last freed first; return how far the farthest part of it is."""
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
            return float("inf")
        return self.sums.after(farthest) + size


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
