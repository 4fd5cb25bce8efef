"""Collective selection: the algorithm that a collective library chooses for a group.

Rings, in one level or two, load the links in proportion to the size, after latencies that do not
depend on it. So they are drawn once for a group, for one byte, and scaled for every other size:
plans of a search, and the many sizes of one plan, share them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache

import numpy as np

from ridgeline.errors import RidgelineError, nearest
from ridgeline.network import nccl
from ridgeline.network.algorithm import ALGORITHMS, DoesNotApplyError
from ridgeline.network.framework_all_reduce import framework_schedule, frameworks
from ridgeline.network.node_constants import of_ranks
from ridgeline.network.routing import routes
from ridgeline.network.schedule import (
    CollectiveSchedule,
    LinkLoads,
    SchedulePhase,
    closed_form_time_s,
)
from ridgeline.network.topology import Topology
from ridgeline.parallel.checkpointing.offload import way_to_host
from ridgeline.parallel.comm.expert_links import link_ratio
from ridgeline.parallel.comm.two_level import two_level
from ridgeline.parallel.plan.mesh import Ranks
from ridgeline.parallel.sharding.halo import pairs_of
from ridgeline.parallel.sharding.inserted_ops import HALO

_TWO_LEVEL, _NAMED = "two-level", "all-reduce"
COPIES = ("copy from host", "copy to host")
"""Copies between a device and its host, as an operation of a group of one."""


def schedule_of(
    op: str, topology: Topology, group: Ranks, size_bytes: float, name: str | None = None
) -> CollectiveSchedule:
    """Return the schedule of a collective, a message from the first rank to the second, a copy."""
    ranks = tuple(group.tolist())
    topology = of_ranks(topology, ranks)
    if op in COPIES:
        return _copy(topology, ranks[0], size_bytes, out=op == COPIES[True])
    if op == "send":
        return _message(topology, ranks, size_bytes)
    if op.startswith(HALO):
        return _halo(op, topology, ranks, size_bytes)
    if " " in op:
        return _uneven(op, topology, ranks, size_bytes)
    return best_schedule(op, topology, ranks, size_bytes, name)


def best_schedule(
    op: str, topology: Topology, ranks: Sequence[int], size_bytes: float, name: str | None = None
) -> CollectiveSchedule:
    """Return what a collective library would choose for a group that is alone on the machine.

    With NVLink what NCCL chooses (`ridgeline.network.nccl`), otherwise the rings, in either case
    also in two levels, and on a torus along its dimensions; where there is no ring, of all
    algorithms. `name` takes one of these, as the fabric may for all-reduces.
    """
    ranks = tuple(ranks)
    if name is None and op == _NAMED:
        if topology.all_reduce in frameworks():
            return framework_schedule(topology.all_reduce, topology, ranks, size_bytes)
        name = _named(topology)
    alone = topology.single_channel
    rings = not alone and (op, "ring") in ALGORITHMS
    if name is not None and (op, name) in ALGORITHMS and not (rings and name == "ring"):
        return ALGORITHMS[op, name](topology, ranks, size_bytes)
    chosen = None if alone or name is not None else nccl.choice(op, topology, ranks, size_bytes)
    found = [] if chosen is None else [chosen]
    if rings:
        torus = _OF_TORUS if len(topology.shape) > 2 else ()  # nodes on a torus of their own
        linear = (name,) if name is not None else (*("ring", _TWO_LEVEL)[len(found) :], *torus)
        units = (_for_a_byte(op, one, topology, ranks) for one in linear if one in _LINEAR)
        found += [_scaled(unit, size_bytes) for unit in units if unit is not None]
    elif name is None and not found:
        names = [known for (of, known), one in ALGORITHMS.items() if of == op and one.automatic]
        for known in sorted(names):
            with suppress(DoesNotApplyError):
                found.append(ALGORITHMS[op, known](topology, ranks, size_bytes))
    if not alone and name is not None and name not in _LINEAR:
        found += nccl.candidates(op, topology, ranks, size_bytes)
    if name is not None:
        found = [schedule for schedule in found if schedule.algorithm == name]
    if not found:
        raise RidgelineError(f"no algorithm for {op} of {len(ranks)} ranks on {topology.name!r}")
    return min(found, key=lambda s: (closed_form_time_s(s, topology), s.algorithm))


def _named(topology: Topology) -> str | None:
    """Return the algorithm of all-reduces that the fabric names, if it does."""
    if not topology.all_reduce:
        return None
    known = sorted({algorithm for of, algorithm in ALGORITHMS if of == _NAMED} | {_TWO_LEVEL})
    if topology.all_reduce not in known:
        raise RidgelineError(
            f"{topology.name}: unknown algorithm {topology.all_reduce!r} for all-reduces"
            f"{nearest(topology.all_reduce, known)} (known: {', '.join(known)})"
        )
    return topology.all_reduce


_OF_TORUS = ("torus", "multi-torus")
_LINEAR = frozenset({"ring", _TWO_LEVEL, *_OF_TORUS})


@lru_cache(maxsize=128)
def _for_a_byte(
    op: str, name: str, topology: Topology, ranks: tuple[int, ...]
) -> CollectiveSchedule | None:
    """Return a ring for one byte; None if the group has none of the kind."""
    if name == _TWO_LEVEL:
        return two_level(op, topology, ranks, 1.0)
    try:
        return ALGORITHMS[op, name](topology, ranks, 1.0)
    except DoesNotApplyError:
        return None


def _scaled(schedule: CollectiveSchedule, size_bytes: float) -> CollectiveSchedule:
    phases = []
    for phase in schedule.phases:
        loads: Mapping[int, float] = {}
        if size_bytes and len(phase.bytes_on_link):
            assert isinstance(phase.bytes_on_link, LinkLoads)
            loads = LinkLoads(phase.bytes_on_link.links, phase.bytes_on_link.bytes * size_bytes)
        phases.append(phase._replace(bytes_on_link=loads))
    op, name, n_ranks = schedule.op, schedule.algorithm, schedule.n_ranks
    return CollectiveSchedule(op, name, n_ranks, float(size_bytes), tuple(phases))


def _halo(
    op: str, topology: Topology, ranks: tuple[int, ...], size_bytes: float
) -> CollectiveSchedule:
    """Schedule messages between pairs of a group, all at once: started once, the longest way."""
    ends = topology.devices[list(ranks)].astype(np.int64)
    latency_s, loads = 0.0, np.zeros(topology.n_links)
    for source, target, share in pairs_of(op):
        links = routes(topology, ends[source, None], ends[target, None]).links
        latency_s = max(latency_s, float(topology.latency_s[links].sum()))
        np.add.at(loads, links, share * size_bytes)
    used = np.flatnonzero(loads).astype(np.int32)
    phase = SchedulePhase(
        topology.collective_latency_s + latency_s, 1, LinkLoads(used, loads[used])
    )
    return CollectiveSchedule(op, "direct", len(ranks), float(size_bytes), (phase,))


def _uneven(
    op: str, topology: Topology, ranks: tuple[int, ...], size_bytes: float
) -> CollectiveSchedule:
    """Return an all-to-all whose messages are not alike (`expert_links`).

    Rounds and latencies are those of an even one; every link carries more or less of it by what
    messages from each to each put on it. What goes once to each node goes by kernels of its own,
    not by the library's sends and receives.
    """
    kind, _, loads = op.partition(" ")
    own = "direct" if loads.startswith("nodes") else None
    even = best_schedule(kind, topology, ranks, size_bytes, own)
    ratio = link_ratio(loads, topology, ranks)
    phases = []
    for phase in even.phases:
        on_link = dict(phase.bytes_on_link).items()
        scaled = {link: size * float(ratio[link]) for link, size in on_link if ratio[link]}
        phases.append(phase._replace(bytes_on_link=scaled))
    return CollectiveSchedule(op, even.algorithm, len(ranks), float(size_bytes), tuple(phases))


def _message(topology: Topology, ranks: tuple[int, ...], size_bytes: float) -> CollectiveSchedule:
    """Schedule one message on its route, with the fixed time of starting one."""
    ends = topology.devices[list(ranks)].astype(np.int64)
    links = routes(topology, ends[:1], ends[1:]).links
    latency_s = topology.collective_latency_s + float(topology.latency_s[links].sum())
    loads = dict.fromkeys(links.tolist(), float(size_bytes)) if size_bytes else {}
    return CollectiveSchedule(
        "send", "direct", 2, float(size_bytes), (SchedulePhase(latency_s, 1, loads),)
    )


def _copy(topology: Topology, rank: int, size_bytes: float, *, out: bool) -> CollectiveSchedule:
    """Schedule a copy on the shortest way to a host of the device's node, or back."""
    links = way_to_host(topology, rank, out=out)
    latency_s = float(topology.latency_s[links].sum())
    loads = dict.fromkeys(links.tolist(), float(size_bytes))
    return CollectiveSchedule(
        COPIES[out], "direct", 1, float(size_bytes), (SchedulePhase(latency_s, 1, loads),)
    )
