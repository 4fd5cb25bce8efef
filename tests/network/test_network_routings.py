"""Routings: every route is a way, and each has the property that it is named for."""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from network_machines import cluster, dgx1, switched

from oracles.collective_routes import shortest_path
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.network import Topology, from_cluster, from_text
from ridgeline.network.paths import Ints, Routes, join
from ridgeline.network.routing import ROUTINGS, route, routes

LINK = "2 GB/s, 1 us"
TEXTS = [
    f"Ring(9, {LINK})", f"Torus(4x3, {LINK})", f"Mesh(3x2x2, {LINK})", f"Hypercube(4, {LINK})",
    f"FatTree(4, {LINK})", f"Dragonfly(2, 3, 2, {LINK})", f"Tree(12, 4, 2, {LINK})",
    f"Ring(4, {LINK})_Switch(3, 5 GB/s, 1 us)", "dgx1", "switched",
]  # fmt: skip


@cache
def machine(text: str, routing: str) -> Topology:
    if text == "dgx1":
        topology = from_cluster(cluster(dgx1("v100"), 4, radix=8), 32)
    elif text == "switched":
        topology = from_cluster(cluster(switched(4, 2), 8, radix=8, latency="1 us"), 32)
    else:
        topology = from_text(text)
    return dataclasses.replace(topology, routing=routing)


def all_pairs(topology: Topology) -> tuple[Ints, Ints]:
    n = topology.n_devices
    source, target = np.divmod(np.arange(n * n), n)
    return topology.devices[source].astype(np.int64), topology.devices[target].astype(np.int64)


def check_ways(topology: Topology, source: Ints, target: Ints, found: Routes) -> None:
    for m in range(len(source)):
        place = source[m]
        for link in found.links[found.ptr[m] : found.ptr[m + 1]].tolist():
            assert topology.source[link] == place
            assert place == source[m] or topology.forwards[place]
            place = topology.target[link]
        assert place == target[m]


@pytest.mark.parametrize("routing", ["shortest", "ecmp", "up-down"])
@pytest.mark.parametrize("text", TEXTS)
def test_all_routes_are_ways(text: str, routing: str) -> None:
    topology = machine(text, routing)
    source, target = all_pairs(topology)
    found = routes(topology, source, target)
    check_ways(topology, source, target, found)
    shortest = np.diff(routes(machine(text, "shortest"), source, target).ptr)
    if routing == "ecmp":
        assert (np.diff(found.ptr) == shortest).all()
    assert (np.diff(found.ptr) >= shortest).all()


@pytest.mark.parametrize("text", TEXTS)
def test_shortest_is_what_the_plain_search_finds(text: str) -> None:
    topology = machine(text, "shortest")
    source, target = all_pairs(topology)
    found = routes(topology, source, target)
    for m in range(0, len(source), 3):
        links = tuple(found.links[found.ptr[m] : found.ptr[m + 1]].tolist())
        assert links == shortest_path(topology, int(source[m]), int(target[m]))


@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_many_at_once_are_the_same_as_one_by_one(data: st.DataObject) -> None:
    topology = machine(data.draw(st.sampled_from(TEXTS)), data.draw(
        st.sampled_from(["shortest", "ecmp", "up-down"])))  # fmt: skip
    vertex = st.sampled_from(topology.devices.tolist())
    pairs = data.draw(st.lists(st.tuples(vertex, vertex), min_size=1, max_size=20))
    source, target = np.array(pairs).T
    found = routes(topology, source, target)
    for m, (a, b) in enumerate(pairs):
        assert tuple(found.links[found.ptr[m] : found.ptr[m + 1]].tolist()) == route(topology, a, b)


@pytest.mark.parametrize("text", TEXTS)
def test_up_down_routes_cannot_wait_for_each_other_in_a_circle(text: str) -> None:
    # Dally and Seitz, 1987: free of deadlock if the graph of "this link waits for that" is acyclic
    topology = machine(text, "up-down")
    assert not has_cycle(waits(topology))


@pytest.mark.parametrize("text", [f"Mesh(4x4, {LINK})", f"Hypercube(4, {LINK})"])
def test_dimension_order_cannot_wait_in_a_circle(text: str) -> None:
    assert not has_cycle(waits(machine(text, "dimension-ordered")))
    assert has_cycle(waits(machine(f"Torus(5x5, {LINK})", "dimension-ordered")))  # needs channels


def waits(topology: Topology) -> dict[int, set[int]]:
    source, target = all_pairs(topology)
    found = routes(topology, source, target)
    after: dict[int, set[int]] = {}
    for m in range(len(source)):
        links = found.links[found.ptr[m] : found.ptr[m + 1]].tolist()
        for first, second in pairwise(links):
            after.setdefault(first, set()).add(second)
    return after


def has_cycle(after: dict[int, set[int]]) -> bool:
    waiting = Counter(link for links in after.values() for link in links)
    free = [link for link in after if not waiting[link]]
    done = 0
    for link in free:
        done += 1
        for following in after.get(link, ()):
            waiting[following] -= 1
            if not waiting[following]:
                free.append(following)
    return done < len(set(after) | set(waiting))


