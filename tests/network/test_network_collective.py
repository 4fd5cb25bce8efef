from __future__ import annotations

import csv
import dataclasses
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from network_machines import cluster, dgx1, single, switched

from ridgeline.errors import RidgelineError
from ridgeline.network import collective, collectives, from_cluster, from_text
from ridgeline.network.collectives import (
    ALGORITHMS,
    CollectiveSchedule,
    SchedulePhase,
    closed_form_time_s,
)
from ridgeline.network.topology import Topology
from thoroughly import sample_of

all_reduce_ring, reduce_scatter_ring, all_gather_ring = (
    ALGORITHMS[op, "ring"] for op in ("all-reduce", "reduce-scatter", "all-gather")
)
sizes = st.floats(0, 1e12)
latencies_ns = st.integers(0, 10**6)
bandwidths = st.integers(1, 10**6)


@given(p=st.integers(2, 300), size=sizes, latency_ns=latencies_ns, megabytes=bandwidths)
@settings(deadline=None)
def test_textbook_formula_on_a_ring(p: int, size: float, latency_ns: int, megabytes: int) -> None:
    topology = from_text(f"Ring({p}, {megabytes} MB/s, {latency_ns} ns)")
    alpha, rate = latency_ns * 1e-9, megabytes * 1e6
    ranks = range(p)
    time_s = closed_form_time_s(all_reduce_ring(topology, ranks, size), topology)
    expected = 2 * (p - 1) * alpha + 2 * (p - 1) / p * size / rate
    assert time_s == pytest.approx(expected, rel=1e-12, abs=0)
    for half in (reduce_scatter_ring, all_gather_ring):
        schedule = half(topology, ranks, size)
        assert 2 * closed_form_time_s(schedule, topology) == pytest.approx(time_s, rel=1e-12)


@given(p=st.integers(2, 300), size=sizes, latency_ns=latencies_ns, megabytes=bandwidths)
@settings(deadline=None)
def test_a_switch_costs_two_latencies_a_hop(
    p: int, size: float, latency_ns: int, megabytes: int
) -> None:
    text = f"Switch({p}, {megabytes} MB/s, {latency_ns} ns)"
    result = collective("all-reduce", size, text, algorithm="ring")
    expected = 4 * (p - 1) * latency_ns * 1e-9 + 2 * (p - 1) / p * size / (megabytes * 1e6)
    assert result.time_s == pytest.approx(expected, rel=1e-12, abs=0)


def test_a_ring_sends_in_one_direction_only() -> None:
    topology = from_text("Ring(5, 1 GB/s, 0 s)")
    wire = all_reduce_ring(topology, range(5), 1e6).bytes_on_wire()
    ends = {(int(topology.source[i]), int(topology.target[i])) for i in wire}
    assert ends == {(i, (i + 1) % 5) for i in range(5)}
    assert set(wire.values()) == {2 * 4 / 5 * 1e6}


def test_dgx1_p100_reaches_80_gb_a_second() -> None:
    # 4 NVLink 1 links of 20 GB/s a device, all in use: 100 MB in 2 * 7/8 * 1e8 / 8e10 s
    result = collective("all-reduce", 1e8, single(dgx1("p100")))
    assert result.time_s == pytest.approx(2.1875e-3)
    assert result.busbw_bytes_per_s == pytest.approx(80e9)
    assert list(result.link_utilisation.values()) == pytest.approx([1.0] * 2 * 16)


def test_dgx1_v100_reaches_150_gb_a_second() -> None:
    result = collective("all-reduce", 1e9, single(dgx1("v100")))
    assert result.busbw_bytes_per_s == pytest.approx(150e9)


