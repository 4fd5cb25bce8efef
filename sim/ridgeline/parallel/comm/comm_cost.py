"""Communication cost of a Program: cost rows of collectives and point-to-point messages.

All groups of one kind (the eight data-parallel groups of a node whose devices are eight tensor-
parallel ranks) communicate at the same time. Where one of them is simulated for all of its class,
its cost row carries the bytes that all of these put on a link, on one link for each colour
(`symmetry`). Where such flows compete, each has the weight of one of those that it stands for.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ridgeline.engine.builder import ProgramBuilder, WorkPhase
from ridgeline.network.node_constants import of_ranks
from ridgeline.network.routing import routes
from ridgeline.network.schedule import CollectiveSchedule, closed_form_time_s, loads_of
from ridgeline.network.topology import Floats, Topology
from ridgeline.parallel.comm.collective_flows import StageCollective
from ridgeline.parallel.comm.collective_selection import COPIES, schedule_of
from ridgeline.parallel.comm.placement import RankPlacement
from ridgeline.parallel.comm.symmetry import Share, Symmetry
from ridgeline.parallel.plan.layers import kind_of
from ridgeline.parallel.plan.mesh import Ranks
from ridgeline.parallel.sharding.inserted_ops import HALO

_MEMORY_PASSES = {
    "all-reduce": (2, 0),
    "all-to-all": (2, 0),
    "send-recv": (2, 0),
    "send": (2, 0),
    "copy": (1, 0),
    HALO: (0, 2),
}
"""Far-memory bytes of all members, over the size: (for each member, once); others (1, 1)."""


class Talk(NamedTuple):
    """What a communication task is: an operation, or "send" or "copy", its bytes, and its ranks."""

    op: str
    size_bytes: float
    ranks: int


class FarMemory(NamedTuple):
    """Numbers of the far memory of a program's devices: ledger account and resource."""

    account: int
    resource: int


