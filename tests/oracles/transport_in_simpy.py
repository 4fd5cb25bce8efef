"""Packets with pauses or credits on static ways, as SimPy processes: one for each link.

Written from the rules at the head of `ridgeline.network.transport_play`, to be obvious. Devices do
not pass on messages of others here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import simpy

from ridgeline.network.paths import Routes
from ridgeline.network.topology import Topology
from ridgeline.network.transport import Transport

Process = Generator[simpy.Event, Any, None]


@dataclass
class Packet:
    """A packet on its way."""

    flow: int
    size: float
    way: list[int]
    hop: int = 0


@dataclass
class Link:
    """A link, its queue, and what the switch behind it holds of it."""

    queue: deque[Packet] = field(default_factory=deque)
    own: deque[int] = field(default_factory=deque)
    is_paused: bool = False
    has_asked: bool = False
    held: float = 0.0
    taken: float = 0.0
    wake: simpy.Event | None = None


class Play:
    """All flows of one play."""

    def __init__(
        self, topology: Topology, ways: Routes, sizes: list[float], of: Transport, room: float
    ) -> None:
        self.env = simpy.Environment()
        self.topology, self.of, self.room = topology, of, room
        self.ways = [ways.links[a:b].tolist() for a, b in zip(ways.ptr, ways.ptr[1:], strict=False)]
        self.links = [Link() for _ in range(topology.n_links)]
        self.left = []
        for size in sizes:
            whole = int(-(-size // of.payload_bytes))
            last = size - (whole - 1) * of.payload_bytes
            self.left.append([*[of.payload_bytes] * (whole - 1), last])
        self.missing = [len(parts) for parts in self.left]
        self.done_s = [0.0] * len(sizes)
        for flow, way in enumerate(self.ways):
            self.links[way[0]].own.append(flow)
        for number in range(topology.n_links):
            self.env.process(self.sender(number))

    def run(self) -> list[float]:
        self.env.run()
        assert not any(self.missing), "packets wait in a circle"
        return self.done_s

    def sender(self, number: int) -> Process:
        link = self.links[number]
        rate = float(self.topology.bandwidth_bytes_per_s[number])
        while True:
            packet = self.next_of(link)
            if packet is None:
                link.wake = self.env.event()
                yield link.wake
                continue
            link.taken += packet.size
            yield self.env.timeout(packet.size / rate)
            self.env.process(self.fly(packet, number))
            if packet.hop > 0:
                self.leaves(packet, packet.way[packet.hop - 1])

    def next_of(self, link: Link) -> Packet | None:
        """Take the packet that a link sends next."""
        if link.is_paused or not (link.queue or link.own):
            return None
        if link.queue:
            packet = link.queue[0]
        else:
            flow = link.own[0]
            size = self.left[flow][0] + self.of.header_bytes
            packet = Packet(flow, size, self.ways[flow])
        if self.of.control == "credits" and link.taken + packet.size > self.room:
            return None
        if link.queue:
            return link.queue.popleft()
        link.own.popleft()
        self.left[packet.flow].pop(0)
        if self.left[packet.flow]:
            link.own.append(packet.flow)
        return packet

    def fly(self, packet: Packet, number: int) -> Process:
        yield self.env.timeout(float(self.topology.latency_s[number]))
        link = self.links[number]
        if packet.hop + 1 == len(packet.way):
            self.missing[packet.flow] -= 1
            self.done_s[packet.flow] = self.env.now
            link.taken -= packet.size
            self.look(link)
            return
        link.held += packet.size
        if self.of.control == "pfc" and not link.has_asked and link.held > self.of.xoff_bytes:
            link.has_asked = True
            self.env.process(self.signal(number, pause=True))
        packet.hop += 1
        beyond = self.links[packet.way[packet.hop]]
        beyond.queue.append(packet)
        self.look(beyond)

    def leaves(self, packet: Packet, before: int) -> None:
        link = self.links[before]
        link.held -= packet.size
        if self.of.control == "pfc" and link.has_asked and link.held < self.of.xon_bytes:
            link.has_asked = False
            self.env.process(self.signal(before, pause=False))
        if self.of.control == "credits":
            self.env.process(self.credit(before, packet.size))

    def signal(self, number: int, *, pause: bool) -> Process:
        yield self.env.timeout(float(self.topology.latency_s[number]))
        self.links[number].is_paused = pause
        self.look(self.links[number])

    def credit(self, number: int, size: float) -> Process:
        yield self.env.timeout(float(self.topology.latency_s[number]))
        self.links[number].taken -= size
        self.look(self.links[number])

    def look(self, link: Link) -> None:
        if link.wake is not None and not link.wake.triggered:
            link.wake.succeed()
