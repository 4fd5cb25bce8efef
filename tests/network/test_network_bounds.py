"""No collective beats the cut-set bound: what must cross a cut, over the bandwidth of the cut."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import strategies as st

from ridgeline import catalog
from ridgeline.errors import RidgelineError
from ridgeline.network import Topology, collective, from_text
from ridgeline.network.collectives import ALGORITHMS
from ridgeline.network.resolve import topology_of
from thoroughly import sample_of

OPS = sorted({op for op, _ in ALGORITHMS})


def crossing(op: str, inside: int, p: int, size: float, has_root: bool) -> float:
    """Bytes that must leave a set of `inside` of p ranks, with or without the root."""
    outside = p - inside
    return {
        "all-reduce": size,
        "reduce-scatter": outside / p * size,
        "all-gather": inside / p * size,
        "all-to-all": inside * outside / p * size,
        "broadcast": size * has_root,
        "scatter": outside / p * size * has_root,
        "reduce": size * (not has_root),
        "gather": inside / p * size * (not has_root),
    }.get(op, 0.0)


def cuts(topology: Topology, p: int) -> list[set[int]]:
    """Each device alone, the first k of them, each node, and the first k nodes."""
    devices = topology.devices[:p].tolist()
    found = [{device} for device in devices] + [set(devices[:k]) for k in range(2, p)]
    nodes: dict[int, set[int]] = {}
    for vertex, node in enumerate(topology.node_of.tolist()):
        nodes.setdefault(node, set()).add(vertex)
    used = [node for number, node in nodes.items() if number >= 0 and node & set(devices)]
    return found + used + [set().union(*used[:k]) for k in range(2, len(used))]


def bound_s(topology: Topology, op: str, p: int, size: float, in_network: bool) -> float:
    """Return the least time that any algorithm can take."""
    devices, rate = topology.devices[:p].tolist(), topology.bandwidth_bytes_per_s
    least, ports = 0.0, 0.0
    for inside in cuts(topology, p):
        is_in = np.zeros(topology.n_vertices, np.bool_)
        is_in[list(inside)] = True
        capacity = float(rate[is_in[topology.source] & ~is_in[topology.target]].sum())
        n = sum(device in inside for device in devices)
        if n < p and capacity > 0:
            least = max(least, crossing(op, n, p, size, devices[0] in inside) / capacity)
            if len(inside) == 1:
                ports = max(ports, capacity)
    if op == "all-reduce" and not in_network:  # 2(p-1) parts of a p-th are sent by the p ranks
        least = max(least, 2 * (p - 1) / p * size / ports)
    return least


def check(topology: Topology, p: int, size: float) -> int:
    """Compare every operation by every algorithm with the bound; return how many there were."""
    n = 0
    for op in OPS:
        names = ["auto", *(name for other, name in ALGORITHMS if other == op)]
        for name in names:
            try:
                result = collective(op, size, topology, ranks=p, algorithm=name)
            except RidgelineError:
                continue  # the algorithm does not fit the topology
            in_network = result.algorithm.startswith(("in-network", "nvls"))
            least = bound_s(topology, op, p, size, in_network)
            assert math.isfinite(result.time_s), (op, name)
            assert result.time_s >= least * (1 - 1e-9), (op, name, result.time_s, least)
            n += 1
    return n


@st.composite
def inline(draw: st.DrawFn) -> str:
    """A topology of up to three dimensions, or one of the networks with switches."""
    rate = st.integers(1, 400)

    def link() -> str:
        return f"{draw(rate)} GB/s, {draw(st.integers(0, 3000))} ns"

    family = draw(st.sampled_from(["product", "Torus", "Mesh", "HyperX", "switched"]))
    if family == "product":
        names = st.sampled_from(["Ring", "Switch", "FullyConnected", "Line", "FatTree"])
        n = draw(st.integers(2, 3))
        parts = []
        for name in draw(st.lists(names, min_size=n, max_size=n)):
            extent = 2 if name == "FatTree" else draw(st.integers(2, 5))
            parts.append(f"{name}({extent}, {link()})")
        return "_".join(parts)
    if family != "switched":
        extents = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
        return f"{family}({'x'.join(map(str, extents))}, {link()})"
    shape = draw(
        st.sampled_from(
            [
                "FatTree(4",
                "FatTree(6",
                "Tree(24, 6, 3",
                "Dragonfly(2, 3, 1",
                "DragonflyPlus(2, 2, 2, 1",
                "TwistedTorus(8x4",
                "Hypercube(4",
                "Ring(7",
            ]
        )
    )
    return f"{shape}, {link()})"


@sample_of(4, 15, text=inline(), size=st.floats(1, 1e10), data=st.data())
def test_nothing_beats_the_bound_on_inline_topologies(
    text: str, size: float, data: st.DataObject
) -> None:
    topology = from_text(text)
    if topology.n_devices > 1:
        assert check(topology, data.draw(st.integers(2, topology.n_devices)), size) > len(OPS)


@pytest.mark.parametrize("name", catalog.names("clusters"))
def test_nothing_beats_the_bound_on_shipped_clusters(name: str) -> None:
    few = {"trn1-32xlarge", "trn2-48xlarge"}  # of a torus of single devices only slices are used
    n = 8 if name in few else 11
    assert check(topology_of(name, n), n, 8e9) > len(OPS)