class Wires:
    """Cost rows of everything that is sent.

    Parameters
    ----------
    far
        The devices' far memory.
    symmetry
        Which groups one is simulated for; None: every group is.
    """

    def __init__(
        self,
        builder: ProgramBuilder,
        topology: Topology,
        far: FarMemory,
        symmetry: Symmetry | None = None,
    ) -> None:
        self.builder, self.topology, self.symmetry = builder, topology, symmetry
        self.far = far
        self.lying = RankPlacement.of(topology)
        self.node, self.place = self.lying.node, self.lying.place
        self.dimension_of_row: dict[int, str] = {}
        self.talks: dict[tuple[int, str], Talk] = {}  # by cost row and label of a task
        self.fastest_s: dict[int, float] = {}  # by cost row, where the slowest stands for all
        self._rows: dict[tuple[object, ...], tuple[int, CollectiveSchedule]] = {}
        self._resources: dict[int, int] = {}
        self._loads: dict[tuple[object, ...], Floats] = {}
        self._times: dict[tuple[str, bytes, float], float] = {}

    def collective(
        self,
        op: str,
        groups: Ranks,
        which: int,
        size_bytes: float,
        dimension: str,
        repeat: int = 1,
    ) -> tuple[int, CollectiveSchedule]:
        """Return the cost row of a collective of all groups at the same time, and its schedule.

        Parameters
        ----------
        groups
            [G, n] Ranks of each group.
        which
            The group that is simulated.
        size_bytes
            As nccl-tests counts it.
        dimension
            Of the plan: between which devices it is.
        repeat
            How many equal ones follow each other.
        """
        same = (op, size_bytes, repeat, dimension, which, groups.shape, int(groups[which, 0]))
        if same not in self._rows:
            row, schedule = self._row(StageCollective(op, groups, size_bytes), which, repeat)
            self.dimension_of_row[row] = kind_of(dimension)
            self._rows[same] = row, schedule
        return self._rows[same]

    def message(self, sources: Ranks, targets: Ranks, which: int, size_bytes: float) -> int:
        """Return the cost row of messages at the same time, one from each source to its target."""
        pairs = np.stack((sources, targets), axis=1)
        row, _ = self._row(StageCollective("send", pairs, size_bytes), which)
        self.dimension_of_row[row] = "pipeline"
        return row

    def copy(self, ranks: Ranks, which: int, size_bytes: float, *, out: bool) -> int:
        """Return the cost row of copies between devices and the nearest hosts of their nodes.

        Parameters
        ----------
        ranks
            All that copy at the same time: those of a node share its ways.
        which
            The one that is simulated.

        Raises
        ------
        RidgelineError
            If the node describes no way to a host.
        """
        row, _ = self._row(StageCollective(COPIES[out], ranks[:, None], size_bytes), which)
        self.dimension_of_row[row] = "host"
        return row

    def _row(
        self, call: StageCollective, which: int, repeat: int = 1
    ) -> tuple[int, CollectiveSchedule]:
        """Return the cost row of one group for all of its class, and its schedule."""
        if self.symmetry is None:
            group = call.groups[which]
            schedule = schedule_of(call.op, self.topology, group, call.size_bytes)
            shares: list[Share] = []
            fastest_s = 0.0
        else:
            schedule, shares, fastest_s = self.symmetry.priced(call, which)
        phases, passed = [], self._memory_bytes(schedule)
        most_of = [float(loads_of(of).bytes.max(initial=0.0)) for of in schedule.phases]
        whole = math.fsum(of.repeat * m for of, m in zip(schedule.phases, most_of, strict=True))
        for number, rounds in enumerate(schedule.phases):
            loads = loads_of(rounds)
            most, weight = most_of[number], 1.0
            works = dict(zip(loads.links.tolist(), loads.bytes.tolist(), strict=True))
            if shares and most:
                share = shares[number]
                works = {link: most * load for link, load in share.links.items()}
                weight = share.weight
            resources = {self._resource(link): work for link, work in works.items() if work}
            if most:  # what is sent passes the memory of each device while it is sent
                resources[self.far.resource] = passed * most / whole
            phases.append(WorkPhase(rounds.latency_s, resources, rounds.repeat * repeat, weight))
        row = self.builder.add_cost(phases, self._events(schedule, repeat))
        if fastest_s:
            self.fastest_s[row] = repeat * fastest_s
        return row, schedule

    def _resource(self, link: int) -> int:
        if link not in self._resources:
            name = self.topology.link_name(link)
            rate = float(self.topology.bandwidth_bytes_per_s[link])
            self._resources[link] = self.builder.add_resource(name, rate, shared=True)
        return self._resources[link]

    def _events(self, schedule: CollectiveSchedule, repeat: int) -> dict[int, float]:
        """Count bytes on every class of link, and the compulsory memory traffic of all members.

        Each member reads its operand once and writes the result once; what a ring keeps of partial
        sums in buffers on the way is not counted.
        """
        on_wire: dict[tuple[str, float], float] = {}
        for link, size in schedule.bytes_on_wire().items():
            line = (self.topology.link_class[link], float(self.topology.energy_j_per_byte[link]))
            on_wire[line] = on_wire.get(line, 0.0) + size * repeat
        events: dict[int, float] = {}
        for (name, price_j), size in on_wire.items():
            account = self.builder.add_account("network", name, "B", price_j)
            events[account] = events.get(account, 0.0) + size
        members = 1 if schedule.op.partition(" ")[0] in {"send", "copy"} else schedule.n_ranks
        events[self.far.account] = members * self._memory_bytes(schedule) * repeat
        return events

    def _memory_bytes(self, schedule: CollectiveSchedule) -> float:
        """Return the bytes that pass the far memory of each member, those of a message at once."""
        kind = schedule.op.partition(" ")[0]
        each, once = _MEMORY_PASSES.get(kind, (1, 1))
        members = 1 if kind in {"send", "copy"} else schedule.n_ranks
        return (each + once / members) * schedule.size_bytes

    # Without a row: what bounds of a search are made of

    def time_s(self, op: str, group: Ranks, size_bytes: float) -> float:
        """Return the seconds of a collective of one group that has the network to itself.

        "send" is a message from the first of two ranks to the second.
        """
        known = (op, group.tobytes(), size_bytes)
        if known not in self._times:
            schedule = schedule_of(op, self.topology, group, size_bytes)
            self._times[known] = closed_form_time_s(schedule, self.topology)
        return self._times[known]

    def together_s(self, op: str, groups: Ranks, size_bytes: float) -> tuple[float, float]:
        """Return seconds of latency and of bandwidth of a collective of the first group.

        While all others that share a node with it are at the same.
        """
        shares = np.isin(self.node[groups], self.node[groups[0]]).any(axis=1)
        return self.at_once_s(op, groups[shares], size_bytes)

    def message_s(self, pairs: Ranks, which: int, *, together: bool) -> tuple[float, float]:
        """Return latency and seconds a byte of one of the messages [pairs, 2].

        Alone, or together with all others that share a node with it.
        """
        order = [which, *(i for i in range(len(pairs)) if together and i != which)]
        return self.together_s("send", pairs[order], 1.0)

    def at_once_s(self, op: str, groups: Ranks, size_bytes: float) -> tuple[float, float]:
        """Return what `together_s` does, while all of these groups are at the same."""
        schedule = schedule_of(op, self.topology, groups[0], size_bytes)
        bandwidth = self.topology.bandwidth_bytes_per_s
        latency_s = busy_s = 0.0
        for number, rounds in enumerate(schedule.phases):
            latency_s += rounds.repeat * rounds.latency_s
            loads = loads_of(rounds)
            if len(loads):
                most = float(loads.bytes.max())
                other = self._others(schedule, groups, number)[loads.links] * most
                each_s = (loads.bytes + other) / bandwidth[loads.links]
                busy_s += rounds.repeat * float(each_s.max())
        return latency_s, busy_s

    def _others(self, schedule: CollectiveSchedule, groups: Ranks, number: int) -> Floats:
        """Return [L] what the other groups put on each link, over the most of the first.

        Groups have an algorithm's loads in the same proportion for every size, so they are found
        once.
        """
        key = (
            schedule.op, schedule.algorithm, len(schedule.phases), number, groups.shape,
            groups.tobytes(),
        )  # fmt: skip
        if key not in self._loads:
            total: Floats = np.zeros(self.topology.n_links)
            op, size, name = schedule.op, schedule.size_bytes, schedule.algorithm
            most = float(loads_of(schedule.phases[number]).bytes.max())
            for group in groups[1:]:
                other = schedule_of(op, self.topology, group, size, name)
                if len(other.phases) != len(schedule.phases):
                    continue  # chunks of a pipeline that differ
                loads = loads_of(other.phases[number])
                total[loads.links] += loads.bytes / most
            self._loads[key] = total
        return self._loads[key]


