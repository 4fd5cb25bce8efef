"""Many messages at once: flow level, packet level, schedulers, loads and pictures."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.collections import LineCollection
from matplotlib.text import Text

import ridgeline as rl
from ridgeline.engine import run, run_reference
from ridgeline.engine.rates import fair_rates
from ridgeline.errors import RidgelineError
from ridgeline.network import Flows, PacketNetwork, Topology, flow_times, from_text, play_packets
from ridgeline.network.load import link_load
from ridgeline.network.paths import Routes
from ridgeline.network.routing import routes
from ridgeline.network.traffic import flow_loads, flow_rates, flows_program, make_flows
from ridgeline.report.figures.layouts import layout
from ridgeline.report.figures.network import network
from ridgeline.report.figures.themes import theme
from ridgeline.report.manifest import topology_fingerprint
from ridgeline.simulation import shared_topology
from ridgeline.study.reproduce import reproduce
from thoroughly import sample_of

NETWORKS = [
    "Switch(8, 10 GB/s, 1 us)",
    "FatTree(4, 12.5 GB/s, 500 ns)",
    "Torus(4x4, 10 GB/s, 200 ns)",
    "Tree(16, 4, 3.6, 10 GB/s, 1 us)",
    "Mesh(3x4, 10 GB/s, 1 us)",
    "Hypercube(3, 10 GB/s, 1 us)",
    "Dragonfly(1, 4, 1, 25 GB/s, 1 us)",
    "Ring(6, 20 GB/s, 300 ns)",
]
PATTERNS = ["stride:1", "stride:3", "permutation:1", "random:2", "incast:0", "all-to-all"]


def some_flows(topology: Topology, seed: int, most: int = 40) -> Flows:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, most))
    source = rng.integers(0, topology.n_devices, n)
    target = (source + rng.integers(1, topology.n_devices, n)) % topology.n_devices
    return Flows(source, target, rng.uniform(1e5, 4e6, n))


@pytest.mark.parametrize("text", NETWORKS)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("switching", ["store-and-forward", "cut-through"])
def test_flows_end_when_packets_do(text: str, pattern: str, switching: str) -> None:
    """At least 1 MB a message on the same routes: within 5 %, as a rule within 1 %."""
    topology = from_text(text)
    flows = make_flows(pattern, topology.n_devices, 1e6)
    network_ = PacketNetwork(4096, switching=switching)  # type: ignore[arg-type]
    packets = play_packets(topology, flows, network_)
    fluid = flow_times(topology, flows)
    assert fluid.max() == pytest.approx(packets.max(), rel=0.05)
    assert (packets >= 1e6 / topology.bandwidth_bytes_per_s.max()).all()


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(NETWORKS), st.integers(0, 10**6))
def test_uneven_flows_end_when_packets_do(text: str, seed: int) -> None:
    topology = from_text(text)
    flows = some_flows(topology, seed)
    flows = Flows(flows.source, flows.target, flows.size_bytes + 1e6)
    packets = play_packets(topology, flows, PacketNetwork(2048, switching="cut-through"))
    assert flow_times(topology, flows).max() == pytest.approx(packets.max(), rel=0.05)


@sample_of(10, 40, st.sampled_from(NETWORKS), st.integers(0, 10**6), st.sampled_from([1, 4]))
def test_both_executors_play_flows_alike(text: str, seed: int, spray: int) -> None:
    topology = from_text(text)
    program = flows_program(topology, some_flows(topology, seed), spray)
    np.testing.assert_allclose(run(program).end_s, run_reference(program).end_s, rtol=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(NETWORKS), st.integers(0, 10**6))
def test_rates_are_max_min_fair(text: str, seed: int) -> None:
    """No link carries too much, and every flow has a full link on which none is faster."""
    topology = from_text(text)
    flows = some_flows(topology, seed)
    rates = flow_rates(topology, flows)
    loads = flow_loads(topology, flows)
    owner = np.repeat(np.arange(flows.n), np.diff(loads.ptr))
    carried = np.bincount(loads.links, rates[owner], topology.n_links)
    capacity = topology.bandwidth_bytes_per_s
    assert (carried <= capacity * (1 + 1e-9)).all()
    fastest = np.zeros(topology.n_links)
    np.maximum.at(fastest, loads.links, rates[owner])
    full = carried >= capacity * (1 - 1e-9)
    for flow in range(flows.n):
        links = loads.links[loads.ptr[flow] : loads.ptr[flow + 1]]
        assert any(full[i] and rates[flow] >= fastest[i] * (1 - 1e-9) for i in links)


def test_rates_of_a_textbook_case() -> None:
    # Bertsekas and Gallager, section 6.5.2: a long flow over two links, one of them shared by two
    rates = fair_rates(
        np.array([1.0, 3.0]),
        np.array([0, 2, 3, 4]),
        np.array([0, 1, 0, 1]),
        np.ones(4),
    )
    assert rates.tolist() == [0.5, 0.5, 2.5]


def test_a_lone_message_by_hand() -> None:
    topology = from_text("Line(4, 1 GB/s, 1 us)_Line(1, 1 GB/s, 0 s)")
    flows = Flows(np.array([0]), np.array([3]), np.array([10_000.0]))
    stored = PacketNetwork(1000, 24)
    # 10 packets of 1024 B over 3 links: each a microsecond and a bit, and two more to fill
    expected = 3e-6 + 12 * 1.024e-6
    assert play_packets(topology, flows, stored)[0] == pytest.approx(expected, rel=1e-12)
    cut = replace(stored, switching="cut-through")
    expected = 3e-6 + 10 * 1.024e-6 + 2 * 24e-9
    assert play_packets(topology, flows, cut)[0] == pytest.approx(expected, rel=1e-12)
    assert stored.efficiency == 1000 / 1024


def test_links_that_serve_whole_messages_in_order_or_by_priority() -> None:
    topology = from_text("Switch(4, 1 GB/s, 0 s)")
    flows = Flows(np.array([0, 1, 2]), np.array([3, 3, 3]), np.array([1e6, 2e6, 3e6]))
    whole = PacketNetwork(1e7, arbiter="fifo")
    # the first arrives after 2 ms (stored once), then the link to the target is always in use
    assert play_packets(topology, flows, whole) == pytest.approx([2e-3, 4e-3, 7e-3])
    urgent = PacketNetwork(1e4, arbiter="priority")
    times = play_packets(topology, flows, urgent, priority=np.array([2, 1, 0], np.int32))
    assert times == pytest.approx([6e-3, 5e-3, 3e-3], rel=0.01)
    fair = play_packets(topology, flows, PacketNetwork(1e4))
    assert fair == pytest.approx([3e-3, 5e-3, 6e-3], rel=0.01)


def test_small_buffers_slow_a_long_link_down() -> None:
    topology = from_text("Line(3, 1 GB/s, 10 us)_Line(1, 1 GB/s, 0 s)")
    flows = Flows(np.array([0]), np.array([2]), np.array([1e6]))
    times = [
        play_packets(topology, flows, PacketNetwork(1000, buffer_packets=room))[0]
        for room in (1, 2, 4, 8, 100, None)
    ]
    assert times == sorted(times, reverse=True)
    # one packet for every latency, and its own microsecond on each of two links
    assert times[0] == pytest.approx(1000 * 12e-6, rel=0.01)
    assert times[-1] == times[-2]


def test_fifo_buffers_that_wait_for_each_other_are_found() -> None:
    topology = from_text("Ring(6, 1 GB/s, 0 s)")
    flows = make_flows("stride:3", 6, 1e6)  # all the same way round, three links each
    tight = PacketNetwork(1000, arbiter="fifo", buffer_packets=1)
    with pytest.raises(RidgelineError, match="in a circle"):
        play_packets(topology, flows, tight, ways=_clockwise(topology, flows))
    play_packets(topology, flows, replace(tight, arbiter="round-robin"))


def _clockwise(topology: Topology, flows: Flows) -> Routes:
    n = topology.n_devices
    hops = [
        routes(topology, (flows.source + i) % n, (flows.source + i + 1) % n).links for i in range(3)
    ]
    ptr = 3 * np.arange(flows.n + 1, dtype=np.int64)
    return Routes(ptr, np.stack(hops, axis=1).ravel())


def test_what_traffic_refuses() -> None:
    topology = from_text("Switch(4, 1 GB/s, 0 s)")
    with pytest.raises(RidgelineError, match="stride"):
        make_flows("strid:1", 4, 1.0)
    with pytest.raises(RidgelineError, match="does not fit"):
        make_flows("stride:4", 4, 1.0)
    with pytest.raises(RidgelineError, match="itself"):
        Flows(np.array([1]), np.array([1]), np.array([1.0]))
    with pytest.raises(RidgelineError, match="has 0 to 3"):
        flow_times(topology, Flows(np.array([0]), np.array([9]), np.array([1.0])))
    with pytest.raises(RidgelineError, match="cut-through"):
        PacketNetwork(switching="cut-thru")  # type: ignore[arg-type]
    with pytest.raises(RidgelineError, match="at least one packet"):
        PacketNetwork(buffer_packets=0)
    with pytest.raises(RidgelineError, match="too many"):
        play_packets(topology, make_flows("stride:1", 4, 1e12), PacketNetwork(64))


@pytest.mark.parametrize("stride", [1, 2, 4, 8])
@pytest.mark.parametrize("routing", ["two-level-table", "flow-scheduler", "shortest"])
def test_strides_reach_all_of_a_fat_tree(stride: int, routing: str) -> None:
    topology = replace(from_text("FatTree(4, 96 Mb/s, 0 s)"), routing=routing)
    rates = flow_rates(topology, make_flows(f"stride:{stride}", 16, 1.0))
    assert rates == pytest.approx(np.full(16, 12e6))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_a_flow_scheduler_is_no_worse_than_the_table(seed: int) -> None:
    topology = from_text("FatTree(4, 1 GB/s, 0 s)")
    flows = make_flows(f"permutation:{seed}", 16, 1.0)

    def fullest(routing: str) -> int:
        loads = flow_loads(replace(topology, routing=routing), flows)
        return int(np.bincount(loads.links).max())

    assert fullest("flow-scheduler") <= max(fullest("two-level-table"), 2)


def test_spraying_spreads_a_permutation_over_all_paths() -> None:
    topology = from_text("FatTree(8, 1 GB/s, 0 s)")
    flows = make_flows("permutation:3", 128, 1e6)
    assert flow_times(topology, flows, spray=16) == pytest.approx(np.full(128, 1e-3))


@pytest.mark.parametrize("name", ["al-fares", "packet-vs-fluid", "goyal-crossover", "transport"])
def test_reproductions_keep_their_tolerances(name: str) -> None:
    made = reproduce(name)
    kept = [row for row in made.rows if row.is_kept is not None]
    assert kept
    assert all(row.is_kept for row in kept), [
        (row.quantity, row.residual) for row in kept if not row.is_kept
    ]


def test_the_load_of_links_is_what_passes_them() -> None:
    topology = from_text("Ring(8, 10 GB/s, 0 s)")
    load = link_load(topology, "all-gather 80 MB ring")
    assert load.time_s == pytest.approx(7e-3)
    assert sorted(set(np.round(load.share, 9))) == [0.0, 1.0]
    load = link_load(topology, "stride:1 10MB")
    assert load.share.sum() == pytest.approx(8.0)
    for wrong in ("all-reduce", "all-redoce 1MB", "stride:1 1MB ring"):
        with pytest.raises(RidgelineError):
            link_load(topology, wrong)


@pytest.mark.parametrize(
    "text",
    [
        "Torus(4x8, 50 GB/s, 1 us)",
        "Mesh(2x3x4, 50 GB/s, 1 us)",
        "FatTree(4, 10 GB/s, 1 us)",
        "Dragonfly(1, 4, 1, 25 GB/s, 1 us)",
        "Ring(7, 1 GB/s, 0 s)",
        "Switch(1, 1 GB/s, 0 s)",
        "Ring(4, 200 GB/s, 0 s)_Switch(4, 25 GB/s, 0 s)",
    ],
)
def test_no_two_vertices_of_a_picture_coincide(text: str) -> None:
    xy = layout(from_text(text)).xy
    assert np.isfinite(xy).all()
    assert len(np.unique(np.round(xy, 6), axis=0)) == len(xy)


@pytest.mark.parametrize(("cluster", "devices"), [("tpu-v4-pod", 32), ("tpu-v3-pod", 12)])
def test_nodes_of_a_torus_stand_in_a_grid(cluster: str, devices: int) -> None:
    topology = shared_topology(rl.load_cluster(cluster), devices)
    place = layout(topology)
    xy, between = place.xy, topology.node_of[topology.source] != topology.node_of[topology.target]
    assert len(np.unique(np.round(xy, 6), axis=0)) == len(xy)
    ways = np.round(xy[topology.target] - xy[topology.source], 6)[between & (place.bent == 0.0)]
    dimensions = sum(extent > 1 for extent in topology.shape[1:])
    assert len(np.unique(ways, axis=0)) == 2 * dimensions  # all neighbours lie one step away


def test_a_picture_shows_the_load_of_every_link() -> None:
    topology = from_text("FatTree(4, 10 GB/s, 1 us)")
    load = link_load(topology, "stride:4 1MB")
    drawn = network(topology, load)
    lines = [c for c in drawn.collections if isinstance(c, LineCollection)]
    shown = np.concatenate([c.get_array() for c in lines if c.get_array() is not None])
    assert len(shown) == 48
    assert shown.max() == pytest.approx(load.share.max())
    assert "stride:4" in drawn.get_title(loc="left")
    with pytest.raises(RidgelineError, match="can be drawn"):
        network(from_text("FatTree(24, 10 GB/s, 1 us)"))


@pytest.mark.parametrize(("look", "widths"), [("print", {4.2}), ("screen", {7.0, 9.5})])
def test_pictures_are_as_wide_as_their_theme_and_have_nothing_outside(
    look: str, widths: set[float]
) -> None:
    found, flat = set(), "Mesh(2x32, 10 GB/s, 1 us)"
    for text in (
        "Mesh(2x32, 10 GB/s, 1 us)",
        "Torus(8x8, 12 GB/s, 500 ns)",
        "Switch(2, 1 GB/s, 0 s)",
    ):
        topology = from_text(text)
        with theme(look):
            drawn = network(topology, link_load(topology, "all-reduce 100MB"))
        figure = drawn.get_figure(root=True)
        assert figure is not None
        figure.canvas.draw()
        said = drawn.get_title(loc="left")
        title = next(t for t in figure.findobj(Text) if t.get_text() == said).get_window_extent()
        assert title.x1 <= figure.bbox.width
        assert title.y1 <= figure.bbox.height
        width, height = figure.get_size_inches()
        found.add(round(float(width), 6))
        assert height < 1.8 * width
        # Title, subject and colour bar keep their size where the sheet is narrow.
        assert text != flat or height < (0.75 if look == "print" else 0.62) * width
        (stamp,) = (t.get_text() for t in figure.texts)
        assert f"network {topology_fingerprint(topology)[:16]}" in " ".join(stamp.split())
    assert widths <= found | {9.5}
    assert max(found) <= max(widths)


def test_names_stand_only_where_there_is_room() -> None:
    with theme("print"):
        crowded, roomy = (network(from_text(f"Ring({n}, 1 GB/s, 0 s)")) for n in (38, 8))
    assert len(roomy.texts) == 8
    figure = crowded.get_figure(root=True)
    assert figure is not None
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in crowded.texts]
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[i + 1 :])


def test_half_of_a_bidirectional_link_is_idle() -> None:
    topology = from_text("Ring(8, 10 GB/s, 0 s)")
    load = link_load(topology, "all-reduce 80MB ring")
    assert math.isclose(load.share.sum(), 8.0)
