"""The table "GEMM accelerators 10x more efficient", from the nine devices that it is about.

Every row is one simulated product: GFLOP/s is its FLOP over its time, W its energy over its time.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from importlib import resources

from ridgeline.hardware import load_device
from ridgeline.kernels.single_op import gemm
from ridgeline.study.reproduce.table import FittedConstant, ReproducedFigure, Reproduction

SIZE = 2048  # of the square product; the table does not say which
_TOLERANCE = 0.10


def reproduce() -> Reproduction:
    """Compute the five columns of each machine."""
    text = resources.files(__package__).joinpath("gemm_accelerators.csv").read_text("utf-8")
    rows = [row for line in csv.DictReader(text.splitlines()) for row in _machine(line)]
    return Reproduction(
        name="gemm-accelerators",
        title=f"Nine machines, one product of {SIZE} x {SIZE} x {SIZE}",
        source=(
            "A. Pedram, R. van de Geijn, A. Gerstlauer, 'Codesign Tradeoffs for High-Performance, "
            "Low-Power Linear Algebra Architectures', IEEE Transactions on Computers 61(12), 2012, "
            "as tabulated by Pedram, Lynch and Lauterbach: 45 nm scaled, @ 1.4 GHz for equivalent "
            "throughput"
        ),
        rows=tuple(rows),
        fits=(
            FittedConstant(
                "power and area of each machine",
                "see the device files",
                "two numbers a machine, chosen for the least largest residual of its columns W/mm2,"
                " GFLOP/s/mm2 and GFLOP/s/W: three columns, six where a machine has single and "
                "double precision. The table states neither",
            ),
        ),
        notes=(
            "Utilisation is an input of the seven machines that exist (the share of the peak that "
            "their GEMM is published to reach) and is computed from cycles for the two LAPs.",
            "GFLOP/s is computed from units, clock and utilisation, except for Stratix IV, where "
            "the number of multiply-adders is not known and the column is an input.",
            "The table does not say how long its products are; LAP's utilisation grows with the "
            "size, from 94 % at 2048.",
            "Stratix IV: 0.02 W/mm2 times 3.5 GFLOP/s/W is 0.07, and the table says 0.05 "
            "GFLOP/s/mm2. No machine can be within 10 % of all three printed figures; the closest "
            "is 11 % from each. The column is printed to one digit.",
        ),
    )


def _machine(line: dict[str, str]) -> Iterator[ReproducedFigure]:
    device = load_device(line["device"])
    result = gemm(SIZE, SIZE, SIZE, device, format=line["format"])
    assert device.area is not None
    gflops = result.flops / result.time_s / 1e9
    power_w = result.energy_j["total"] / result.time_s
    area_mm2 = device.area.value * 1e6
    measured = bool(device.achievable)
    rate = next(iter(device.engines.values())).rates[line["format"]]
    rate_is_input = measured and rate.source == "pedram12"  # the table itself
    values = {
        "gflops": ("GFLOP/s", gflops, gflops, rate_is_input),
        "w_per_mm2": ("W/mm2", power_w / area_mm2, None, False),
        "gflops_per_mm2": ("GFLOP/s/mm2", gflops / area_mm2, None, False),
        "gflops_per_w": ("GFLOP/s/W", gflops / power_w, None, False),
        "utilisation": ("", result.utilisation, result.utilisation, measured),
    }
    for column, (unit, predicted, unfitted, is_input) in values.items():
        low, _, high = line[column].partition("-")
        yield ReproducedFigure(
            group=line["label"],
            quantity=unit or column,
            unit=unit,
            published=(float(low), float(high or low)),
            predicted=predicted,
            unfitted=unfitted,
            tolerance=_TOLERANCE,
            is_input=is_input,
        )
