"""One op by itself: the numbers of `gemm` and `conv` by hand, and ridge points."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machines import write_machine
from ridgeline.hardware import load_device
from ridgeline.kernels.roofline import ridge_points
from ridgeline.kernels.single_op import conv, gemm
from ridgeline.workload.graph import Conv

MACHINE = tempfile.TemporaryDirectory()
write_machine(Path(MACHINE.name))
TOY = load_device(str(Path(MACHINE.name) / "device.yaml"))


def test_a_gemm_by_hand() -> None:
    result = gemm(4096, 4096, 4096, TOY)
    assert result.format == "fp16"  # the fastest
    assert result.time_s == pytest.approx(2e-6 + 2 * 4096**3 / 40e12, rel=1e-12)
    assert result.compulsory_bytes == 3 * 2 * 4096**2
    assert result.bound == "matrix.fp16 arithmetic"
    assert not result.calibrated
    flops, moved = 2 * 4096**3, result.traffic_bytes
    assert result.energy_j["compute"] == pytest.approx(flops * 1e-12, rel=1e-12)
    assert result.energy_j["dram"] == pytest.approx(moved["hbm"] * 8 * 4e-12, rel=1e-12)
    assert result.energy_j["sram"] == pytest.approx(moved["l2"] * 1e-12, rel=1e-12)
    assert result.energy_j["static"] == pytest.approx(10 * result.time_s, rel=1e-12)


sizes = st.integers(1, 3000)


@settings(max_examples=100, deadline=None)
@given(m=sizes, n=sizes, k=sizes, batch=st.integers(1, 8))
def test_sums_and_bounds(m: int, n: int, k: int, batch: int) -> None:
    result = gemm(m, n, k, TOY, batch=batch)
    parts = [v for name, v in result.energy_j.items() if name != "total"]
    assert math.fsum(parts) == pytest.approx(result.energy_j["total"], rel=1e-12)
    assert 0 < result.utilisation <= 1
    assert result.traffic_bytes["hbm"] >= result.compulsory_bytes
    assert result.time_s == pytest.approx(
        result.parts_s["launch"] + max(v for k_, v in result.parts_s.items() if k_ != "launch")
    )


@pytest.mark.parametrize("pass_", ["forward", "input-gradient", "weight-gradient"])
def test_the_passes_of_a_convolution_do_equal_work(pass_: str) -> None:
    result = conv(Conv(8, 64, 56, 56, 128, 3, 3, padding=(1, 1)), TOY, pass_=pass_)
    assert result.flops == 2 * 8 * 56 * 56 * 128 * 64 * 9
    assert result.compulsory_bytes == 2 * (8 * 64 * 56**2 + 128 * 64 * 9 + 8 * 128 * 56**2)


@pytest.mark.parametrize(
    ("device", "engine", "flop_per_byte"),
    [("v100-sxm2-16gb", "tensor-cores.fp16", 139), ("tpu-v2", "mxu.bf16", 75)],
)
def test_published_ridge_points(device: str, engine: str, flop_per_byte: float) -> None:
    far = load_device(device).far_memory
    ridges = {r.engine: r for r in ridge_points(load_device(device)) if r.level == far}
    assert ridges[engine].flop_per_byte == pytest.approx(flop_per_byte, rel=0.03)
