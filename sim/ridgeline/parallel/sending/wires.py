"""What communication costs in a Program: cost rows of collectives and of messages.

All groups of one kind (the eight data-parallel groups of a node whose devices are eight tensor-
parallel ranks) communicate at the same time. Where one of them is simulated for all, its cost row
carries the bytes that all of them together put on the links of its first member's node; links
elsewhere carry the same by symmetry, and where one of them is fuller, it bounds the time. Where
such flows compete on a link, they share it evenly: each stands for as many (`alike` looks at that).
Groups whose devices lie alike in their nodes cost the same, so each such pattern is priced once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ridgeline.engine.builder import Phase, ProgramBuilder
from ridgeline.network.schedule import Loads, Schedule, closed_form_time_s
from ridgeline.network.schedule import Phase as Rounds
from ridgeline.network.topology import Floats, Topology
from ridgeline.parallel.division.labels import HALO
from ridgeline.parallel.plans.layers import kind_of
from ridgeline.parallel.plans.mesh import Ranks
from ridgeline.parallel.sending.chosen import COPIES, schedule_of
from ridgeline.parallel.sending.lying import Lying

_FEW_LINKS = 64  # a machine of so few links is not reduced to one node
_FULLER = 1 + 1e-9
PROBE_BYTES = 64e6
"""A collective that is long enough for its bandwidth."""
_MEMORY_PASSES = {
    "all-reduce": (2, 0),
    "all-to-all": (2, 0),
    "send-recv": (2, 0),
    "send": (2, 0),
    "copy": (1, 0),
    HALO: (0, 2),
}
"""Far-memory bytes of all members, over the size: (for each member, once); others (1, 1)."""


@dataclass(frozen=True, slots=True)
class _Link:
    """A link of the simulated group, by its place in the group's first node."""

    name: str
    node: int  # place among the nodes of the groups
    bandwidth_bytes_per_s: float


Phases = tuple[tuple[float, int, dict[_Link, float], float], ...]


@dataclass(frozen=True)
class Priced:
    """A collective or message: what the engine plays and what the ledger counts.

    Attributes
    ----------
    schedule
        Of the simulated group alone.
    phases
        Latency, repetitions, bytes by link of all groups together, seconds that a link elsewhere
        needs.
    on_wire
        Bytes by link class and joules a byte, of the simulated group.
    """

    schedule: Schedule
    phases: Phases
    on_wire: dict[tuple[str, float], float]


class Talk(NamedTuple):
    """What a communication task is: an operation, or "send" or "copy", its bytes, and its ranks."""

    op: str
    size_bytes: float
    ranks: int


