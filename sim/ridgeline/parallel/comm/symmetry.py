"""Symmetry of ranks on the routed fabric: equivalent ranks are simulated once.

Colour refinement (Cardon and Crochemore, "Partitioning a graph in O(|A| log2 |V|)", TCS 19(1),
1982) over three kinds of things: *places* of a stage (what is at the same place in every stage of a
pipeline has one colour), *flows* (one group's part of a collective, one message, one copy to the
host) and directed *links*. Links begin with the colour of their class and bandwidth. A flow has the
colour of the links that it loads, by phase and bytes, and of the places of its members; a link that
of the flows that load it; a place that of the flows that it takes part in. Colours are split until
nothing changes. Then flows of a colour load links of a colour alike, and every link of a colour
carries the same: such a partition is equitable, and max-min fair shares are equal within a colour.

One flow is simulated for its colour. Its links are resources that stand for all links of their
colour, and it loads each with what *all* flows of its colour put there; it rises with the level of
one of them (`weight` of `engine.program`, rule 3).

Links between switches that can never be full are left out: those whose flows, each as fast as the
links of its nodes let it be, need no more than their bandwidth together. They hold nobody up, and
on large fabrics they are all that differs between nodes.

What a step sends is known when it is written. So a `Symmetry` starts from what steps of the plan
usually send (`usual_collectives`), and is asked for every call that is written; one that it is not
equitable for is added, and the step is written again (`Symmetry.missed`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ridgeline.network.schedule import CollectiveSchedule, closed_form_time_s
from ridgeline.network.topology import Floats, Topology
from ridgeline.parallel.comm.collective_flows import (
    CollectiveFlows,
    OnLinks,
    StageCollective,
    flows_of,
    key_of,
)
from ridgeline.parallel.comm.collective_selection import schedule_of
from ridgeline.parallel.comm.colour_refinement import (
    Colours,
    added,
    digits,
    hash_of,
    mixed,
    n_colours,
)
from ridgeline.parallel.comm.usual_collectives import usual_calls
from ridgeline.parallel.plan.mesh import Mesh, Ranks

MOST_DEVICES = 4096
"""Of more, not all flows are looked at: that would take a minute."""
_MOST_PRICED = 4096  # calls whose schedules are kept
_FULL = 1 + 1e-9


class Share(NamedTuple):
    """A phase of a flow that is simulated for all of its class.

    Attributes
    ----------
    links
        Bytes that all flows of the class put on each link that stands for its like, over the most
        that this flow puts on a link.
    weight
        The most of these.
    """

    links: dict[int, float]
    weight: float


class PricedCall(NamedTuple):
    """A call, as one of its groups plays it for all of a class.

    Attributes
    ----------
    schedule
        Of that group alone.
    shares
        What it carries for the others, by phase.
    fastest_s
        What the fastest group takes alone, where the slowest stands for all; else 0.
    """

    schedule: CollectiveSchedule
    shares: list[Share]
    fastest_s: float = 0.0


class Symmetry:
    """Colours of places, links and flows of one plan on one topology.

    Parameters
    ----------
    calls
        What steps of the plan usually send (`usual_collectives`).
    most
        Classes of places that can be afforded. Where there are more, all places with ranks of the
        same kinds are taken as one class, and for each call the slowest flow of a class stands for
        all: nearly a bound.
    kind_of_rank
        [ranks] equal where the devices are, and as fast: ranks of unlike kinds are not equivalent.
        None: all are.

    Attributes
    ----------
    place_of
        [ranks] place in its stage.
    class_of
        [places] number of its class, by the first place of each.
    exact
        Whether one flow is like all others of its class.
    """

    def __init__(
        self,
        topology: Topology,
        mesh: Mesh,
        calls: Sequence[StageCollective],
        most: int,
        kind_of_rank: Ranks | None = None,
    ) -> None:
        self.topology, self.most = topology, most
        self.place_of, self.stage_of = np.zeros((2, topology.n_devices), np.int64)
        self._kind_of = np.zeros(topology.n_devices, np.int64)
        if kind_of_rank is not None:
            self._kind_of[: len(kind_of_rank)] = kind_of_rank
        self.n_places = len(mesh.replica(0))
        self._kinds = np.zeros(self.n_places, np.uint64)
        for stage in range(len(mesh.stages)):
            ranks = mesh.replica(stage)
            self.place_of[ranks] = np.arange(len(ranks))
            self.stage_of[ranks] = stage
            if self._kind_of.any():
                self._kinds = mixed(self._kinds, self._kind_of[ranks])
        self._calls = {key_of(call): call for call in calls}
        self._missed: dict[tuple[object, ...], StageCollective] = {}
        self.refine()

    def refine(self) -> None:
        """Split colours by all calls that are known, until nothing changes."""
        self._calls |= self._missed
        self._missed = {}
        self.exact = self.topology.n_devices <= MOST_DEVICES
        self._shares: dict[tuple[object, ...], list[Share]] = {}
        self._of_regime: dict[tuple[object, ...], tuple[int, int, list[Share]]] = {}
        self._priced: dict[tuple[object, ...], PricedCall] = {}
        calls = list(self._calls.values()) if self.exact else []
        flows = [flows_of(self.topology, call) for call in calls]
        self._find_never_full(calls, flows)
        first = np.cumsum([0, *(len(of.colour) for of in flows)])
        start = [mixed(of.colour, np.full(len(of.colour), i)) for i, of in enumerate(flows)]
        begin = np.concatenate([np.zeros(0, np.uint64), *start])
        every, none = [self._loads(of) for of in flows], np.zeros(0, np.int64)
        loads = OnLinks(
            np.concatenate([none, *(of.flow + n for n, of in zip(first[:-1], every, strict=True))]),
            np.concatenate([none, *(of.link for of in every)]),
            np.concatenate([none.astype(np.uint64), *(of.code for of in every)]),
        )
        members = self._members(calls, first)
        topology = self.topology
        classes = [hash_of(name) for name in sorted(topology.link_classes)]
        of_class = np.array(classes, np.uint64)[topology.class_of_link]
        link = mixed(of_class, digits(topology.bandwidth_bytes_per_s))
        place, known = self._kinds.copy(), 0
        while flows:
            flow = _flow_colours(begin, loads, link, members, place)
            place = mixed(place, self._at_places(members, flow))
            link = mixed(link, _on_links(loads, flow, len(link)))
            found = n_colours(place)
            if found > self.most:
                self.exact = False
                place = self._kinds.copy()
                break
            found += n_colours(link) + n_colours(flow)
            if found == known:
                break
            known = found
        self._place, self._link = place, link
        _, where, number = np.unique(place, return_index=True, return_inverse=True)
        order = np.argsort(np.argsort(where))
        self.class_of = order[number.ravel()]
        _, where, number = np.unique(link, return_index=True, return_inverse=True)
        self.link_of = where[number.ravel()] if self.exact else self._stand_ins()

    def _find_never_full(
        self, calls: Sequence[StageCollective], flows: Sequence[CollectiveFlows]
    ) -> None:
        """Find the links between switches that all their flows together cannot fill.

        Of calls of the same groups one goes on at a time.
        """
        outside = self._outside
        self._most_on: dict[tuple[object, ...], Floats] = {}
        total: Floats = np.zeros(int(outside.sum()))
        if len(total):
            for call, of in zip(calls, flows, strict=True):
                key = key_of(call._replace(op="", size_bytes=0))
                mine = self._at_most(of)
                before = self._most_on.get(key)
                self._most_on[key] = mine if before is None else np.maximum(before, mine)
            total += sum(self._most_on.values())
        self._total = total
        self._never_full = np.zeros(len(outside), np.bool_)
        self._never_full[outside] = total <= self._rates * _FULL

    @cached_property
    def _outside(self) -> npt.NDArray[np.bool_]:
        """[L] Whether both ends of a link are outside of all nodes."""
        topology = self.topology
        ends = topology.node_of[topology.source], topology.node_of[topology.target]
        outside: npt.NDArray[np.bool_] = (ends[0] < 0) & (ends[1] < 0)
        return outside

    @cached_property
    def _rates(self) -> Floats:
        """Bandwidth of the links outside of all nodes."""
        rates: Floats = self.topology.bandwidth_bytes_per_s[self._outside]
        return rates

    def _at_most(self, flows: CollectiveFlows) -> Floats:
        """Return what flows put at most on the links outside, in bytes a second, all together."""
        n_phases = int(flows.phase.max(initial=0)) + 1
        of_phase = flows.group * n_phases + flows.phase
        rate = np.full(len(flows.colour) * n_phases, np.inf)
        inside = ~self._outside[flows.link]
        own = self.topology.bandwidth_bytes_per_s[flows.link[inside]] / flows.size_bytes[inside]
        np.minimum.at(rate, of_phase[inside], own)
        number = np.cumsum(self._outside) - 1
        links = number[flows.link[~inside]]
        n = len(self._rates)
        each = flows.size_bytes[~inside] * rate[of_phase[~inside]]
        pairs, which = np.unique(flows.group[~inside] * n + links, return_inverse=True)
        most = np.zeros(len(pairs))
        np.maximum.at(most, which.ravel(), each)
        at_most: Floats = np.bincount(pairs % n if n else pairs, most, n).astype(np.float64)
        return at_most

    def _loads(self, flows: CollectiveFlows) -> OnLinks:
        """Return what flows put on the links that may be full."""
        loads = flows.by_link
        kept = ~self._never_full[loads.link]
        return OnLinks(loads.flow[kept], loads.link[kept], loads.code[kept])

    def _stand_ins(self) -> Ranks:
        """Return by link one that stands for it where links of nodes of a stage are taken as one.

        Links outside of the nodes stand for themselves.
        """
        topology = self.topology
        stages: dict[int, set[tuple[int, int]]] = {}
        for rank, node in enumerate(topology.node_of[topology.devices].tolist()):
            of_rank = int(self.stage_of[rank]), int(self._kind_of[rank])
            stages.setdefault(node, set()).add(of_rank)
        stage_sets = {node: tuple(sorted(found)) for node, found in stages.items()}
        found: dict[object, int] = {}
        like = np.arange(topology.n_links)
        kinds, node_of = topology.vertex_kinds, topology.node_of.tolist()
        ends = zip(topology.source.tolist(), topology.target.tolist(), strict=True)
        for link, (source, target) in enumerate(ends):
            homes = [stage_sets.get(node_of[end], ()) for end in (source, target)]
            if any(homes):
                rate = float(topology.bandwidth_bytes_per_s[link])
                key = (*homes, kinds[source], kinds[target], topology.link_class[link], rate)
                like[link] = found.setdefault(key, link)
        return like

    @property
    def missed(self) -> bool:
        """Whether a call was met that the colours are not equitable for."""
        return bool(self._missed)

    @property
    def members(self) -> list[Ranks]:
        """Places of each class, ascending."""
        return [np.flatnonzero(self.class_of == k) for k in range(int(self.class_of.max()) + 1)]

    def kin(self, groups: Ranks) -> list[frozenset[int]]:
        """Return the classes of the members of every group: flows of a class have equal ones."""
        return [frozenset(row) for row in self.class_of[self.place_of[groups]].tolist()]

    def priced(self, call: StageCollective, which: int) -> PricedCall:
        """Return the schedule of one group, and what it carries for all of its class.

        Where there are too many classes, that of the slowest group.
        """
        known = (*key_of(call), which)
        if known not in self._priced:
            if len(self._priced) > _MOST_PRICED:
                self._priced.clear()
            self._priced[known] = self._price(call, which)
        return self._priced[known]

    def _price(self, call: StageCollective, which: int) -> PricedCall:
        schedule = schedule_of(call.op, self.topology, call.groups[which], call.size_bytes)
        regime = key_of(call._replace(size_bytes=0)), schedule.algorithm, len(schedule.phases)
        kin = frozenset(self.class_of[self.place_of[call.groups[which]]].tolist())
        if not self.exact:
            if (regime, kin) not in self._of_regime:
                self._of_regime[regime, kin] = self._slowest(call, kin)
            slow, fast, shares = self._of_regime[regime, kin]
            of_slow, of_fast = (
                schedule_of(call.op, self.topology, call.groups[i], call.size_bytes)
                for i in (slow, fast)
            )
            return PricedCall(of_slow, shares, closed_form_time_s(of_fast, self.topology))
        if (regime, kin) not in self._shares:
            flows = flows_of(self.topology, call)
            if not self._is_equitable(call, flows):
                self._missed[key_of(call)] = call
            alike = np.array([one == kin for one in self.kin(call.groups)])
            self._shares[regime, kin] = self._shared(flows, alike, which)
        return PricedCall(schedule, self._shares[regime, kin])

    def _slowest(self, call: StageCollective, kin: frozenset[int]) -> tuple[int, int, list[Share]]:
        """Return the group of a class that takes longest while all its like are at it.

        And its shares.

        Between them the group that takes least alone.

        On many devices the slowest of the first, the middle and the last group, while those are at
        it that share a node with them.
        """
        groups = np.arange(len(call.groups))
        if len(set(self.class_of.tolist())) > 1:
            groups = np.flatnonzero([one == kin for one in self.kin(call.groups)])
        picks = groups
        if self.topology.n_devices > MOST_DEVICES:
            picks = groups[np.unique([0, len(groups) // 2, len(groups) - 1])]
            node = self.topology.node_of[self.topology.devices][call.groups]
            groups = groups[np.isin(node[groups], node[picks]).any(axis=1)]
        flows = flows_of(self.topology, call._replace(groups=call.groups[groups]))
        n_phases = int(flows.phase.max(initial=0)) + 1
        at = flows.phase * self.topology.n_links + flows.link
        total = np.bincount(at, flows.size_bytes, n_phases * self.topology.n_links)
        byte_s = flows.repeat / self.topology.bandwidth_bytes_per_s[flows.link]

        def times_s(sizes: Floats) -> Floats:
            each_s = np.zeros((len(flows.colour), n_phases))
            np.maximum.at(each_s, (flows.group, flows.phase), sizes * byte_s)
            of_groups: Floats = each_s.sum(axis=1) + flows.latency_s
            return of_groups

        picked = np.isin(groups, picks)
        slow = int(np.argmax(np.where(picked, times_s(total[at]), -1.0)))
        fast = int(np.argmin(np.where(picked, times_s(flows.size_bytes), np.inf)))
        shares = self._shared(flows, np.ones(len(groups), np.bool_), slow)
        return int(groups[slow]), int(groups[fast]), shares

    def _shared(
        self, flows: CollectiveFlows, alike: npt.NDArray[np.bool_], which: int
    ) -> list[Share]:
        """Add up what flows of a class put on links, as shares of one of them."""
        n_links = self.topology.n_links
        at = flows.phase * n_links + flows.link
        mine = alike[flows.group]
        own = np.flatnonzero((flows.group == which) & ~self._never_full[flows.link])
        wanted, where = np.unique(at[own], return_inverse=True)
        found = np.searchsorted(wanted, at)
        found[found == len(wanted)] = 0
        mine &= wanted[found] == at if len(wanted) else False
        total = np.bincount(found[mine], flows.size_bytes[mine], len(wanted))[where.ravel()]
        shares = []
        for phase in range(int(flows.phase.max(initial=-1)) + 1):
            here = (flows.group == which) & (flows.phase == phase)
            most = float(flows.size_bytes[here].max(initial=0.0))
            links: dict[int, float] = {}
            for i in np.flatnonzero(flows.phase[own] == phase).tolist():
                like, load = int(self.link_of[flows.link[own[i]]]), float(total[i]) / most
                links[like] = max(links.get(like, 0.0), load)
            shares.append(Share(links, max(links.values(), default=1.0)))
        return shares

    def _is_equitable(self, call: StageCollective, flows: CollectiveFlows) -> bool:
        """Tell whether a call meets links of a colour, and places of a colour, alike."""
        members = self._members([call], np.zeros(1, np.int64))
        if not self._stays_below(call, flows):
            return False
        loads = self._loads(flows)
        flow = _flow_colours(flows.colour, loads, self._link, members, self._place)
        on_links = _on_links(loads, flow, len(self._link))
        at_places = self._at_places(members, flow)
        first = np.zeros(int(self.class_of.max()) + 1, np.int64)
        first[self.class_of[::-1]] = np.arange(self.n_places)[::-1]
        return bool(
            (on_links == on_links[self.link_of]).all()
            and (at_places == at_places[first[self.class_of]]).all()
        )

    def _stays_below(self, call: StageCollective, flows: CollectiveFlows) -> bool:
        """Tell whether links that are left out cannot be full with a call, either."""
        if not self._never_full.any():
            return True
        mine = self._at_most(flows)
        before = self._most_on.get(key_of(call._replace(op="", size_bytes=0)))
        more = mine if before is None else np.maximum(mine - before, 0.0)
        full = self._total + more > self._rates * _FULL
        return not (full & self._never_full[self._outside]).any()

    def _at_places(self, members: Members, flow: Colours) -> Colours:
        """Add up the colours of what each place takes part in."""
        return added(members.place, mixed(flow[members.flow], members.part), self.n_places)

    def _members(self, calls: Sequence[StageCollective], first: Ranks) -> Members:
        """Return flow and place of every member of every group, and its part in a message."""
        none = np.zeros(0, np.int64)
        flow, place, part = [none], [none], [none]
        for call, n in zip(calls, first, strict=False):
            size = call.groups.shape[1]
            flow.append(np.repeat(np.arange(len(call.groups)) + n, size))
            place.append(self.place_of[call.groups.ravel()])
            one = np.arange(size) * (call.op == "send")
            part.append(np.tile(one, len(call.groups)))
        return Members(*map(np.concatenate, (flow, place, part)))


class Members(NamedTuple):
    """Every member of every group: its flow, its place, and whether it gets a message."""

    flow: Ranks
    place: Ranks
    part: Ranks


def _flow_colours(
    begin: Colours,
    loads: OnLinks,
    link: Colours,
    members: Members,
    place: Colours,
) -> Colours:
    at_links = added(loads.flow, mixed(loads.code, link[loads.link]), len(begin))
    at_places = added(members.flow, mixed(place[members.place], members.part), len(begin))
    return mixed(begin, at_links, at_places)


def _on_links(loads: OnLinks, flow: Colours, n_links: int) -> Colours:
    """Add up the colours of the flows that load each link, and how they do."""
    return added(loads.link, mixed(loads.code, flow[loads.flow]), n_links)


_lock = Lock()  # workers of a cluster simulate in several threads
_symmetries: OrderedDict[tuple[object, ...], tuple[Topology, Symmetry]] = OrderedDict()
_MOST_SYMMETRIES = 16


def symmetry_of(
    topology: Topology,
    mesh: Mesh,
    most: int,
    *,
    wraps: bool,
    offloads: bool,
    kind_of_rank: Ranks | None = None,
) -> Symmetry:
    """Return the symmetry of plans of one mesh; those of the last ones are kept.

    Parameters
    ----------
    most, kind_of_rank
        As in `Symmetry`.
    wraps, offloads
        As in `usual_collectives`.
    """
    most = min(most, len(mesh.replica(0)))
    kinds = b"" if kind_of_rank is None else kind_of_rank.tobytes()
    key = id(topology), mesh.key, most, wraps, offloads, kinds
    with _lock:
        known = _symmetries.get(key)
        if known is not None and known[0] is topology:
            _symmetries.move_to_end(key)
            return known[1]
    calls = usual_calls(mesh, wraps=wraps, offloads=offloads)
    found = Symmetry(topology, mesh, calls, most, kind_of_rank)
    with _lock:
        _symmetries[key] = topology, found
        if len(_symmetries) > _MOST_SYMMETRIES:
            _symmetries.popitem(last=False)
    return found
