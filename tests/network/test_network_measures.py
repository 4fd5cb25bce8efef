"""Topologies: counts, diameter, bisection and paths against what is published for each family."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from network_machines import cluster, switched
from pydantic import ValidationError

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware import load_cluster
from ridgeline.hardware.cluster import Cluster, Fabric
from ridgeline.network import Topology, collective, from_cluster, from_text
from ridgeline.network.files import from_file
from ridgeline.network.measures import bisection_bandwidth, diameter, measure, n_shortest_paths

LINK = "2 GB/s, 1 us"


def test_al_fares_k_48() -> None:
    # Al-Fares, Loukissas and Vahdat, SIGCOMM 2008, sections 1 and 2.2
    topology = from_text(f"FatTree(48, {LINK})")
    found = measure(topology)
    assert (found.n_devices, found.n_switches) == (27_648, 2_880)
    assert found.n_links == 3 * 27_648
    assert found.diameter == 6
    assert found.bisection_bytes_per_s == 27_648 / 2 * 2e9
    assert n_shortest_paths(topology, 0, 27_647) == 576
    assert n_shortest_paths(topology, 0, 24) == 24  # another edge switch of the pod
    assert n_shortest_paths(topology, 0, 1) == 1


@pytest.mark.parametrize("k", [2, 4, 6, 8])
def test_k_ary_fat_trees(k: int) -> None:
    topology = from_text(f"FatTree({k}, {LINK})")
    found = measure(topology)
    assert (found.n_devices, found.n_switches) == (k**3 // 4, 5 * k * k // 4)
    ports = Counter(topology.source[np.array(topology.vertex_kinds)[topology.source] == "switch"])
    assert set(ports.values()) == {k}
    assert n_shortest_paths(topology, 0, topology.n_devices - 1) == (k // 2) ** 2


# text, links, diameter, bisection in links (Dally and Towles, 2004, chapters 3 and 5; Duato, 2003)
FAMILIES = [
    ("Ring(8", 8, 4, 2), ("Ring(7", 7, 3, 2), ("Ring(2", 1, 1, 1),
    ("Switch(8", 8, 2, 4), ("Switch(5", 5, 2, 2),
    ("FullyConnected(8", 28, 1, 16), ("FullyConnected(5", 10, 1, 6),
    ("Mesh(4x4", 24, 6, 4), ("Mesh(6", 5, 5, 1), ("Mesh(2x4x2", 28, 5, 4),
    ("Torus(4x4", 32, 4, 8), ("Torus(4x8", 64, 6, 8), ("Torus(4x4x4", 192, 6, 32),
    ("Torus(2x4", 12, 3, 4),
    ("Hypercube(3", 12, 3, 4), ("Hypercube(4", 32, 4, 8), ("Hypercube(6", 192, 6, 32),
    ("HyperX(4x4", 48, 2, 16),
]  # fmt: skip


@pytest.mark.parametrize(("text", "links", "hops", "cut"), FAMILIES)
def test_families(text: str, links: int, hops: int, cut: int) -> None:
    topology = from_text(f"{text}, {LINK})")
    found = measure(topology)
    assert (found.n_links, found.diameter) == (links, hops)
    assert found.bisection_bytes_per_s == pytest.approx(cut * 2e9)
    assert found.bisection_method == "formula"


@pytest.mark.parametrize(
    "text", ["Ring(7", "Ring(8", "Switch(6", "FullyConnected(7", "Mesh(2x4", "Torus(2x4",
             "Torus(2x2x2", "HyperX(2x4", "FatTree(2", "Hypercube(3"],
)  # fmt: skip
def test_formulas_are_the_narrowest_of_all_halves(text: str) -> None:
    topology = from_text(f"{text}, {LINK})")
    known, method = bisection_bandwidth(topology)
    unknown = dataclasses.replace(topology, bisection_bytes_per_s=None)
    assert method == "formula"
    assert bisection_bandwidth(unknown) == (pytest.approx(known), "exhaustive")


@pytest.mark.parametrize("text", ["Torus(4x4", "Mesh(4x4", "Hypercube(4", "FatTree(4"])
def test_straight_cuts_bound_from_above(text: str) -> None:
    topology = from_text(f"{text}, {LINK})")
    known, _ = bisection_bandwidth(topology)
    unknown = dataclasses.replace(topology, bisection_bytes_per_s=None)
    assert bisection_bandwidth(unknown) == (pytest.approx(known), "bound")


def test_a_product_as_astra_sim_writes_it() -> None:
    topology = from_text("Ring(8, 200 GB/s, 500 ns)_Switch(16, 25 GB/s, 1 us)")
    assert topology.n_devices == 128
    assert topology.shape == (8, 16)
    assert measure(topology).n_links == 16 * 8 + 8 * 16
    assert measure(topology).n_switches == 8
    assert diameter(topology) == 4 + 2
    assert set(topology.bandwidth_bytes_per_s) == {200e9, 25e9}
    assert bisection_bandwidth(topology)[0] == pytest.approx(8 * 8 * 25e9)
    (link,) = topology.links_between(0, 1)
    assert topology.latency_s[link] == 500e-9
    assert not topology.links_between(0, 8)


@pytest.mark.parametrize(("p", "a", "h"), [(1, 2, 1), (2, 4, 2), (2, 3, 2), (4, 8, 4)])
def test_dragonfly(p: int, a: int, h: int) -> None:
    topology = from_text(f"Dragonfly({p}, {a}, {h}, {LINK})")
    groups = a * h + 1  # Kim, Dally, Scott and Abts, ISCA 2008
    assert topology.n_devices == p * a * groups
    assert measure(topology).n_switches == a * groups
    ports = Counter(topology.source[np.array(topology.vertex_kinds)[topology.source] == "switch"])
    assert set(ports.values()) == {p + a - 1 + h}
    assert diameter(topology) <= 5
    group = np.array([int(name[5:].split(".")[0]) if name.startswith("group") else -1
                      for name in topology.vertex_names])  # fmt: skip
    ends = np.stack((group[topology.source], group[topology.target]))
    between = Counter(
        map(tuple, ends[:, (ends >= 0).all(axis=0) & (ends[0] != ends[1])].T.tolist())
    )
    assert len(between) == groups * (groups - 1)
    assert set(between.values()) == {1}


def test_an_oversubscribed_tree() -> None:
    topology = from_text(f"Tree(64, 16, 4, {LINK})")
    found = measure(topology)
    assert (found.n_switches, found.n_links, found.diameter) == (5, 64 + 16, 4)
    assert found.bisection_bytes_per_s == 2 * 4 * 2e9


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


FILE = """
kind: topology
name: triangle
devices: [a, b, c]
switches: [hub]
routing: shortest
link_types:
  fast: {bandwidth: 10 GB/s, latency: 1 us, energy: 10 pJ/bit}
  slow: {bandwidth: 1 GB/s, latency: 2 us}