class Wires:
    """Cost rows of everything that is sent.

    Parameters
    ----------
    far_account
        Ledger account of the devices' far memory.
    merge
        Whether one group is simulated for all (see the head of this module).
    """

    def __init__(
        self, builder: ProgramBuilder, topology: Topology, far_account: int, *, merge: bool
    ) -> None:
        self.builder, self.topology, self.merge = builder, topology, merge
        self.far_account = far_account
        self.keeps_all = not merge or topology.n_links <= _FEW_LINKS
        self.lying = Lying.of(topology)
        self.node, self.place = self.lying.node, self.lying.place
        self.dimension_of_row: dict[int, str] = {}
        self.talks: dict[tuple[int, str], Talk] = {}  # by cost row and label of a task
        self._priced: dict[tuple[object, ...], Priced] = {}
        self._loads: dict[tuple[object, ...], list[Floats]] = {}
        self._first: dict[tuple[object, ...], Ranks] = {}
        self._rows: dict[tuple[object, ...], tuple[int, Schedule]] = {}
        self._resources: dict[str, int] = {}

    def collective(
        self,
        op: str,
        groups: Ranks,
        which: int,
        size_bytes: float,
        dimension: str,
        repeat: int = 1,
    ) -> tuple[int, Schedule]:
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
            groups, nodes = self._near(groups, which)
            pattern = self._pattern(groups, nodes)
            key = (op, size_bytes, repeat, pattern)
            if key not in self._priced:
                self._priced[key] = self._price(op, groups, size_bytes, repeat, pattern)
            row = self._row(self._priced[key], nodes)
            self.dimension_of_row[row] = kind_of(dimension)
            self._rows[same] = row, self._priced[key].schedule
        return self._rows[same]

    def message(self, sources: Ranks, targets: Ranks, which: int, size_bytes: float) -> int:
        """Return the cost row of messages at the same time, one from each source to its target."""
        pairs, nodes = self._near(np.stack((sources, targets), axis=1), which)
        pattern = self._pattern(pairs, nodes)
        key = ("send", size_bytes, 1, pattern)
        if key not in self._priced:
            self._priced[key] = self._price("send", pairs, size_bytes, 1, pattern)
        row = self._row(self._priced[key], nodes)
        self.dimension_of_row[row] = "pipeline"
        return row

    def copy(self, ranks: Sequence[int], size_bytes: float, *, out: bool) -> int:
        """Return the cost row of a copy between a device and the nearest host of its node.

        Parameters
        ----------
        ranks
            The device, and all others that copy at the same time: those of its node share its way.

        Raises
        ------
        RidgelineError
            If the node describes no way to a host.
        """
        copying = np.array(ranks)[:, None]
        near, nodes = self._near(copying, 0)
        pattern = self._pattern(near, nodes)
        op = COPIES[out]
        key = (op, size_bytes, 1, pattern)
        if key not in self._priced:
            self._priced[key] = self._price(op, near, size_bytes, 1, pattern)
        row = self._row(self._priced[key], nodes)
        self.dimension_of_row[row] = "host"
        return row

    def time_s(self, op: str, group: Ranks, size_bytes: float) -> float:
        """Return the seconds of a collective of one group that has the network to itself.

        "send" is a message from the first of two ranks to the second.
        """
        schedule = schedule_of(op, self.topology, group, size_bytes)
        return closed_form_time_s(schedule, self.topology)

    def together_s(self, op: str, groups: Ranks, size_bytes: float) -> tuple[float, float]:
        """Return seconds of latency and of bandwidth of a collective of all groups at once."""
        near, nodes = self._near(groups, 0)
        _, phases = self._phases(op, near, size_bytes, 1, self._pattern(near, nodes))
        return self._seconds(phases)

    def message_s(self, pairs: Ranks, which: int) -> tuple[float, float]:
        """Return latency and seconds a byte of messages [pairs, 2] at the same time, of one."""
        near, nodes = self._near(pairs, which)
        _, phases = self._phases("send", near, 1.0, 1, self._pattern(near, nodes))
        return self._seconds(phases)

    def _seconds(self, phases: Phases) -> tuple[float, float]:
        """Return seconds of latency and of bandwidth of all phases."""
        latency_s = busy_s = 0.0
        for hop_s, repeat, loads, elsewhere_s in phases:
            each = [size / link.bandwidth_bytes_per_s for link, size in loads.items()]
            latency_s += repeat * hop_s
            busy_s += repeat * max([elsewhere_s, *each])
        return latency_s, busy_s

    def inside_times(self, groups: Ranks) -> Iterator[tuple[float, list[int]]]:
        """Yield the time of a long collective of each group that is inside a node, and the group.

        Groups that lie alike in their nodes are priced once; nothing if there are others, whose
        way through the fabric is the same for all.
        """
        if groups.shape[1] == 1 or (np.ptp(self.node[groups], axis=1) > 0).any():
            return
        known: dict[bytes, float] = {}
        for group, places in zip(groups, self.place[groups], strict=True):
            key = places.tobytes()
            if key not in known:
                known[key] = self.time_s("all-reduce", group, PROBE_BYTES)
            yield known[key], group.tolist()

    def _near(self, groups: Ranks, which: int) -> tuple[Ranks, Ranks]:
        """Put the simulated group first and leave out groups that share no node with it."""
        mine = groups[which]
        nodes = np.array(list(dict.fromkeys(self.node[mine].tolist())))
        if not self.merge:
            return mine[None, :], nodes
        near = np.isin(self.node[groups], nodes).any(axis=1) & (np.arange(len(groups)) != which)
        groups = np.concatenate((mine[None, :], groups[near]))
        return groups, np.array(list(dict.fromkeys(self.node[groups].ravel().tolist())))

    def _pattern(self, groups: Ranks, nodes: Ranks) -> tuple[object, ...]:
        """Say how groups lie in nodes, whichever nodes these are."""
        if self.keeps_all:
            return (groups.shape, groups.tobytes())
        order = np.zeros(int(self.node.max(initial=0)) + 1, np.int64)
        order[nodes] = np.arange(len(nodes))
        way = self.lying.way(nodes[:1], nodes).tobytes() if self.lying.torus else b""
        lie = self.place[groups].tobytes(), order[self.node[groups]].tobytes()
        return (groups.shape, *lie, way)

    def _price(
        self,
        op: str,
        groups: Ranks,
        size_bytes: float,
        repeat: int,
        pattern: tuple[object, ...],
    ) -> Priced:
        schedule, phases = self._phases(op, groups, size_bytes, repeat, pattern)
        return Priced(schedule, phases, self._on_wire(schedule, repeat))

    def _phases(
        self,
        op: str,
        groups: Ranks,
        size_bytes: float,
        repeat: int,
        pattern: tuple[object, ...],
    ) -> tuple[Schedule, Phases]:
        """Return the schedule of the first group, and its phases among all groups (`Priced`)."""
        # Loads are found once for a pattern, on the links of the groups that first lay so: all
        # sizes have to be priced there. `_row` names the links of other nodes.
        groups = self._first.setdefault((op, pattern), groups)
        schedule = schedule_of(op, self.topology, groups[0], size_bytes)
        together = [self._on_links(rounds) for rounds in schedule.phases]
        others = self._others(schedule, groups, pattern) if size_bytes else []
        for mine, share in zip(together, others, strict=False):
            mine[:] += share * mine.max(initial=0.0)
        phases = []
        for rounds, loads in zip(schedule.phases, together, strict=True):
            kept, elsewhere_s = self._project(loads, groups[0])
            phases.append((rounds.latency_s, rounds.repeat * repeat, kept, elsewhere_s))
        return schedule, tuple(phases)

    def _on_wire(self, schedule: Schedule, repeat: int) -> dict[tuple[str, float], float]:
        """Bytes by link class and joules a byte."""
        on_wire: dict[tuple[str, float], float] = {}
        for link, size in schedule.bytes_on_wire().items():
            kind = (self.topology.link_class[link], float(self.topology.energy_j_per_byte[link]))
            on_wire[kind] = on_wire.get(kind, 0.0) + size * repeat
        return on_wire

    def _on_links(self, rounds: Rounds) -> Floats:
        """Return [L] what each link carries in a round of a phase."""
        on_link, loads = np.zeros(self.topology.n_links), rounds.bytes_on_link
        if isinstance(loads, Loads):
            on_link[loads.links] = loads.bytes
        elif loads:
            on_link[list(loads)] = list(loads.values())
        return on_link

    def _others(
        self, schedule: Schedule, groups: Ranks, pattern: tuple[object, ...]
    ) -> list[Floats]:
        """Return what the others put on each link in each phase, over the most of this group.

        Groups of a pattern have an algorithm's loads in the same proportion for every size (not in
        proportion to the size: NCCL's trees get less of the bandwidth for short messages), so they
        are found once.
        """
        key = (schedule.op, schedule.algorithm, len(schedule.phases), pattern)
        if key not in self._loads:
            loads = [np.zeros(self.topology.n_links) for _ in schedule.phases]
            most = [self._on_links(rounds).max(initial=0.0) or 1.0 for rounds in schedule.phases]
            for group in groups[1:]:
                size = schedule.size_bytes
                other = schedule_of(schedule.op, self.topology, group, size, schedule.algorithm)
                if len(other.phases) != len(loads):
                    continue  # chunks of a pipeline that differ: no such group is simulated
                for total, rounds, own in zip(loads, other.phases, most, strict=True):
                    total[:] += self._on_links(rounds) / own
            self._loads[key] = loads
        return self._loads[key]

    def _project(self, loads: Floats, group: Ranks) -> tuple[dict[_Link, float], float]:
        """Return the loads on the links that stand for all, and the time of a fuller one."""
        topology = self.topology
        members, links = self.node[group], np.flatnonzero(loads)
        busy_s = loads[links] / topology.bandwidth_bytes_per_s[links]
        stands, home = self.stands(links, group)
        order = {node: i for i, node in enumerate(dict.fromkeys(members.tolist()))}
        kept: dict[_Link, float] = {}
        for at in np.flatnonzero(stands).tolist():
            link, node = int(links[at]), int(home[at])
            name, place = topology.link_name(link), -1
            if not self.keeps_all:
                name, place = self.role(link, node), order[node]
            here = _Link(name, place, float(topology.bandwidth_bytes_per_s[link]))
            kept[here] = kept.get(here, 0.0) + float(loads[link])
        inside_s = float(busy_s[stands].max(initial=0.0))
        outside_s = float(busy_s[~stands].max(initial=0.0))
        return kept, outside_s if outside_s > inside_s * _FULLER else 0.0

    def stands(self, links: Ranks, group: Ranks) -> tuple[npt.NDArray[np.bool_], Ranks]:
        """Tell which links are simulated where one group stands for all, and the node of each.

        Those at the node of its first member, or at both ends of a message: others are their like.
        """
        members = self.node[group]
        kept_nodes = [int(members[0])] if len(group) != 2 else sorted(set(members.tolist()))
        source = self.topology.node_of[self.topology.source[links]]
        target = self.topology.node_of[self.topology.target[links]]
        home = np.where(np.isin(source, kept_nodes), source, target)
        return np.isin(home, kept_nodes) | self.keeps_all, home

    def role(self, link: int, home: int) -> str:
        """Return the name of a link in its node, with %d for the node's number."""
        topology, words = self.topology, []
        for end in (int(topology.source[link]), int(topology.target[link])):
            if int(topology.node_of[end]) == home:
                words.append("node%d." + topology.vertex_names[end].partition(".")[2])
            elif self.lying.torus and topology.node_of[end] >= 0:  # a link in each direction
                way = self.lying.way(np.array([home]), np.array([topology.node_of[end]]))
                words.append(f"({', '.join(map(str, way[::-1, 0].tolist()))})")
            else:
                words.append("fabric")
        return f"{words[0]}->{words[1]} ({topology.link_class[link]})"

    def _row(self, priced: Priced, nodes: Ranks) -> int:
        phases = []
        for latency_s, repeat, loads, elsewhere_s in priced.phases:
            works: dict[int, float] = {}
            for link, size in loads.items():
                name = (
                    link.name.replace("%d", str(nodes[link.node])) if link.node >= 0 else link.name
                )
                resource = self._resource(name, link.bandwidth_bytes_per_s, shared=True)
                works[resource] = works.get(resource, 0.0) + size
            if elsewhere_s:
                works[self._resource("links elsewhere", 1.0, shared=False)] = elsewhere_s
            phases.append(Phase(latency_s, works, repeat))
        return self.builder.add_cost(phases, self._events(priced))

    def _resource(self, name: str, capacity: float, *, shared: bool) -> int:
        if name not in self._resources:
            self._resources[name] = self.builder.add_resource(name, capacity, shared)
        return self._resources[name]

    def _events(self, priced: Priced) -> dict[int, float]:
        """Count bytes on every class of link, and the compulsory memory traffic of all members.

        Each member reads its operand once and writes the result once; what a ring keeps of partial
        sums in buffers on the way is not counted.
        """
        events: dict[int, float] = {}
        for (name, price_j), size in priced.on_wire.items():
            account = self.builder.add_account("network", name, "B", price_j)
            events[account] = events.get(account, 0.0) + size
        schedule = priced.schedule
        kind = schedule.op.partition(" ")[0]
        each, once = _MEMORY_PASSES.get(kind, (1, 1))
        members = 1 if kind in {"send", "copy"} else schedule.n_ranks
        repeat = priced.phases[0][1] / schedule.phases[0].repeat if priced.phases else 1
        events[self.far_account] = (each * members + once) * schedule.size_bytes * repeat
        return events
