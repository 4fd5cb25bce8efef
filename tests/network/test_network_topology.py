from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from network_machines import CUBE_MESH, cluster, dgx1, node, single, switched

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware import load_cluster
from ridgeline.network import Topology, from_cluster, from_text
from ridgeline.network.inline import INLINE, with_links
from ridgeline.network.resolve import topology_of
from ridgeline.network.routing import route
from ridgeline.network.topology_metrics import measure


def kinds(topology: Topology) -> Counter[str]:
    return Counter(topology.vertex_kinds)


def check_arrays(topology: Topology) -> None:
    """Arrays that belong together agree, and every link has its way back."""
    ends = list(zip(topology.source, topology.target, topology.link_class, strict=True))
    assert ends == sorted(set(ends))
    back = {end: i for i, end in enumerate(ends)}
    for i, (source, target, name) in enumerate(ends):
        j = back[target, source, name]
        assert topology.bandwidth_bytes_per_s[i] == topology.bandwidth_bytes_per_s[j]
        assert topology.count[i] == topology.count[j]
    for vertex in range(topology.n_vertices):
        leaving = range(topology.out_ptr[vertex], topology.out_ptr[vertex + 1])
        assert list(leaving) == np.flatnonzero(topology.source == vertex).tolist()
    assert all(topology.vertex_kinds[vertex] == "device" for vertex in topology.devices)
    with pytest.raises(ValueError, match="read-only"):
        topology.bandwidth_bytes_per_s[0] = 1.0


def test_a_node_becomes_its_graph() -> None:
    topology = from_cluster(single(dgx1("v100", latency="2 us")), 8)
    check_arrays(topology)
    assert kinds(topology) == {"device": 8, "host": 2, "switch": 4, "nic": 4}
    assert topology.n_links == 2 * (16 + 16 + 1)
    assert topology.devices.tolist() == list(range(8))
    for (a, b), count in CUBE_MESH.items():
        for source, target in ((a, b), (b, a)):
            (link,) = topology.links_between(source, target)
            assert topology.count[link] == count
            assert topology.bandwidth_bytes_per_s[link] == count * 25e9
            assert topology.latency_s[link] == 2e-6
            assert topology.energy_j_per_byte[link] == pytest.approx(10e-12)
            assert topology.link_class[link] == "nvlink"
    assert topology.link_name(0) == "node0.device0->node0.device1 (nvlink)"
    assert list(topology.links_between(0, 5)) == []


def test_parallel_links_are_merged_per_type_and_the_achievable_share_counts() -> None:
    links: list[dict[str, object]] = [
        {"between": ["device0", "device1"], "type": "nvlink", "count": 2},
        {"between": ["device1", "device0"], "type": "nvlink"},
        {"between": ["device0", "device1"], "type": "pcie"},
    ]
    topology = from_cluster(single(node("pair", 2, links, achievable=0.5)), 2)
    check_arrays(topology)
    nvlink, pcie = topology.links_between(0, 1)
    assert topology.link_class[nvlink] == "nvlink"
    assert (topology.count[nvlink], topology.count[pcie]) == (3, 1)
    assert topology.bandwidth_bytes_per_s[nvlink] == 3 * 10e9
    assert topology.bandwidth_bytes_per_s[pcie] == 16e9