def test_latency_and_the_fixed_start() -> None:
    machine = single(dgx1("p100", latency="2 us", collective_latency="9 us"))
    topology = from_cluster(machine, 8)
    schedule = all_reduce_ring(topology, range(8), 1e8)
    assert [tuple(phase) for phase in schedule.phases[:1]] == [(9e-6, 1, {})]
    assert (schedule.phases[1].latency_s, schedule.phases[1].repeat) == (2e-6, 14)
    time_s = closed_form_time_s(schedule, topology)
    assert time_s == pytest.approx(9e-6 + 14 * 2e-6 + 2.1875e-3)


def test_a_round_waits_for_the_longest_way() -> None:
    topology = from_cluster(cluster(dgx1("p100", latency="1 us"), 2, latency="5 us"), 16)
    schedule = all_reduce_ring(topology, range(16), 1e6)
    # device, plx, nic, leaf, nic, plx, device: 4 links in the nodes and 2 cables
    assert schedule.phases[-1].latency_s == pytest.approx(4 * 1e-6 + 2 * 5e-6)
    assert schedule.phases[-1].repeat == 30


def test_the_longest_way_counts_wherever_it_is_on_the_ring() -> None:
    topology = from_cluster(single(dgx1("p100", latency="1 us")), 8)
    for ranks in ((0, 5, 1), (5, 1, 0), (1, 0, 5)):  # 0 and 5 meet at the hosts, over 5 links
        schedule = all_reduce_ring(topology, ranks, 1e6)
        assert schedule.phases[0].latency_s == pytest.approx(5e-6)


def test_energy_is_bytes_times_price() -> None:
    result = collective("all-reduce", 1e8, single(dgx1("p100")))
    assert result.energy_j == pytest.approx(8 * 2 * 7 / 8 * 1e8 * 10e-12)
    machine = cluster(switched(2, 1), 2)
    result = collective("all-gather", 1e6, machine)
    # each of 4 ranks sends 3/4 MB: twice over 2 links, twice over 4 links and 2 cables
    assert result.energy_j == pytest.approx(0.75e6 * (2 * 2 + 2 * 4) * 10e-12 + 1.5e6 * 2 * 100e-12)
    assert collective("all-reduce", 1e8, "Ring(4, 1 GB/s, 0 s)").energy_j == 0


@pytest.mark.parametrize("op", ["all-reduce", "reduce-scatter", "all-gather"])
def test_one_rank_has_nothing_to_do(op: str) -> None:
    topology = from_text("Ring(1, 1 GB/s, 1 us)")
    assert ALGORITHMS[op, "ring"](topology, [0], 1e6).phases == ()
    result = collective(op, 1e6, topology)
    assert (result.time_s, result.energy_j, result.link_utilisation) == (0, 0, {})
    assert (result.algbw_bytes_per_s, result.busbw_bytes_per_s) == (None, None)


def test_nothing_to_send_still_takes_the_latencies() -> None:
    result = collective("all-reduce", 0, "Ring(4, 1 GB/s, 1 us)", algorithm="ring")
    assert result.time_s == pytest.approx(6e-6)
    assert result.busbw_bytes_per_s == 0
    assert collective("all-reduce", 5e-324, "Ring(4, 1 GB/s, 0 s)", algorithm="ring").time_s == 0


@sample_of(
    25,
    100,
    op=st.sampled_from(["all-reduce", "reduce-scatter", "all-gather"]),
    p=st.integers(1, 64),
    size=st.floats(1, 1e12),
)
def test_bandwidths_as_nccl_tests_defines_them(op: str, p: int, size: float) -> None:
    result = collective(op, size, "Switch(64, 10 GB/s, 1 us)", ranks=p)
    assert result.n_ranks == p
    if p == 1:
        return
    factor = (2 if op == "all-reduce" else 1) * (p - 1) / p
    assert result.algbw_bytes_per_s == pytest.approx(size / result.time_s)
    assert result.busbw_bytes_per_s == pytest.approx(factor * size / result.time_s)
    assert result.busbw_bytes_per_s <= 10e9 * (1 + 1e-12)
    assert max(result.link_utilisation.values()) == pytest.approx(result.busbw_bytes_per_s / 10e9)
    json.dumps(dataclasses.asdict(result), allow_nan=False)