_MOST_PAIRS = 256


@lru_cache(maxsize=1024)
def slowest_message(topology: Topology, pairs: bytes) -> tuple[float, float]:
    """Return latency and seconds a byte of the slowest of some messages at the same time.

    Of many messages that of the first, the middle and the last, while others of their nodes go on.

    Parameters
    ----------
    pairs
        [P, 2] int64 ranks, as bytes.
    """
    ends = np.frombuffer(pairs, np.int64).reshape(-1, 2)
    ends = ends[np.argsort(ends[:, 0], kind="stable")]
    if len(ends) > _MOST_PAIRS:
        node = topology.node_of[topology.devices][ends]
        picks = np.array([0, len(ends) // 2, len(ends) - 1])
        ends = ends[np.isin(node, node[picks]).any(axis=1)]
    found = routes(topology, *topology.devices.astype(np.int64)[ends].T)
    message = np.repeat(np.arange(len(ends)), np.diff(found.ptr))
    loads = np.bincount(found.links, minlength=topology.n_links)
    each_s = loads[found.links] / topology.bandwidth_bytes_per_s[found.links]
    late_s = np.bincount(message, topology.latency_s[found.links], len(ends)).max()
    start_s = of_ranks(topology, ends).collective_latency_s
    return start_s + float(late_s), float(each_s.max())
