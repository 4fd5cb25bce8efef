"""Topologies: counts, diameter, bisection and paths against what is published for each family."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from ridgeline.cli import execute
from ridgeline.errors import ConfigError
from ridgeline.network import from_text
from ridgeline.network.files import from_file
from ridgeline.network.topology_metrics import (
    bisection_bandwidth,
    diameter,
    measure,
    n_shortest_paths,
)

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


def test_two_halves_without_a_link_are_not_connected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "apart.yaml"
    path.write_text(FILE.replace("  - {between: [c, hub], type: slow}\n", ""))
    found = measure(from_file(path))
    assert (found.bisection_bytes_per_s, found.bisection_method) == (0.0, "not connected")
    assert execute(["topology", str(path)]) == 0
    assert capsys.readouterr().out.count("not connected") == 2


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
        (f"Mesh(800x800, {LINK})", "1 to"), (f"Hypercube(20, {LINK})", "1 to 16"),
        (f"FatTree(5, {LINK})", "even"), (f"FatTree(64, {LINK})", "must be 1 to 62"),
        (f"Dragonfly(2, 4, {LINK})", "Dragonfly takes"), (f"Tree(10, 4, 2, {LINK})", "full leaves"),
        (f"Ring(4, {LINK})_Swich(2, {LINK})", "did you mean 'Switch'"),
        (f"Ring(4, {LINK})_Switch(2)", "Switch has no links"),
        (f"Ring(4096, {LINK})_Switch(4096, {LINK})", "at most 262144"),
    ],
)  # fmt: skip
def test_impossible_text(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_text(text)


def test_two_devices_without_a_way() -> None:
    topology = from_text(f"Switch(4, {LINK})")
    cut = dataclasses.replace(topology, vertex_kinds=("device",) * 5, devices_forward=False)
    assert diameter(cut) == -1
