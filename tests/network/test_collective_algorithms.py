"""Every algorithm: real data end up right, bytes are conserved, times are those of the messages."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from network_machines import cluster, dgx1, single, switched

from oracles.collective_data import CollectiveData, all_have_met
from ridgeline.errors import RidgelineError
from ridgeline.network import Topology, from_cluster, from_text
from ridgeline.network.algorithm import ALGORITHMS, PARTED, DoesNotApplyError
from ridgeline.network.schedule import closed_form_time_s
from thoroughly import sample_of

NAMES = sorted(ALGORITHMS)
MACHINES = {
    "p100": lambda: from_cluster(single(dgx1("p100", latency="1 us")), 8),
    "v100 x 2": lambda: from_cluster(
        cluster(dgx1("v100", latency="1 us", collective_latency="9 us"), 2, latency="2 us"), 16
    ),
    "switched x 4": lambda: from_cluster(cluster(switched(4, 2), 4, radix=4, latency="3 us"), 16),
}


@pytest.fixture(autouse=True)
def _few_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.network.algorithms.pipelines.MAX_CHUNKS", 24)


@cache
def machine(text: str) -> Topology:
    return MACHINES[text]() if text in MACHINES else from_text(text)


def check(op: str, name: str, topology: Topology, ranks: list[int], size: float, seed: int,
          parts: np.ndarray | None = None) -> None:  # fmt: skip
    """Move data and compare everything that the schedule says with what was moved."""
    algorithm = ALGORITHMS[op, name]
    try:
        script = algorithm.script(topology, ranks, size, parts)
    except DoesNotApplyError:
        return
    schedule = algorithm(topology, ranks, size, parts)
    vertex = topology.devices[ranks].tolist()
    if op == "barrier":
        assert all_have_met(script, len(ranks))
    data = CollectiveData(op, script, topology, vertex, seed)
    data.play()
    if op != "barrier":
        data.check()
    carried = {link: total for link, total in data.bytes_on_link.items() if total}
    assert schedule.bytes_on_wire() == pytest.approx(carried, rel=1e-9)
    assert closed_form_time_s(schedule, topology) == pytest.approx(data.time_s, rel=1e-9, abs=0)
    check_conservation(topology, vertex, script.vertices, schedule.bytes_on_wire(), size)


def check_conservation(
    topology: Topology,
    members: list[int],
    adding: tuple[int, ...],
    wire: dict[int, float],
    size: float,
) -> None:
    """Vertices that take no part keep and make nothing."""
    balance = np.zeros(topology.n_vertices)
    for link, sent in wire.items():
        balance[topology.source[link]] -= sent
        balance[topology.target[link]] += sent
    balance[[*members, *adding]] = 0.0
    assert balance == pytest.approx(0, abs=1e-6 * max(size, 1.0))


@pytest.mark.parametrize(("op", "name"), NAMES)
@sample_of(4, 12, data=st.data())
def test_data_arrive_and_bytes_are_conserved(op: str, name: str, data: st.DataObject) -> None:
    p = data.draw(st.integers(2, 17))
    kind = data.draw(st.sampled_from(["Ring", "Switch", "FullyConnected"]))
    latency = data.draw(st.sampled_from(["0 s", "700 ns", "20 us"]))
    topology = machine(f"{kind}({p}, 3 GB/s, {latency})")
    ranks = data.draw(st.permutations(range(p)))
    size = data.draw(st.sampled_from([0.0, 1.0, 12345.6, 1e6, 1e9]))
    check(op, name, topology, list(ranks), size, data.draw(st.integers(0, 99)))


@pytest.mark.parametrize(("op", "name"), NAMES)
@pytest.mark.parametrize(
    "text",
    [
        *MACHINES,
        "Torus(4x3, 2 GB/s, 1 us)",
        "Mesh(2x3x2, 2 GB/s, 1 us)",
        "Hypercube(3, 2 GB/s, 1 us)",
        "FatTree(4, 2 GB/s, 1 us)",
        "Ring(4, 8 GB/s, 300 ns)_Switch(3, 1 GB/s, 2 us)",
        "Dragonfly(1, 2, 1, 2 GB/s, 1 us)",
    ],
)
def test_on_all_kinds_of_machines(op: str, name: str, text: str) -> None:
    topology = machine(text)
    check(op, name, topology, list(range(topology.n_devices)), 3e5, 1)


@pytest.mark.parametrize(("op", "name"), NAMES)
@pytest.mark.parametrize("p", [2, 3, 24, 32])
def test_sizes_of_groups(op: str, name: str, p: int) -> None:
    topology = machine("Switch(32, 3 GB/s, 1 us)")
    check(op, name, topology, list(range(p)), 1e5, p)


@pytest.mark.parametrize(("op", "name"), [key for key in NAMES if key[0] in PARTED])
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_uneven_parts(op: str, name: str, data: st.DataObject) -> None:
    p = data.draw(st.integers(2, 9))
    n = p * p if op == "all-to-all" else p
    sizes = data.draw(
        st.lists(st.sampled_from([0, 1, 8, 100, 4096, 10**6]), min_size=n, max_size=n)
    )
    parts = np.array(sizes, float).reshape((p, p) if op == "all-to-all" else p)
    topology = machine(f"Switch({p}, 3 GB/s, 1 us)")
    check(op, name, topology, list(range(p)), float(parts.sum()), 3, parts)


def lg(p: int) -> int:
    return (p - 1).bit_length()


A, B = 1.5e-6, 1 / 3e9  # latency of a message, seconds per byte

# Thakur, Rabenseifner and Gropp, 2005; Bruck et al., 1997: exact behind a switch for p = 2^k
TEXTBOOK = {
    ("all-reduce", "ring"): lambda p, s: 2 * (p - 1) * A + 2 * (p - 1) / p * s * B,
    ("all-reduce", "halving-doubling"): lambda p, s: 2 * lg(p) * A + 2 * (p - 1) / p * s * B,
    ("all-reduce", "rabenseifner"): lambda p, s: 2 * lg(p) * A + 2 * (p - 1) / p * s * B,
    ("all-reduce", "recursive-doubling"): lambda p, s: lg(p) * (A + s * B),
    ("all-reduce", "binomial-tree"): lambda p, s: 2 * lg(p) * (A + s * B),
    ("all-reduce", "direct"): lambda p, s: 2 * A + 2 * (p - 1) / p * s * B,
    ("all-reduce", "parameter-server"): lambda p, s: 2 * (A + (p - 1) * s * B),
    ("all-reduce", "in-network"): lambda p, s: A + s * B,
    ("reduce-scatter", "ring"): lambda p, s: (p - 1) * A + (p - 1) / p * s * B,
    ("reduce-scatter", "pairwise"): lambda p, s: (p - 1) * A + (p - 1) / p * s * B,
    ("reduce-scatter", "halving-doubling"): lambda p, s: lg(p) * A + (p - 1) / p * s * B,
    ("all-gather", "ring"): lambda p, s: (p - 1) * A + (p - 1) / p * s * B,
    ("all-gather", "halving-doubling"): lambda p, s: lg(p) * A + (p - 1) / p * s * B,
    ("all-gather", "bruck"): lambda p, s: lg(p) * A + (p - 1) / p * s * B,
    ("all-to-all", "bruck"): lambda p, s: lg(p) * (A + s / 2 * B),
    ("all-to-all", "pairwise"): lambda p, s: (p - 1) * A + (p - 1) / p * s * B,
    ("all-to-all", "direct"): lambda p, s: A + (p - 1) / p * s * B,
    ("broadcast", "binomial-tree"): lambda p, s: lg(p) * (A + s * B),
    ("broadcast", "scatter-allgather"): lambda p, s: (
        (lg(p) + p - 1) * A + 2 * (p - 1) / p * s * B
    ),
    ("reduce", "binomial-tree"): lambda p, s: lg(p) * (A + s * B),
    ("scatter", "binomial-tree"): lambda p, s: lg(p) * A + (p - 1) / p * s * B,
    ("gather", "binomial-tree"): lambda p, s: lg(p) * A + (p - 1) / p * s * B,
    ("barrier", "dissemination"): lambda p, s: lg(p) * A,
    ("send", "direct"): lambda p, s: A + s * B,
    ("send-recv", "direct"): lambda p, s: A + s * B,
}  # fmt: skip
# of these the formula holds for any number of ranks
ANY_P = {"ring", "pairwise", "direct", "parameter-server", "in-network", "dissemination"}


@pytest.mark.parametrize(("op", "name"), TEXTBOOK)
@pytest.mark.parametrize("size", [0.0, 4096.0, 1e8])
def test_textbook_formulas(op: str, name: str, size: float) -> None:
    topology = machine("Switch(64, 3 GB/s, 750 ns)")
    powers = [2, 4, 8, 16, 32, 64]
    for p in range(2, 65) if name in ANY_P or (op, name) == ("all-gather", "bruck") else powers:
        time_s = closed_form_time_s(ALGORITHMS[op, name](topology, range(p), size), topology)
        assert time_s == pytest.approx(TEXTBOOK[op, name](p, size), rel=1e-9), p


@pytest.mark.parametrize("p", [3, 5, 6, 7, 11, 24, 33, 63])
def test_other_numbers_of_ranks_fold_first(p: int) -> None:
    topology, size = machine("Switch(64, 3 GB/s, 750 ns)"), 1e7
    m = 1 << (p.bit_length() - 1)
    core = 2 * lg(m) * A + 2 * (m - 1) / m * size * B
    extra = {"halving-doubling": 2 * A, "rabenseifner": 3 * A}
    for name, latency in extra.items():
        time_s = closed_form_time_s(
            ALGORITHMS["all-reduce", name](topology, range(p), size), topology
        )
        assert time_s == pytest.approx(core + latency + 2 * size * B, rel=1e-9)


@pytest.mark.parametrize("p", [2, 3, 8, 17, 64])
def test_the_chain_has_the_best_number_of_chunks(p: int) -> None:
    topology, size = machine("Ring(64, 3 GB/s, 1500 ns)"), 1e7
    time_s = closed_form_time_s(
        ALGORITHMS["broadcast", "chain"](topology, range(p), size), topology
    )
    best = min((p - 2 + k) * (A + size * B / k) for k in range(1, 25))
    assert time_s == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("p", [4, 15, 16, 63, 64])
def test_two_trees_are_as_good_as_published(p: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.network.algorithms.pipelines.MAX_CHUNKS", 1024)
    topology, size = machine("Switch(64, 3 GB/s, 750 ns)"), 1e8
    schedule = ALGORITHMS["all-reduce", "double-binary-tree"](topology, range(p), size)
    time_s = closed_form_time_s(schedule, topology)
    bound = 2 * (p - 1) / p * size * B
    asymptote = 2 * size * B + 4 * lg(p) * A + 4 * math.sqrt(2 * lg(p) * A * size * B)
    assert bound < time_s < asymptote


@pytest.mark.parametrize("shape", [(4, 8), (3, 5), (2, 2), (4, 4, 4), (2, 3, 4)])
def test_rings_along_the_dimensions_of_a_torus(shape: tuple[int, ...]) -> None:
    topology, size = machine(f"Torus({'x'.join(map(str, shape))}, 3 GB/s, 1500 ns)"), 1e7
    everyone = range(math.prod(shape))
    expected, share = 0.0, size
    for p in shape:
        expected += 2 * (p - 1) * A + 2 * (p - 1) / p * share * B
        share /= p
    for name in ("torus", "hierarchical"):
        schedule = ALGORITHMS["all-reduce", name](topology, everyone, size)
        assert closed_form_time_s(schedule, topology) == pytest.approx(expected, rel=1e-9)
    if len(set(shape)) == 1 and shape[0] > 2:
        d, p = len(shape), math.prod(shape)
        schedule = ALGORITHMS["all-reduce", "multi-torus"](topology, everyone, size)
        ideal = 2 * (p - 1) / p * size * B / (2 * d) + 2 * d * (shape[0] - 1) * A
        assert closed_form_time_s(schedule, topology) == pytest.approx(ideal, rel=1e-9)


def test_blueconnect_with_a_bandwidth_per_dimension() -> None:
    text = "Ring(8, 200 GB/s, 500 ns)_Switch(16, 25 GB/s, 1 us)"
    schedule = ALGORITHMS["all-reduce", "hierarchical"](machine(text), range(128), 1e8)
    expected = (
        2 * 7 * 0.5e-6 + 2 * 7 / 8 * 1e8 / 200e9 + 2 * 15 * 2e-6 + 2 * 15 / 16 * 1.25e7 / 25e9
    )
    assert closed_form_time_s(schedule, machine(text)) == pytest.approx(expected, rel=1e-9)


def test_a_two_way_ring_takes_half_the_time() -> None:
    topology = machine("Ring(12, 3 GB/s, 0 s)")
    one, two = (
        closed_form_time_s(ALGORITHMS["all-reduce", name](topology, range(12), 1e8), topology)
        for name in ("ring", "bidirectional-ring")
    )
    assert one == pytest.approx(2 * two)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_nothing_is_faster_than_the_ports_allow(data: st.DataObject) -> None:
    op, name = data.draw(st.sampled_from([key for key in NAMES if key[1] != "in-network"]))
    p, size = data.draw(st.integers(2, 33)), data.draw(st.floats(1, 1e9))
    kind = data.draw(st.sampled_from(["Ring", "Switch", "FullyConnected"]))
    topology = machine(f"{kind}({p}, 3 GB/s, 1 us)")
    try:
        schedule = ALGORITHMS[op, name](topology, range(p), size)
    except DoesNotApplyError:
        return
    time_s = closed_form_time_s(schedule, topology)
    ports = {"Ring": min(2, p - 1), "Switch": 1, "FullyConnected": p - 1}[kind]
    passes = {"all-reduce": 2, "reduce-scatter": 1, "all-gather": 1, "all-to-all": 1, "gather": 1}
    least = passes.get(op, 0) * (p - 1) / p * size * B / ports
    if op == "all-to-all" and kind == "Ring":
        least = max(least, size * B * (p // 2) * (p - p // 2) / p / 2)  # the cut
    assert time_s >= max(least, 1e-6) * (1 - 1e-9)


@pytest.mark.parametrize(("op", "name"), NAMES)
def test_one_rank_has_nothing_to_do(op: str, name: str) -> None:
    assert ALGORITHMS[op, name](machine("Switch(4, 1 GB/s, 1 us)"), [2], 1e6).phases == ()


@pytest.mark.parametrize(
    ("parts", "message"),
    [([1.0, 2.0], "must be 3 sizes"), ([1.0, 2.0, -1.0], "at least 0 B"),
     ([1.0, 2.0, math.nan], "at least 0 B")],
)  # fmt: skip
def test_impossible_parts(parts: list[float], message: str) -> None:
    with pytest.raises(RidgelineError, match=message):
        ALGORITHMS["all-gather", "ring"](
            machine("Switch(4, 1 GB/s, 1 us)"), range(3), 3.0, np.array(parts)
        )
    with pytest.raises(RidgelineError, match="no parts of its own"):
        ALGORITHMS["all-reduce", "ring"](
            machine("Switch(4, 1 GB/s, 1 us)"), range(3), 3.0, np.ones(3)
        )


def test_what_does_not_apply_says_why() -> None:
    with pytest.raises(DoesNotApplyError, match="at least two dimensions"):
        ALGORITHMS["all-reduce", "torus"](machine("Ring(4, 1 GB/s, 1 us)"), range(4), 1e6)
    with pytest.raises(DoesNotApplyError, match="no switch"):
        ALGORITHMS["all-reduce", "in-network"](machine("Ring(4, 1 GB/s, 1 us)"), range(4), 1e6)