def time_with(topology: Topology, factor: float, ranks: range) -> float:
    """Time of an all-reduce when every third link is `factor` times as fast."""
    rate = topology.bandwidth_bytes_per_s.copy()
    rate[::3] *= factor
    faster = dataclasses.replace(topology, bandwidth_bytes_per_s=rate)
    return closed_form_time_s(all_reduce_ring(faster, ranks, 1e8), faster)


@sample_of(
    25, 100, first=st.floats(0.1, 10), second=st.floats(0.1, 10), n=st.sampled_from([2, 4, 8])
)
def test_never_slower_with_faster_links(first: float, second: float, n: int) -> None:
    slow, fast = sorted((first, second))
    for text in ("Ring(8, 1 GB/s, 1 us)", "Switch(8, 1 GB/s, 1 us)"):
        topology = from_text(text)
        ranks = range(8 if "Ring" in text else n)
        assert time_with(topology, fast, ranks) <= time_with(topology, slow, ranks)


@sample_of(25, 100, st.lists(st.floats(1, 10), min_size=66, max_size=66), st.floats(0.1, 10))
def test_faster_links_help_a_schedule_that_is_fixed(factors: list[float], scale: float) -> None:
    topology = from_cluster(single(dgx1("v100", latency="1 us")), 8)
    schedule = all_reduce_ring(topology, range(8), 1e8)
    time_s = closed_form_time_s(schedule, topology)
    faster = dataclasses.replace(
        topology, bandwidth_bytes_per_s=topology.bandwidth_bytes_per_s * factors
    )
    assert closed_form_time_s(schedule, faster) <= time_s
    scaled = dataclasses.replace(
        topology, bandwidth_bytes_per_s=topology.bandwidth_bytes_per_s * scale
    )
    anew = closed_form_time_s(all_reduce_ring(scaled, range(8), 1e8), scaled)
    assert anew - 14e-6 == pytest.approx((time_s - 14e-6) / scale)


@sample_of(25, 100, small=sizes, large=sizes, n=st.sampled_from([2, 3, 8, 12, 16]))
def test_never_faster_with_more_bytes(small: float, large: float, n: int) -> None:
    small, large = sorted((small, large))
    machine = cluster(dgx1("v100", latency="1 us"), 2)
    first = collective("all-reduce", small, machine, ranks=n)
    second = collective("all-reduce", large, machine, ranks=n)
    assert first.time_s <= second.time_s


def test_where_may_be_a_name_a_cluster_a_topology_or_text() -> None:
    named = collective("all-reduce", 1e8, "dgx1-v100")
    assert named.n_ranks == 8
    machine = cluster(dgx1("p100"), 4)
    whole = collective("all-reduce", 1e8, machine)
    assert whole.n_ranks == 32
    part = collective("all-reduce", 1e8, machine, ranks=16)
    assert part == collective("all-reduce", 1e8, from_cluster(machine, 16))
    apart = collective("all-reduce", 1e8, machine, ranks=[0, 1, 2, 3], algorithm="ring")
    assert apart == collective("all-reduce", 1e8, machine, ranks=4, algorithm="ring")
    assert apart.algorithm == "ring"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"op": "all-reduc"}, "did you mean 'all-reduce'"),
        ({"algorithm": "rind"}, "did you mean 'all-reduce ring'"),
        ({"size_bytes": -1.0}, "at least 0 B"),
        ({"size_bytes": math.nan}, "at least 0 B"),
        ({"size_bytes": math.inf}, "at least 0 B"),
        ({"ranks": 0}, "at least one"),
        ({"ranks": [-1]}, "from 0 on"),
        ({"ranks": 5}, "rank 4 does not exist"),
        ({"ranks": [1, 1]}, "stands twice"),
        ({"where": "dgx1-v101"}, "did you mean 'dgx1-v100'"),
        ({"where": "Rong(4, 1 GB/s, 1 us)"}, "did you mean 'Ring'"),
    ],
)
def test_impossible_questions(arguments: dict[str, object], message: str) -> None:
    question: dict[str, object] = {
        "op": "all-reduce", "size_bytes": 1.0, "where": "Ring(4, 1 GB/s, 1 us)",
    }  # fmt: skip
    with pytest.raises(RidgelineError, match=message):
        collective(**{**question, **arguments})  # type: ignore[arg-type]


