"""Transport: closed forms, what must be conserved, an oracle, and what switches promise."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.transport_in_simpy import Play
from ridgeline.cli import execute
from ridgeline.errors import RidgelineError
from ridgeline.network.collectives import collective
from ridgeline.network.completion_times import completions
from ridgeline.network.faults import read_faults, with_faults
from ridgeline.network.inline import from_text
from ridgeline.network.multipath import (
    choices_of,
    collisions,
    ecmp_ways,
    flow_completions_s,
    sprayed_loads,
)
from ridgeline.network.routing import routes
from ridgeline.network.topology import DEVICE, LinkKind, Topology, TopologyBuilder
from ridgeline.network.traffic import Flows, flow_times, make_flows
from ridgeline.network.transport import PRESETS, Transport, play_transport, transport_of
from ridgeline.report.figures.completions import completion_curves
from ridgeline.study.reproduce.transport import across, two_leaves

TREE = from_text("FatTree(4, 10 GB/s, 1 us)")
NAMES = tuple(PRESETS)


def one(source: int, target: int, size: float) -> Flows:
    return Flows(np.array([source]), np.array([target]), np.array([size]))


@pytest.mark.parametrize("name", NAMES)
def test_a_lone_message_takes_its_bytes_a_packet_a_hop_and_the_latencies(name: str) -> None:
    transport = replace(PRESETS[name], payload_bytes=4000.0, header_bytes=96.0)
    for target, hops in ((1, 2), (2, 4), (15, 6)):
        found = play_transport(TREE, one(0, target, 400e3), transport)
        expected = hops * 1e-6 + (100 + hops - 1) * 4096 / 10e9
        assert found.done_s[0] == pytest.approx(expected, rel=1e-12)
        assert found.packets == 100


@pytest.mark.parametrize("name", [name for name in NAMES if name != "dcqcn"])
def test_an_incast_keeps_the_link_of_its_receiver_busy(name: str) -> None:
    topology, n = from_text("Switch(9, 5 GB/s, 2 us)"), 8
    transport = replace(PRESETS[name], payload_bytes=1000.0)
    found = play_transport(topology, make_flows("incast:0", 9, 100e3), transport)
    last = 2 * 2e-6 + (n * 100 + 1) * 1000 / 5e9
    assert found.done_s.max() == pytest.approx(last, rel=1e-9)
    assert found.done_s.min() >= last - n * 1000 / 5e9 * 1.01  # they take turns


@pytest.mark.parametrize("name", NAMES)
def test_a_permutation_through_one_switch_is_not_held_up(name: str) -> None:
    topology = from_text("Switch(16, 5 GB/s, 1 us)")
    transport = replace(PRESETS[name], payload_bytes=1000.0)
    found = play_transport(topology, make_flows("permutation:1", 16, 200e3), transport)
    np.testing.assert_allclose(found.done_s, 2e-6 + 201 * 1000 / 5e9, rtol=1e-12)


def test_a_permutation_on_a_non_blocking_tree_by_how_it_is_routed() -> None:
    """Hashed ways collide; sprayed packets end near the ideal, and adaptive ones no later."""
    tree, size = from_text("FatTree(8, 12.5 GB/s, 0.5 us)"), 1e6
    last = {}
    for name in ("pfc", "spray", "adaptive"):
        times = []
        for seed in range(3):
            flows = make_flows(f"permutation:{seed}", 128, size)
            transport = replace(PRESETS[name], seed=seed)
            times.append(float(play_transport(tree, flows, transport).done_s.max()))
        last[name] = float(np.mean(times)) / (size / 12.5e9)
    assert 1.0 < last["adaptive"] <= last["spray"] < 1.35
    assert last["pfc"] > 2.5


@pytest.mark.parametrize("name", NAMES)
def test_all_that_is_sent_arrives_and_passes_each_link_of_its_way_once(name: str) -> None:
    transport = replace(PRESETS[name], payload_bytes=4000.0, header_bytes=96.0, queue_pairs=2)
    flows = make_flows("permutation:5", 16, 100e3)
    found = play_transport(TREE, flows, transport, bin_s=1.0, bins=1)
    ways = routes(TREE, *flows.vertices(TREE))
    assert found.received_bytes[:, 0] == pytest.approx(np.full(16, 100e3), rel=1e-12)
    packets = 2 * math.ceil(50e3 / 4000)
    expected = len(ways.links) * (100e3 + packets * 96)
    assert found.sent_bytes.sum() == pytest.approx(expected, rel=1e-12)
    assert found.packets == packets * 16


def random_tree(draw: np.random.Generator) -> Topology:
    """Draw hosts below switches below one, with links of random rates and latencies."""
    drawing = TopologyBuilder()
    hosts = [drawing.vertex(f"host{i}", DEVICE) for i in range(6)]
    leaves = [drawing.vertex(f"leaf{i}", "switch") for i in range(3)]
    core = drawing.vertex("core", "switch")
    for i, vertex in enumerate([*hosts, *leaves]):
        above = core if vertex in leaves else leaves[i % 3]
        kind = LinkKind(f"link{i}", float(draw.uniform(1e9, 9e9)), float(draw.uniform(0, 3e-6)), 0)
        drawing.join(vertex, above, kind)
    return drawing.finish("random tree", hosts)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["none", "pfc", "credits"]))
def test_the_loop_plays_what_simpy_plays(seed: int, control: str) -> None:
    draw = np.random.default_rng(seed)
    topology = random_tree(draw)
    n = int(draw.integers(1, 12))
    source = draw.integers(0, 6, n)
    target = (source + draw.integers(1, 6, n)) % 6
    flows = Flows(source, target, draw.uniform(10.0, 60e3, n))
    transport = Transport(
        control=control, payload_bytes=1000.0, header_bytes=40.0, xoff_bytes=5e3, xon_bytes=4e3,  # type: ignore[arg-type]
        buffer_bytes=6e3,
    )  # fmt: skip
    ways = routes(topology, *flows.vertices(topology))
    slow = Play(topology, ways, flows.size_bytes.tolist(), transport, 6e3).run()
    fast = play_transport(topology, flows, transport).done_s
    np.testing.assert_allclose(fast, slow, rtol=1e-9)


def test_switches_hold_no_more_than_their_control_allows() -> None:
    topology = from_text("Switch(9, 5 GB/s, 2 us)")
    flows = make_flows("incast:0", 9, 1e6)
    free = play_transport(topology, flows, PRESETS["plain"])
    assert free.most_held_bytes.max() > 800e3
    # what is on its way when a pause is asked for: there and back, and the packet on the link
    paused = play_transport(topology, flows, PRESETS["pfc"])
    assert paused.pauses > 0
    assert 100e3 < paused.most_held_bytes.max() <= 100e3 + 2 * 2e-6 * 5e9 + 3 * 4096
    assert 0 < paused.paused_s.max() < paused.done_s.max()
    held = play_transport(topology, flows, replace(PRESETS["infiniband"], buffer_bytes=50e3))
    assert held.most_held_bytes.max() <= 50e3
    assert held.pauses == 0
    slow = play_transport(
        topology, one(0, 1, 1e6), replace(PRESETS["infiniband"], buffer_bytes=5e3)
    )
    fast = play_transport(topology, one(0, 1, 1e6), PRESETS["infiniband"])
    assert slow.done_s[0] > 3 * fast.done_s[0]  # a packet a round trip


def test_dcqcn_shares_a_link_and_keeps_its_queue_short() -> None:
    topology = from_text("Switch(3, 40 Gb/s, 1 us)")
    flows = Flows(np.array([0, 1]), np.array([2, 2]), np.full(2, 200e6))
    by_pauses = replace(PRESETS["pfc"], payload_bytes=1000.0)
    by_marks = replace(by_pauses, dcqcn=True)
    late = np.array([0.0, 10e-3])  # the second finds a link that is full
    found = play_transport(topology, flows, by_marks, begin_s=late, bin_s=10e-3, bins=10)
    rates = found.received_bytes[:, 2:7] / 10e-3 * 8e-9
    assert rates[:, 1:].mean(axis=1) == pytest.approx([20.0, 20.0], rel=0.1)
    assert rates.sum(axis=0) == pytest.approx(np.full(5, 40.0), rel=0.03)  # and it is filled
    pauses = play_transport(topology, flows, by_pauses, begin_s=late)
    assert found.notices > 0
    assert found.pauses < pauses.pauses / 20
    assert found.marked > found.notices  # one in 50 us at most
    assert found.notices <= 2 * found.done_s.max() / 50e-6


def test_a_sender_that_is_told_halves_its_rate_and_wins_it_back() -> None:
    """The first notice cuts alpha / 2 = a half; five times half-way back follow, 55 us each."""
    topology = from_text("Switch(3, 40 Gb/s, 1 us)")
    flows = Flows(np.array([0, 1]), np.array([2, 2]), np.array([20e6, 30e3]))
    transport = replace(
        PRESETS["dcqcn"], payload_bytes=1000.0, control="none", kmin_bytes=5e3, kmax_bytes=5.001e3
    )  # all are marked while the queue is longer; the short message makes one of some 30 kB
    found = play_transport(
        topology, flows, transport, begin_s=np.array([0.0, 1e-3]), bin_s=11e-6, bins=300
    )
    rate = found.received_bytes[0] / 11e-6 * 8e-9
    assert found.notices == 2  # one to each sender
    assert rate[50:90] == pytest.approx(np.full(40, 40.0), rel=0.03)
    assert rate[94] == pytest.approx(20.0, rel=0.05)
    assert rate[101] == pytest.approx(30.0, rel=0.05)  # after 55 us, then 110
    assert rate[106] == pytest.approx(35.0, rel=0.05)


def test_hashed_ways_are_shortest_and_the_same_at_both_levels() -> None:
    flows = make_flows("permutation:2", 16, 40e3)
    start, end = flows.vertices(TREE)
    ways = ecmp_ways(TREE, start, end, choices_of(16, 1, seed=7))
    assert (np.diff(ways.ptr) == np.diff(routes(TREE, start, end).ptr)).all()
    found = play_transport(TREE, flows, replace(PRESETS["pfc"], seed=7))
    assert set(np.flatnonzero(found.sent_bytes)) == set(ways.links.tolist())
    other = ecmp_ways(TREE, start, end, choices_of(16, 1, seed=8))
    assert (other.links != ways.links).any()


def test_queue_pairs_and_spraying_lift_the_slowest_message() -> None:
    flows = make_flows("permutation:2", 16, 1e6)
    shares = [collisions(TREE, flows, queue_pairs=q, draws=50).share.mean() for q in (1, 4, 16)]
    assert shares[0] < shares[1] < shares[2] < 1.0
    sprayed = flow_completions_s(TREE, flows, "spray")
    hashed = flow_completions_s(TREE, flows, "ecmp", queue_pairs=4)
    assert sprayed.max() == pytest.approx(6e-6 + 1e6 / 10e9, rel=1e-9)
    assert hashed.max() > sprayed.max()
    loads = sprayed_loads(TREE, flows)
    for flow in range(16):  # of every message all leaves its host, and as much comes
        own = slice(loads.ptr[flow], loads.ptr[flow + 1])
        links, share = loads.links[own], loads.share[own]
        start, end = (v[flow] for v in flows.vertices(TREE))
        assert share[TREE.source[links] == start].sum() == pytest.approx(1.0, rel=1e-12)
        assert share[TREE.target[links] == end].sum() == pytest.approx(1.0, rel=1e-12)


def test_collisions_are_those_of_balls_in_bins() -> None:
    for flows, links in ((4, 4), (8, 8), (16, 8)):
        found = collisions(two_leaves(flows, links, 1.0), across(flows), draws=2000)
        mean = links * (1 - (1 - 1 / links) ** flows) / flows
        each = found.share.mean(axis=1)
        assert each.mean() == pytest.approx(mean, abs=4 * each.std() / math.sqrt(2000))
        none = math.prod(1 - i / links for i in range(flows))
        assert found.without.mean() == pytest.approx(none, abs=0.04)


def test_hashes_do_not_know_that_a_link_is_slow() -> None:
    fabric = two_leaves(8, 4, 1e9)
    slow = with_faults(fabric, read_faults(["link leaf0 spine2 slow 0.1"]), 16)
    found = collisions(slow, across(8), draws=200)
    assert found.rates.min() < 0.05e9  # several on it
    adaptive = play_transport(
        slow, across(8, 100e3), replace(PRESETS["adaptive"], payload_bytes=1e3)
    )
    sprayed = play_transport(slow, across(8, 100e3), replace(PRESETS["spray"], payload_bytes=1e3))
    assert adaptive.done_s.max() < 0.6 * sprayed.done_s.max()


def test_flows_without_a_transport_are_those_of_traffic() -> None:
    flows = make_flows("random:3", 16, 1e6)
    np.testing.assert_allclose(
        flow_completions_s(TREE, flows, "static"), flow_times(TREE, flows), rtol=0
    )


@pytest.mark.parametrize("name", ["dcqcn", "spray", "adaptive", "infiniband-adaptive"])
def test_results_depend_on_the_seed_and_on_nothing_else(name: str) -> None:
    flows = make_flows("permutation:1", 16, 500e3)

    def times(seed: int) -> bytes:
        return play_transport(TREE, flows, replace(PRESETS[name], seed=seed)).done_s.tobytes()

    assert times(1) == times(1)
    assert times(1) != times(2)


def test_packets_of_a_ring_take_what_flows_take_and_a_packet_a_round() -> None:
    where, size = "Ring(8, 50 GB/s, 500 ns)", 8e6
    flows = collective("all-reduce", size, where, algorithm="ring")
    packets = collective("all-reduce", size, where, algorithm="ring", network="packets")
    assert packets.time_s == pytest.approx(flows.time_s, rel=1e-9)  # one hop: nothing is stored
    assert packets.network["level"] == "packets"
    assert flows.network["level"] == "flows"
    assert "%" in flows.network["known_error"]
    behind = "Switch(8, 50 GB/s, 500 ns)"
    flows = collective("all-reduce", size, behind, algorithm="ring")
    packets = collective("all-reduce", size, behind, algorithm="ring", network="packets")
    assert packets.time_s == pytest.approx(flows.time_s + 14 * 4096 / 50e9, rel=1e-9)


def test_collectives_of_all_kinds_at_both_levels() -> None:
    """Where no two messages share a link in a round, packets add what switches store, no more."""
    where = "Switch(8, 50 GB/s, 500 ns)"
    for op, algorithm in (
        ("all-gather", "ring"), ("reduce-scatter", "pairwise"), ("all-to-all", "pairwise"),
        ("all-reduce", "halving-doubling"), ("broadcast", "binomial-tree"), ("barrier", "auto"),
    ):  # fmt: skip
        flows = collective(op, 4e6, where, algorithm=algorithm)
        packets = collective(op, 4e6, where, algorithm=algorithm, network="packets")
        assert flows.time_s <= packets.time_s * (1 + 1e-9)
        assert packets.time_s <= flows.time_s * 1.02 + 1e-9, (op, algorithm)


def test_a_collective_from_a_file_is_played_packet_by_packet(tmp_path: Path) -> None:
    own = tmp_path / "exchange.yaml"
    own.write_text(
        "kind: collective\nname: exchange\noperation: all-reduce\nranks: 2\nchunks: 2\nrounds:\n"
        "  - - {from: 0, to: 1, chunk: 1, add: true}\n    - {from: 1, to: 0, chunk: 0, add: true}\n"
        "  - - {from: 0, to: 1, chunk: 0}\n    - {from: 1, to: 0, chunk: 1}\n"
    )
    where = "Switch(2, 50 GB/s, 500 ns)"
    found = collective("all-reduce", 4.096e6, where, algorithm=str(own), network="packets")
    assert found.time_s == pytest.approx(2 * (1e-6 + 501 * 4096 / 50e9), rel=1e-9)
    assert found.network["packets_played"] == 2 * 2 * 500


def test_patterns_that_do_not_fit_memory_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["transport", "all-to-all", "1MB", "Switch(60000, 50 GB/s, 1 us)"]) == 2
    assert "3,600,000,000 messages" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dcqn", "did you mean 'dcqcn'"),
        ("pfc queue_pair=2", "did you mean 'queue_pairs'"),
        ("pfc queue_pairs=0", "at least 1"),
        ("pfc xoff=10", "xoff=10"),
        ("pfc xoff=10kB xon=20kB", "xon is at most xoff"),
        ("dcqcn kmin=300kB", "kmin is less than kmax"),
        ("pfc routing=ecmpp", "did you mean 'ecmp'"),
        ("pfc dcqcn=maybe", "yes or no"),
        ("plain payload=0B", "more than 0 B"),
    ],
)
def test_mistakes_in_a_transport_are_said(
    text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["transport", "incast:0", "1MB", "Switch(4, 1 GB/s, 1 us)", "--transport", text]
    assert execute(words) == 2
    assert message in capsys.readouterr().err


def test_fields_of_a_transport() -> None:
    found = transport_of("dcqcn queue_pairs=4 kmin=20kB r_ai=10MB/s cnp_interval=4us routing=spray")
    assert found == replace(
        PRESETS["dcqcn"], queue_pairs=4, kmin_bytes=20e3, r_ai=10e6, cnp_interval_s=4e-6,
        routing="spray",
    )  # fmt: skip
    assert found.text == "PFC, DCQCN, spray routing, 4 queue pairs"


def test_what_is_too_large_is_refused_before_it_is_played(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["collective", "all-to-all", "1TB", "Switch(64, 50 GB/s, 1 us)", "--network", "packets"]
    assert execute(words) == 2
    assert "packets; at most 20,000,000" in capsys.readouterr().err
    assert execute(["transport", "incast:0", "1TB", "Switch(64, 50 GB/s, 1 us)"]) == 2
    assert "packets times links" in capsys.readouterr().err
    with pytest.raises(RidgelineError, match="adds in switches"):
        collective(
            "all-reduce", 1e6, "Switch(4, 1 GB/s, 1 us)", algorithm="in-network", network="packets"
        )
    with pytest.raises(RidgelineError, match="a transport is of packets"):
        collective("all-reduce", 1e6, "Switch(4, 1 GB/s, 1 us)", transport="pfc")


def test_packets_that_wait_in_a_circle_are_found() -> None:
    ring = from_text("Ring(6, 1 GB/s, 1 us)")
    flows = make_flows("stride:2", 6, 1e6)
    with pytest.raises(RidgelineError, match="in a circle"):
        play_transport(ring, flows, Transport(control="credits", buffer_bytes=4096.0))
    torus = from_text("Torus(4x4, 50 GB/s, 1 us)")
    every = make_flows("all-to-all", 16, 500e3)
    for name in ("pfc", "dcqcn"):  # whose timers go on when nothing else does
        with pytest.raises(RidgelineError, match="in a circle"):
            play_transport(torus, every, replace(PRESETS[name], queue_pairs=2))


def test_the_verb_says_level_and_error(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["transport", "permutation:1", "100kB", "FatTree(4, 10 GB/s, 1 us)"]
    more = ["--transport", "dcqcn queue_pairs=2", "--draws", "3", "--json"]
    assert execute([*words, *more]) == 0
    packets = json.loads(capsys.readouterr().out)
    assert execute([*words, *more, "--network", "flows"]) == 0
    flows = json.loads(capsys.readouterr().out)
    for found, level in ((packets, "packets"), (flows, "flows")):
        assert found["level"] == level
        assert found["known_error"]
        assert found["draws"] == 3
        assert found["ideal_s"] < found["p50_s"] <= found["p99_s"] <= found["last_s"]["p95"] * 1.1
        assert 0 < found["collisions"]["slowest_share"] <= found["collisions"]["mean_share"] <= 1
    assert packets["counters"]["packets"] == 3 * 16 * 2 * 13
    assert flows["counters"] == {}
    assert execute([*words, "--transport", "pfc"]) == 0
    assert "known of its error" in capsys.readouterr().out


def test_several_transports_are_compared_and_drawn(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "curves.png"
    words = ["transport", "permutation:1", "100kB", "FatTree(4, 10 GB/s, 1 us)"]
    both = ["--transport", "pfc", "--transport", "adaptive", "--plot", str(picture)]
    assert execute([*words, *both, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["transports"]
    assert [one["transport"] for one in found] == ["PFC, ecmp routing", "PFC, adaptive routing"]
    assert found[1]["p99_s"] < found[0]["p99_s"]
    assert picture.stat().st_size > 1000
    flows = make_flows("permutation:1", 16, 100e3)
    played = [completions(TREE, flows, PRESETS[name], "packets") for name in ("pfc", "adaptive")]
    axes = completion_curves(played, "a tree", "permutation:1")
    for line, one in zip(axes.lines, played, strict=False):
        drawn = np.asarray(line.get_xdata())
        np.testing.assert_allclose(drawn, np.array(one.quantiles_s) / one.ideal_s)
        assert drawn[0] >= 1.0


def test_draws_are_counted() -> None:
    with pytest.raises(RidgelineError, match="at least one draw"):
        completions(TREE, make_flows("incast:0", 16, 1.0), Transport(), draws=0)
