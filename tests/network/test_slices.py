"""Tori of one machine that are joined as slices, and what is sharded within them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware import load_cluster
from ridgeline.network.cluster_topology import from_cluster
from ridgeline.network.routing import route
from ridgeline.network.topology import Topology
from ridgeline.report.result import Result
from ridgeline.simulation import simulate
from ridgeline.workload.files import load_model
from stacked import stacked

DCN_BYTES_PER_S, DCN_S, ICI_BYTES_PER_S = 3.125e9, 10e-6, 50e9
SMALL = {"fabric.shape": [4, 2], "max_nodes": 64}


def machine(slices: int) -> Topology:
    return from_cluster(load_cluster("tpu-v5e-slices", SMALL), 8 * slices)


@pytest.mark.parametrize("slices", [2, 3, 5])
def test_every_slice_is_a_whole_torus_and_every_node_reaches_the_others(slices: int) -> None:
    several, one = machine(slices), machine(1)
    pod = from_cluster(load_cluster("tpu-v5e-pod", {"fabric.shape": [4, 2]}), 8)
    assert one.n_links == pod.n_links
    assert several.n_links == slices * (one.n_links + 2 * 8)
    assert several.shape == (1, 4, 2, slices)
    slow = np.isclose(several.bandwidth_bytes_per_s, DCN_BYTES_PER_S)
    assert np.count_nonzero(slow) == slices * 2 * 8


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 4), st.data())
def test_what_stays_in_a_slice_does_not_leave_it(slices: int, data: st.DataObject) -> None:
    topology = machine(slices)
    a, b = (data.draw(st.integers(0, 8 * slices - 1)) for _ in range(2))
    assume(a != b)
    links = route(topology, int(topology.devices[a]), int(topology.devices[b]))
    slow = sum(topology.bandwidth_bytes_per_s[link] == DCN_BYTES_PER_S for link in links)
    assert slow == (0 if a // 8 == b // 8 else 2)
    alone = machine(1)
    within = (
        route(alone, int(alone.devices[a % 8]), int(alone.devices[b % 8])) if a % 8 != b % 8 else ()
    )
    if a // 8 == b // 8:
        assert len(links) == len(within)


@pytest.mark.parametrize("slices", [2, 4])
def test_sums_between_slices_take_what_their_links_do(slices: int) -> None:
    topology, size = machine(slices), 1e9
    ranks = tuple(range(0, 8 * slices, 8))
    took = rl.collective("all-reduce", size, topology, ranks=ranks, algorithm="ring").time_s
    moved_s = 2 * (slices - 1) / slices * size / DCN_BYTES_PER_S
    assert moved_s < took < moved_s + 1e-3
    inside = rl.collective("all-reduce", size, topology, ranks=tuple(range(8, 16))).time_s
    assert inside == pytest.approx(rl.collective("all-reduce", size, machine(1)).time_s, rel=1e-9)


def test_fewer_nodes_than_two_whole_tori_are_refused() -> None:
    with pytest.raises(RidgelineError, match="do not fill a torus"):
        from_cluster(load_cluster("tpu-v5e-slices", SMALL), 12)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"fabric.between": "dnc"}, "did you mean 'dcn'"),
        ({"fabric.kind": "switch"}, "only tori are joined as slices"),
    ],
)
def test_a_description_that_cannot_be_says_why(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_cluster("tpu-v5e-slices", fields)


def step(slices: int, *, fold: bool = True, **fields: Any) -> Result:
    model = load_model("gpt2", {"layers": 2, "sequence": 64})
    plan = {"global_batch": 8 * slices, "data": 8 * slices, "micro_batch": 1, "zero_stage": 3}
    cluster = load_cluster("tpu-v5e-slices", SMALL)
    return simulate(model, cluster, stacked(**{**plan, **fields}), fold=fold)


@pytest.mark.parametrize("sharding", [2, 3])
def test_slices_that_are_replicas_hold_what_one_holds(sharding: int) -> None:
    one = step(1, zero_stage=sharding)
    more = [step(n, zero_stage=sharding, hybrid_shard_size=8) for n in (2, 4)]
    for several in more:
        kinds = ("weights", "optimizer", "activations")
        assert [several.memory_bytes[k] for k in kinds] == [one.memory_bytes[k] for k in kinds]
        assert several.step_time_s >= one.step_time_s
    whole = step(2, zero_stage=sharding)
    assert whole.memory_bytes["optimizer"] < more[0].memory_bytes["optimizer"]


def test_only_sums_of_parts_leave_a_slice() -> None:
    """Of every gradient a rank sends 2 (n-1)/n of its eighth, and gathers nothing."""
    slices = 4
    result = step(slices, hybrid_shard_size=8)
    graph = result.details.lowered.graph
    gradients = sum(graph.tensors[op.inputs[1]].bytes for op in graph.ops if op.kind == "optimizer")
    sent = sum(size for link, size in result.traffic_bytes.items() if "dcn" in link)
    ranks, ways = 8 * slices, 2  # up to the switch, and down
    mine = 2 * (slices - 1) / slices * gradients / 8
    assert sent == pytest.approx(ranks * ways * mine, rel=1e-3)


@pytest.mark.parametrize(
    "fields",
    [
        {"hybrid_shard_size": 8},
        {"hybrid_shard_size": 4, "zero_stage": 2},
        {"hybrid_shard_size": 4, "data": 8, "tensor": 2},
    ],
)
def test_folded_equals_unfolded(fields: dict[str, Any]) -> None:
    folded, whole = step(2, **fields), step(2, fold=False, **fields)
    assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)
    assert folded.traffic_bytes == pytest.approx(whole.traffic_bytes, rel=1e-9)
    assert folded.memory_bytes == whole.memory_bytes


def test_all_ranks_are_as_if_nothing_was_said() -> None:
    assert step(2, hybrid_shard_size=16).step_time_s == step(2).step_time_s


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"hybrid_shard_size": 3}, "must divide data=16"),
        ({"hybrid_shard_size": 8, "zero_stage": 1}, "needs zero_stage=2 or 3, found 1"),
        ({"hybrid_shard_size": 8, "expert": 2}, "not modelled together with hybrid_shard_size=8"),
    ],
)
def test_a_plan_that_cannot_be_says_why(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        step(2, **fields)
