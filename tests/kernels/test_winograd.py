"""Winograd's convolution: it is computed, its FLOPs are counted, the faster way is taken."""

from __future__ import annotations

import tempfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from machines import write_machine
from ridgeline.hardware import Device, load_device
from ridgeline.hardware.device import Winograd
from ridgeline.kernels.single_op import conv
from ridgeline.kernels.winograd import TRANSFORMS
from ridgeline.workload.graph import Conv

FOLDER = tempfile.TemporaryDirectory()
write_machine(Path(FOLDER.name))
LAYER = Conv(64, 128, 56, 56, 128, 3, 3, padding=(1, 1))
QUARTER, HALF = Fraction(1, 4), Fraction(1, 2)


def device(*outputs: int, fused: bool = True) -> Device:
    machine = load_device(str(Path(FOLDER.name) / "device.yaml"))
    if not outputs:
        return machine
    kernels = Winograd(outputs=outputs, fused=fused, formats=("fp32",), source="a test")  # type: ignore[arg-type]
    engine = machine.engines["matrix"].model_copy(update={"winograd": kernels})
    return machine.model_copy(update={"engines": {**machine.engines, "matrix": engine}})


# Lavin and Gray, equations 9 to 11 (m = 2) and 21 (m = 4): B', G, A'.
MATRICES = {
    2: (
        [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]],
        [[1, 0, 0], [HALF, HALF, HALF], [HALF, -HALF, HALF], [0, 0, 1]],
        [[1, 1, 1, 0], [0, 1, -1, -1]],
    ),
    4: (
        [[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0],
         [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0], [0, 4, 0, -5, 0, 1]],
        [[QUARTER, 0, 0], [-Fraction(1, 6)] * 3,
         [-Fraction(1, 6), Fraction(1, 6), -Fraction(1, 6)],
         [Fraction(1, 24), Fraction(1, 12), Fraction(1, 6)],
         [Fraction(1, 24), -Fraction(1, 12), Fraction(1, 6)], [0, 0, 1]],
        [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("outputs", [2, 4])
def test_a_tile_of_products_is_the_convolution(outputs: int) -> None:
    b, g, a = (np.array(matrix, dtype=object) for matrix in MATRICES[outputs])
    rng = np.random.default_rng(0)
    side = outputs + 2
    image, taps = rng.integers(-9, 10, (side, side)), rng.integers(-9, 10, (3, 3))
    products = (g @ taps @ g.T) * (b @ image @ b.T)  # side**2 multiplications
    direct = sum(
        taps[i, j] * image[i : i + outputs, j : j + outputs] for i in range(3) for j in range(3)
    )
    assert (a @ products @ a.T == direct).all()
    # The transforms need no more than one operation for each entry that is neither 0 nor the first.
    for matrix, counted in zip((b, g, a), TRANSFORMS[outputs], strict=True):
        plain = sum(
            np.count_nonzero(row) - 1 + sum(abs(x) not in (0, 1) for x in row) for row in matrix
        )
        assert counted <= plain


@pytest.mark.parametrize(("outputs", "share"), [(2, 16 / 36), (4, 36 / 144)])
def test_multiplications_of_whole_tiles(outputs: int, share: float) -> None:
    result = conv(LAYER, device(outputs), format="fp32")
    assert result.issued_flops == pytest.approx(result.flops * share)
    assert any("Winograd F(" in note for note in result.notes)


def test_the_fastest_is_taken_and_nothing_gets_slower() -> None:
    direct, two, both = (conv(LAYER, device(*m), format="fp32") for m in ((), (2,), (2, 4)))
    assert both.time_s < two.time_s < direct.time_s
    for loops in (Conv(1, 8, 3, 3, 8, 3, 3), Conv(1, 8, 7, 7, 512, 3, 3)):
        with_it, without = (conv(loops, device(*m), format="fp32") for m in ((2, 4), ()))
        assert with_it.time_s <= without.time_s


def test_transformed_tiles_pass_the_memory_unless_fused() -> None:
    fused, spilled = (conv(LAYER, device(4, fused=f), format="fp32") for f in (True, False))
    direct = conv(LAYER, device(), format="fp32")
    assert fused.traffic_bytes["hbm"] == direct.traffic_bytes["hbm"]
    assert spilled.traffic_bytes["hbm"] > 2 * fused.traffic_bytes["hbm"] or not spilled.notes


@pytest.mark.parametrize(
    "loops",
    [
        Conv(8, 64, 56, 56, 64, 1, 1), Conv(8, 64, 56, 56, 64, 3, 3, stride=(2, 2)),
        Conv(8, 64, 56, 56, 64, 5, 5), Conv(8, 64, 56, 56, 64, 3, 3, groups=2),
    ],
)  # fmt: skip
def test_other_convolutions_stay_direct(loops: Conv) -> None:
    assert conv(loops, device(2, 4), format="fp32") == conv(loops, device(), format="fp32")


def test_no_shipped_device_has_it_where_measured_shares_hold_its_effect() -> None:
    machine = load_device("v100-sxm2-16gb")
    assert all(engine.winograd is None for engine in machine.engines.values())
