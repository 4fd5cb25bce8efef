from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import strategies as st
from network_machines import cluster, dgx1, node, single, switched

from ridgeline.errors import RidgelineError
from ridgeline.network import Topology, from_cluster, from_text
from ridgeline.network.routing import route
from ridgeline.network.topology import LinkKind, TopologyBuilder
from thoroughly import sample_of


def check_route(topology: Topology, source: int, target: int) -> tuple[int, ...]:
    links = route(topology, source, target)
    place = source
    for link in links:
        assert topology.source[link] == place
        place = int(topology.target[link])
        assert place == target or topology.vertex_kinds[place] != "device"
    assert place == target
    return links


def best_by_enumeration(topology: Topology, source: int, target: int) -> tuple[int, float] | None:
    """Hops and bandwidth of the best simple path, by walking along all of them."""
    found: list[tuple[int, float]] = []

    def walk(vertex: int, seen: frozenset[int], hops: int, width: float) -> None:
        if vertex == target:
            found.append((hops, -width))
            return
        if vertex != source and topology.vertex_kinds[vertex] == "device":
            return
        for link in range(topology.out_ptr[vertex], topology.out_ptr[vertex + 1]):
            after = int(topology.target[link])
            if after not in seen:
                bandwidth = float(topology.bandwidth_bytes_per_s[link])
                walk(after, seen | {after}, hops + 1, min(width, bandwidth))

    walk(source, frozenset({source}), 0, float("inf"))
    return (min(found)[0], -min(found)[1]) if found else None


@st.composite
def drawings(draw: st.DrawFn) -> Topology:
    n = draw(st.integers(2, 7))
    drawing = TopologyBuilder()
    names = st.sampled_from(["device", "switch", "host", "nic"])
    kinds = ["device", "device", *(draw(names) for _ in range(n - 2))]
    for i, kind in enumerate(kinds):
        drawing.vertex(f"{kind}{i}", kind)
    for a in range(n):
        for b in range(a):
            for name, rate in (("thin", 1e9), ("thick", 4e9)):
                count = draw(st.sampled_from([0, 0, 0, 1, 2]))
                if count:
                    drawing.join(a, b, LinkKind(name, rate, 1e-6, 0.0), count)
    return drawing.finish("random", [0, 1])


@sample_of(50, 200, drawings())
def test_routes_are_the_shortest_and_of_those_the_widest(topology: Topology) -> None:
    for source in range(topology.n_vertices):
        for target in range(topology.n_vertices):
            if source == target:
                assert route(topology, source, target) == ()
                continue
            best = best_by_enumeration(topology, source, target)
            if best is None:
                with pytest.raises(RidgelineError, match="no route from"):
                    route(topology, source, target)
                continue
            links = check_route(topology, source, target)
            width = min(float(topology.bandwidth_bytes_per_s[link]) for link in links)
            assert (len(links), width) == best


def test_devices_do_not_pass_on_messages_of_others() -> None:
    links: list[dict[str, object]] = [
        {"between": [f"device{i}", f"device{i + 1}"], "type": "nvlink"} for i in range(3)
    ]
    topology = from_cluster(single(node("line", 4, links)), 4)
    with pytest.raises(RidgelineError, match=r"no route from node0\.device0 to node0\.device2"):
        route(topology, 0, 2)
    assert len(route(from_text("Ring(4, 1 GB/s, 0 s)"), 0, 2)) == 2  # chips of a torus do


def test_unlinked_devices_of_a_dgx1_meet_at_the_hosts() -> None:
    topology = from_cluster(single(dgx1("p100")), 8)
    way = [topology.vertex_names[topology.target[i]] for i in check_route(topology, 1, 6)]
    assert way == ["node0.plx0", "node0.cpu0", "node0.cpu1", "node0.plx3", "node0.device6"]
    assert len(check_route(topology, 0, 3)) == 1


@pytest.mark.parametrize("shift", [1, 2, 3, 5])
def test_shifts_do_not_contend_on_a_fat_tree(shift: int) -> None:
    topology = from_cluster(cluster(switched(4, 4), 8, radix=8), 32)  # 32 NICs: the tree is full
    nics = [v for v, kind in enumerate(topology.vertex_kinds) if kind == "nic"]
    used: Counter[int] = Counter()
    for i, nic in enumerate(nics):
        used.update(check_route(topology, nic, nics[(i + 4 * shift) % len(nics)]))
    assert all(times <= topology.count[link] for link, times in used.items())


def test_routes_are_the_same_every_time() -> None:
    machine = cluster(dgx1("v100"), 8, radix=8)
    first, second = from_cluster(machine, 64), from_cluster(machine, 64)
    for source, target in [(0, 63), (5, 40), (63, 1)]:
        a, b = int(first.devices[source]), int(first.devices[target])
        assert route(first, a, b) == route(second, a, b)
