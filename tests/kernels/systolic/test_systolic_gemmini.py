"""Matrix products on Gemmini's RTL."""

from __future__ import annotations

import pytest

from ridgeline.kernels.systolic import gemm_cycles

# Cycles of GEMMs M x K x N on Chipyard's GemminiRocketConfig in Verilator: a 16 x 16 weight-
# stationary array, int8. As quoted by a secondary source; the array's size is its data sheet.
MEASURED = {
    (64, 64, 64): 3810,
    (128, 128, 128): 10530,
    (256, 256, 256): 69653,
    (16, 512, 512): 32506,
    (512, 512, 64): 74413,
    (512, 512, 512): 543240,
}
# The one fitted constant: instructions, first loads and last stores of a product.
AROUND_CYCLES = 2210


@pytest.mark.parametrize(("m", "k", "n"), MEASURED)
def test_within_ten_per_cent(m: int, k: int, n: int) -> None:
    # A weight tile is loaded between the streams of two tiles, not behind one: "pipelined".
    cycles = gemm_cycles(m, n, k, 16, 16, "ws", "pipelined", "full") + AROUND_CYCLES
    assert cycles == pytest.approx(MEASURED[m, k, n], rel=0.10)
