"""Rings through more devices than are searched exactly, and rails through several switches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import combinations, pairwise, permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from network_machines import cluster, node, single

from ridgeline.errors import RidgelineError
from ridgeline.hardware.node import Node
from ridgeline.network import Topology, collective, from_cluster, rings
from ridgeline.network.files import from_file
from ridgeline.network.hamilton import disjoint_rings, find_path, hops
from ridgeline.network.packing import pack_rings
from ridgeline.network.rings import Channels, ring_channels
from thoroughly import sample_of

Pairs = Iterable[tuple[int, int]]


def wired(n: int, pairs: Pairs, name: str = "wired") -> Node:
    """Return a node of direct links of 20 GB/s alone."""
    links: list[dict[str, object]] = [
        {"between": [f"device{a}", f"device{b}"], "type": "nvlink"} for a, b in pairs
    ]
    return node(name, n, links)


def railed(n: int, rails: Iterable[tuple[str, int]]) -> Node:
    """Return a node with a switch per rail, given as the type and the count of its links."""
    links: list[dict[str, object]] = []
    components = []
    for number, (kind, count) in enumerate(rails):
        components.append({"name": f"switch{number}", "kind": "switch"})
        links += [
            {"between": [f"device{i}", f"switch{number}"], "type": kind, "count": count}
            for i in range(n)
        ]
    return node("railed", n, links, components)


def grid(rows: int, columns: int, *, wrap: bool) -> set[tuple[int, int]]:
    """Pairs of a mesh or torus, numbered row by row."""
    found = set()
    for i in range(rows):
        for j in range(columns):
            for x, y in ((i + 1, j), (i, j + 1)):
                if wrap or (x < rows and y < columns):
                    a, b = columns * i + j, columns * (x % rows) + y % columns
                    found.add((min(a, b), max(a, b)))
    return found


def cube(dimensions: int) -> set[tuple[int, int]]:
    pairs = combinations(range(1 << dimensions), 2)
    return {(a, b) for a, b in pairs if (a ^ b).bit_count() == 1}


def cable(order: Iterable[int]) -> list[tuple[int, int]]:
    return list(hops(tuple(order)))


def check(topology: Topology, ranks: tuple[int, ...]) -> Channels:
    """No link carries more than it can, no device sends more than its links, one ring is beaten."""
    channels = ring_channels(topology, ranks)
    on_link: Counter[int] = Counter()
    for channel in channels.channels:
        assert sorted(channel.ranks) == sorted(ranks)
        ends = zip(channel.ranks, (*channel.ranks[1:], channel.ranks[0]), strict=True)
        for (a, b), links in zip(ends, channel.routes, strict=True):
            vertices = [topology.devices[a], *topology.target[list(links)].tolist()]
            assert topology.source[list(links)].tolist() == vertices[:-1]
            assert vertices[-1] == topology.devices[b]
            for link in links:
                on_link[link] += channel.bandwidth_bytes_per_s
    capacity = topology.bandwidth_bytes_per_s
    assert all(rate <= capacity[link] * (1 + 1e-9) for link, rate in on_link.items())
    if channels.method.startswith("packed"):
        uses = Counter(i for c in channels.channels for links in c.routes for i in links)
        assert all(times <= topology.count[link] for link, times in uses.items())
    assert channels.bandwidth_bytes_per_s <= egress(topology, ranks) * (1 + 1e-9)
    assert sum(channel.share for channel in channels.channels) == pytest.approx(1)
    again = rings._chosen(topology, ranks)  # not remembered
    assert again == channels
    return channels


def egress(topology: Topology, ranks: tuple[int, ...]) -> float:
    """Bytes per second of the links out of the device that has the least."""
    out = np.bincount(topology.source, topology.bandwidth_bytes_per_s, topology.n_vertices)
    return float(out[topology.devices[list(ranks)]].min())


@pytest.mark.parametrize(
    ("n", "rings"), [(9, 8), (10, 9), (12, 11), (15, 14), (16, 15), (24, 23), (32, 31)]
)
def test_all_to_all_wired_nodes_use_every_link(n: int, rings: int) -> None:
    topology = from_cluster(single(wired(n, combinations(range(n), 2))), n)
    channels = check(topology, tuple(range(n)))
    assert channels.method == "packed by heuristic"
    assert channels.bandwidth_bytes_per_s == rings * 20e9 == egress(topology, tuple(range(n)))
    result = collective("all-reduce", 1e9, topology, algorithm="ring")
    assert result.busbw_bytes_per_s == pytest.approx(rings * 20e9)


def test_64_devices_all_to_all() -> None:
    count = np.ones((64, 64), dtype=np.int64) - np.eye(64, dtype=np.int64)
    assert len(disjoint_rings(count, count.astype(float))) > 60


PERMUTED = (4, 0, 7, 2, 8, 5, 1, 6, 3)


@pytest.mark.parametrize(
    ("n", "pairs", "rings"),
    [
        (16, grid(4, 4, wrap=True), 4),
        (16, grid(4, 4, wrap=False), 2),
        (16, cube(4), 4),
        (32, cube(5), 5),
        (9, grid(3, 3, wrap=True), 4),
        (12, grid(3, 4, wrap=False), 2),
        (64, grid(8, 8, wrap=False), 2),
        (9, cable(PERMUTED), 2),
        (16, cable(7 * i % 16 for i in range(16)), 2),
    ],
)
def test_wired_in_another_order_than_rank_order(
    n: int, pairs: list[tuple[int, int]], rings: int
) -> None:
    topology = from_cluster(single(wired(n, pairs)), n)
    channels = check(topology, tuple(range(n)))
    assert channels.method == "packed by heuristic"
    assert len(channels.channels) == rings
    assert all(len(links) == 1 for c in channels.channels for links in c.routes)


@given(st.permutations(range(13)))
@settings(max_examples=30, deadline=None)
def test_any_cabling_of_a_ring_is_found_in_both_directions(order: list[int]) -> None:
    count = np.zeros((13, 13), dtype=np.int64)
    for a, b in cable(order):
        count[a, b] = count[b, a] = 1
    zero = order.index(0)
    forth = (*order[zero:], *order[:zero])
    assert set(disjoint_rings(count, count.astype(float))) == {forth, (0, *forth[:0:-1])}


@sample_of(50, 200, st.integers(3, 8), st.integers(0, 2**32))
def test_the_heuristic_is_disjoint_and_bounded_by_the_exact_search(n: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    count = generator.integers(0, 3, (n, n)) * (1 - np.eye(n, dtype=np.int64))
    unit = generator.choice([1.0, 2.0], (n, n)) if seed % 2 else np.ones((n, n))
    rings = disjoint_rings(count, unit)
    used = Counter(hop for ring in rings for hop in hops(ring))
    assert all(sorted(ring) == list(range(n)) for ring in rings)
    assert all(times <= count[hop] for hop, times in used.items())
    exact = pack_rings(tuple(map(tuple, count.tolist())), tuple(map(tuple, unit.tolist())))
    total = sum(min(unit[hop] for hop in hops(ring)) for ring in rings)
    if exact.proven:
        assert total <= sum(exact.bandwidths_bytes_per_s) * (1 + 1e-12)


@given(st.integers(2, 6), st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_a_path_is_found_where_there_is_one(n: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    linked = (generator.random((n, n)) < 0.5) & ~np.eye(n, dtype=bool)
    last = n - 1
    exists = any(
        all(linked[a, b] for a, b in zip((0, *middle), (*middle, last), strict=True))
        for middle in permutations(range(1, last))
    )
    path = find_path(linked, 0, (last,))
    assert (path is not None) == exists  # so few devices that no search is cut short
    if path is not None:
        assert (path[0], path[-1], sorted(path)) == (0, last, list(range(n)))
        assert all(linked[a, b] for a, b in pairwise(path))


@sample_of(8, 30, st.integers(9, 14), st.integers(0, 2**32))
def test_random_wiring_with_a_rank_order_ring_is_never_worse_than_it(n: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    pairs = set(cable(range(n)))
    pairs |= {(a, b) for a, b in combinations(range(n), 2) if generator.random() < 0.3}
    pairs = {(min(pair), max(pair)) for pair in pairs}
    topology = from_cluster(single(wired(n, sorted(pairs))), n)
    assert check(topology, tuple(range(n))).bandwidth_bytes_per_s >= 2 * 20e9


def test_the_error_says_that_rings_were_looked_for() -> None:
    topology = from_cluster(single(wired(9, grid(3, 3, wrap=False))), 9)  # odd and bipartite
    with pytest.raises(
        RidgelineError, match=r"no ring over direct links was found .* in rank order there is no r"
    ):
        ring_channels(topology, tuple(range(9)))
    with pytest.raises(RidgelineError, match=r"^there is no route"):
        ring_channels(topology, (0, 4))


def test_nodes_of_many_wired_devices_are_joined_over_their_direct_links() -> None:
    links: list[dict[str, object]] = [
        {"between": [f"device{a}", f"device{b}"], "type": "nvlink"}
        for a, b in sorted(grid(4, 4, wrap=True))
    ]
    links += [{"between": [f"device{i}", "nic0"], "type": "pcie"} for i in (0, 1)]
    links += [{"between": [f"device{i}", "plx"], "type": "pcie"} for i in range(2, 16)]
    links.append({"between": ["plx", "nic0"], "type": "pcie"})
    components = [{"name": "nic0", "kind": "nic"}, {"name": "plx", "kind": "switch"}]
    topology = from_cluster(cluster(node("torus", 16, links, components), 2), 32)
    channels = ring_channels(topology, tuple(range(32)))
    assert len(channels.channels) == 2
    for channel in channels.channels:
        assert sum(len(links) > 1 for links in channel.routes) == 2  # between the nodes alone
    assert channels.bandwidth_bytes_per_s == pytest.approx(12.5e9)


@pytest.mark.parametrize("n", [2, 3, 8, 9, 16])
@pytest.mark.parametrize("rails", [1, 4, 6])
def test_one_channel_for_every_rail(n: int, rails: int) -> None:
    topology = from_cluster(single(railed(n, [("nvlink", 1)] * rails)), n)
    channels = check(topology, tuple(range(n)))
    assert channels.method == ("routed" if rails == 1 else "routed, per rail")
    assert [c.bandwidth_bytes_per_s for c in channels.channels] == [20e9] * rails
    result = collective("all-reduce", 1e9, topology, algorithm="ring")
    assert result.busbw_bytes_per_s == pytest.approx(rails * 20e9)


@given(
    st.integers(2, 12),
    st.lists(st.tuples(st.sampled_from(["nvlink", "pcie"]), st.integers(1, 4)), min_size=1,
             max_size=4),
    st.data(),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_unequal_rails_add_up(n: int, rails: list[tuple[str, int]], data: st.DataObject) -> None:
    topology = from_cluster(single(railed(n, rails)), n)
    ranks = tuple(data.draw(st.lists(st.sampled_from(range(n)), min_size=2, unique=True)))
    channels = check(topology, ranks)
    assert channels.bandwidth_bytes_per_s == pytest.approx(egress(topology, ranks))


def test_a_rail_that_would_delay_the_rounds_is_left_out(tmp_path: Path) -> None:
    def text(latency: str) -> str:
        links = "\n".join(
            f"  - {{between: [d{i}, s{kind}], type: {kind}}}" for i in range(4) for kind in "ab"
        )
        return (
            "kind: topology\nname: two\ndevices: [d0, d1, d2, d3]\nswitches: [sa, sb]\n"
            "link_types:\n  a: {bandwidth: 100 GB/s, latency: 1 us}\n"
            f"  b: {{bandwidth: 50 GB/s, latency: {latency}}}\nlinks:\n{links}\n"
        )

    path = tmp_path / "two.yaml"
    for latency, rates in (("1 us", [100e9, 50e9]), ("2 us", [100e9])):
        path.write_text(text(latency))
        channels = check(from_file(path), (0, 1, 2, 3))
        assert [c.bandwidth_bytes_per_s for c in channels.channels] == rates
        assert channels.latency_s == pytest.approx(2e-6)


def test_links_of_different_types_are_channels_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "pair.yaml"
    path.write_text(
        "kind: topology\nname: pair\ndevices: [d0, d1]\n"
        "link_types:\n  a: {bandwidth: 50 GB/s, latency: 1 us}\n"
        "  b: {bandwidth: 100 GB/s, latency: 1 us}\n"
        "links:\n  - {between: [d0, d1], type: a}\n  - {between: [d0, d1], type: b}\n"
    )
    channels = check(from_file(path), (0, 1))
    assert [c.share for c in channels.channels] == pytest.approx([2 / 3, 1 / 3])
    assert channels.bandwidth_bytes_per_s == 150e9


def test_a_switch_that_carries_more_than_the_direct_links_is_preferred() -> None:
    links: list[dict[str, object]] = [
        {"between": [f"device{a}", f"device{b}"], "type": "pcie"} for a, b in cable(range(5))
    ]
    links += [
        {"between": [f"device{i}", "switch"], "type": "nvlink", "count": 15} for i in range(5)
    ]
    both = node("both", 5, links, [{"name": "switch", "kind": "switch"}])
    topology = from_cluster(single(both), 5)
    assert check(topology, (0, 2, 4, 1, 3)).bandwidth_bytes_per_s == 15 * 20e9
    assert check(topology, (0, 1, 2, 3, 4)).bandwidth_bytes_per_s == 2 * 16e9
