"""Lower bounds on communication between replicas, of all rank groups at once."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.network.routing import routes
from ridgeline.network.topology import Topology
from ridgeline.parallel.comm.comm_cost import Wires
from ridgeline.parallel.comm.placement import switched_nodes
from ridgeline.parallel.comm.symmetry import MOST_DEVICES, symmetry_of
from ridgeline.parallel.memory.communicators import runtime_bytes
from ridgeline.parallel.pace import pace_of, replicas_of, room_of
from ridgeline.parallel.partition.overheads import Replicas
from ridgeline.parallel.partition.partition_dp import Pace
from ridgeline.parallel.plan.mesh import Mesh
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.schedule import SCHEDULES
from ridgeline.software.stack import Stack
from ridgeline.study.planner.plan_class import Bools, Floats, Ints

_FEW = 256
Number = TypeVar("Number", int, Ints)


class GroupKinds(NamedTuple):
    """Groups of ranks by how they lie in their nodes.

    Attributes
    ----------
    of
        [G] kind of every group.
    first
        A group [n] of every kind.
    parted
        [G] ranks of a group over the fewest that it has on one of its nodes; 1: it has one node.
    """

    of: Ints
    first: list[Ints]
    parted: Floats


class CommBounds:
    """Bounds messages between ranks that hold the same weights.

    Parameters
    ----------
    unlike
        [ranks] equal where devices are of one kind, and equally slow.
    sizes
        [ranks] bytes of each device's memory.
    """

    def __init__(self, wires: Wires, topology: Topology, unlike: Ints, sizes: Ints) -> None:
        self.wires, self.topology, self.devices = wires, topology, len(unlike)
        self.unlike, self.sizes = unlike, sizes
        self._times: dict[tuple[str, int, int, float, bool], float] = {}
        self._alike: dict[tuple[object, ...], bool] = {}
        self._groups: dict[tuple[int, int], GroupKinds] = {}
        self._columns: dict[tuple[object, ...], int] = {}
        self._passed: dict[tuple[int, int, int], Ints] = {}
        self._messages: dict[tuple[int, ...], tuple[float, float]] = {}
        self._replicas: dict[tuple[object, ...], Replicas | None] = {}

    def crossing_byte_s(self, data: int, tensor: int) -> float:
        """Return the least seconds a byte of any collective of `data` ranks, so many apart.

        Of all groups at once: what a node has not of a payload has to come in from others.
        """
        least, inward = np.inf, self._inward
        for start in self._starts(data * tensor) if data > 1 else ():
            node = self.wires.node[start : start + data * tensor].reshape(data, tensor)
            needed: dict[int, float] = {}
            for members in node.T:
                for number, n in zip(*np.unique(members, return_counts=True), strict=True):
                    needed[int(number)] = needed.get(int(number), 0.0) + 1 - n / data
            least = min(least, *(part / inward[number] for number, part in needed.items()))
        return least if np.isfinite(least) else 0.0

    def _starts(self, ranks: int) -> list[int]:
        """Return the first rank of stages of so many ranks that lie unlike in their nodes."""
        starts = np.arange(0, self.devices - ranks + 1, ranks)
        among = np.arange(ranks if self.wires.lying.torus else 1)  # else the first one tells of all
        return [int(starts[i]) for i in self._unlike(starts[:, None] + among)]

    def _unlike(self, groups: Ints) -> Ints:
        """Return one of the groups [G, n] of each way in which they lie."""
        unlike: Ints = np.unique(self._how(groups), axis=0, return_index=True)[1]
        return unlike

    def _how(self, groups: Ints) -> Ints:
        """Return [G, ...] how groups [G, n] lie, on which kinds of nodes.

        Devices that one switch joins are interchangeable for a group inside of their node.
        """
        node, how = self.wires.node[groups], self.wires.lying.how(groups)
        switched = self._switched[node[:, 0]] & (node == node[:, :1]).all(axis=1)
        how = np.where(switched[:, None], -1, how)
        return np.concatenate((how, self._kind_of_node[node]), axis=1)

    @cached_property
    def _kind_of_node(self) -> Ints:
        """[nodes] equal where nodes have equal constants, links inside and links to others."""
        topology = self.topology
        node = topology.node_of.astype(np.int64)
        ends = node[topology.source], node[topology.target]
        n_nodes, rate = int(node.max(initial=0)) + 1, topology.bandwidth_bytes_per_s
        columns: list[Floats] = [np.array(topology.kind_of_node or np.zeros(n_nodes), np.float64)]
        for of in ends[0] == ends[1], ends[0] != ends[1]:
            mine = of & (ends[0] >= 0)
            at = ends[0][mine]
            columns += [
                np.bincount(at, size[mine], n_nodes).astype(np.float64) for size in (rate, rate**2)
            ]
        found: Ints = np.unique(np.stack(columns), axis=1, return_inverse=True)[1].ravel()
        return found

    @cached_property
    def _switched(self) -> Bools:
        return switched_nodes(self.topology)

    def _together_s(self, op: str, data: int, tensor: int, size_bytes: float) -> list[float]:
        """Return seconds of a collective of all groups at once.

        Of each kind of stage that there is. Where these differ, any group may be simulated.
        """
        starts = self._starts(data * tensor)
        found = []
        for start in starts:
            groups = (start + np.arange(data * tensor)).reshape(data, tensor).T
            for first in range(tensor if len(starts) > 1 else 1):
                turned = np.roll(groups, -first, axis=0)
                with suppress(RidgelineError):  # others have no such algorithm: not played, either
                    found.append(sum(self.wires.together_s(op, turned, size_bytes)))
        return found

    @cached_property
    def _inward(self) -> Floats:
        """[N] bytes a second that can come into every node.

        On a mesh a node at the edge has fewer links than one that lies alike elsewhere.
        """
        ends = [self.topology.node_of[end] for end in (self.topology.source, self.topology.target)]
        comes = (ends[0] != ends[1]) & (ends[1] >= 0)
        total = np.zeros(int(self.topology.node_of.max()) + 1)  # of those that are not in use, too
        np.add.at(total, ends[1][comes], self.topology.bandwidth_bytes_per_s[comes])
        if any(self.wires.lying.line):
            total[:] = total.max()
        return np.where(total > 0, total, np.inf)

    def time_s(self, op: str, ranks: int, apart: int, size_bytes: float, plan: Plan) -> float:
        """Return what a collective takes at least.

        Of all groups of ranks so far apart at once, where one is simulated for all; else, as they
        need not be at it at the same time, of one that has the network to itself.
        """
        known = (op, ranks, apart, size_bytes, folded := self.folds(plan))
        if known not in self._times:
            each = (self._together_s if folded else self._alone_s)(op, ranks, apart, size_bytes)
            self._times[known] = min(each, default=0.0)
        return self._times[known]

    def rank_s(self, op: str, ranks: int, apart: int, size_bytes: float, rank: int) -> float:
        """Return what a collective takes of the group that a rank belongs to, alone."""
        kinds = self.kinds(ranks, apart)
        group = kinds.first[int(kinds.of[_group_of(rank, ranks, apart)])]
        return self.wires.time_s(op, group, size_bytes)

    def folds(self, plan: Plan) -> bool:
        """Whether all ranks of a stage are equivalent, so that all groups are at it at once.

        On many devices that takes longer to find than a better bound saves.
        """
        if self.devices > _FEW:
            return False
        mesh, wraps = Mesh.of(plan), plan.virtual_stages > 1
        known = (mesh.key, wraps)
        if known not in self._alike:
            found = symmetry_of(
                self.topology, mesh, self.devices, wraps=wraps, offloads=False,
                kind_of_rank=self.unlike if self.unlike.any() else None,
            )  # fmt: skip
            self._alike[known] = len(found.members) == 1
        return self._alike[known]

    def alike(self, members: int, apart: int) -> list[Ints]:
        """Return groups of so many ranks so far apart: one of those that lie alike in their nodes.

        Where links inside a node differ, or groups begin inside one, any may be the fastest.
        """
        return self.kinds(members, apart).first

    def kinds(self, members: int, apart: int) -> GroupKinds:
        """Return all groups of so many ranks so far apart, by how they lie in their nodes."""
        if (members, apart) not in self._groups:
            starts = np.arange(self.devices).reshape(-1, members, apart)[:, 0]
            groups = starts.reshape(-1, 1) + np.arange(members) * apart
            how = self._how(groups)
            _, first, of = np.unique(how, axis=0, return_index=True, return_inverse=True)
            node = self.wires.node[groups]
            parted = np.ones(len(groups))
            for g in np.flatnonzero((node != node[:, :1]).any(axis=1)).tolist():
                parted[g] = members / np.unique(node[g], return_counts=True)[1].min()
            self._groups[members, apart] = GroupKinds(of.ravel(), list(groups[first]), parted)
        return self._groups[members, apart]

    def column(
        self, stages: int, inside: tuple[tuple[int, int], ...], across: tuple[tuple[int, int], ...]
    ) -> int | None:
        """Return a place of the stages of a pipeline whose ranks are likely to be waited for.

        A step takes no less than what the ranks of one place of all stages do, each with the groups
        that it belongs to. Any place bounds it; this one is of the groups that have fewest ranks on
        one of their nodes. None: groups that stand for others may be any (`symmetry.MOST_DEVICES`).

        Parameters
        ----------
        inside, across
            Ranks, and how far they are apart, of groups that share samples, and of replicas, which
            count where those all lie alike.
        """
        if self.devices > MOST_DEVICES:
            return None
        known = (stages, inside, across)
        if known not in self._columns:
            ranks = np.arange(self.devices)
            score = np.zeros(self.devices // stages)
            for members, apart in inside or across:
                parted = self.kinds(members, apart).parted[_group_of(ranks, members, apart)]
                of_stages = parted.reshape(stages, -1)
                score += of_stages.max(axis=0) + 1e-3 * of_stages.mean(axis=0)
            self._columns[known] = int(score.argmax())
        return self._columns[known]

    def of_stages(self, members: int, apart: int, stages: int, column: int) -> Ints:
        """Return [K] which kind the groups are that the ranks of a place of all stages are in."""
        ranks = np.arange(stages) * (self.devices // stages) + column
        of: Ints = self.kinds(members, apart).of[_group_of(ranks, members, apart)]
        return of

    def _alone_s(self, op: str, ranks: int, apart: int, size_bytes: float) -> list[float]:
        return [self.wires.time_s(op, group, size_bytes) for group in self.alike(ranks, apart)]

    def contended_s(self, ranks: int, sent_bytes: Floats) -> float:
        """Return what the fullest link needs for messages between stages of so many ranks.

        Where every rank is simulated. Each link carries all that goes through it.

        Parameters
        ----------
        sent_bytes
            [K, K] that every rank of a stage sends to its like of another.
        """
        total = np.zeros(self.topology.n_links)
        for source, target in zip(*np.nonzero(sent_bytes), strict=True):
            total += sent_bytes[source, target] * self._on_links(ranks, int(source), int(target))
        return float((total / self.topology.bandwidth_bytes_per_s).max(initial=0.0))

    def _on_links(self, ranks: int, source: int, target: int) -> Ints:
        """Return [L] how many messages go through each link if all ranks of a stage send one."""
        known = (ranks, source, target)
        if known not in self._passed:
            ends = self.topology.devices.astype(np.int64).reshape(-1, ranks)
            links = routes(self.topology, ends[source], ends[target]).links
            self._passed[known] = np.bincount(links, minlength=self.topology.n_links)
        return self._passed[known]

    def message(self, ranks: int, source: int, target: int, plan: Plan) -> tuple[float, float]:
        """Return latency and seconds a byte of messages between two stages of so many ranks.

        Of those of all ranks at once, where one is simulated for all.
        """
        folded = self.folds(plan)
        known = (ranks, folded, source, target)
        if known not in self._messages:
            each = self._each((source, target), ranks, folded)
            self._messages[known] = min(late for late, _ in each), min(slope for _, slope in each)
        return self._messages[known]

    def pace(self, plan: Plan, stack: Stack) -> Pace | None:
        """Return by what stages are cut, as `lower` does."""
        mesh = Mesh.of(plan)
        place = SCHEDULES[plan.schedule].place
        last = place(plan.pipeline * plan.virtual_stages - 1, plan.pipeline)[1]
        known = (mesh.key, plan.zero_stage, last)
        if known not in self._replicas:
            self._replicas[known] = replicas_of(plan, stack, self.wires, mesh)
        stages = [mesh.replica(k) for k in range(plan.pipeline)]
        runtime = runtime_bytes(plan, stack, self.topology)
        room = room_of(stack, self.sizes, mesh.stages, runtime)
        return pace_of(plan, self.topology, stages, self._replicas[known], room)

    def _each(self, way: tuple[int, int], ranks: int, folded: bool) -> list[tuple[float, float]]:
        """Return latency and seconds a byte of messages of ranks that lie unlike each other."""
        pairs = np.stack([k * ranks + np.arange(ranks) for k in way], axis=1)
        return [
            self.wires.message_s(pairs, k, together=folded) for k in self._unlike(pairs).tolist()
        ]


def _group_of(rank: Number, members: int, apart: int) -> Number:
    """Return the number of the group of `kinds` that a rank belongs to."""
    return rank // (members * apart) * apart + rank % apart
