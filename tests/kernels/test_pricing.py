"""The price of an op: roofline bounds, monotony, traffic and energy events that add up."""

from __future__ import annotations

import math
import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machines import write_machine
from ridgeline.errors import RidgelineError
from ridgeline.hardware import Device, load_device
from ridgeline.kernels import OpCost, depthwise, price
from ridgeline.kernels.traffic import as_gemm, held_accumulators
from ridgeline.workload import load_model
from ridgeline.workload.graph import Conv, Gemm, Graph, Op, Pass, Role, Tensor
from wave_shapes import output_tile

MACHINE = tempfile.TemporaryDirectory()
write_machine(Path(MACHINE.name))
DEVICE_FILE = str(Path(MACHINE.name) / "device.yaml")


@cache
def toy() -> Device:
    return load_device(DEVICE_FILE)


@pytest.fixture
def device() -> Device:
    return toy()


def gemm_graph(m: int, n: int, k: int, format_: str = "fp16") -> Graph:
    tensors = {
        "a": Tensor("a", (m, k), format_, Role.ACTIVATION),
        "b": Tensor("b", (k, n), format_, Role.WEIGHT),
        "c": Tensor("c", (m, n), format_, Role.ACTIVATION),
    }
    op = Op("gemm", "gemm", Pass.FORWARD, "layer", ("a", "b"), ("c",), loops=Gemm(m, n, k))
    return Graph("toy", m, "fp16-mixed", tensors, (op,), "c")


def cost_of(graph: Graph, device: Device) -> OpCost:
    return price(graph.ops[0], graph, device)


def test_a_large_product_runs_at_the_peak(device: Device) -> None:
    graph = gemm_graph(4096, 4096, 4096)  # 1024 tiles of 128 x 128: 16 on each of 64 processors
    cost = cost_of(graph, device)
    assert cost.time_s(device) == pytest.approx(2e-6 + 2 * 4096**3 / 40e12, rel=1e-12)
    assert not cost.calibrated  # the device has no measured efficiencies: this is a bound


def test_streamed_tensors_run_at_the_bandwidth(device: Device) -> None:
    tensors = {n: Tensor(n, (10**7,), "fp32", Role.ACTIVATION) for n in "xy"}
    op = Op("relu", "relu", Pass.FORWARD, "layer", ("x",), ("y",), vector_flops=10**7)
    cost = cost_of(Graph("toy", 1, "fp32", tensors, (op,), "y"), device)
    assert cost.traffic_bytes == dict.fromkeys(device.memory, 8e7)
    assert cost.time_s(device) == 2e-6 + 8e7 / 1e12


def test_tile_reuse_by_hand(device: Device) -> None:
    # Half of 16 MiB of registers holds 2**21 fp32 accumulators: 2**21 // 1000 = 2097 columns.
    assert held_accumulators(device, "fp32") == 2**21
    small = load_device(DEVICE_FILE, {"memory.l2.capacity": "512 KiB"})
    cost = cost_of(gemm_graph(1000, 3000, 500), small)
    a, b, c = (2 * x for x in (1000 * 500, 500 * 3000, 1000 * 3000))
    assert cost.traffic_bytes["hbm"] == a * math.ceil(3000 / 2097) + b + c
    # 8 MiB of cache keep A, of 1 MB, while a panel of B passes.
    assert cost_of(gemm_graph(1000, 3000, 500), device).traffic_bytes["hbm"] == a + b + c


def test_register_traffic_of_a_matrix_instruction(device: Device) -> None:
    # 4x4x4: 2 * 16 operands of 2 B, 16 accumulators of 4 B read and written, for 128 FLOP.
    cost = cost_of(gemm_graph(64, 64, 64), device)
    assert cost.traffic_bytes["registers"] == 2 * 64**3 * (2 * 16 * 2 + 2 * 16 * 4) / 128


sizes = st.integers(1, 5000)


@settings(max_examples=200, deadline=None)
@given(m=sizes, n=sizes, k=sizes, format_=st.sampled_from(["fp16", "fp32"]))
def test_never_beats_the_roofline_nor_compulsory_traffic(
    m: int, n: int, k: int, format_: str
) -> None:
    device = toy()
    graph = gemm_graph(m, n, k, format_)
    cost = cost_of(graph, device)
    compulsory = sum(t.bytes for t in graph.tensors.values())
    peak = device.engines["matrix"].rates[format_].value
    assert cost.traffic_bytes["hbm"] >= compulsory
    bound = max(2 * m * n * k / peak, compulsory / 1e12) + 2e-6
    assert cost.time_s(device) >= bound * (1 - 1e-12)
    assert cost.flops == {f"matrix.{format_}": 2 * m * n * k}