@pytest.mark.parametrize(("n_devices", "nodes"), [(1, 1), (8, 1), (9, 2), (16, 2), (20, 3)])
def test_nodes_are_filled_in_order_and_drawn_whole(n_devices: int, nodes: int) -> None:
    topology = from_cluster(cluster(dgx1("p100"), 4), n_devices)
    check_arrays(topology)
    assert topology.n_devices == n_devices
    assert kinds(topology)["device"] == 8 * nodes
    assert topology.node_of[topology.devices].tolist() == [i // 8 for i in range(n_devices)]
    fabric = [n for n in topology.vertex_names if n.startswith(("leaf", "spine"))]
    assert fabric == ([] if nodes == 1 else ["leaf0"])


@given(radix=st.sampled_from([2, 4, 6, 8, 36]), nodes=st.integers(2, 24))
@settings(deadline=None)
def test_the_fat_tree_has_full_bisection_and_no_switch_more_ports_than_it_has(
    radix: int, nodes: int
) -> None:
    n_nics = nodes * 4
    machine = cluster(switched(2, 4), 24, radix=radix)
    if n_nics > radix * radix // 2:
        with pytest.raises(RidgelineError, match="at most"):
            from_cluster(machine, nodes * 2)
        return
    topology = from_cluster(machine, nodes * 2)
    check_arrays(topology)
    down: Counter[str] = Counter()
    up: Counter[str] = Counter()
    for i, (source, target) in enumerate(zip(topology.source, topology.target, strict=True)):
        above = topology.vertex_names[source]
        if above.startswith(("leaf", "spine")):
            is_up = topology.vertex_names[target].startswith("spine")
            (up if is_up else down)[above] += int(topology.count[i])
            per_cable = topology.bandwidth_bytes_per_s[i] / topology.count[i]
            assert per_cable == pytest.approx(12.5e9)
    assert sum(n for name, n in down.items() if name.startswith("leaf")) == n_nics
    assert all((up + down)[name] <= radix for name in down)
    if n_nics <= radix:
        assert list(down) == ["leaf0"]
    else:
        assert all(up[name] >= down[name] for name in down if name.startswith("leaf"))
        spines = {name: n for name, n in down.items() if name.startswith("spine")}
        assert sum(spines.values()) == sum(up.values())
        assert len(set(spines.values())) == 1


def test_the_catalogue_node_is_the_machine_that_was_measured() -> None:
    topology = from_cluster(load_cluster("dgx1-v100"), 8)
    check_arrays(topology)
    nvlinks = [i for i, name in enumerate(topology.link_class) if name == "nvlink2"]
    assert topology.count[nvlinks].sum() == 2 * 24
    assert topology.collective_latency_s > 0


def test_more_devices_than_there_are() -> None:
    with pytest.raises(RidgelineError, match="'dgx1-p100-edr' has 1 to 16"):
        from_cluster(cluster(dgx1("p100"), 2), 17)
    with pytest.raises(RidgelineError, match="0 devices"):
        from_cluster(cluster(dgx1("p100"), 2), 0)
    with pytest.raises(RidgelineError, match="up to 262144 can be drawn"):
        from_cluster(cluster(dgx1("p100"), 1_000_000), 8_000_000)


def test_an_inline_ring() -> None:
    topology = from_text("Ring(16, 50 GB/s, 500 ns)")
    check_arrays(topology)
    assert (topology.n_devices, topology.n_links) == (16, 32)
    assert set(topology.bandwidth_bytes_per_s) == {50e9}
    assert set(topology.latency_s) == {500e-9}
    assert set(topology.energy_j_per_byte) == {0.0}
    assert topology.collective_latency_s == 0
    assert from_text("Ring(2, 1 GB/s, 0 s)").n_links == 2
    assert from_text("Ring(1, 1 GB/s, 0 s)").n_links == 0


def test_an_inline_switch() -> None:
    topology = from_text(" Switch( 4 , 1 GiB/s, 1us ) ")
    check_arrays(topology)
    assert (topology.n_devices, topology.n_vertices, topology.n_links) == (4, 5, 8)
    assert set(topology.bandwidth_bytes_per_s) == {2.0**30}
    assert set(INLINE) >= {"Ring", "Switch"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Rung(4, 1 GB/s, 1 us)", "did you mean 'Ring'"),
        ("Ring(4, 1 GB/s)", "found 2 arguments"),
        ("Ring(0, 1 GB/s, 1 us)", "must be 1 to"),
        ("Ring(-3, 1 GB/s, 1 us)", "must be 1 to"),
        ("Ring(1000000000, 1 GB/s, 1 us)", "must be 1 to"),
        ("Ring(4, 1 GB, 1 us)", "another dimension"),
        ("Ring(4, 0 GB/s, 1 us)", "more than 0"),
        ("Ring(4, 1 GB/s, -1 us)", "at least 0"),
        ("Ring 4", "not an inline topology"),
        ("Ring(4, 1 GB/s, 1 us))", "not an inline topology"),
    ],
)
def test_text_that_is_no_topology(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_text(text)


@pytest.mark.parametrize(
    ("name", "n_devices", "links"), [("dgx1-p100", 8, 16), ("dgx1-v100-edr", 32, 4 * 24)]
)
def test_catalogue_machines_have_the_links_of_the_cube_mesh(
    name: str, n_devices: int, links: int
) -> None:
    topology = from_cluster(load_cluster(name), n_devices)
    check_arrays(topology)
    nvlinks = [i for i, kind in enumerate(topology.link_class) if kind.startswith("nvlink")]
    assert topology.count[nvlinks].sum() == 2 * links


@pytest.mark.parametrize(
    ("short", "plain"),
    [
        ("Torus2D(3, 5, 25 GB/s, 1 us)", "Torus(3x5, 25 GB/s, 1 us)"),
        ("Torus3D(2x3x4, 25 GB/s, 1 us)", "Torus(2x3x4, 25 GB/s, 1 us)"),
        ("Mesh1D(5, 25 GB/s, 1 us)", "Mesh(5, 25 GB/s, 1 us)"),
        ("Dragonfly+(2, 2, 2, 1, 25 GB/s, 1 us)", "DragonflyPlus(2, 2, 2, 1, 25 GB/s, 1 us)"),
    ],
)
def test_names_that_say_their_dimensions(short: str, plain: str) -> None:
    one, other = from_text(short), from_text(plain)
    assert (one.shape, one.n_links) == (other.shape, other.n_links)
    assert (one.source == other.source).all()
    assert (one.target == other.target).all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Torus3D(3x5, 25 GB/s, 1 us)", "Torus3D has 3 extents, found '3x5'"),
        ("Ring(7, 25 GB/s, 1 us", "is not an inline topology"),
        ("Ring(8)_Switch(16)", "write for example 'Ring(8, 50 GB/s, 500 ns)_Switch(16, 50 GB/s, "),
        ("Ring(8)_Switch(16)", "--bandwidth 50GB/s,50GB/s --latency 500ns"),
        ("Ring(8, 1 GB/s, 1 us)_Switch(16)", "Switch has no links: write for example 'Ring(8, 1"),
        ("Ring(8)_Swich(16)", "did you mean 'Switch'"),
        ("Tree(8, 4, 2, 1 GB/s, 1 us)_Ring(2, 1 GB/s, 1 us)", "no dimension of a product"),
        ("FatTree(3, 1 GB/s, 1 us)_Ring(2, 1 GB/s, 1 us)", "k must be even"),
        ("Ring()", "found 0 arguments"),
        ("Torus2D()", "Torus2D has 2 extents"),
        ("Hypercube(0, 1 GB/s, 1 us)", "the number of dimensions must be 1 to 16"),
        ("Torus2E(3, 5, 25 GB/s, 1 us)", "no inline topology is called 'Torus2E'"),
    ],
)
def test_inline_text_that_is_wrong_is_not_taken_for_a_file(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        topology_of(text)


def test_links_of_a_product_may_stand_apart() -> None:
    apart = with_links("Ring(8)_Switch(16)", "200 GB/s, 25GB/s", "500 ns")
    assert apart == "Ring(8, 200 GB/s, 500 ns)_Switch(16, 25GB/s, 500 ns)"
    assert from_text(apart).n_devices == 128
    assert with_links("Tree(8, 4, 2)", "1 GB/s", "1 us") == "Tree(8, 4, 2, 1 GB/s, 1 us)"
    assert with_links("dgx-a100", None, None) == "dgx-a100"
    for text, bandwidth, latency, words in (
        ("Ring(8)", "1 GB/s", None, "latency is missing"),
        ("Ring(8)", None, "1 us", "bandwidth is missing"),
        ("Ring(8)_Ring(4)_Ring(2)", "1 GB/s,2 GB/s", "1 us", "one for each of 3 parts"),
        ("Ring(8, 1 GB/s, 1 us)", "1 GB/s", "1 us", "has links"),
        ("dgx-a100", "1 GB/s", "1 us", "'dgx-a100' is none"),
    ):
        with pytest.raises(ConfigError, match=re.escape(words)):
            with_links(text, bandwidth, latency)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (
            "Torus(3x4, 9 GB/s, 1 us)_Switch(2, 1 GB/s, 2 us)",
            "Ring(3, 9 GB/s, 1 us)_Ring(4, 9 GB/s, 1 us)_Switch(2, 1 GB/s, 2 us)",
        ),
        (
            "Switch(3, 9 GB/s, 1 us)_Mesh(2x5, 1 GB/s, 2 us)",
            "Switch(3, 9 GB/s, 1 us)_Line(2, 1 GB/s, 2 us)_Line(5, 1 GB/s, 2 us)",
        ),
        (
            "Hypercube(2, 9 GB/s, 1 us)_HyperX(3, 1 GB/s, 2 us)",
            "Ring(2, 9 GB/s, 1 us)_Ring(2, 9 GB/s, 1 us)_FullyConnected(3, 1 GB/s, 2 us)",
        ),
    ],
)
def test_a_product_may_have_grids(short: str, long: str) -> None:
    one, other = from_text(short), from_text(long)
    assert one.shape == other.shape
    assert (one.source == other.source).all()
    assert (one.bandwidth_bytes_per_s == other.bandwidth_bytes_per_s).all()


def test_a_fat_tree_for_each_place_of_a_node() -> None:
    topology = from_text("Switch(3, 100 GB/s, 1 us)_FatTree(4, 10 GB/s, 2 us)")
    check_arrays(topology)
    assert topology.shape == (3, 16)
    assert len(topology.vertex_names) == len(set(topology.vertex_names)) == 48 + 16 + 3 * 20
    # in the node first, then up to a core and down again
    way = route(topology, int(topology.devices[0]), int(topology.devices[47]))
    latencies = [round(float(topology.latency_s[i]) * 1e6) for i in way]
    assert latencies == [1, 1, 2, 2, 2, 2, 2, 2]
    assert measure(topology).bisection_bytes_per_s <= 24 * 10e9


def test_a_file_may_have_parentheses_in_its_name(tmp_path: Path) -> None:
    path = tmp_path / "my(1).yaml"
    with pytest.raises(ConfigError, match="cannot be read"):
        topology_of(str(path))
