"""Which schedule a group gets: on a torus, rings along all dimensions that it fills."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import RidgelineError
from ridgeline.hardware import load_cluster
from ridgeline.network import collective
from ridgeline.network.cluster_topology import from_cluster
from ridgeline.network.schedule import closed_form_time_s
from ridgeline.network.topology import Topology
from ridgeline.parallel.comm.collective_selection import best_schedule

MIB = 2.0**20


@pytest.fixture(scope="module")
def torus() -> Topology:
    return from_cluster(load_cluster("tpu-v4-pod"), 512)  # 8 x 8 x 8


@pytest.mark.parametrize("op", ["all-reduce", "reduce-scatter", "all-gather"])
@pytest.mark.parametrize("size_bytes", [2e4, 25 * MIB])
def test_all_chips_take_what_a_collective_alone_takes(
    torus: Topology, op: str, size_bytes: float
) -> None:
    schedule = best_schedule(op, torus, tuple(range(512)), size_bytes)
    assert schedule.algorithm in {"torus", "multi-torus"}
    assert closed_form_time_s(schedule, torus) == pytest.approx(
        collective(op, size_bytes, torus).time_s, rel=1e-9
    )


@settings(max_examples=20, deadline=None)
@given(
    steps=st.tuples(*[st.sampled_from((1, 2, 4, 8))] * 3),
    size_bytes=st.floats(1.0, 1e9),
)
def test_part_of_a_torus_is_no_slower_than_its_ring_and_within_its_links(
    torus: Topology, steps: tuple[int, int, int], size_bytes: float
) -> None:
    """Every second, fourth ... chip of each dimension: what a chip sends has six links."""
    places = np.arange(512).reshape(8, 8, 8)[:: steps[2], :: steps[1], :: steps[0]]
    ranks = tuple(places.ravel().tolist())
    n = len(ranks)
    if n == 1:
        return
    best = closed_form_time_s(best_schedule("all-reduce", torus, ranks, size_bytes), torus)
    ring = best_schedule("all-reduce", torus, ranks, size_bytes, "ring")
    assert best <= closed_form_time_s(ring, torus) * (1 + 1e-12)
    leaves = float(torus.bandwidth_bytes_per_s[torus.source == torus.devices[0]].sum())
    assert best >= 2 * (n - 1) / n * size_bytes / leaves * (1 - 1e-9)


@settings(max_examples=20, deadline=None)
@given(n=st.sampled_from([2, 4, 8, 32, 128]), size_bytes=st.floats(1e7, 1e9))
def test_a_fabric_names_the_algorithm_of_all_reduces(n: int, size_bytes: float) -> None:
    """A binomial tree sends the whole lg n times up and down: of long ones the slowest way."""
    free = from_cluster(load_cluster("titan-gemini"), n)
    tree = replace(free, all_reduce="binomial-tree")
    ranks = tuple(range(n))
    found, fastest = (best_schedule("all-reduce", one, ranks, size_bytes) for one in (tree, free))
    assert found.algorithm == "binomial-tree"
    time_s = closed_form_time_s(found, tree)
    assert time_s >= closed_form_time_s(fastest, free) * (1 - 1e-12)
    slowest = float(free.bandwidth_bytes_per_s.min())
    assert time_s >= 2 * math.log2(n) * size_bytes / slowest * (1 - 1e-9)
    assert best_schedule("all-gather", tree, ranks, size_bytes) == best_schedule(
        "all-gather", free, ranks, size_bytes
    )


def test_an_unknown_algorithm_has_its_nearest() -> None:
    cluster = load_cluster("titan-gemini", {"fabric.all_reduce": "binomial-three"})
    with pytest.raises(RidgelineError, match="did you mean 'binomial-tree'"):
        best_schedule("all-reduce", from_cluster(cluster, 8), tuple(range(8)), 1e6)
