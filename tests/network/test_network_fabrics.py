"""Fabrics of clusters: switches, uplinks and slices of what their files say."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from network_machines import cluster, switched
from pydantic import ValidationError

from ridgeline.errors import RidgelineError
from ridgeline.hardware import load_cluster
from ridgeline.hardware.cluster import Cluster, Fabric
from ridgeline.network import Topology, collective, from_cluster
from ridgeline.network.topology_metrics import diameter, measure

LINK = "2 GB/s, 1 us"


def fabric(kind: str, **fields: object) -> Cluster:
    machine = cluster(switched(2, 2), 4096)
    return machine.model_copy(
        update={"fabric": Fabric.model_validate({"kind": kind, "link": "edr", **fields})}
    )


def ports(topology: Topology) -> dict[str, tuple[int, int]]:
    """Ports up and down of every switch of the fabric."""
    level = {"leaf": 0, "spine": 1, "core": 2, "node": -1}

    def height(name: str) -> int:
        return max(level.get(part.rstrip("0123456789"), -1) for part in name.split("."))

    found: dict[str, tuple[int, int]] = {}
    for i in range(topology.n_links):
        here = topology.vertex_names[topology.source[i]]
        there = topology.vertex_names[topology.target[i]]
        if height(here) >= 0:
            up, down = found.get(here, (0, 0))
            n = int(topology.count[i])
            found[here] = (up + n, down) if height(there) > height(here) else (up, down + n)
    return found


@given(
    radix=st.sampled_from([4, 6, 8, 12]),
    nodes=st.integers(2, 80),
    kind=st.sampled_from(["fat-tree", "rail-optimised"]),
)
@settings(max_examples=60, deadline=None)
def test_three_levels_have_full_bisection(radix: int, nodes: int, kind: str) -> None:
    try:
        topology = from_cluster(fabric(kind, radix=radix, levels=3), 2 * nodes)
    except RidgelineError as error:
        assert "do not fit" in str(error)  # noqa: PT017 - full, or padded by incomplete rails
        assert 2 * nodes > radix**3 // 8
        return
    found = ports(topology)
    assert all(up + down <= radix for up, down in found.values())
    leaves = {name: ends for name, ends in found.items() if name.startswith("leaf")}
    assert sum(down for _, down in leaves.values()) == 2 * nodes
    if len(leaves) > 1:
        assert all(up == radix // 2 for up, _ in leaves.values())
        for name, (up, down) in found.items():
            assert not (name.startswith("pod") and up < down)
    assert diameter(topology) <= 6 + 4


@given(
    radix=st.sampled_from([4, 6, 8, 16, 40]),
    nodes=st.integers(2, 60),
    over=st.sampled_from([1.0, 1.5, 2.0, 3.0, 7.0]),
    levels=st.sampled_from([2, 3]),
    kind=st.sampled_from(["fat-tree", "rail-optimised"]),
)
@settings(max_examples=60, deadline=None)
def test_leaves_have_fewer_uplinks_where_more_is_put_on_them(
    radix: int, nodes: int, over: float, levels: int, kind: str
) -> None:
    up, down = int(radix / (1 + over)), int(int(radix / (1 + over)) * over)
    if not up:
        with pytest.raises(ValidationError, match=f"allowed: 1 to {radix - 1}"):
            fabric(kind, radix=radix, levels=levels, oversubscription=over)
        return
    machine = fabric(kind, radix=radix, levels=levels, oversubscription=over)
    try:
        topology = from_cluster(machine, 2 * nodes)
    except RidgelineError as error:
        assert "do not fit" in str(error)  # noqa: PT017 - full, or padded by incomplete rails
        assert 2 * nodes > down * radix // 2
        return
    found = ports(topology)
    assert all(above + below <= radix for above, below in found.values())
    leaves = [ends for name, ends in found.items() if name.startswith("leaf")]
    assert sum(below for _, below in leaves) == 2 * nodes
    if len(leaves) > 1:
        assert all(above == up and below <= down <= over * up for above, below in leaves)


def test_a_message_through_few_uplinks_takes_as_much_longer() -> None:
    shared = {}
    for over in (1.0, 3.0):
        machine = fabric("fat-tree", radix=8, oversubscription=over)
        down, _ = Fabric(kind="fat-tree", link="edr", radix=8, oversubscription=over).leaf_ports
        topology = from_cluster(machine, 4 * down)
        cut = [
            i for i, source in enumerate(topology.source.tolist())
            if topology.vertex_names[source] == "leaf0"
            and topology.vertex_names[topology.target[i]].startswith("spine")
        ]  # fmt: skip
        shared[over] = topology.bandwidth_bytes_per_s[cut].sum() / down
    assert shared[1.0] == pytest.approx(3 * shared[3.0])


@given(shape=st.tuples(*[st.integers(1, 4)] * 3), nodes=st.integers(2, 32))
@settings(max_examples=40, deadline=None)
def test_a_dragonfly_has_the_shape_that_its_file_says(
    shape: tuple[int, int, int], nodes: int
) -> None:
    p, a, h = shape
    machine = fabric("dragonfly", shape=list(shape))
    if 2 * nodes > p * a * (a * h + 1):
        with pytest.raises(RidgelineError, match=f"fabric: .*at most {p * a * (a * h + 1)};"):
            from_cluster(machine, 2 * nodes)
        return
    topology = from_cluster(machine, 2 * nodes)
    down: Counter[str] = Counter()
    among: Counter[str] = Counter()
    for i, (source, target) in enumerate(zip(topology.source, topology.target, strict=True)):
        name = topology.vertex_names[source]
        if ".router" in name:
            is_router = ".router" in topology.vertex_names[target]
            (among if is_router else down)[name] += int(topology.count[i])
    assert down.total() == 2 * nodes
    assert all(n <= p for n in down.values())
    assert all(n <= a - 1 + h for n in among.values())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "torus"}, "needs a shape"),
        ({"kind": "torus", "shape": [4, -1]}, "greater than or equal to 1"),
        ({"kind": "dragonfly"}, "needs a shape, or the radix"),
        ({"kind": "dragonfly", "shape": [2, 4]}, r"NICs of a router.*found \[2, 4\]"),
        ({"kind": "fat-tree"}, "needs the radix"),
        ({"kind": "fat-tree", "radix": 8, "oversubscription": 0.5}, "greater than or equal to 1"),
    ],
)
def test_a_fabric_that_is_not_whole(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Fabric.model_validate({"link": "edr", **fields})


def test_rails_meet_after_one_switch() -> None:
    topology = from_cluster(fabric("rail-optimised", radix=8, levels=2), 16)
    leaf = {}
    for i in range(topology.n_links):
        a, b = (topology.vertex_names[v] for v in (topology.source[i], topology.target[i]))
        if a.startswith("leaf") and ".nic" in b:
            leaf[b] = a
    for unit in (range(4), range(4, 8)):
        for rail in range(2):
            assert len({leaf[f"node{node}.nic{rail}"] for node in unit}) == 1
    assert len(set(leaf.values())) == 4


def test_other_fabrics() -> None:
    topology = from_cluster(fabric("switch"), 64)
    assert measure(topology).n_switches == 32 + 1
    topology = from_cluster(fabric("dragonfly", radix=8), 64)
    assert diameter(topology) <= 5 + 4
    topology = from_cluster(fabric("torus", shape=[4, 4]), 32)
    assert int(topology.count[[name == "edr" for name in topology.link_class]].sum()) == 2 * 2 * 32
    with pytest.raises(RidgelineError, match="do not fill a torus of 4x4"):
        from_cluster(fabric("torus", shape=[4, 4]), 30)
    with pytest.raises(RidgelineError, match="balanced dragonfly"):
        from_cluster(fabric("dragonfly", radix=4), 64)


def test_the_largest_clusters_have_the_switches_of_their_reference_architecture() -> None:
    machine = load_cluster("superpod-h100")
    topology = from_cluster(machine, machine.max_devices)
    assert topology.n_devices == 16_384
    kinds = Counter(name.split(".")[-1].rstrip("0123456789") for name in topology.vertex_names)
    core = sum(name.startswith("core") for name in topology.vertex_names)
    assert (kinds["leaf"], kinds["spine"], core) == (512, 512, 256)  # RA-11333-001, Table 3
    machine = load_cluster("selene-a100")
    assert machine.max_devices == 4_480
    kinds = Counter(name.rstrip("0123456789") for name in from_cluster(machine, 4480).vertex_names)
    assert kinds["leaf"] == 28 * 8


@pytest.mark.parametrize(
    ("nodes", "extents", "cables"),
    [
        # 4 x 4 x 4 is one cube of the optical switches, and closes in all dimensions
        (64, (4, 4, 4), 3 * 64),
        (128, (4, 4, 8), 3 * 128),
        # less than a cube is a mesh
        (8, (2, 2, 2), 12),
        (27, (3, 3, 3), 3 * 18),
        (11, (1, 1, 11), 10),
        (4096, (16, 16, 16), 3 * 4096),
        (192, (4, 4, 12), 3 * 192),  # v4-384, of two cores a chip
        # cubes in a row are longer than the pod's shape (Google Cloud, TPU v4: 12x12x24)
        (3456, (12, 12, 24), 3 * 3456),
    ],
)
def test_slices_of_a_torus_behind_optical_switches(
    nodes: int, extents: tuple[int, ...], cables: int
) -> None:
    topology = from_cluster(load_cluster("tpu-v4-pod"), nodes)
    assert sorted(topology.shape[1:]) == sorted(extents)
    ici = [name == "ici" for name in topology.link_class]
    assert int(topology.count[ici].sum()) == 2 * cables


def test_only_whole_dimensions_of_a_plain_torus_close() -> None:
    for nodes, cables in ((256, 2 * 256), (64, 2 * 8 * 7), (128, 8 * 16 + 16 * 7)):
        topology = from_cluster(load_cluster("tpu-v5e-pod"), nodes)
        ici = [name == "ici" for name in topology.link_class]
        assert int(topology.count[ici].sum()) == 2 * cables
    with pytest.raises(RidgelineError, match="17 nodes do not fill a torus of 16x16"):
        from_cluster(load_cluster("tpu-v5e-pod"), 17)


@pytest.mark.parametrize(
    ("shape", "cables"), [((2, 2), 4), ((2, 3), 3 + 2 * 3), ((3, 3), 2 * 9), ((2, 2, 2), 12)]
)
def test_two_nodes_of_a_torus_are_linked_once(shape: tuple[int, ...], cables: int) -> None:
    """Around a ring of two there is no second way that is not the first."""
    nodes = math.prod(shape)
    topology = from_cluster(fabric("torus", shape=shape), 2 * nodes)
    between = topology.node_of[topology.source] != topology.node_of[topology.target]
    assert int(topology.count[between].sum()) == 2 * 2 * cables  # both directions, two NICs


def test_a_pod_has_the_bandwidths_of_its_data_sheet() -> None:
    # Google Cloud, TPU v5e: bisection 1.6 TB/s and all-reduce bandwidth 51.2 TB/s a pod
    whole = {"link_types.ici.achievable": {"value": 1.0, "source": "cloud", "basis": "data-sheet"}}
    topology = from_cluster(load_cluster("tpu-v5e-pod", whole), 256)
    assert measure(topology).bisection_bytes_per_s == pytest.approx(1.6e12)
    result = collective("all-reduce", 1e11, topology)
    assert result.algorithm == "multi-torus"
    assert 256 * (result.busbw_bytes_per_s or 0) == pytest.approx(51.2e12, rel=1e-3)
    # a slice's rings are of its own links, and groups of some of its chips go round
    assert collective("all-reduce", 1e9, topology, ranks=range(0, 256, 16)).algorithm == "ring"