links:
  - {between: [a, b], type: fast, count: 2}
  - {between: [a, hub], type: slow}
  - {between: [b, hub], type: slow}
  - {between: [c, hub], type: slow}
"""


def test_a_graph_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "triangle.yaml"
    path.write_text(FILE)
    topology = from_file(path)
    assert (topology.n_devices, topology.n_vertices, topology.n_links) == (3, 4, 8)
    (link,) = topology.links_between(0, 1)
    assert topology.bandwidth_bytes_per_s[link] == 20e9
    assert topology.energy_j_per_byte[link] == pytest.approx(80e-12)
    assert bisection_bandwidth(topology) == (pytest.approx(1e9), "exhaustive")
    assert diameter(topology) == 2
    for old, new, message in [
        ("type: slow}\n", "type: slwo}\n", "did you mean 'slow'"),
        ("[c, hub]", "[d, hub]", "ends at 'd'"),
        ("[c, hub]", "[c, c]", "joins a vertex to itself"),
        ("[a, b, c]", "[a, a, c]", "same name"),
    ]:
        path.write_text(FILE.replace(old, new, 1))
        with pytest.raises(ConfigError, match=message):
            from_file(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"Torus(4by8, {LINK})", "extents"), (f"Torus(0x8, {LINK})", "1 to"),
        (f"Mesh(400x400, {LINK})", "1 to"), (f"Hypercube(20, {LINK})", "1 to 16"),
        (f"FatTree(5, {LINK})", "even"), (f"FatTree(64, {LINK})", "must be 1 to 62"),
        (f"Dragonfly(2, 4, {LINK})", "Dragonfly takes"), (f"Tree(10, 4, 2, {LINK})", "full leaves"),
        (f"Ring(4, {LINK})_Swich(2, {LINK})", "did you mean 'Switch'"),
        (f"Ring(4, {LINK})_Switch(2)", "Switch has no links"),
        (f"Ring(4096, {LINK})_Switch(4096, {LINK})", "at most 65536"),
    ],
)  # fmt: skip
def test_impossible_text(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_text(text)


def test_two_devices_without_a_way() -> None:
    topology = from_text(f"Switch(4, {LINK})")
    cut = dataclasses.replace(topology, vertex_kinds=("device",) * 5, devices_forward=False)
    assert diameter(cut) == -1


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


def test_a_pod_has_the_bandwidths_of_its_data_sheet() -> None:
    # Google Cloud, TPU v5e: bisection 1.6 TB/s and all-reduce bandwidth 51.2 TB/s a pod
    topology = from_cluster(load_cluster("tpu-v5e-pod"), 256)
    assert measure(topology).bisection_bytes_per_s == pytest.approx(1.6e12)
    result = collective("all-reduce", 1e11, topology)
    assert result.algorithm == "multi-torus"
    assert 256 * (result.busbw_bytes_per_s or 0) == pytest.approx(51.2e12, rel=1e-3)
    # a slice's rings are of its own links, and groups of some of its chips go round
    assert collective("all-reduce", 1e9, topology, ranks=range(0, 256, 16)).algorithm == "ring"
