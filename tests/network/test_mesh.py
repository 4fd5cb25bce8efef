"""Meshes: nodes or devices that are linked to their neighbours and pass on what is for others."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from network_machines import node, single
from pydantic import ValidationError
from test_network_engine import played

from ridgeline.errors import RidgelineError
from ridgeline.hardware import load_cluster
from ridgeline.hardware.cluster import Cluster
from ridgeline.network import collective, from_cluster, from_text
from ridgeline.network.algorithm import ALGORITHMS
from ridgeline.network.line_dimensions import lines
from ridgeline.network.routing import route
from ridgeline.network.schedule import closed_form_time_s
from ridgeline.network.topology_metrics import bisection_bandwidth, diameter, measure
from ridgeline.network.traffic import flow_times, make_flows
from ridgeline.parallel.comm.collective_selection import best_schedule
from ridgeline.parallel.comm.placement import RankPlacement
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.plan.resolved import NEUTRAL
from ridgeline.simulation import simulate
from ridgeline.study.planner.searcher import searcher
from ridgeline.workload import load_model
from thoroughly import sample_of

# Programs that cost nothing: what is searched and bounded are plans alone.
searcher = partial(searcher, software=NEUTRAL)
simulate = partial(simulate, software=NEUTRAL)

A, B = 2e-6, 20e9  # latency and bandwidth of a link


def pod(*shape: int) -> Cluster:
    """Return chips with routers on a mesh: 50 GB/s and 1 us a cable."""
    mesh = {"fabric.kind": "mesh", "fabric.shape": list(shape)}
    return load_cluster("tpu-v5e-pod", {**mesh, "max_nodes": math.prod(shape)})


def wafer(*shape: int, links: str = "mesh", forward: bool = True) -> Cluster:
    """Return devices that are linked directly, in one node."""
    joined: list[dict[str, object]] = [{links: list(shape), "type": "nvlink"}]
    of = node("wafer", math.prod(shape), joined, latency="2 us")
    return single(of.model_copy(update={"devices_forward": forward}))


@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=3).filter(lambda s: math.prod(s) > 1))
@settings(max_examples=30, deadline=None)
def test_neighbours_are_linked_and_ends_are_not(shape: list[int]) -> None:
    n = math.prod(shape)
    expected = sum(n // extent * (extent - 1) for extent in shape)
    for machine, inside in ((pod(*shape), n), (wafer(*shape), 0)):
        topology = from_cluster(machine, n)
        assert measure(topology).n_links == expected + inside  # a chip has a link to its router
        assert diameter(topology) == sum(shape) - len(shape) + 2 * bool(inside)
        assert lines(topology) == (False, *(extent > 2 for extent in shape))


@sample_of(
    8,
    30,
    shape=st.sampled_from([(5,), (2, 3), (4, 4), (5, 3), (3, 3, 3), (6, 1, 4)]),
    size=st.floats(1.0, 1e9),
)
def test_a_wafer_is_the_inline_mesh(shape: tuple[int, ...], size: float) -> None:
    described = from_cluster(wafer(*shape), math.prod(shape))
    inline = from_text(f"Mesh({'x'.join(map(str, shape))}, 20 GB/s, 2 us)")
    assert bisection_bandwidth(described)[0] == pytest.approx(
        bisection_bandwidth(replace(inline, bisection_bytes_per_s=None))[0]
    )
    for name in ("torus", "multi-torus", "hierarchical") if len(shape) > 1 else ():
        if sum(extent > 1 for extent in shape) < 2:
            continue
        ranks = range(math.prod(shape))
        one, other = (
            closed_form_time_s(ALGORITHMS["all-reduce", name](topology, ranks, size), topology)
            for topology in (described, inline)
        )
        assert one == pytest.approx(other, rel=1e-9)


@pytest.mark.parametrize("shape", [(4, 8), (3, 5), (2, 2), (5, 5), (4, 4, 4), (2, 3, 4)])
def test_rings_on_lines_take_two_links_a_hop(shape: tuple[int, ...]) -> None:
    topology, size = from_cluster(wafer(*shape), math.prod(shape)), 1e7
    everyone = range(math.prod(shape))
    expected, share = 0.0, size
    for p in shape:
        expected += 2 * (p - 1) * min(p - 1, 2) * A + 2 * (p - 1) / p * share / B
        share /= p
    schedule = ALGORITHMS["all-reduce", "torus"](topology, everyone, size)
    assert closed_form_time_s(schedule, topology) == pytest.approx(expected, rel=1e-9)
    if len(set(shape)) == 1 and shape[0] > 2:
        d, p = len(shape), math.prod(shape)
        schedule = ALGORITHMS["all-reduce", "multi-torus"](topology, everyone, size)
        # what a corner has to send, through all of its links
        ideal = 2 * (p - 1) / p * size / (d * B) + 2 * d * (shape[0] - 1) * 2 * A
        assert closed_form_time_s(schedule, topology) == pytest.approx(ideal, rel=1e-9)


@given(
    shape=st.sampled_from([(5,), (2, 3), (4, 4), (3, 5), (2, 3, 3)]),
    key=st.sampled_from(sorted(ALGORITHMS)),
    size=st.sampled_from([1.0, 1e5, 12345678.9]),
    machine=st.sampled_from([pod, wafer]),
)
@settings(max_examples=60, deadline=None)
def test_the_engine_takes_the_closed_form(
    shape: tuple[int, ...], key: tuple[str, str], size: float, machine: type[Cluster]
) -> None:
    topology = from_cluster(machine(*shape), math.prod(shape))
    try:
        schedule = ALGORITHMS[key](topology, range(topology.n_devices), size)
    except RidgelineError:
        return
    expected = closed_form_time_s(schedule, topology)
    assert played([schedule], topology) == pytest.approx(expected, rel=1e-9)


@given(
    places=st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=2, max_size=2),
    size=st.floats(1.0, 1e9),
)
@settings(max_examples=30, deadline=None)
def test_part_of_a_mesh_is_within_its_links(places: list[set[int]], size: float) -> None:
    topology = from_cluster(pod(6, 6), 36)
    ranks = tuple(sorted(x + 6 * y for x in places[0] for y in places[1]))
    if len(ranks) == 1:
        return
    best = closed_form_time_s(best_schedule("all-reduce", topology, ranks, size), topology)
    ring = best_schedule("all-reduce", topology, ranks, size, "ring")
    assert best <= closed_form_time_s(ring, topology) * (1 + 1e-12)
    cables = np.isin(topology.node_of[topology.source], ranks) & (
        topology.node_of[topology.source] != topology.node_of[topology.target]
    )
    leaves = np.bincount(
        topology.node_of[topology.source][cables], topology.bandwidth_bytes_per_s[cables], 36
    )
    n = len(ranks)
    assert best >= 2 * (n - 1) / n * size / leaves[list(ranks)].min() * (1 - 1e-9)


@pytest.mark.parametrize("shape", [(3, 3), (5, 2), (3, 4), (2, 2, 3), (3, 5)])
def test_the_bisection_is_that_of_all_halves(shape: tuple[int, ...]) -> None:
    topology = from_cluster(wafer(*shape), math.prod(shape))
    joined = np.zeros((topology.n_devices,) * 2)
    joined[topology.source, topology.target] = topology.bandwidth_bytes_per_s
    n = topology.n_devices
    least = np.inf
    for half in combinations(range(n), n // 2):
        here = np.zeros(n, bool)
        here[list(half)] = True
        least = min(least, joined[here][:, ~here].sum())
    assert bisection_bandwidth(topology)[0] == pytest.approx(least)


def test_odd_meshes_are_cut_in_steps() -> None:
    for shape, cut in (((5, 5), 6), ((7, 5), 6), ((5, 7), 6), ((16, 5), 5), ((3, 3, 3), 13)):
        topology = from_cluster(wafer(*shape), math.prod(shape))
        assert bisection_bandwidth(topology) == (pytest.approx(cut * B), "bound")


def test_devices_pass_on_messages_where_the_file_says_so() -> None:
    topology = from_cluster(wafer(4, 4), 16)
    assert len(route(topology, 0, 15)) == 6
    assert collective("send", 1e6, topology).time_s == pytest.approx(6 * A + 1e6 / B)
    silent = from_cluster(wafer(4, 4, forward=False), 16)
    with pytest.raises(RidgelineError, match="devices_forward"):
        route(silent, 0, 15)


def test_flows_of_all_to_all_pass_the_middle() -> None:
    """n²/4 messages cross the middle of a line each way: the fluid model says how long."""
    topology = from_cluster(wafer(6), 6)
    size = 6e6
    arrivals = flow_times(topology, make_flows("all-to-all", 6, size / 6))
    assert max(arrivals) == pytest.approx(9 * size / 6 / B, rel=1e-3, abs=5 * A)


def test_a_way_back_on_a_line_is_not_a_way_round() -> None:
    lying = RankPlacement.of(from_cluster(pod(4, 4), 16))
    on, back = lying.way(np.array([3, 0]), np.array([0, 1])).T.tolist()
    assert on == [0, -3]
    assert back == [0, 1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mesh": [3, 3], "type": "nvlink"}, "3x3 devices has 9 places; the node has 8 devices"),
        ({"mesh": [2, 4], "torus": [2, 4], "type": "nvlink"}, "a link has one of"),
        ({"type": "nvlink"}, "a link has one of"),
        ({"mesh": [2, 0], "type": "nvlink"}, "greater than or equal to 1"),
    ],
)
def test_grids_that_cannot_be(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        node("wafer", 8, [fields])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"fabric.shape": []}, "a mesh needs a shape"),
        ({"fabric.cube": 4}, "only tori are made of cubes; found mesh"),
    ],
)
def test_fabrics_that_cannot_be(fields: dict[str, object], message: str) -> None:
    with pytest.raises(RidgelineError, match=message):
        load_cluster("tpu-v5e-pod", {"fabric.kind": "mesh", **fields})


MESHES = {"pod": lambda: pod(4, 4), "wafer": lambda: wafer(4, 4)}


@pytest.mark.parametrize("machine", MESHES)
@pytest.mark.parametrize(
    "fields",
    [
        {"data": 16},
        {"data": 4, "tensor": 4},
        {"data": 4, "pipeline": 4},
        {"data": 8, "tensor": 2, "zero_stage": 3},
        {"data": 2, "tensor": 2, "pipeline": 4},
    ],
)
def test_one_group_stands_for_all(machine: str, fields: dict[str, int]) -> None:
    plan = Plan(precision="fp32", micro_batch=1, global_batch=2 * fields.get("data", 1), **fields)  # type: ignore[arg-type]
    network, cluster = load_model("mlp"), MESHES[machine]()
    folded, whole = (simulate(network, cluster, plan, fold=fold) for fold in (True, False))
    assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)
    assert folded.traffic_bytes == pytest.approx(whole.traffic_bytes, rel=1e-9)


def test_no_bound_of_a_plan_is_above_what_is_played() -> None:
    one = searcher("mlp", pod(2, 4), 8, 8, precision="fp32", context=None)
    space = one.space
    rng = np.random.default_rng(3)
    for i in rng.choice(len(space.pipeline), 12, replace=False).tolist():
        group = one.groups.group(one.key(i))
        if group is None:
            continue
        bound, replay = one.tightened(group, i), one.replay(space.plan(i))
        assert 0 < bound.time_s <= replay.step_time_s * (1 + 1e-12), space.plan(i)
