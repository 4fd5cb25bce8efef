"""Tori of unequal sides keep all links busy, and a torus from a file is found."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.network import collective
from ridgeline.network.algorithm import ALGORITHMS, asked_bytes
from ridgeline.network.algorithms.grid import GridPart, balanced_shares
from ridgeline.network.algorithms.shares import least_shares
from ridgeline.network.inline import from_text
from ridgeline.network.verification import verify_script

SHAPES = [(4, 8), (8, 8), (3, 5), (2, 8), (4, 4, 8), (2, 4, 8)]


def _bound_s(shape: tuple[int, ...], size: float, rate: float, passes: int) -> float:
    n = math.prod(shape)
    ports = sum(1 if extent == 2 else 2 for extent in shape)
    return passes * (n - 1) / n * size / (ports * rate)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("op", "passes"), [("all-reduce", 2), ("all-gather", 1)])
def test_all_links_of_a_torus_are_used(shape: tuple[int, ...], op: str, passes: int) -> None:
    where = f"Torus({'x'.join(map(str, shape))}, 50 GB/s, 0 s)"
    bound_s = _bound_s(shape, 1e8, 50e9, passes)
    assert bound_s * (1 - 1e-9) <= collective(op, 1e8, where).time_s <= 1.05 * bound_s


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(2, 16), min_size=2, max_size=4))
def test_balanced_shares_are_shares(extents: list[int]) -> None:
    none = (False,) * len(extents)
    shares = np.array(balanced_shares(GridPart(tuple(extents), none, none)))
    assert (shares >= 0).all()
    assert shares.sum() == pytest.approx(1)


@pytest.mark.parametrize(("shape", "named"), [((8, 8), False), ((4, 8), False), ((8, 8), True)])
def test_a_torus_from_a_file_is_found(shape: tuple[int, ...], named: bool, tmp_path: Path) -> None:
    n, (w, h) = math.prod(shape), shape
    links = [
        f"  - {{between: [d{rank}, d{other}], type: l}}"
        for rank in range(n)
        for other in (
            (rank % w + 1) % w + rank // w * w,
            rank % w + (rank // w + 1) % h * w,
        )
    ]
    file = tmp_path / "torus.yaml"
    file.write_text(
        "kind: topology\nname: mine\ndevices_forward: true\n"
        + (f"shape: [{', '.join(map(str, shape))}]\n" if named else "")
        + f"devices: [{', '.join(f'd{i}' for i in range(n))}]\n"
        + "link_types: {l: {bandwidth: 50 GB/s, latency: 0 s}}\nlinks:\n"
        + "\n".join(links)
        + "\n",
        encoding="utf-8",
    )
    found = collective("all-reduce", 1e8, str(file))
    assert found.algorithm in {"multi-torus", "ring"}  # rings over all links, where packed
    assert found.time_s <= 1.05 * _bound_s(shape, 1e8, 50e9, 2)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_least_shares_are_proven_by_their_dual(data: st.DataObject) -> None:
    """No shares do better than weights of links say: the value of a game, from both sides."""
    rows, lanes = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    cells = st.lists(st.integers(1, 9), min_size=lanes, max_size=lanes)
    load = np.array(data.draw(st.lists(cells, min_size=rows, max_size=rows)), np.float64)
    shares = least_shares(load)
    assert shares.sum() == pytest.approx(1.0)
    assert (shares >= 0).all()
    most = load.max() + 1
    weights = least_shares(most - load.T)
    assert (load @ shares).max() == pytest.approx((weights @ load).min(), rel=1e-9)


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        # 2(p-1)/p of the payload over all ports of a device
        ("Ring(4, 200 GB/s, 100 ns)_Ring(4, 100 GB/s, 100 ns)", 2 * 15 / 16 / 600e9),
        ("Switch(4, 200 GB/s, 1 us)_Switch(4, 100 GB/s, 1 us)_Switch(4, 50 GB/s, 1 us)",
         2 * 63 / 64 / 350e9),
        # what a ring of eight has to send to the others, over its eight ports to switches
        ("Ring(8, 200 GB/s, 500 ns)_Switch(16, 25 GB/s, 1 us)", 2 * 15 / 16 / 200e9),
    ],
)  # fmt: skip
def test_unlike_dimensions_are_filled(text: str, bound: float) -> None:
    found = collective("all-reduce", 10e9, text)
    assert found.algorithm == "themis"
    assert bound <= found.time_s / 10e9 <= 1.08 * bound


RING_OPS = st.sampled_from(["all-reduce", "reduce-scatter", "all-gather"])
BLOCK = st.tuples(st.sampled_from(["FullyConnected", "Ring", "Line"]), st.integers(2, 6))


@settings(max_examples=60, deadline=None)
@given(RING_OPS, st.sampled_from(["torus", "multi-torus", "themis"]), st.data())
def test_complete_graphs_as_dimensions_do_the_operation(
    op: str, name: str, data: st.DataObject
) -> None:
    """On symbolic chunks: whatever dimensions are complete graphs, rings and lines."""
    blocks = data.draw(st.lists(BLOCK, min_size=2, max_size=3))
    text = "_".join(f"{kind}({n}, 25 GB/s, 500 ns)" for kind, n in blocks)
    topology, one = from_text(text), ALGORITHMS[op, name]
    ranks = range(topology.n_devices)
    script = one.script(topology, ranks, 1e6)
    asked = asked_bytes(op, one.group(topology, ranks, 1e6, None))
    verify_script(name, op, script, asked, topology.n_devices)


@pytest.mark.parametrize(("op", "passes"), [("all-reduce", 2), ("all-gather", 1)])
@pytest.mark.parametrize("shape", [(4, 4), (5, 5, 5), (8, 8)], ids=str)
def test_a_hyperx_takes_a_round_a_dimension(shape: tuple[int, ...], op: str, passes: int) -> None:
    """(p - 1)/p of the payload over all ports, and one latency a dimension and pass."""
    where = f"HyperX({'x'.join(map(str, shape))}, 25 GB/s, 1 us)"
    ports, p = sum(n - 1 for n in shape), math.prod(shape)
    expected_s = passes * ((p - 1) / p * 1e8 / (ports * 25e9) + len(shape) * 1e-6)
    found = collective(op, 1e8, where, algorithm="multi-torus")
    assert found.time_s == pytest.approx(expected_s, rel=1e-9)
    assert collective(op, 1e8, where).time_s <= found.time_s


def test_one_complete_dimension_is_passed_in_one_round_each_way() -> None:
    """Σ over dimensions: a ring takes p - 1 rounds of 1/p, a complete graph one."""
    where, size = "FullyConnected(8, 50 GB/s, 500 ns)_Ring(4, 25 GB/s, 1 us)", 1e6
    expected_s = 2 * (500e-9 + size / 8 / 50e9 + 3 * (1e-6 + size / 8 / 4 / 25e9))
    found = collective("all-reduce", size, where, algorithm="torus")
    assert found.time_s == pytest.approx(expected_s, rel=1e-9)


@pytest.mark.parametrize(
    ("text", "ports_bytes_per_s"),
    [
        ("FullyConnected(8, 25 GB/s, 0 s)_Ring(4, 25 GB/s, 0 s)", 9 * 25e9),
        ("Ring(8, 25 GB/s, 0 s)_FullyConnected(8, 25 GB/s, 0 s)", 9 * 25e9),
        ("FullyConnected(4, 50 GB/s, 0 s)_FullyConnected(8, 25 GB/s, 0 s)", 325e9),
        ("FullyConnected(8, 50 GB/s, 0 s)_FullyConnected(4, 25 GB/s, 0 s)_Ring(4, 25 GB/s, 0 s)",
         475e9),
    ],
)  # fmt: skip
def test_all_ports_of_complete_graphs_are_used(text: str, ports_bytes_per_s: float) -> None:
    p = from_text(text).n_devices
    bound_s = 2 * (p - 1) / p * 1e9 / ports_bytes_per_s
    assert bound_s * (1 - 1e-9) <= collective("all-reduce", 1e9, text).time_s <= 1.07 * bound_s