def test_algorithms_are_found_by_operation_and_name() -> None:
    assert (all_reduce_ring.op, all_reduce_ring.name) == ("all-reduce", "ring")
    with pytest.raises(RidgelineError, match=r"is registered twice: in .*ring\.py:"):
        ALGORITHMS.register(("all-reduce", "ring"))(all_reduce_ring)


def test_bytes_on_wire_adds_up_phases() -> None:
    phases = (SchedulePhase(0.0, 2, {0: 1.5, 3: 1.0}), SchedulePhase(0.0, 3, {3: 2.0}))
    assert CollectiveSchedule("x", "y", 2, 1.0, phases).bytes_on_wire() == {0: 3.0, 3: 8.0}


def measured() -> list[tuple[int, float, float]]:
    path = Path(__file__).parents[1] / "data" / "nccl_all_reduce_v100.csv"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    rows = csv.DictReader(lines)
    return [(int(r["n_ranks"]), float(r["size_bytes"]), float(r["time_ns"]) * 1e-9) for r in rows]


@pytest.mark.parametrize(
    ("n", "size", "time_s"), [row for row in measured() if row[1] >= 16 * 2**20]
)
def test_large_all_reduces_take_the_time_that_was_measured(
    n: int, size: float, time_s: float
) -> None:
    # The bandwidth of the links in hwconfigs/ comes from one of these rows (8 ranks, 1 GiB); below
    # 16 MiB NCCL uses other protocols and algorithms, which a ring does not describe.
    result = collective("all-reduce", size, "dgx1-v100", ranks=n)
    assert result.time_s == pytest.approx(time_s, rel=0.06)


@pytest.mark.parametrize(
    "text",
    [
        "Ring(9, 5 GB/s, 1 us)", "Line(6, 5 GB/s, 0 s)", "Torus(4x6, 5 GB/s, 1 us)",
        "Mesh(3x4, 5 GB/s, 1 us)", "FatTree(4, 5 GB/s, 1 us)", "Tree(16, 4, 3.6, 5 GB/s, 1 us)",
        "Switch(7, 5 GB/s, 9 us)", "Ring(4, 9 GB/s, 1 us)_Switch(2, 1 GB/s, 1 us)",
    ],
)  # fmt: skip
@pytest.mark.parametrize("op", ["all-reduce", "reduce-scatter", "all-gather"])
def test_what_is_not_tried_would_not_have_been_taken(op: str, text: str) -> None:
    topology = from_text(text)
    for size in (0.0, 1.0, 1e6, 1e12):
        chosen = collective(op, size, topology)
        direct = collective(op, size, topology, algorithm="direct")
        bound_s = collectives._direct_bound_s(op, topology, topology.n_devices, size)
        assert bound_s <= direct.time_s
        assert chosen.time_s <= direct.time_s


def test_a_thousand_devices_on_a_ring_are_not_tried_pairwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the bound is above the ring's time")

    direct = dataclasses.replace(collectives.ALGORITHMS["all-reduce", "direct"], write=refuse)
    monkeypatch.setitem(collectives.ALGORITHMS._things, ("all-reduce", "direct"), direct)
    result = collective("all-reduce", 1e8, "Ring(200, 50 GB/s, 500 ns)")
    assert result.algorithm == "bidirectional-ring"
