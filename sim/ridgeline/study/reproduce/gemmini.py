"""Matrix products on Gemmini's RTL, from the device file of its default configuration."""

from __future__ import annotations

import csv
from importlib import resources

from ridgeline.hardware import load_device
from ridgeline.kernels.systolic.device import arrays_of
from ridgeline.kernels.systolic.partition import best_partition
from ridgeline.study.reproduce.table import FittedConstant, ReproducedFigure, Reproduction

DEVICE = "gemmini-rocket"
_TOLERANCE = 0.10
_AROUND_CYCLES = 2210  # fitted


def reproduce() -> Reproduction:
    """Compute the cycles of each product, with and without the cycles around it."""
    text = resources.files(__package__).joinpath("gemmini.csv").read_text("utf-8")
    device = load_device(DEVICE)
    array = device.engines["mesh"].array
    assert array is not None
    arrays = arrays_of(array, device.engines["mesh"].accumulate)
    rows = []
    for line in csv.DictReader(text.splitlines()):
        m, k, n = (int(line[size]) for size in ("m", "k", "n"))
        cycles = best_partition(m, n, k, 1, arrays).cycles
        rows.append(
            ReproducedFigure(
                group="Cycles of M x K x N",
                quantity=f"{m} x {k} x {n}",
                unit="cycles",
                published=(float(line["cycles"]),) * 2,
                predicted=float(cycles + _AROUND_CYCLES),
                unfitted=float(cycles),
                tolerance=_TOLERANCE,
            )
        )
    return Reproduction(
        name="gemmini",
        title="Matrix products on a 16 x 16 weight-stationary array, 8-bit integers",
        source=(
            "Chipyard's GemminiRocketConfig in Verilator, as quoted by a secondary source; the "
            "array, buffers and bus are those of Gemmini's default configuration"
        ),
        rows=tuple(rows),
        fits=(
            FittedConstant(
                "cycles around a product",
                f"{_AROUND_CYCLES}",
                "the least largest residual of the six products; it stands for instructions, first "
                "loads and last stores, which these cycles of the array leave out",
            ),
        ),
        notes=(
            "A weight tile is loaded between the streams of two tiles (fold: pipelined). Where "
            "loads are as long as streams, in 16 x 512 x 512, loads behind a stream would be half "
            "the published cycles.",
        ),
    )
