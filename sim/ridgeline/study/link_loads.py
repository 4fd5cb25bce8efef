"""Link loads: what a step sends over each kind of link; the fullest one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.report.figures.links import loads
from ridgeline.report.result import Result


@dataclass(frozen=True)
class FullestLink:
    """What the fullest link of one kind carries in a step.

    Attributes
    ----------
    name
        Class of the link.
    bytes_per_device
        Bytes on that link, times how many of them each device has.
    bandwidth_bytes_per_s
        Of these links together: what one device can send.
    """

    name: str
    bytes_per_device: float
    bandwidth_bytes_per_s: float

    @property
    def busy_s(self) -> float:
        """Least time for these bytes."""
        return self.bytes_per_device / self.bandwidth_bytes_per_s


def network_levels(result: Result) -> tuple[FullestLink, ...]:
    """Return what the fullest link of each class carries in a step, of what the engine played."""
    program = result.details.lowered.program
    load = loads(program)
    fullest: dict[str, int] = {}
    for r in np.flatnonzero(load > 0).tolist():
        way, _, kind = program.resource_names[r].rpartition(" (")
        if "->" not in way:
            continue  # an engine or a memory level
        name = kind.rstrip(")")
        busy = load / program.capacity
        if name not in fullest or busy[r] > busy[fullest[name]]:
            fullest[name] = r
    return tuple(
        _level(name, float(load[r]), float(program.capacity[r]), result)
        for name, r in fullest.items()
    )


def _level(name: str, load: float, capacity: float, result: Result) -> FullestLink:
    """Put the load of one link on all links of its class that a device has."""
    node = result.details.cluster.nodes
    ends = {f"device{i}" for i in range(node.count)} if name in node.link_types else set()
    alike = [
        (set(two), link.count) for link in node.links if link.type == name for two in link.ends
    ]
    own = sum(count for two, count in alike if ends & two)
    both = sum(count for two, count in alike if ends >= two)
    each = node.link_types.get(name)
    if each is None or not own:
        return FullestLink(name, load, capacity)
    out = (own + both) / node.count * each.bandwidth.value * each.achievable.value
    return FullestLink(name, load * out / capacity, out)
