"""ASTRA-sim 2: its numbers, to the nanosecond.

What differs from this package's own model, and why it is kept apart:

- "GB/s" means GiB/s, and of an all-gather the size is the shard of one rank.
- The payload is cut into equal splits; with one active chunk they follow each other, so that more
  splits take longer.
- Every round of a reduction also waits for three passes over local memory; rounds are whole
  nanoseconds, rounded down.

- A rank's messages of one round do not wait for each other, so that a direct exchange is faster
  than its port allows.
- In several dimensions a split goes through them one after the other: an all-reduce scatters in
  all but the last, is reduced in the last, and gathers in the opposite order; an all-to-all sends
  all of its data in each. A dimension works on as many splits at once as chunks are active, each
  as fast as if it were alone, and takes those that wait in the order in which they came.

Exact for the congestion-unaware backend (astra-sim 518bd51, analytical backend 599a047) in any
number of dimensions; with `AstraSimSystem.stores` for the congestion-aware one in one dimension,
but for a direct exchange where messages share links, and within 0.1 % where several chunks are
active.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from ridgeline.errors import RidgelineError, nearest

GIB = 2**30
MAX_SPLITS = 65_536
_ROUNDS = {"all-reduce": (1, 1), "reduce-scatter": (1, 0), "all-gather": (0, 1)}
"""Times p-1: rounds that add up, and rounds that only pass on."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of a network, as ASTRA-sim has it: Ring, FullyConnected or Switch."""

    block: str
    npus: int
    bandwidth_gib_per_s: float
    latency_ns: float


@dataclass(frozen=True, slots=True)
class AstraSimSystem:
    """What a system file (JSON) says about collectives; by default what ASTRA-sim's examples say.

    Attributes
    ----------
    algorithms
        By operation, the algorithm of each dimension, in this package's names.
    endpoint_delay_ns, splits, active_chunks, local_memory_gb_per_s
        As in the file.
    """

    algorithms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    endpoint_delay_ns: int = 10
    splits: int = 4
    active_chunks: int = 1
    local_memory_gb_per_s: float = 50.0
    stores: bool = False
    """The congestion-aware backend, of one dimension: a switch passes a message on when it has all
    of it, and messages that leave one port follow each other."""