@pytest.mark.parametrize(
    "text", [f"Torus(4x5, {LINK})", f"Mesh(3x4x2, {LINK})",
             f"Ring(4, {LINK})_FullyConnected(3, {LINK})_Switch(2, {LINK})"],
)  # fmt: skip
def test_dimension_order_corrects_one_coordinate_after_the_other(text: str) -> None:
    topology = machine(text, "dimension-ordered")
    source, target = all_pairs(topology)
    found = routes(topology, source, target)
    check_ways(topology, source, target, found)
    strides = np.cumprod((1, *topology.shape[:-1]))
    for m in range(len(source)):
        links = found.links[found.ptr[m] : found.ptr[m + 1]]
        at = [v for v in topology.target[links].tolist() if v < topology.n_devices]
        places = [v // strides % topology.shape for v in (int(source[m]), *at)]
        moved = [int(np.flatnonzero(a != b)[0]) for a, b in pairwise(places)]
        assert moved == sorted(moved)
    with pytest.raises(RidgelineError, match="no dimensions"):
        route(machine(f"FatTree(4, {LINK})", "dimension-ordered"), 0, 5)


def test_two_level_tables() -> None:
    topology = machine(f"FatTree(6, {LINK})", "two-level-table")
    source, target = all_pairs(topology)
    found = routes(topology, source, target)
    check_ways(topology, source, target, found)
    shortest = routes(machine(f"FatTree(6, {LINK})", "shortest"), source, target)
    assert (found.ptr == shortest.ptr).all()
    # All traffic to one host comes down through one core, and all to all is spread evenly.
    names = np.array(topology.vertex_names)
    core = np.char.startswith(names[topology.source[found.links]], "core")
    message = np.repeat(np.arange(len(source)), np.diff(found.ptr))
    ways = {(int(target[m]), int(topology.source[i])) for m, i in zip(
        message[core], found.links[core], strict=True)}  # fmt: skip
    per_host = Counter(host for host, _ in ways)
    assert max(per_host.values()) <= 3  # one for each aggregation switch that sends up
    loads = np.bincount(found.links[core], minlength=topology.n_links)
    assert len(set(loads[loads > 0].tolist())) == 1
    with pytest.raises(RidgelineError, match="no FatTree"):
        route(machine(f"Torus(4x5, {LINK})", "two-level-table"), 0, 5)


def test_ecmp_spreads_but_not_evenly() -> None:
    topology = machine(f"FatTree(8, {LINK})", "ecmp")
    source = np.arange(128)
    target = (source + 64) % 128
    loads = np.bincount(routes(topology, source, target).links)
    assert loads.max() > 1  # two flows collide
    straight = np.bincount(routes(machine(f"FatTree(8, {LINK})", "shortest"), source, target).links)
    assert straight.max() == 1  # D-mod-k, at all three levels
    core = [name.startswith("core") for name in topology.vertex_names]
    used = {int(topology.source[i]) for i in np.flatnonzero(loads)}
    assert sum(core[v] for v in used) > 8


def test_an_unknown_routing() -> None:
    with pytest.raises(ConfigError, match="did you mean 'shortest'"):
        route(machine(TEXTS[0], "shotest"), 0, 1)


@pytest.mark.parametrize("shift", [1, 3, 4, 16, 37, 64, 100])
def test_shifts_do_not_contend_on_three_levels(shift: int) -> None:
    topology = machine(f"FatTree(8, {LINK})", "shortest")
    loads = np.bincount(routes(topology, np.arange(128), (np.arange(128) + shift) % 128).links)
    assert loads.max() == 1


@pytest.mark.parametrize(
    "text",
    [
        "Torus(3x4x5, 50 GB/s, 1 us)",
        "Mesh(4x4x2, 50 GB/s, 1 us)",
        "Ring(4, 200 GB/s, 500 ns)_Switch(8, 25 GB/s, 1 us)_Ring(3, 1 GB/s, 1 us)",
        "Switch(4, 50 GB/s, 1 us)_FatTree(4, 25 GB/s, 1 us)",
    ],
)
def test_ways_along_lines_are_those_through_the_whole_product(text: str) -> None:
    topology = from_text(text)
    n, vertices = topology.n_devices, topology.devices.astype(np.int64)
    a, b = (ends.ravel() for ends in np.meshgrid(np.arange(n), np.arange(n)))
    found = ROUTINGS["dimension-ordered"](topology, vertices[a], vertices[b])
    parts, stride, at = [], 1, a
    for extent in topology.shape:
        after = at + ((b // stride) % extent - (at // stride) % extent) * stride
        parts.append(ROUTINGS["shortest"](topology, vertices[at], vertices[after]))
        at, stride = after, stride * extent
    whole = join(*parts)
    assert (found.ptr == whole.ptr).all()
    assert (found.links == whole.links).all()
