"""Systolic engines of devices: exact cycles in the price of an op, and wrong descriptions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machines import DEVICE, write_machine
from ridgeline.errors import ConfigError
from ridgeline.hardware import Device, load_device
from ridgeline.hardware.device import Achievable
from ridgeline.kernels import OpCost, price
from ridgeline.kernels.systolic import gemm_cycles
from ridgeline.kernels.traffic import as_gemm
from ridgeline.workload.graph import Conv, Gemm, Graph, Op, Pass, Role, Tensor
from thoroughly import sample_of

ARRAY = {"rows": 32, "columns": 16, "count": 2, "clock": "1 GHz", "dataflows": ["ws"]}
PEAK = 2 * 32 * 16 * 2 * 1e9


def graph_of(loops: Gemm | Conv, pass_: Pass = Pass.FORWARD, format_: str = "bf16") -> Graph:
    gemm = as_gemm(loops, pass_)
    tensors = {
        "a": Tensor("a", (gemm.batch, gemm.m, gemm.k), format_, Role.ACTIVATION),
        "b": Tensor("b", (gemm.batch, gemm.k, gemm.n), format_, Role.WEIGHT),
        "c": Tensor("c", (gemm.batch, gemm.m, gemm.n), format_, Role.ACTIVATION),
    }
    op = Op("op", "gemm", pass_, "layer", ("a", "b"), ("c",), loops=loops)
    return Graph("toy", 1, "bf16-mixed", tensors, (op,), "c")


def cost_of(graph: Graph, device: Device) -> OpCost:
    return price(graph.ops[0], graph, device)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("machine")
    write_machine(folder)
    systolic = DEVICE.replace("kind: tensor-core", "kind: systolic")
    systolic = systolic.replace("{fp32: 10 TFLOP/s, fp16: 40 TFLOP/s}", "{fp16: 2.048 TFLOP/s}")
    systolic = systolic.replace("{fp32: flop.fp32, fp16: flop.fp16}", "{fp16: flop.fp16}")
    (folder / "systolic.yaml").write_text(systolic)
    return folder


def machine(folder: Path, **changes: Any) -> Device:
    array = {**ARRAY, **changes}
    rate = 2 * array["rows"] * array["columns"] * array["count"] * 1e9
    return load_device(
        str(folder / "systolic.yaml"),
        {"engines.matrix.array": array, "engines.matrix.rates.fp16": f"{rate!r} FLOP/s"},
    )


@settings(max_examples=20, deadline=None)
@given(
    st.tuples(*(st.integers(1, 600) for _ in range(3))),
    st.floats(0.05, 1.0),
    st.sampled_from(("gemm", "conv2d")),
)
def test_a_measured_share_of_the_cycles_takes_as_much_longer(
    folder: Path, sizes: tuple[int, int, int], share: float, op: str
) -> None:
    """Of products alone, where the row is of them; a mapping with fewer cycles may be chosen."""
    row = {"engine": "matrix", "format": "fp16", "op": op, "fraction": share}
    sourced = {**row, "fraction": {"value": share, "source": "toy", "basis": "measured"}}
    graph = graph_of(Gemm(*sizes), format_="fp16")
    plain = machine(folder)
    shared = plain.model_copy(update={"achievable": (Achievable.model_validate(sourced),)})
    exact, slower = cost_of(graph, plain), cost_of(graph, shared)
    factor = share if op == "gemm" else 1.0
    cycles = slower.engine_work["matrix.fp16"] * factor
    assert cycles <= exact.engine_work["matrix.fp16"] * (1 + 1e-12)
    launch_s = plain.launch_latency.value
    exact_s, slower_s = exact.time_s(plain) - launch_s, slower.time_s(shared) - launch_s
    assert exact_s * (1 - 1e-12) <= slower_s <= exact_s / factor * (1 + 1e-12)
    assert slower.flops == exact.flops


def test_time_is_cycles_over_the_clock(folder: Path) -> None:
    device = machine(folder)
    cost = cost_of(graph_of(Gemm(1000, 64, 96), format_="fp16"), device)
    # Half of n, or of m, to each array: the same here.
    cycles = gemm_cycles(1000, 32, 96, 32, 16, edge="full")
    assert cycles == gemm_cycles(500, 64, 96, 32, 16, edge="full")
    assert cost.compute_s(device) == pytest.approx(cycles / 1e9, rel=1e-12)
    assert cost.calibrated
    assert cost.flops == {"matrix.fp16": 2 * 1000 * 64 * 96}


def test_a_slower_format_takes_more_cycles(folder: Path) -> None:
    device = load_device(
        str(folder / "systolic.yaml"),
        {
            "engines.matrix.array": ARRAY,
            "engines.matrix.rates": {"fp16": "2.048 TFLOP/s", "fp32": "0.512 TFLOP/s"},
            "engines.matrix.energy": {"fp16": "flop.fp16", "fp32": "flop.fp32"},
        },
    )
    # The vector unit does no matrix work, so fp32 has nowhere else to go.
    slow = cost_of(graph_of(Gemm(100, 64, 96), format_="fp32"), device)
    fast = cost_of(graph_of(Gemm(100, 64, 96), format_="fp16"), device)
    assert slow.compute_s(device) == pytest.approx(4 * fast.compute_s(device))


def test_buffer_traffic_of_the_arrays(folder: Path) -> None:
    cost = cost_of(graph_of(Gemm(1000, 64, 96), format_="fp16"), machine(folder))
    # From l2 to the cells: two arrays, each with half of n, so that A passes once for each of their
    # 2 column folds; B once for each of the 8 tiles of at most 128 rows that the mapping has; C in
    # fp16 once; partial sums of 3 folds along k in fp32 are written and read back twice.
    a, b, c = 1000 * 96 * 2, 64 * 96 * 2, 1000 * 64 * 2
    near = 2 * 2 * a + 8 * b + c + 2 * 2 * 1000 * 64 * 4
    # From hbm to l2: A for each array, B for each tile.
    far = 2 * a + 8 * b + c
    assert cost.traffic_bytes["hbm"] == far
    assert cost.traffic_bytes["l2"] == near + far


def test_without_a_description_the_share_of_the_peak_counts(folder: Path) -> None:
    device = load_device(str(folder / "systolic.yaml"))
    assert not cost_of(graph_of(Gemm(512, 512, 512), format_="fp16"), device).calibrated


sizes = st.integers(1, 3000)


@sample_of(25, 100, m=sizes, n=sizes, k=sizes, batch=st.integers(1, 4), count=st.integers(1, 6))
def test_roofline_and_more_arrays(m: int, n: int, k: int, batch: int, count: int) -> None:
    base = load_device("tpu-v2")
    array = base.engines["mxu"].array
    assert array is not None

    def with_arrays(number: int) -> Device:
        rate = array.flops_per_cycle / array.count.value * number * array.clock.value
        return load_device(
            "tpu-v2",
            {
                "engines.mxu.array.count": number,
                "engines.mxu.rates.bf16": f"{rate!r} FLOP/s",
            },
        )

    graph = graph_of(Gemm(m, n, k, batch))
    few, more = with_arrays(count), with_arrays(count + 1)
    time_s = cost_of(graph, few).time_s(few)
    assert cost_of(graph, more).time_s(more) <= time_s * (1 + 1e-12)
    peak = few.engines["mxu"].rates["bf16"].value
    compulsory = sum(t.bytes for t in graph.tensors.values())
    assert time_s >= 2 * batch * m * n * k / peak
    assert time_s >= compulsory / 600e9


@pytest.mark.parametrize("pass_", [p for p in Pass if p is not Pass.UPDATE])
def test_passes_of_a_convolution_on_tpu_v2(pass_: Pass) -> None:
    device = load_device("tpu-v2")
    conv = Conv(8, 64, 56, 56, 256, 3, 3, padding=(1, 1))
    gemm = as_gemm(conv, pass_)
    cost = cost_of(graph_of(conv, pass_), device)
    options = []
    for dataflow in ("ws", "is"):
        for parts in ((2, 1), (1, 2)):
            m, n = (math.ceil(s / p) for s, p in zip((gemm.m, gemm.n), parts, strict=True))
            options.append(gemm_cycles(m, n, gemm.k, 128, 128, dataflow, edge="full"))
    # The file's rate is the rounded one: 45.9 instead of 45.875 TFLOP/s.
    assert cost.compute_s(device) == pytest.approx(min(options) / 700e6, rel=1e-3)
    assert cost.calibrated


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("engines.mxu.array.rows", 0, r"must be at least 1, found 0"),
        (
            "engines.mxu.array.dataflows",
            ["rs"],
            r"allowed: os, ws, is; found 'rs'; did you mean 'ws'",
        ),
        ("engines.mxu.array.dataflows", [], "at least 1 of them"),
        ("engines.mxu.array.fold", "never", "allowed: serial, pipelined, overlapped"),
        (
            "engines.mxu.rates.bf16",
            "30 TFLOP/s",
            "do 45.8752 TFLOP/s .* no rate of the",
        ),
        ("engines.mxu.array.clock", 700e6, "700000000"),
        ("engines.mxu.kind", "tensor-core", "'array' belongs to an engine of kind systolic"),
    ],
)
def test_wrong_descriptions(field: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_device("tpu-v2", {field: value})
    assert "engines.mxu" in str(caught.value)


def test_a_network_lets_k_be_split(folder: Path) -> None:
    graph = graph_of(Gemm(32, 16, 100_000), format_="fp16")
    alone = machine(folder)
    connected = machine(folder, network={"latency": "4.5 ns", "bandwidth": "64 GB/s"})
    cost = cost_of(graph, connected)
    assert cost.mapped is not None
    tiles = math.ceil(100_000 / cost.mapped[0].extents[3][0])  # along k
    # For every tile 5 cycles, and half of 512 sums of 4 B at 64 B a cycle.
    cycles = gemm_cycles(32, 16, 50_000, 32, 16, edge="full") + tiles * (5 + 16)
    assert cost.compute_s(connected) == pytest.approx(cycles / 1e9)
    assert cost_of(graph, alone).compute_s(alone) > cycles / 1e9
