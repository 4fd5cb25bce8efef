"""Kernels that store one format and multiply another, on devices that have rows of them or not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware import Device, load_device
from ridgeline.kernels.dtype_emulation import done_by, kernels_for, roof_of
from ridgeline.kernels.single_op import conv, gemm
from ridgeline.workload.graph import Conv, Gemm, Op, Pass

V100, P100 = load_device("v100-sxm2-16gb"), load_device("p100-sxm2")
MAXWELL = load_device("titan-x-maxwell")
sizes = st.integers(1, 4096)


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, sizes, st.sampled_from([V100, MAXWELL]))
def test_traffic_is_of_what_is_stored_and_arithmetic_of_what_is_multiplied(
    m: int, n: int, k: int, device: Device
) -> None:
    halves, singles = (gemm(m, n, k, device, format=f) for f in ("fp16-as-fp32", "fp32"))
    assert halves.engine == singles.engine
    assert halves.compulsory_bytes == singles.compulsory_bytes / 2
    far = device.far_memory
    assert halves.traffic_bytes[far] <= singles.traffic_bytes[far]
    assert halves.time_s <= singles.time_s * (1 + 1e-12)
    assert halves.energy_j["compute"] == pytest.approx(singles.energy_j["compute"])


def test_a_device_may_say_that_its_libraries_convert() -> None:
    """The Titan has no arithmetic for halves; what one asks for by name it does by itself."""
    assert MAXWELL.converted == {"fp16": "fp32"}
    plain, named = (gemm(512, 512, 512, MAXWELL, format=f) for f in ("fp16", "fp16-as-fp32"))
    assert plain.time_s == named.time_s
    assert plain.traffic_bytes == named.traffic_bytes
    inherited = load_device("p40")
    assert inherited.converted == {"fp16": "fp32"}
    assert "fp16" not in inherited.engines["cuda-cores"].rates


@pytest.mark.parametrize(
    ("device", "format_", "roof"),
    [
        (V100, "fp16", "fp16"),
        (V100, "fp16-as-fp32", "fp32"),
        (P100, "fp16", "fp16"),
        (MAXWELL, "fp16", "fp32"),
        (MAXWELL, "bf16", "bf16"),  # it has none
    ],
)
def test_the_roof_above_a_format(device: Device, format_: str, roof: str) -> None:
    assert roof_of(device, format_) == roof


def test_rows_of_what_is_stored_stand_for_the_op_that_they_are_of() -> None:
    """DeepBench's P100 multiplies halves in convolutions, and as fp32 in matrix products."""
    product = Op("p", "gemm", Pass.FORWARD, "", ("a", "b"), ("c",), Gemm(64, 64, 64))
    images = Op("c", "conv2d", Pass.FORWARD, "", ("a", "b"), ("c",), Conv(8, 8, 8, 8, 8, 1, 1))
    assert done_by(P100, P100.converted, "fp16", product) == "fp16-as-fp32"
    assert done_by(P100, P100.converted, "fp16", images) == "fp16"
    assert done_by(V100, V100.converted, "fp16", product) == "fp16"
    kernels = kernels_for(P100, "fp16-as-fp32", product)
    (share,) = {r.fraction.value for r in P100.achievable if r.stored == "fp16" and r.op == "gemm"}
    first = next(r for r in kernels.device.achievable if r.op == "gemm" and r.format == "fp32")
    assert (first.fraction.value, first.stored, kernels.format) == (share, None, "fp32")
    other = [r for r in P100.achievable if r.op == "conv2d"]
    assert [r for r in kernels.device.achievable if r.op == "conv2d"] == other
    large = gemm(8192, 8192, 8192, P100, format="fp16")
    peak = P100.engines["cuda-cores"].rates["fp32"].value
    assert 2 * 8192**3 / large.time_s == pytest.approx(share * peak, rel=0.02)


def test_a_row_of_what_is_stored_is_none_of_the_format_itself() -> None:
    row = {"engine": "cuda-cores", "format": "fp32", "stored": "fp16", "op": "gemm"}
    row |= {"fraction": {"value": 0.25, "source": "test", "basis": "measured"}}
    device = load_device("v100-sxm2-16gb", {"achievable": [row]})
    result = {f: gemm(8192, 8192, 8192, device, format=f) for f in ("fp32", "fp16-as-fp32")}
    assert not result["fp32"].calibrated
    assert result["fp16-as-fp32"].calibrated
    assert result["fp16-as-fp32"].time_s > 3.5 * result["fp32"].time_s


def test_engines_that_do_not_multiply_the_format() -> None:
    loops = Conv(1, 8, 8, 8, 8, 3, 3)
    with pytest.raises(RidgelineError, match="does no matrix work in 'fp16-as-bf16'"):
        conv(loops, MAXWELL, format="fp16-as-bf16")
    knights = load_device("xeon-phi-7250")
    op = Op("p", "gemm", Pass.FORWARD, "", ("a", "b"), ("c",), Gemm(64, 64, 64))
    with pytest.raises(RidgelineError, match="fp16-as-fp32 is stored as fp16 and multiplied as"):
        kernels_for(knights, done_by(knights, knights.converted, "fp16", op), op)
    field = "engines.cuda-cores.converted"
    with pytest.raises(ConfigError, match=r"does not multiply 'bf16'.*it does: fp64, fp32"):
        load_device("titan-x-maxwell", {field: {"fp16": {"value": "bf16", "source": "test"}}})
    least_sum = {"value": 0, "source": "test", "basis": "assumed"}
    with pytest.raises(ConfigError, match="least_sum"):
        load_device("titan-x-maxwell", {"engines.cuda-cores.least_sum": least_sum})
