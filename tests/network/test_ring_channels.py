"""Channels on real machines, and data that is really moved along them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import strategies as st
from network_machines import cluster, dgx1, node, single, switched

from oracles.ring_data import RingData
from ridgeline.errors import RidgelineError
from ridgeline.hardware.load import load_cluster
from ridgeline.hardware.node import Node
from ridgeline.network import Topology, from_cluster, from_text
from ridgeline.network.algorithm import ALGORITHMS
from ridgeline.network.collectives import CollectiveSchedule, closed_form_time_s
from ridgeline.network.rings import Channels, ring_channels
from thoroughly import sample_of


def check_channels(topology: Topology, ranks: tuple[int, ...]) -> Channels:
    """Every channel passes every rank once, over links that join each to the next."""
    channels = ring_channels(topology, ranks)
    for channel in channels.channels:
        assert sorted(channel.ranks) == sorted(ranks)
        for (a, b), links in zip(
            pairwise([*channel.ranks, channel.ranks[0]]), channel.routes, strict=True
        ):
            place = topology.devices[a]
            for link in links:
                assert topology.source[link] == place
                place = topology.target[link]
            assert place == topology.devices[b]
        assert channel.share == pytest.approx(
            channel.bandwidth_bytes_per_s / channels.bandwidth_bytes_per_s
        )
    assert sum(channel.share for channel in channels.channels) == pytest.approx(1)
    return channels


def check_data(topology: Topology, ranks: tuple[int, ...], seed: int = 0) -> None:
    """Data moved along the channels ends up summed everywhere, with the scheduled bytes."""
    channels = check_channels(topology, ranks)
    n = len(ranks)
    length = 4 * n * len(channels.channels)  # so that equal shares are whole elements
    generator = np.random.default_rng(seed)
    buffers = {rank: generator.integers(0, 1000, length) for rank in ranks}
    total = sum(buffers.values())
    data = RingData(channels, buffers)
    data.reduce_scatter()
    for channel, chunks in data.parts:
        for position, rank in enumerate(channel.ranks):
            own = chunks[(position + 1) % n]
            assert (buffers[rank][own] == total[own]).all()
    half = dict(data.bytes_on_link)
    data.all_gather()
    assert all((buffer == total).all() for buffer in buffers.values())
    size = float(total.nbytes)
    if len({channel.share for channel in channels.channels}) == 1:
        scatter = ALGORITHMS["reduce-scatter", "ring"](topology, ranks, size)
        assert scatter.bytes_on_wire() == pytest.approx(half)
        assert ALGORITHMS["all-gather", "ring"](
            topology, ranks, size
        ).bytes_on_wire() == pytest.approx(half)
        wire = ALGORITHMS["all-reduce", "ring"](topology, ranks, size).bytes_on_wire()
        assert wire == pytest.approx(data.bytes_on_link)


def check_conservation(
    topology: Topology, ranks: tuple[int, ...], schedule: CollectiveSchedule
) -> None:
    """Each device sends and receives 2(n-1)/n of the buffer; no other vertex keeps anything."""
    n = len(ranks)
    balance = np.zeros(topology.n_vertices)
    sent = np.zeros(topology.n_vertices)
    for link, size in schedule.bytes_on_wire().items():
        sent[topology.source[link]] += size
        balance[topology.source[link]] -= size
        balance[topology.target[link]] += size
    assert balance == pytest.approx(0, abs=1e-6 * schedule.size_bytes)
    members = topology.devices[list(ranks)]
    assert sent[members] == pytest.approx(2 * (n - 1) / n * schedule.size_bytes)
    others = np.setdiff1d(topology.devices, members)
    assert not sent[others].any()


def switched_in_pairs() -> Node:
    """Eight devices on one switch, and a NIC for each two of them on a switch of their own."""
    links: list[dict[str, object]] = []
    components = [{"name": "nvswitch", "kind": "switch"}]
    for i in range(8):
        links.append({"between": [f"device{i}", "nvswitch"], "type": "nvlink", "count": 12})
        links.append({"between": [f"device{i}", f"plx{i // 2}"], "type": "pcie"})
    for i in range(4):
        components += [{"name": f"plx{i}", "kind": "switch"}, {"name": f"nic{i}", "kind": "nic"}]
        links.append({"between": [f"nic{i}", f"plx{i}"], "type": "pcie"})
    return node("pairs", 8, links, components)


MACHINES = {
    "p100": single(dgx1("p100")),
    "v100": single(dgx1("v100")),
    "switched": single(switched(8, 4)),
    "p100 x 4": cluster(dgx1("p100"), 4),
    "v100 x 4": cluster(dgx1("v100"), 4, radix=8),
    "pairs x 3": cluster(switched_in_pairs(), 3),
    "switched x 4": cluster(switched(4, 2), 4, radix=4),
}


@pytest.mark.parametrize("machine", MACHINES)
@sample_of(7, 25, data=st.data())
def test_data_is_summed_everywhere_and_bytes_are_conserved(
    machine: str, data: st.DataObject
) -> None:
    topology = from_cluster(MACHINES[machine], MACHINES[machine].max_devices)
    everyone = range(topology.n_devices)
    ranks = tuple(data.draw(st.lists(st.sampled_from(everyone), min_size=2, unique=True)))
    check_data(topology, ranks, seed=data.draw(st.integers(0, 99)))
    schedule = ALGORITHMS["all-reduce", "ring"](topology, ranks, 1e8)
    check_conservation(topology, ranks, schedule)
    egress = [
        sum(topology.bandwidth_bytes_per_s[topology.out_ptr[v] : topology.out_ptr[v + 1]])
        for v in topology.devices[list(ranks)]
    ]
    bound = 2 * (len(ranks) - 1) / len(ranks) * 1e8 / min(egress)
    assert closed_form_time_s(schedule, topology) >= bound * (1 - 1e-12)


@pytest.mark.parametrize(("model", "rings", "rate"), [("p100", 4, 20e9), ("v100", 6, 25e9)])
def test_a_dgx1_packs_all_its_links(model: str, rings: int, rate: float) -> None:
    topology = from_cluster(single(dgx1(model)), 8)
    channels = check_channels(topology, tuple(range(8)))
    assert channels.method == "packed"
    assert [c.bandwidth_bytes_per_s for c in channels.channels] == [rate] * rings
    assert all(
        sum((link,) in channel.routes for channel in channels.channels) <= topology.count[link]
        for link in range(topology.n_links)
    )


def test_parts_of_a_dgx1() -> None:
    topology = from_cluster(single(dgx1("v100")), 8)
    quad = check_channels(topology, (0, 1, 2, 3))
    assert (quad.method, quad.bandwidth_bytes_per_s) == ("packed", 4 * 25e9)
    pair = check_channels(topology, (0, 3))
    assert (pair.method, pair.bandwidth_bytes_per_s) == ("packed", 2 * 25e9)
    apart = check_channels(topology, (0, 5))
    assert (apart.method, apart.bandwidth_bytes_per_s) == ("routed", 16e9)


def test_behind_a_switch_one_ring_in_rank_order_fills_every_port() -> None:
    topology = from_cluster(single(switched(8, 4)), 8)
    channels = check_channels(topology, tuple(range(8)))
    assert channels.method == "routed"
    assert [channel.ranks for channel in channels.channels] == [tuple(range(8))]
    assert channels.bandwidth_bytes_per_s == 15 * 20e9
    assert set(channels.load.values()) == {1.0}


def test_several_link_types_between_two_devices() -> None:
    links: list[dict[str, object]] = [
        {"between": ["device0", "device1"], "type": "nvlink"},
        {"between": ["device0", "device1"], "type": "pcie", "count": 4},
    ]
    topology = from_cluster(single(node("pair", 2, links)), 2)
    channels = check_channels(topology, (0, 1))
    assert channels.method == "packed"
    assert [c.bandwidth_bytes_per_s for c in channels.channels] == [20e9] + 4 * [16e9]


@pytest.mark.parametrize("nodes", range(2, 17))
def test_nodes_are_joined_nic_to_nic(nodes: int) -> None:
    topology = from_cluster(cluster(dgx1("v100"), 16, radix=8 if nodes <= 8 else 36), 8 * nodes)
    ranks = tuple(range(8 * nodes))
    channels = check_channels(topology, ranks)
    assert channels.method == "per NIC"
    assert len(channels.channels) == 2 * 4
    for position, channel in enumerate(channels.channels):
        own = f"nic{position // 2}"
        crossings = 0
        for links in channel.routes:
            sent = {topology.vertex_names[topology.source[link]] for link in links}
            nics = {name for name in sent if ".nic" in name}
            if not nics:
                assert len(links) == 1  # a direct link inside the node
                continue
            crossings += 1
            assert len(nics) == 2
            assert all(name.endswith(own) for name in nics)
            assert any(name.startswith("leaf") for name in sent)
        assert crossings == nodes
    # every NIC is busy in both directions and nothing else is narrower
    assert channels.bandwidth_bytes_per_s == pytest.approx(4 * 12.5e9)
    schedule = ALGORITHMS["all-reduce", "ring"](topology, ranks, 1e9)
    bound = 2 * (len(ranks) - 1) / len(ranks) * 1e9 / (4 * 12.5e9)
    assert closed_form_time_s(schedule, topology) == pytest.approx(bound)
    check_conservation(topology, ranks, schedule)


def test_both_directions_of_a_channel_use_opposite_ways_of_the_same_links() -> None:
    topology = from_cluster(cluster(dgx1("p100"), 2), 16)
    forth, back = ring_channels(topology, tuple(range(16))).channels[:2]

    def ways(routes: tuple[tuple[int, ...], ...]) -> set[tuple[int, int]]:
        return {(int(topology.source[i]), int(topology.target[i])) for r in routes for i in r}

    assert {(b, a) for a, b in ways(forth.routes)} == ways(back.routes)
    assert forth.ranks == (*back.ranks[::-1],)


def test_one_device_in_each_node_uses_the_nic_next_to_it() -> None:
    topology = from_cluster(cluster(dgx1("p100"), 4), 32)
    channels = check_channels(topology, (2, 10, 18, 26))
    assert len(channels.channels) == 2
    used = {topology.vertex_names[topology.source[i]] for i in channels.load}
    assert {name for name in used if ".nic" in name} == {f"node{i}.nic1" for i in range(4)}


def test_without_direct_links_the_chain_runs_in_rank_order_between_the_nearest_devices() -> None:
    topology = from_cluster(cluster(switched_in_pairs(), 2), 16)
    channels = check_channels(topology, tuple(range(16)))
    assert len(channels.channels) == 2 * 4
    assert channels.channels[2].ranks == (
        2, 4, 5, 6, 7, 0, 1, 3,
        10, 12, 13, 14, 15, 8, 9, 11,
    )  # fmt: skip
    assert channels.channels[3].ranks == channels.channels[2].ranks[::-1]
    assert channels.bandwidth_bytes_per_s == pytest.approx(4 * 12.5e9)


def test_nodes_that_differ_in_devices() -> None:
    topology = from_cluster(cluster(dgx1("v100"), 2), 12)
    channels = check_channels(topology, tuple(range(12)))
    assert len(channels.channels) == 2 * 2  # the second node's four devices are near to two NICs


def test_channels_do_not_depend_on_what_was_asked_before() -> None:
    machine = cluster(dgx1("v100"), 4, radix=8)
    first, second = from_cluster(machine, 32), from_cluster(machine, 32)
    ring_channels(second, (3, 1, 2))
    for ranks in (tuple(range(32)), tuple(range(8)), (0, 5, 9)):
        assert ring_channels(first, ranks) == ring_channels(second, ranks)


def test_a_thousand_devices() -> None:
    topology = from_cluster(cluster(dgx1("v100"), 128), 1024)
    channels = check_channels(topology, tuple(range(1024)))
    assert channels.bandwidth_bytes_per_s == pytest.approx(4 * 12.5e9)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [((), "at least one rank"), ((0, 9), "rank 9 does not exist"), ((1, 2, 1), "rank 1 stands")],
)
def test_impossible_ranks(ranks: tuple[int, ...], message: str) -> None:
    with pytest.raises(RidgelineError, match=message):
        ring_channels(from_text("Switch(8, 1 GB/s, 1 us)"), ranks)


def test_a_device_without_a_way_to_a_nic() -> None:
    links: list[dict[str, object]] = [{"between": ["device0", "nic0"], "type": "pcie"}]
    alone = node("alone", 2, links, [{"name": "nic0", "kind": "nic"}])
    topology = from_cluster(cluster(alone, 2), 4)
    with pytest.raises(RidgelineError, match=r"node0\.device1 .* has no way to a NIC"):
        ring_channels(topology, (0, 1, 2, 3))


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_where_every_device_has_its_own_adapter_rings_stay_on_their_rails(nodes: int) -> None:
    topology = from_cluster(load_cluster("superpod-h100"), 8 * nodes)
    channels = ring_channels(topology, tuple(range(8 * nodes)))
    adapters = 8 * 48e9  # NCCL's share of eight times 50 GB/s
    assert channels.bandwidth_bytes_per_s == pytest.approx(adapters, rel=0.001)
    hosts = {name for name in topology.vertex_names if ".cpu" in name}
    passed = {topology.vertex_names[topology.target[link]] for link in channels.load}
    assert not hosts & passed
