"""Faults of a machine: links down or slow, NICs, switches and devices lost, slow ranks, jitter.

A fault is a line of words, as `Cluster.faults` and ``--fault`` take them:

| fault | what it does |
|---|---|
| ``link A B down`` | one of the parallel links between two vertices is gone; ``down all``: all |
| ``link A B slow 0.5`` | these links carry half of what they did |
| ``nic A lost``, ``switch A lost`` | all links of a vertex are gone |
| ``device A lost`` | the next device of the machine takes its place, if there is one |
| ``rank 3 slow 1.5`` | the work of a device takes 1.5 times as long |
| ``jitter NAME relative=0.05 mean=10us seed=1 samples=20`` | ops take longer by chance |
| ``reroute static`` | messages keep their ways, or are cut off; ``adaptive``: they find others |

A and B are names of vertices (``node0.device0``, ``leaf1``) or patterns of names, of which the
first pair that is linked counts; of one word the first link of a link type. A network that is cut
in two cannot run the job, which is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import combinations_with_replacement, product
from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline import units
from ridgeline.errors import ConfigError, CutOffError, nearest
from ridgeline.network.routing import OF_ANY_NETWORK, routes
from ridgeline.network.topology import DEVICE, Topology

KINDS = ("link", "nic", "switch", "device", "rank", "jitter", "reroute")
_FORMS = {
    "link": "link A B down, link A B down all, or link A B slow 0.5",
    "nic": "nic A lost",
    "switch": "switch A lost",
    "device": "device A lost",
    "rank": "rank 3 slow 1.5",
    "jitter": "jitter exponential relative=0.05 mean=10us seed=1 samples=20",
    "reroute": "reroute static, or reroute adaptive",
}
MOST_SAMPLES = 10_000


@dataclass(frozen=True)
class Jitter:
    """Delays of ops by chance: see `engine.stochastic.with_jitter`."""

    distribution: str
    mean_s: float
    relative: float
    seed: int
    samples: int


@dataclass(frozen=True)
class Faults:
    """What is wrong with a machine, read from its lines.

    Attributes
    ----------
    links
        Ends (or a link type, and ""), whether all parallel ones, and what is left of each, 0 to 1.
    lost
        Kind and name of vertices whose links are gone.
    slow
        Rank, and how many times as long its work takes.
    jitter
        Delays by chance.
    static
        Messages keep the ways that they had.
    """

    links: tuple[tuple[str, str, bool, float], ...] = ()
    lost: tuple[tuple[str, str], ...] = ()
    slow: tuple[tuple[int, float], ...] = ()
    jitter: tuple[Jitter, ...] = ()
    static: bool = False

    @property
    def of_network(self) -> bool:
        """Whether links or vertices are hit."""
        return bool(self.links or self.lost)


def read_faults(lines: Sequence[str]) -> Faults:
    """Read the lines of faults.

    Raises
    ------
    ConfigError
        If one cannot be read.
    """
    faults = Faults()
    for line in lines:
        faults = _with(faults, line)
    return faults


def _with(faults: Faults, line: str) -> Faults:  # noqa: PLR0911 - one form a line
    kind, *words = line.split() or [""]
    if kind not in KINDS:
        raise ConfigError(
            f"a fault begins with what is hit; found {line!r}{nearest(kind, KINDS)} "
            f"(allowed: {', '.join(KINDS)})",
            field="faults",
        )
    match kind, words:
        case "link", [*ends, "down", "all"] if 1 <= len(ends) <= 2:
            return replace(faults, links=(*faults.links, (*_pair(ends), True, 0.0)))
        case "link", [*ends, "down"] if 1 <= len(ends) <= 2:
            return replace(faults, links=(*faults.links, (*_pair(ends), False, 0.0)))
        case "link", [*ends, "slow", share] if 1 <= len(ends) <= 2:
            left = _number(line, share)
            if not 0 < left <= 1:
                raise ConfigError(
                    f"{line!r}: a slow link has a share of its bandwidth left, more than 0 and at "
                    "most 1",
                    field="faults",
                )
            return replace(faults, links=(*faults.links, (*_pair(ends), True, left)))
        case (("nic" | "switch" | "device"), [name, "lost"]):
            return replace(faults, lost=(*faults.lost, (kind, name)))
        case "rank", [rank, "slow", factor] if rank.isdecimal():
            times = _number(line, factor)
            if times < 1:
                raise ConfigError(
                    f"{line!r}: a slow rank takes 1 or more times as long", field="faults"
                )
            return replace(faults, slow=(*faults.slow, (int(rank), times)))
        case "jitter", [distribution, *settings]:
            return replace(faults, jitter=(*faults.jitter, _jitter(line, distribution, settings)))
        case "reroute", [("static" | "adaptive") as how]:
            return replace(faults, static=how == "static")
    raise ConfigError(f"cannot read {line!r}; write {_FORMS[kind]}", field="faults")


def _pair(ends: Sequence[str]) -> tuple[str, str]:
    return (ends[0], ends[1]) if len(ends) == 2 else (ends[0], "")


def _number(line: str, text: str) -> float:
    try:
        found = float(text.removesuffix("x"))
    except ValueError:
        found = np.nan
    if not np.isfinite(found):
        raise ConfigError(f"{line!r}: {text!r} is no number", field="faults")
    return found


def _jitter(line: str, distribution: str, settings: Sequence[str]) -> Jitter:
    found = {"relative": 0.0, "mean": 0.0, "seed": 0.0, "samples": 20.0}
    for setting in settings:
        name, _, value = setting.partition("=")
        if name not in found:
            raise ConfigError(
                f"{line!r}: jitter has no {name!r}{nearest(name, found)} "
                f"(known: {', '.join(found)})",
                field="faults",
            )
        found[name] = units.parse(value, "s") if name == "mean" else _number(line, value)
    whole = all(found[name] == int(found[name]) >= 0 for name in ("seed", "samples"))
    if not whole or not 1 <= found["samples"] <= MOST_SAMPLES:
        raise ConfigError(
            f"{line!r}: seed and samples are whole numbers, samples 1 to {MOST_SAMPLES}",
            field="faults",
        )
    if min(found["relative"], found["mean"]) < 0 or not (found["relative"] or found["mean"]):
        raise ConfigError(f"{line!r}: jitter needs relative or mean, above 0", field="faults")
    return Jitter(
        distribution, found["mean"], found["relative"], int(found["seed"]), int(found["samples"])
    )


def lost_devices(topology: Topology, faults: Faults) -> list[int]:
    """Return the vertices of devices that are lost."""
    return [v for kind, name in faults.lost if kind == DEVICE for v in _found(topology, kind, name)]


def with_faults(topology: Topology, faults: Faults, n_devices: int) -> Topology:
    """Return a topology with its faults, and so many devices in use that are not lost.

    Raises
    ------
    ConfigError
        If a name is unknown.
    CutOffError
        If too few devices are left, or some cannot reach each other.
    """
    count = topology.count.astype(np.float64)
    left = np.ones(topology.n_links)
    for one, other, every, share in faults.links:
        hit = _links(topology, one, other)
        if not share and not every:
            left[hit] = np.maximum(left[hit] - 1 / count[hit], 0.0)
        else:
            left[hit] *= share
    for kind, name in faults.lost:
        for vertex in _found(topology, kind, name):
            left[(topology.source == vertex) | (topology.target == vertex)] = 0.0
    gone = set(lost_devices(topology, faults))
    devices = [v for v in topology.devices.tolist() if v not in gone][:n_devices]
    if len(devices) < n_devices:
        raise CutOffError(
            f"{topology.name}: the job is cut off: it needs {n_devices} devices, and "
            f"{len(devices)} are left"
        )
    if faults.static:
        _check_static(topology, np.flatnonzero(left <= _NOTHING), devices)
    kept = left > _NOTHING
    kinds = _without_dead_nics(topology, kept)
    changed = replace(
        topology,
        source=_fixed(topology.source[kept]),
        target=_fixed(topology.target[kept]),
        bandwidth_bytes_per_s=_fixed((topology.bandwidth_bytes_per_s * left)[kept]),
        latency_s=_fixed(topology.latency_s[kept]),
        vertex_kinds=kinds,
        energy_j_per_byte=_fixed(topology.energy_j_per_byte[kept]),
        link_class=tuple(
            name for name, keep in zip(topology.link_class, kept.tolist(), strict=True) if keep
        ),
        count=_fixed(np.maximum(np.rint((count * left)[kept]), 1).astype(np.int32)),
        devices=_fixed(np.array(devices, np.int32)),
        device_names=tuple(
            name
            for v, name in zip(topology.devices.tolist(), topology.device_names, strict=False)
            if v in devices
        ),
        # what names ranks by their places in a regular network does not hold of this one
        shape=topology.shape if devices == topology.devices.tolist() and kept.all() else (),
        blocks=(),
        routing=topology.routing if topology.routing in OF_ANY_NETWORK else "shortest",
        bisection_bytes_per_s=None,
    )
    _check_reached(changed)
    return changed


_NOTHING = 1e-9


def _fixed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.setflags(write=False)
    return array


def _found(topology: Topology, kind: str, name: str) -> list[int]:
    """Return the vertices of a kind with a name, or with a pattern; a device may be a rank."""
    if kind == DEVICE and name.isdecimal():
        if int(name) >= topology.n_devices:
            raise ConfigError(
                f"device {name}: there are ranks 0 to {topology.n_devices - 1}", field="faults"
            )
        return [int(topology.devices[int(name)])]
    names = [
        n for n, k in zip(topology.vertex_names, topology.vertex_kinds, strict=True) if k == kind
    ]
    found = [
        v for v, n in enumerate(topology.vertex_names)
        if topology.vertex_kinds[v] == kind and fnmatchcase(n, name)
    ]  # fmt: skip
    if not found:
        some = f" (there are: {', '.join(names[:6])}{', ...' if len(names) > 6 else ''})"
        raise ConfigError(
            f"{topology.name} has no {kind} {name!r}{nearest(name, names)}"
            f"{some if names else f'; it has no {kind} at all'}",
            field="faults",
        )
    return found


def _links(topology: Topology, one: str, other: str) -> list[int]:
    """Return the directed links, both ways, between the first pair that fits, or of a type."""
    names = topology.vertex_names
    if not other:
        if one not in topology.link_classes:
            raise ConfigError(
                f"{topology.name} has no links {one!r}{nearest(one, topology.link_classes)} "
                f"(there are: {', '.join(sorted(topology.link_classes))}; or name both ends)",
                field="faults",
            )
        first = topology.link_class.index(one)
        ends = int(topology.source[first]), int(topology.target[first])
        return _both(topology, *ends, one)
    for end in (one, other):
        if not any(fnmatchcase(name, end) for name in names):
            raise ConfigError(
                f"{topology.name} has no {end!r}{nearest(end, names)}", field="faults"
            )
    for a, b in zip(topology.source.tolist(), topology.target.tolist(), strict=True):
        if fnmatchcase(names[a], one) and fnmatchcase(names[b], other):
            return _both(topology, a, b)
    raise ConfigError(f"{topology.name}: no link joins {one} and {other}", field="faults")


def _both(topology: Topology, a: int, b: int, kind: str = "") -> list[int]:
    links = [*topology.links_between(a, b), *topology.links_between(b, a)]
    return [link for link in links if topology.link_class[link] == kind or not kind]


def _without_dead_nics(topology: Topology, kept: npt.NDArray[Any]) -> tuple[str, ...]:
    """Return the kinds of vertices, in which a NIC that no longer reaches out of its node is none.

    It is a mere switch: a collective library leaves it alone.
    """
    node = topology.node_of
    out = node[topology.source] != node[topology.target]
    before, after = (set(topology.source[out & some].tolist()) for some in (out, kept))
    return tuple(
        "switch" if kind == "nic" and v in before - after else kind
        for v, kind in enumerate(topology.vertex_kinds)
    )


def _check_static(topology: Topology, lost: npt.NDArray[Any], devices: Sequence[int]) -> None:
    """Refuse a static routing whose ways between devices pass a lost link."""
    ends = np.array(devices, np.int64)
    for start in devices:
        others = ends[ends != start]
        if not len(others):
            continue
        used = routes(topology, np.full(len(others), start), others).links
        if np.isin(used, lost).any():
            raise CutOffError(
                f"{topology.name}: the job is cut off: with static routing messages of "
                f"{topology.vertex_names[start]} pass a link that is down (reroute adaptive finds "
                "other ways, where there are any)"
            )


def _check_reached(topology: Topology) -> None:
    """Refuse a network on which two devices have no way to each other.

    They have one if they hang on the same connected part of what passes on messages, or are linked.
    """
    component = _components(topology)
    parts: dict[int, set[int]] = {v: {int(component[v])} - {-1} for v in topology.devices.tolist()}
    linked: dict[int, set[int]] = {v: set() for v in parts}
    for a, b in zip(topology.source.tolist(), topology.target.tolist(), strict=True):
        if a in parts:
            parts[a] |= {int(component[b])} - {-1}
            linked[a].add(b)
    alike: dict[frozenset[int], list[int]] = {}
    for vertex, known in parts.items():
        alike.setdefault(frozenset(known), []).append(vertex)
    for (mine, some), (yours, others) in combinations_with_replacement(alike.items(), 2):
        for one, other in product(some, others) if not mine & yours else ():
            if one != other and other not in linked[one]:
                names = topology.vertex_names[one], topology.vertex_names[other]
                raise CutOffError(
                    f"{topology.name}: the job is cut off: {names[0]} has no way to {names[1]}"
                )


def _components(topology: Topology) -> npt.NDArray[Any]:
    """Return the connected part of each vertex that passes on messages; -1 of others."""
    component = np.full(topology.n_vertices, -1)
    forwards = topology.forwards
    both = forwards[topology.source] & forwards[topology.target]
    component[forwards] = np.flatnonzero(forwards)
    source, target = topology.source[both], topology.target[both]
    while True:
        least = component.copy()
        np.minimum.at(least, source, component[target])
        np.minimum.at(least, target, component[source])
        if (least == component).all():
            return component
        component = least
