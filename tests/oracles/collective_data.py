"""Collectives that really move data: every message of a script copied from rank to rank.

Written to be obvious, one message and one slot at a time. Knows scripts, and nothing of schedules:
it counts bytes and time anew from the single messages and their routes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ridgeline.network.message_schedule import MessageRounds, MessageSchedule
from ridgeline.network.routing import route
from ridgeline.network.topology import Topology

WIDTH = 2  # elements of each slot
Ints = npt.NDArray[np.int64]
ROOTED = frozenset({"broadcast", "scatter"})  # slots begin at the root
OWNED = frozenset({"all-gather", "gather"})  # slots begin at their owners
SENT = frozenset({"all-to-all", "send", "send-recv"})  # slots begin at their origins


class CollectiveData:
    """Buffers of all positions, [positions, slots, WIDTH], and what has been sent.

    Parameters
    ----------
    vertex
        [p] vertices of the positions; those of switches come from the script.
    """

    def __init__(
        self, op: str, script: MessageSchedule, topology: Topology, vertex: list[int], seed: int
    ) -> None:
        self.op, self.script, self.topology = op, script, topology
        self.n = len(vertex)
        self.vertex = [*vertex, *script.vertices]
        slots = len(script.slot_bytes)
        data = np.random.default_rng(seed).integers(1, 1000, (len(self.vertex), slots, WIDTH))
        data[self.n :] = 0  # switches have nothing of their own
        self.start: Ints = data.copy()
        self.data: Ints = data
        self.has = np.ones((len(self.vertex), slots), dtype=bool)
        for slot in range(slots):
            if op in ROOTED | OWNED | SENT:
                first = {True: 0}.get(op in ROOTED, int(script.owner[slot]))
                first = int(script.origin[slot]) if op in SENT else first
                self.has[:, slot] = False
                self.has[first, slot] = True
        self.bytes_on_link: dict[int, float] = {}
        self.time_s = topology.collective_latency_s

    def play(self) -> None:
        """Send everything."""
        for step in self.script.steps:
            for turn in range(step.repeat):
                self._round(step, turn)

    def _round(self, step: MessageRounds, turn: int) -> None:
        load: dict[int, float] = {}
        for wave in range(int(step.wave.max()) + 1):
            before, had = self.data.copy(), self.has.copy()
            slowest = 0.0
            for m in np.flatnonzero(step.wave == wave).tolist():
                source, target = int(step.source[m]), int(step.target[m])
                links = self._links(step, m, source, target)
                slowest = max(slowest, sum(float(self.topology.latency_s[i]) for i in links))
                for k in range(int(step.count[m])):
                    base = int(step.base[m])
                    offset = int(step.first[m]) - base + turn * int(step.shift[m]) + k
                    slot = base + offset % int(step.span[m])
                    assert had[source, slot], "sends what it does not have"
                    if step.combine[m]:
                        self.data[target, slot] += before[source, slot]
                    else:
                        self.data[target, slot] = before[source, slot]
                    self.has[target, slot] = True
                    for link in links:
                        load[link] = load.get(link, 0.0) + float(self.script.slot_bytes[slot])
            self.time_s += slowest
        bandwidth = self.topology.bandwidth_bytes_per_s
        self.time_s += max((size / float(bandwidth[i]) for i, size in load.items()), default=0.0)
        for link, size in load.items():
            self.bytes_on_link[link] = self.bytes_on_link.get(link, 0.0) + size

    def _links(self, step: MessageRounds, m: int, source: int, target: int) -> list[int]:
        assert source != target
        a, b = self.vertex[source], self.vertex[target]
        if step.routes is None:
            return list(route(self.topology, a, b))
        links = step.routes.links[step.routes.ptr[m] : step.routes.ptr[m + 1]].tolist()
        for link in links:
            assert self.topology.source[link] == a
            a = int(self.topology.target[link])
        assert a == b
        return links

    def check(self) -> None:
        """Raise AssertionError unless everyone has what the operation promises."""
        total = self.start.sum(axis=0)
        everyone = range(self.n)
        for slot in range(len(self.script.slot_bytes)):
            owner, origin = int(self.script.owner[slot]), int(self.script.origin[slot])
            if self.op == "all-reduce":
                expected = dict.fromkeys(everyone, total[slot])
            elif self.op == "reduce-scatter":
                expected = {owner: total[slot]}
            elif self.op == "reduce":
                expected = {0: total[slot]}
            elif self.op == "broadcast":
                expected = dict.fromkeys(everyone, self.start[0, slot])
            elif self.op == "scatter":
                expected = {owner: self.start[0, slot]}
            elif self.op == "all-gather":
                expected = dict.fromkeys(everyone, self.start[owner, slot])
            elif self.op == "gather":
                expected = {0: self.start[owner, slot]}
            else:
                assert self.op in SENT
                expected = {owner: self.start[origin, slot]}
            for position, value in expected.items():
                assert self.has[position, slot], (position, slot)
                assert (self.data[position, slot] == value).all(), (position, slot)


def all_have_met(script: MessageSchedule, n: int) -> bool:
    """Tell whether, after a barrier, everyone has heard of everyone's arrival."""
    heard = [{i} if i < n else set() for i in range(n + len(script.vertices))]
    for step in script.steps:
        for _ in range(step.repeat):
            for wave in range(int(step.wave.max()) + 1):
                before = [set(known) for known in heard]
                for m in np.flatnonzero(step.wave == wave).tolist():
                    heard[step.target[m]] |= before[step.source[m]]
    return all(known >= set(range(n)) for known in heard[:n])