def network_time_ns(
    op: str,
    algorithms: Sequence[str],
    size_bytes: int,
    dimensions: Sequence[Dimension],
    system: AstraSimSystem | None = None,
) -> int:
    """Return the cycles (nanoseconds) that ASTRA-sim's congestion-unaware backend reports.

    In a dimension a split takes ``Σ over rounds (st(m) + 3 floor(m / mem) where a round adds up) +
    ep`` with ``st(m) = floor(hops latency + m / bandwidth) + ep`` and, of what the split has left,
    s, among p ranks,

    - ``ring``: p-1 rounds of m = s/p that add up and p-1 that only pass on, to the neighbour; in an
      all-to-all p(p-1)/2 rounds that pass on;
    - ``direct``: one round of each kind, m = s/p: p-1 messages leave as if they were one. An
      all-to-all is one round, which on a ring waits for the farthest of its messages;
    - ``halving-doubling``: rounds of m = s/2, s/4, ... s/p and back; the first one adds up nothing.

    Hops are 2 behind a switch. How splits share the dimensions is said in the head of this module.

    Parameters
    ----------
    op
        ``all-reduce``, ``reduce-scatter``, ``all-gather`` or ``all-to-all``.
    algorithms
        ``ring``, ``direct`` or ``halving-doubling`` for every dimension.
    size_bytes
        The whole buffer; of an all-gather the shard of one rank, as ASTRA-sim counts it.
    dimensions
        The innermost first, of two ranks at least.

    Raises
    ------
    RidgelineError
        If there is no such collective or algorithm, or a number is impossible.
    """
    system = AstraSimSystem() if system is None else system
    if op not in {*_ROUNDS, "all-to-all"}:
        known = (*_ROUNDS, "all-to-all")
        raise RidgelineError(
            f"the compatibility mode has no {op!r}{nearest(op, known)} (it has: {', '.join(known)})"
        )
    if len(algorithms) != len(dimensions) or not dimensions:
        raise RidgelineError(
            f"the compatibility mode needs an algorithm for each dimension; found "
            f"{len(algorithms)} for {len(dimensions)}"
        )
    for dimension in dimensions:
        _check(size_bytes, dimension, system)
    shares_links = algorithms[0] == "direct" and dimensions[0].block != "FullyConnected"
    passes_switch = (op, dimensions[0].block) == ("all-to-all", "Switch")
    if system.stores and (len(dimensions) > 1 or (shares_links and not passes_switch)):
        raise RidgelineError(
            "of the congestion-aware backend the compatibility mode has one dimension and rounds "
            "in which a rank sends one message, or an all-to-all behind a switch"
        )
    steps = _stages(op, algorithms, size_bytes // system.splits, dimensions, system)
    total = _play(steps, len(dimensions), system)
    if system.stores and dimensions[0].block == "Switch":
        # of chunks that are active together, the last leaves its last port behind the others
        sizes = _message_sizes(op, algorithms[0], size_bytes // system.splits, dimensions[0].npus)
        rate = Fraction(dimensions[0].bandwidth_gib_per_s) * GIB / 10**9
        together = min(system.active_chunks, system.splits)
        total += (together - 1) * math.floor(sizes[-1] / rate)
    return total


def _check(size_bytes: int, dimension: Dimension, system: AstraSimSystem) -> None:
    numbers = (dimension.bandwidth_gib_per_s, system.local_memory_gb_per_s,
               system.splits, system.active_chunks)  # fmt: skip
    if dimension.npus < 2 or size_bytes < 1 or dimension.latency_ns < 0 or min(numbers) <= 0:
        raise RidgelineError(
            "the compatibility mode needs 2 ranks a dimension, 1 byte, a split, and bandwidths "
            f"above 0; found {dimension.npus} ranks, {size_bytes} B, {system.splits} splits and "
            f"{dimension.bandwidth_gib_per_s} GiB/s"
        )
    if system.splits > min(size_bytes, MAX_SPLITS):
        raise RidgelineError(
            f"{size_bytes} B cannot be cut into {system.splits} splits (at most {MAX_SPLITS}, each "
            "of a byte at least)"
        )


def _stages(
    op: str,
    algorithms: Sequence[str],
    split: int,
    dimensions: Sequence[Dimension],
    system: AstraSimSystem,
) -> list[tuple[int, int]]:
    """Return (dimension, nanoseconds) of what a split goes through."""
    last = len(dimensions) - 1
    if op == "all-reduce":
        ways = [("reduce-scatter", d) for d in range(last)]
        ways += [("all-reduce", last)]
        ways += [("all-gather", d) for d in reversed(range(last))]
    else:
        order = reversed(range(last + 1)) if op == "all-gather" else range(last + 1)
        ways = [(op, d) for d in order]
    found: list[tuple[int, int]] = []
    for kind, d in ways:
        found.append((d, _stage_ns(kind, algorithms[d], split, dimensions[d], system)))
        if kind == "reduce-scatter":
            split //= dimensions[d].npus
        elif kind == "all-gather":
            split *= dimensions[d].npus
    return found


def _stage_ns(
    op: str, algorithm: str, size: int, dimension: Dimension, system: AstraSimSystem
) -> int:
    """Return the time of one split in one dimension; of an all-gather `size` is a rank's shard."""
    p = dimension.npus
    if algorithm not in _MESSAGES or (op == "all-to-all" and algorithm == "halving-doubling"):
        raise RidgelineError(
            f"the compatibility mode has no algorithm {algorithm!r}{nearest(algorithm, _MESSAGES)} "
            f"for {op} (it has: {', '.join(_MESSAGES)}, of which an all-to-all has ring and direct)"
        )
    sizes = _message_sizes(op, algorithm, size, p)
    hops = 2 if dimension.block == "Switch" else 1
    if (op, algorithm, dimension.block) == ("all-to-all", "direct", "Ring"):
        hops = p // 2
    bandwidth = Fraction(dimension.bandwidth_gib_per_s) * GIB / 10**9  # bytes a nanosecond
    latency = hops * Fraction(dimension.latency_ns)
    memory = Fraction(system.local_memory_gb_per_s)
    adding, passing = _ROUNDS.get(op, (0, 1))
    total = system.endpoint_delay_ns
    for number, message in enumerate(sizes):
        step = math.floor(latency + message / bandwidth) + system.endpoint_delay_ns
        if system.stores and dimension.block == "Switch":
            sent = p - 1 if algorithm == "direct" else 1
            step += sent * math.floor(message / bandwidth)
        total += (adding + passing) * step
        if algorithm != "halving-doubling" or number > 0:
            total += adding * 3 * math.floor(message / memory)
    return total


def _message_sizes(op: str, algorithm: str, size: int, p: int) -> list[int]:
    """Return the sizes of the messages of a rank, round by round of one kind."""
    if op == "all-gather" and algorithm == "ring":
        return [size] * (p - 1)
    if op == "all-gather" and algorithm == "halving-doubling":
        return [size << k for k in range(p.bit_length() - 1)]
    if op == "all-gather":
        return [size]
    if op == "all-to-all" and algorithm == "ring":
        return [size // p] * (p * (p - 1) // 2)
    return _MESSAGES[algorithm](size, p)


def _play(stages: Sequence[tuple[int, int]], n_dimensions: int, system: AstraSimSystem) -> int:
    """Return when the last split has gone through all its stages."""
    waiting: list[deque[tuple[int, int]]] = [deque() for _ in range(n_dimensions)]  # split, stage
    busy = [0] * n_dimensions
    ends: list[tuple[int, int, int]] = []  # time, split, stage that it ends
    waiting[stages[0][0]].extend((split, 0) for split in range(system.splits))
    now = 0
    while True:
        for d, queue in enumerate(waiting):
            while queue and busy[d] < system.active_chunks:
                split, stage = queue.popleft()
                busy[d] += 1
                heapq.heappush(ends, (now + stages[stage][1], split, stage))
        if not ends:
            return now
        now = ends[0][0]
        while ends and ends[0][0] == now:
            _, split, stage = heapq.heappop(ends)
            busy[stages[stage][0]] -= 1
            if stage + 1 < len(stages):
                waiting[stages[stage + 1][0]].append((split, stage + 1))


def collective_time_ns(
    op: str,
    algorithm: str,
    size_bytes: int,
    dimension: Dimension,
    *,
    splits: int = 4,
    active_chunks: int = 1,
    endpoint_delay_ns: int = 10,
    local_memory_gb_per_s: float = 50.0,
) -> int:
    """Return `network_time_ns` of one dimension: all splits, as many at once as are active."""
    system = AstraSimSystem({}, endpoint_delay_ns, splits, active_chunks, local_memory_gb_per_s)
    return network_time_ns(op, [algorithm], size_bytes, [dimension], system)


def ring_time_ns(
    op: str,
    size_bytes: int,
    npus: int,
    *,
    bandwidth_gib_per_s: float,
    latency_ns: float,
    splits: int = 4,
    endpoint_delay_ns: int = 10,
    local_memory_gb_per_s: float = 50.0,
) -> int:
    """Return what ASTRA-sim reports for a ring collective; see `collective_time_ns`.

    Exact for both of its analytical network backends.
    """
    return collective_time_ns(
        op,
        "ring",
        size_bytes,
        Dimension("Ring", npus, bandwidth_gib_per_s, latency_ns),
        splits=splits,
        endpoint_delay_ns=endpoint_delay_ns,
        local_memory_gb_per_s=local_memory_gb_per_s,
    )


def _halves(split: int, p: int) -> list[int]:
    return [split >> k for k in range(1, p.bit_length())]


_MESSAGES: dict[str, Callable[[int, int], list[int]]] = {
    "ring": lambda split, p: [split // p] * (p - 1),
    "direct": lambda split, p: [split // p],
    "halving-doubling": _halves,
}
"""Sizes of the messages of a rank, round by round of one kind."""
