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