@settings(max_examples=100, deadline=None)
@given(
    m=sizes, n=sizes, k=sizes, factor=st.floats(1, 100),
    field=st.sampled_from(
        ["memory.hbm.bandwidth", "memory.l2.bandwidth", "engines.matrix.rates.fp16"]
    ),
)  # fmt: skip
def test_a_better_machine_is_never_slower(
    m: int, n: int, k: int, factor: float, field: str
) -> None:
    base = {"memory.hbm.bandwidth": 1e12, "memory.l2.bandwidth": 4e12}.get(field, 4e13)
    unit = "FLOP/s" if "rates" in field else "B/s"
    better = load_device(DEVICE_FILE, {field: f"{base * factor!r} {unit}"})
    graph = gemm_graph(m, n, k)
    slower = cost_of(graph, toy()).time_s(toy())
    assert cost_of(graph, better).time_s(better) <= slower * (1 + 1e-12)


convs = st.builds(
    Conv,
    batch=st.integers(1, 8), c_in=st.sampled_from([4, 8, 16]), h_in=st.integers(5, 20),
    w_in=st.integers(5, 20), c_out=st.sampled_from([4, 8, 32]), r=st.integers(1, 5),
    s=st.integers(1, 5), stride=st.sampled_from([(1, 1), (2, 1), (2, 2)]),
    padding=st.sampled_from([(0, 0), (1, 2)]), groups=st.sampled_from([1, 2, 4]),
)  # fmt: skip


@given(conv=convs, pass_=st.sampled_from([p for p in Pass if p is not Pass.UPDATE]))
def test_implicit_gemm_does_the_work_of_the_convolution(conv: Conv, pass_: Pass) -> None:
    assert as_gemm(conv, pass_).macs == conv.macs


def test_a_format_without_an_engine_is_an_error(device: Device) -> None:
    with pytest.raises(RidgelineError, match=r"no engine for matrix work in bf16.*fp16, fp32"):
        cost_of(gemm_graph(8, 8, 8, "bf16"), device)


def test_calibration_rows_are_matched_first_to_last() -> None:
    shares = [("conv2d", None, 0.1), ("gemm", "forward", 0.5), ("gemm", None, 0.25)]
    rows = [
        {
            "engine": "matrix",
            "format": "fp16",
            "op": op,
            "pass": pass_,
            "fraction": {"value": share, "source": "a test", "basis": "measured"},
        }
        for op, pass_, share in shares
    ]
    device = load_device(DEVICE_FILE, {"achievable": rows})
    cost = cost_of(gemm_graph(4096, 4096, 4096), device)
    assert cost.calibrated
    assert cost.engine_work == {"matrix.fp16": pytest.approx(2 * 4096**3 / 0.5, rel=1e-12)}
    assert cost.flops == {"matrix.fp16": 2 * 4096**3}  # efficiency costs time, not work


@given(m=sizes, n=sizes, held=st.integers(1, 10**7))
def test_an_output_tile_fits_and_grows_with_the_room(m: int, n: int, held: int) -> None:
    rows, columns = output_tile(m, n, held)
    assert rows * columns <= held or (rows, columns) in {(m, 1), (1, n)}
    more_rows, more_columns = output_tile(m, n, 2 * held)
    assert math.ceil(m / more_rows) <= math.ceil(m / rows)
    assert math.ceil(n / more_columns) <= math.ceil(n / columns)


def test_a_faster_engine_never_slows_a_device_with_several() -> None:
    """The engine is chosen by time among those with measured efficiencies, not by its peak."""
    graph, times = gemm_graph(4096, 512, 512), []
    for rate in (10, 20, 30, 31, 32, 33, 40, 125):
        device = load_device(
            "v100-sxm2-16gb", {"engines.tensor-cores.rates.fp16": f"{rate} TFLOP/s"}
        )
        times.append(cost_of(graph, device).time_s(device))
    assert times == sorted(times, reverse=True)


def test_steps_of_a_recurrence_follow_each_other(device: Device) -> None:
    """T products of one batch that depend on each other take T times one of them."""

    def recurrence(steps: int, *attrs: tuple[str, int]) -> float:
        tensors = {
            "gates": Tensor("gates", (steps, 64, 1024), "fp16", Role.ACTIVATION),
            "w": Tensor("w", (256, 1024), "fp16", Role.WEIGHT),
            "h": Tensor("h", (steps, 64, 256), "fp16", Role.ACTIVATION),
        }
        loops = Gemm(64, 1024, 256, batch=steps)
        op = Op("rnn", "lstm", Pass.FORWARD, "l", ("gates", "w"), ("h",), loops, attrs=attrs)
        return cost_of(Graph("toy", 64, "fp16", tensors, (op,), "h"), device).time_s(device)

    follow, free = recurrence(50, ("sequential", 1)), recurrence(50)
    assert follow == pytest.approx(50 * recurrence(1), rel=0.05)
    assert free < follow / 5


@pytest.mark.parametrize("name", ["titan-xp", "a100-sxm4-40gb", "v100-sxm2-16gb", "tpu-v3"])
def test_a_depthwise_convolution_costs_the_same_each_time(name: str) -> None:
    """What is remembered of streaming is not written to."""
    device, graph = load_device(name), load_model("mobilenet").training(4, "fp32", None)
    op = next(op for op in graph.ops if op.loops is not None and depthwise.applies(op))
    first, *others = (price(op, graph, device) for _ in range(3))
    assert others == [first, first]
