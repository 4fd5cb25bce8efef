"""Links of a machine as resources of an Execution's program: which of them tasks must share.

A link whose tasks all need one stream never carries two at once, so it can be a private resource.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ridgeline.network.schedule import SchedulePhase
from ridgeline.network.topology import Topology
from ridgeline.parallel.executions.costs import Costs
from ridgeline.workload.execution import Ints


@dataclass
class Links:
    """Resources of directed links, and who uses them.

    Attributes
    ----------
    streams, group
        [U] First stream of every unit, and its group of streams or -1.
    group_ptr, group_stream
        Streams of the groups.
    users
        Streams that all tasks on a resource have in common.
    """

    costs: Costs
    topology: Topology
    streams: Ints
    group: Ints
    group_ptr: Ints
    group_stream: Ints
    users: dict[int, set[int]] = field(default_factory=dict)

    def phase(self, phase: SchedulePhase, crew: set[int]) -> tuple[float, int, dict[int, float]]:
        """Return a phase with resources in place of links, and remember who uses them."""
        latency_s, repeat, loads = phase
        return latency_s, repeat, {self.resource(link, crew): n for link, n in loads.items()}

    def crew(self, units: Ints) -> set[int]:
        """Streams that all of these units occupy."""
        pairs = np.unique(np.stack([self.group[units], self.streams[units]], 1), axis=0)
        crews = [
            {stream}
            if group < 0
            else set(self.group_stream[self.group_ptr[group] : self.group_ptr[group + 1]].tolist())
            for group, stream in pairs.tolist()
        ]
        return set.intersection(*crews)

    def resource(self, link: int, crew: set[int]) -> int:
        """Resource of a directed link; remember which streams all that use it occupy."""
        resource = self.costs.resource(
            self.topology.link_name(link), float(self.topology.bandwidth_bytes_per_s[link]), link
        )
        common = self.users.get(resource)
        self.users[resource] = crew if common is None else common & crew
        return resource

    def shared(self) -> npt.NDArray[np.bool_]:
        """[R] Which resources tasks must share: the links, but for those that none ever contends.

        A link whose tasks all need one stream never carries two at once. Work on such links alone
        takes a fixed time; where a task needs others, too, all its links stay shared, since max-min
        shares depend on all of them.
        """
        rows = self.costs.rows
        resource = np.array(rows.resource, np.int64)
        row = np.repeat(
            np.repeat(np.arange(len(rows.phase_ptr) - 1), np.diff(rows.phase_ptr)),
            np.diff(rows.work_ptr),
        )
        is_link = np.array([link for _, _, link in self.costs.resources.values()], np.bool_)
        shared = is_link & np.array([not self.users.get(r) for r in range(len(is_link))], np.bool_)
        while True:
            held = np.zeros(len(rows.phase_ptr) - 1, np.bool_)
            held[row[shared[resource]]] = True
            more = shared.copy()
            more[resource[held[row] & is_link[resource]]] = True
            if bool((more == shared).all()):
                return shared
            shared = more
