"""Tori of unequal sides keep all links busy, and a torus from a file is found."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.network import collective
from ridgeline.network.algorithms.grid import balanced_shares
from ridgeline.network.algorithms.shares import least_shares

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
    shares = np.array(balanced_shares(tuple(extents), (False,) * len(extents)))
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
