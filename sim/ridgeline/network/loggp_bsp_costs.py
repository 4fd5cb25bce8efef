"""LogGP and BSP costs of a collective's messages.

Both take the script of an algorithm, rank to rank and round by round, instead of loads on links.

*LogGP* (Alexandrov et al., SPAA 1995): a message of k bytes costs its sender `overhead` of
processor time, leaves no sooner than `gap` after the one before, is on its way for L + k G and
costs its receiver `overhead` again: L + 2 o + k G for one alone. L and G are those of the route.
Ranks do not wait for each other: one goes on to its next round when it has sent and received what
its own round says. Messages share ports (a rank sends one at a time, and receives one at a time),
not links.

*two-sided*  as above. From `rendezvous_bytes` on a sender asks first, and sends when its receiver
             has come to the round and its answer is back: two more latencies, and a wait for the
             late.
*one-sided*  the receiver's processor takes no part (GASPI, RDMA writes): no second overhead and no
             rendezvous; its round ends when the data are there.

*BSP* (Valiant, CACM 33(8), 1990): every round is a superstep of w + h g + l, with h the most bytes
that a rank sends or receives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ridgeline import units
from ridgeline._jit import kernel
from ridgeline.errors import RidgelineError, nearest
from ridgeline.network.algorithm import Algorithm, DoesNotApplyError
from ridgeline.network.message_schedule import MessageSchedule, advanced
from ridgeline.network.paths import Ints
from ridgeline.network.routed import RunSizes
from ridgeline.network.routing import routes
from ridgeline.network.topology import Floats, Topology


@dataclass(frozen=True, slots=True)
class LogGP:
    """What a message costs besides its way; see the head of this module."""

    overhead_s: float = 0.0
    gap_s: float = 0.0
    semantics: Literal["two-sided", "one-sided"] = "two-sided"
    rendezvous_bytes: float = float("inf")

    def __post_init__(self) -> None:
        if self.semantics not in {"two-sided", "one-sided"}:
            raise RidgelineError(
                f"messages are 'two-sided' or 'one-sided', found {self.semantics!r}"
            )
        if not (self.overhead_s >= 0 and self.gap_s >= 0 and self.rendezvous_bytes >= 0):
            raise RidgelineError("LogGP: overhead, gap and rendezvous size must be at least 0")

    def time_s(self, script: MessageSchedule, topology: Topology, vertex: Ints) -> float:
        """Return when the last rank has ended its last round."""
        n = len(vertex)
        begin = np.full(n, topology.collective_latency_s)
        rendezvous = np.inf if self.semantics == "one-sided" else self.rendezvous_bytes
        sizes = RunSizes(script.slot_bytes)
        for step in script.steps:
            # parts of one message stand in several rows
            pair, part = np.unique(step.source * n + step.target, return_inverse=True)
            source, target = np.divmod(pair, n)
            latency_s, s_per_byte = _ways(topology, vertex, source, target)
            for turns, repeat in _turns(sizes.even(step), step.repeat):
                _play_rounds(
                    begin,
                    source,
                    target,
                    np.bincount(part, sizes.of(advanced(step, turns, repeat)), len(pair)).astype(
                        np.float64
                    ),
                    latency_s,
                    s_per_byte,
                    repeat,
                    self.overhead_s,
                    self.gap_s,
                    rendezvous,
                    self.semantics == "one-sided",
                )
        return float(begin.max())


@dataclass(frozen=True, slots=True)
class BSP:
    """Supersteps; None takes from the topology what a value is not given for.

    Attributes
    ----------
    gap_s_per_byte
        g. By default one over the bandwidth of the narrowest port of a device.
    barrier_s
        l. By default the slowest latency between two ranks, for every level of a binary tree.
    work_s
        w of every superstep.
    """

    gap_s_per_byte: float | None = None
    barrier_s: float | None = None
    work_s: float = 0.0

    def time_s(self, script: MessageSchedule, topology: Topology, vertex: Ints) -> float:
        """Return the sum over the supersteps."""
        n = len(vertex)
        gap, barrier_s = self._machine(topology, vertex)
        total = topology.collective_latency_s
        sizes = RunSizes(script.slot_bytes)
        for step in script.steps:
            for turns, repeat in _turns(sizes.even(step), step.repeat):
                size = sizes.of(advanced(step, turns, repeat))
                out = np.bincount(step.source, size, n)
                into = np.bincount(step.target, size, n)
                most = float(max(out.max(), into.max()))
                total += repeat * (self.work_s + most * gap + barrier_s)
        return total

    def _machine(self, topology: Topology, vertex: Ints) -> tuple[float, float]:
        port = [
            float(topology.bandwidth_bytes_per_s[
                topology.out_ptr[v] : topology.out_ptr[v + 1]].max(initial=0.0))
            for v in vertex.tolist()
        ]  # fmt: skip
        gap = 1 / min(port) if self.gap_s_per_byte is None else self.gap_s_per_byte
        if self.barrier_s is not None:
            return gap, self.barrier_s
        first = np.zeros(len(vertex) - 1, np.int64)
        slowest = _ways(topology, vertex, first, np.arange(1, len(vertex)))[0].max()
        return gap, float(slowest) * (len(vertex) - 1).bit_length()


Cost = LogGP | BSP


def cost_of(text: str) -> Cost:
    """Read a cost: ``bsp``, ``bsp g=0.1ns l=5us``, ``loggp overhead=1us gap=500ns``.

    Fields of ``bsp`` are g (of one byte), l and w; of ``loggp`` overhead, gap, semantics and
    rendezvous (a size).

    Raises
    ------
    RidgelineError
        If the text cannot be read.
    """
    name, *fields = text.split()
    given = dict(field.partition("=")[::2] for field in fields)
    known = {"bsp": ("g", "l", "w"), "loggp": ("overhead", "gap", "semantics", "rendezvous")}
    if name not in known:
        raise RidgelineError(
            f"no cost is called {name!r}{nearest(name, known)} (known: {', '.join(known)})"
        )
    for field in given:
        if field not in known[name]:
            raise RidgelineError(
                f"{name} has no field {field!r}{nearest(field, known[name])} "
                f"(there are: {', '.join(known[name])})"
            )
    seconds = {
        field: units.parse(value, "s")
        for field, value in given.items()
        if field not in {"semantics", "rendezvous"}
    }
    if name == "bsp":
        return BSP(seconds.get("g"), seconds.get("l"), seconds.get("w", 0.0))
    semantics = given.get("semantics", "two-sided")
    if semantics not in {"two-sided", "one-sided"}:
        raise RidgelineError(f"semantics is 'two-sided' or 'one-sided', found {semantics!r}")
    return LogGP(
        seconds.get("overhead", 0.0),
        seconds.get("gap", 0.0),
        "one-sided" if semantics == "one-sided" else "two-sided",
        units.parse(given["rendezvous"], "B") if "rendezvous" in given else float("inf"),
    )


def priced(
    algorithm: Algorithm,
    topology: Topology,
    ranks: Sequence[int],
    size_bytes: float,
    cost: Cost,
    parts: Floats | None = None,
) -> float:
    """Return the seconds of an algorithm by a cost; at least two ranks.

    Raises
    ------
    DoesNotApplyError
        If the algorithm is not made for this topology, or switches take part in it.
    """
    group = algorithm.group(topology, ranks, size_bytes, parts)
    script = algorithm.write(group)
    if script.vertices:
        raise DoesNotApplyError(
            f"{algorithm.name!r} adds in switches, which a cost by messages does not know"
        )
    return cost.time_s(script, topology, group.vertex)


def _turns(even: bool, repeat: int) -> list[tuple[int, int]]:
    """Return (first turn, repetitions) of the rounds of a step that are equal."""
    return [(0, repeat)] if even else [(turn, 1) for turn in range(repeat)]


def _ways(topology: Topology, vertex: Ints, source: Ints, target: Ints) -> tuple[Floats, Floats]:
    """Return L and G of messages between positions."""
    found = routes(topology, vertex[source], vertex[target])
    ends = found.ptr[:-1]
    latency_s = np.add.reduceat(topology.latency_s[found.links], ends)
    slowest = np.maximum.reduceat(1.0 / topology.bandwidth_bytes_per_s[found.links], ends)
    return latency_s, slowest


@kernel
def _play_rounds(
    begin: Floats,
    source: Ints,
    target: Ints,
    size: Floats,
    latency_s: Floats,
    s_per_byte: Floats,
    repeat: int,
    overhead_s: float,
    gap_s: float,
    rendezvous: float,
    one_sided: bool,
) -> None:
    """Play equal rounds; `begin` holds when every rank begins the next one."""
    n_messages = len(source)
    arrives = np.empty(n_messages)
    for _ in range(repeat):
        processor, port, port_in = begin.copy(), begin.copy(), begin.copy()
        for m in range(n_messages):
            a, b = source[m], target[m]
            processor[a] += overhead_s
            leaves = max(processor[a], port[a])
            if size[m] >= rendezvous:
                asked = processor[a] + latency_s[m]
                leaves = max(leaves, max(asked, begin[b]) + latency_s[m])
            busy = size[m] * s_per_byte[m]
            port[a] = leaves + max(gap_s, busy)
            arrives[m] = leaves + latency_s[m]
        # what a rank receives comes in one after the other
        for m in np.argsort(arrives):
            b = target[m]
            port_in[b] = max(arrives[m], port_in[b]) + size[m] * s_per_byte[m]
            processor[b] = max(processor[b], port_in[b])
            if not one_sided:
                processor[b] += overhead_s
        for m in range(n_messages):
            # with rendezvous or one-sided writes a sender has ended when its data have left
            a = source[m]
            sent = arrives[m] - latency_s[m] + size[m] * s_per_byte[m]
            processor[a] = max(processor[a], sent)
        begin[:] = processor
