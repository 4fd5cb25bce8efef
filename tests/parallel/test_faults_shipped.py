"""A broken and a slow link in every shipped cluster and node: the step runs, or says who is cut.

Whether a device is cut off is found anew by a search over the links that are left.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from ridgeline.catalog import names
from ridgeline.errors import CutOffError
from ridgeline.hardware import load_cluster
from ridgeline.hardware.cluster import Cluster
from ridgeline.network.topology import Topology
from ridgeline.parallel.plan.plan import Plan
from ridgeline.simulation import shared_topology, simulate
from ridgeline.workload.files import load_model
from thoroughly import further

MACHINES = [*names("clusters"), *names("nodes")]
OUTSIDE = {"hls-1h"}
"""Nodes whose devices reach each other through the fabric of a cluster alone."""


def without(topology: Topology, pair: tuple[int, int]) -> bool:
    """Tell whether device 0 still reaches all others where one cable of a pair is taken out."""
    left = list(zip(topology.source.tolist(), topology.target.tolist(), strict=True))
    for way in (pair, pair[::-1]):
        if topology.count[left.index(way)] == 1:
            left.remove(way)
    after: dict[int, list[int]] = {}
    for source, target in left:
        after.setdefault(source, []).append(target)
    devices = set(topology.devices.tolist())
    first = int(topology.devices[0])
    seen, queue = {first}, deque([first])
    while queue:
        at = queue.popleft()
        if at in devices and at != first and not topology.devices_forward:
            continue  # it passes nothing on
        for other in after.get(at, ()):
            if other not in seen:
                seen.add(other)
                queue.append(other)
    return devices <= seen


def step_s(cluster: Cluster, plan: Plan) -> float:
    return simulate(load_model("mlp"), cluster, plan, software="ideal").step_time_s


@pytest.mark.parametrize("name", [*MACHINES[::3], *further(*MACHINES[1::3], *MACHINES[2::3])])
def test_a_link_is_down_or_slow(name: str) -> None:
    cluster = load_cluster(name)
    n = min(16, cluster.max_devices)
    plan = Plan(data=n, global_batch=8 * n)
    if n == 1 or name in OUTSIDE:
        return
    topology = shared_topology(cluster, n)
    whole_s = step_s(cluster, plan)
    link = int(np.flatnonzero(topology.source == topology.devices[0])[0])
    pair = int(topology.source[link]), int(topology.target[link])
    ends = " ".join(topology.vertex_names[vertex] for vertex in pair)
    slow_s = step_s(load_cluster(name, {"faults": [f"link {ends} slow 0.5"]}), plan)
    assert slow_s >= whole_s * (1 - 1e-9)
    broken = load_cluster(name, {"faults": [f"link {ends} down"]})
    if not without(topology, pair):
        with pytest.raises(CutOffError, match="the job is cut off"):
            step_s(broken, plan)
    else:
        found = simulate(load_model("mlp"), broken, plan, software="ideal")
        assert found.step_time_s >= whole_s * (1 - 1e-9)
        every = simulate(load_model("mlp"), broken, plan, software="ideal", fold=False)
        assert every.manifest["ranks"]["simulated"] == n
        assert found.step_time_s == pytest.approx(every.step_time_s, rel=1e-9)
