"""The register-level array against the closed form, and its product against NumPy's."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from oracles.systolic_registers import register_level_product
from ridgeline.errors import ConfigError
from ridgeline.hardware.array import Dataflow, Edge, Fold
from ridgeline.kernels.systolic import gemm_cycles

SCHEDULES = list(
    product(("os", "ws", "is"), ("serial", "pipelined", "overlapped"), ("exact", "full"))
)
SHAPES_OF_EACH = 150
"""Times 18 ways to fold: 2,700 random products."""


@pytest.mark.parametrize(("dataflow", "fold", "edge"), SCHEDULES)
def test_closed_form_and_product(dataflow: Dataflow, fold: Fold, edge: Edge) -> None:
    rng = np.random.default_rng(SCHEDULES.index((dataflow, fold, edge)))
    for shape in range(SHAPES_OF_EACH):
        m, n, k = (int(x) for x in rng.integers(1, 15, 3))
        rows, columns = (int(x) for x in rng.integers(1, 8, 2))
        batch = int(rng.integers(1, 3))
        hops = dict.fromkeys(("hop_row", "hop_col", "mac_latency"), 1)
        if shape % 2:
            hops = {name: int(rng.integers(1, 4)) for name in hops}
        a = rng.integers(-99, 99, (batch, m, k))
        b = rng.integers(-99, 99, (batch, k, n))
        c, cycles = register_level_product(a, b, rows, columns, dataflow, fold, edge, **hops)
        case = (m, n, k, batch, rows, columns, hops)
        assert (c == a @ b).all(), case
        expected = gemm_cycles(m, n, k, rows, columns, dataflow, fold, edge, batch=batch, **hops)
        assert cycles == expected, case


@pytest.mark.parametrize("dataflow", ["os", "ws", "is"])
def test_short_streams_after_tall_tiles(dataflow: Dataflow) -> None:
    # Where loads and drains rule: streams of 1 to 3 steps and tiles of many rows, then of few.
    rng = np.random.default_rng(1)
    for rows, short, t, mac in product((6, 9), (1, 2, 5), (1, 2, 3), (1, 4)):
        height = 2 * rows + short
        m, n, k = {"os": (height, 7, t), "ws": (t, 7, height), "is": (7, t, height)}[dataflow]
        a, b = rng.integers(-9, 9, (m, k)), rng.integers(-9, 9, (k, n))
        for fold in ("overlapped", "pipelined"):
            c, cycles = register_level_product(a, b, rows, 3, dataflow, fold, mac_latency=mac)
            assert (c == a @ b).all()
            assert cycles == gemm_cycles(m, n, k, rows, 3, dataflow, fold, mac_latency=mac)


def test_a_larger_product_of_floats() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((70, 100)), rng.standard_normal((100, 50))
    c, cycles = register_level_product(a, b, 16, 12, "ws")
    np.testing.assert_allclose(c, a @ b, rtol=1e-12, atol=1e-12)
    assert c.dtype == np.float64
    assert cycles == gemm_cycles(70, 50, 100, 16, 12)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (np.ones((2, 3)), np.ones((2, 3)), r"cannot multiply matrices of shapes \(2, 3\)"),
        (np.ones(3), np.ones((3, 1)), "found 1 and 2 axes"),
        (np.ones((2, 2, 3)), np.ones((1, 3, 2)), "cannot multiply"),
        (np.ones((0, 3)), np.ones((3, 2)), "the matrices are empty"),
    ],
)
def test_matrices_that_do_not_fit(a: np.ndarray, b: np.ndarray, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        register_level_product(a, b, 2, 2)
    with pytest.raises(ConfigError, match="rows must be"):
        register_level_product(np.ones((2, 2)), np.ones((2, 2)), 0, 2)
