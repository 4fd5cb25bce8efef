"""The closed form against the engine's reference executor, which plays the same schedule."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from network_machines import cluster, dgx1, switched

from ridgeline.engine import ProgramBuilder, WorkPhase, run_reference
from ridgeline.network import Topology, from_cluster, from_text
from ridgeline.network.algorithm import DoesNotApplyError
from ridgeline.network.collectives import ALGORITHMS, CollectiveSchedule, closed_form_time_s
from thoroughly import sample_of

TOPOLOGIES = [
    from_text("Ring(5, 3 GB/s, 700 ns)"),
    from_text("Switch(8, 3 GB/s, 700 ns)"),
    from_text("Torus(2x3, 3 GB/s, 700 ns)"),
    from_text("FullyConnected(7, 3 GB/s, 700 ns)"),
    from_text("FullyConnected(4, 3 GB/s, 700 ns)_Ring(3, 2 GB/s, 500 ns)"),
    from_cluster(
        cluster(dgx1("p100", latency="1 us", collective_latency="9 us"), 2, latency="2 us"), 12
    ),
    from_cluster(cluster(switched(4, 2), 4, radix=4), 16),
]


def played(schedules: list[CollectiveSchedule], topology: Topology) -> float:
    """Play schedules side by side, each on a stream of its own; return when the last ends."""
    builder = ProgramBuilder()
    rank = builder.add_rank()
    resource = [
        builder.add_resource(topology.link_name(i), float(bandwidth), shared=True)
        for i, bandwidth in enumerate(topology.bandwidth_bytes_per_s)
    ]
    for number, schedule in enumerate(schedules):
        phases = [
            WorkPhase(latency_s, {resource[i]: size for i, size in loads.items()}, repeat)
            for latency_s, repeat, loads in schedule.phases
        ]
        cost = builder.add_cost(phases)
        stream = builder.add_stream(f"network{number}", rank)
        builder.add_task("collective", schedule.op, stream=stream, cost=cost)
    return run_reference(builder.build()).makespan_s


@sample_of(
    63,
    250,
    topology=st.sampled_from(TOPOLOGIES),
    key=st.sampled_from(sorted(ALGORITHMS)),
    size=st.sampled_from([0.0, 1.0, 1e5, 12345678.9, 1e9]),
)
def test_a_lone_collective_takes_its_closed_form(
    topology: Topology, key: tuple[str, str], size: float
) -> None:
    try:
        schedule = ALGORITHMS[key](topology, range(topology.n_devices), size)
    except DoesNotApplyError:
        return
    expected = closed_form_time_s(schedule, topology)
    assert played([schedule], topology) == pytest.approx(expected, rel=1e-9)


def test_two_collectives_share_the_links() -> None:
    topology = from_text("Ring(4, 1 GB/s, 0 s)")
    schedule = ALGORITHMS["all-reduce", "ring"](topology, range(4), 1e6)
    alone = closed_form_time_s(schedule, topology)
    assert played([schedule, schedule], topology) == pytest.approx(2 * alone)
