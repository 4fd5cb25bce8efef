"""Matrix products on Gemmini's RTL, from the device file of its default configuration."""

from __future__ import annotations

import csv
from importlib import resources

from ridgeline.hardware import load_device
from ridgeline.kernels.single import gemm
from ridgeline.study.reproduce.table import Fit, Reproduction, Row

DEVICE = "gemmini-rocket"
_TOLERANCE = 0.10


def reproduce() -> Reproduction:
    """Compute the cycles of each product, with and without the cycles around it."""
    text = resources.files(__package__).joinpath("gemmini.csv").read_text("utf-8")
    device = load_device(DEVICE)
    array = device.engines["mesh"].array
    assert array is not None
    clock_hz = array.clock.value
    rows = []
    for line in csv.DictReader(text.splitlines()):
        m, k, n = (int(line[size]) for size in ("m", "k", "n"))
        time_s = gemm(m, n, k, device).time_s
        rows.append(
            Row(
                group="Cycles of M x K x N",
                quantity=f"{m} x {k} x {n}",
                unit="cycles",
                published=(float(line["cycles"]),) * 2,
                predicted=time_s * clock_hz,
                unfitted=(time_s - device.launch_latency.value) * clock_hz,
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
            Fit(
                "cycles around a product",
                f"{device.launch_latency.value * clock_hz:.0f}",
                "the least largest residual of the six products",
            ),
        ),
        notes=(
            "A weight tile is loaded between the streams of two tiles (fold: pipelined). Where "
            "loads are as long as streams, in 16 x 512 x 512, loads behind a stream would be half "
            "the published cycles.",
        ),
    )
