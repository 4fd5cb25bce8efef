"""How busy every link is while a collective, or many messages at once, are sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ridgeline import units
from ridgeline.errors import RidgelineError
from ridgeline.network.topology import Floats, Topology


@dataclass(frozen=True, eq=False)
class LinkLoad:
    """What the links carry, and how long it takes.

    Attributes
    ----------
    title
        What is sent, in words.
    time_s
        Until everything has arrived.
    share
        [L] share of that time for which each directed link's bandwidth is in use.
    """

    title: str
    time_s: float
    share: Floats

    def to_dict(self, topology: Topology) -> dict[str, Any]:
        """Return it as plain values, links by name."""
        busy = np.flatnonzero(self.share).tolist()
        return {
            "title": self.title,
            "time_s": self.time_s,
            "link_utilisation": {
                topology.link_name(link): float(self.share[link]) for link in busy
            },
        }


def link_load(topology: Topology, text: str) -> LinkLoad:
    """Send what `text` says: ``all-reduce 100MB [ring]`` or ``stride:4 1MB``.

    Collectives are those of `ridgeline.network.collectives`; other words are the patterns of
    `ridgeline.network.traffic`.

    Raises
    ------
    RidgelineError
        If the text cannot be read, or names neither.
    """
    from ridgeline.network.algorithm import ALGORITHMS
    from ridgeline.network.traffic import PATTERNS

    words = text.split()
    if len(words) > 2 and words[2] in {"B", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB"}:
        words[1:3] = [words[1] + words[2]]
    if not 2 <= len(words) <= 3:
        raise RidgelineError(
            f"a load is an operation and a size, as in 'all-reduce 100MB'; found {text!r}"
        )
    name, size_bytes = words[0], units.parse(words[1], "B")
    ops = {op for op, _ in ALGORITHMS}
    if name in ops:
        return _of_collective(topology, name, size_bytes, words[2] if words[2:] else "auto")
    if name.partition(":")[0] in PATTERNS and len(words) == 2:
        return _of_flows(topology, name, size_bytes)
    known = ", ".join([*sorted(ops), *PATTERNS])
    raise RidgelineError(f"no load is called {text!r} (known: {known})")


def _of_collective(topology: Topology, op: str, size_bytes: float, algorithm: str) -> LinkLoad:
    from ridgeline.network.collectives import collective

    answer = collective(op, size_bytes, topology, algorithm=algorithm)
    share = np.array(
        [answer.link_utilisation.get(topology.link_name(i), 0.0) for i in range(topology.n_links)]
    )
    title = f"{op} of {units.show(size_bytes, 'B')}, {answer.algorithm}"
    return LinkLoad(title, answer.time_s, share)


def _of_flows(topology: Topology, pattern: str, size_bytes: float) -> LinkLoad:
    from ridgeline.network.traffic import flow_loads, flow_times, make_flows

    flows = make_flows(pattern, topology.n_devices, size_bytes)
    loads = flow_loads(topology, flows)
    time_s = float(flow_times(topology, flows).max())
    passed = np.bincount(
        loads.links,
        loads.share * np.repeat(flows.size_bytes, np.diff(loads.ptr)),
        topology.n_links,
    )
    share: Floats = passed / topology.bandwidth_bytes_per_s / time_s
    title = f"{pattern}, messages of {units.show(size_bytes, 'B')}"
    return LinkLoad(title, time_s, share)
