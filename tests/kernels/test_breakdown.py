"""Parts of an op's time: at least 0, sum to it on every kind of engine, and each from a source."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from machines import DEVICE, write_machine
from ridgeline.hardware import Device, load_device
from ridgeline.hardware.array import Dataflow, Fold
from ridgeline.kernels.broadcast_grid import core_gemm_cycles
from ridgeline.kernels.bsp_gemm import ElementSizes, EqualTiles, best_plan
from ridgeline.kernels.latency_parts import TileChoice
from ridgeline.kernels.single_op import OpResult, conv, gemm
from ridgeline.kernels.systolic import systolic_gemm
from ridgeline.workload.graph import Conv, Gemm
from thoroughly import sample_of

KINDS = {
    "tensor-core": "v100-sxm2-16gb",
    "vector": "p100-sxm2",
    "cores": "xeon-platinum-8160",
    "systolic": "gaudi2",
    "systolic with buffers": "tpu-v2",
    "systolic in 8 bits": "tpu-v1",
    "broadcast-grid": "caterpillar-a",
    "spatial": "eyeriss",
    "bsp": "ipu-gc200",
}
PARTS = ("launch", "fill", "copy", "arithmetic", "exchange", "barrier", "drain")


def parts_of(result: OpResult) -> list[float]:
    found = result.breakdown_s
    return [*(found[name] for name in PARTS), *found["stall"].values()]


def check(result: OpResult) -> None:
    parts = parts_of(result)
    assert min(parts) >= 0
    assert math.fsum(parts) == pytest.approx(result.time_s, rel=1e-9)
    assert result.breakdown_s["total"] == math.fsum(parts)


@st.composite
def machines(draw: st.DrawFn) -> tuple[Device, float]:
    """A shipped device of any kind, with other rates of memory and another launch latency."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    device = load_device(KINDS[kind])
    launch_s = draw(st.sampled_from([0.0, 1e-7, 3e-6]))
    changes: dict[str, Any] = {"launch_latency": f"{launch_s!r} s"}
    for name, level in device.memory.items():
        if level.bandwidth is not None:
            factor = draw(st.sampled_from([0.02, 0.5, 1.0, 30.0]))
            changes[f"memory.{name}.bandwidth"] = f"{factor * level.bandwidth.value!r} B/s"
        if name == device.far_memory and draw(st.booleans()):
            changes[f"memory.{name}.latency"] = "400 ns"
    return load_device(KINDS[kind], changes), launch_s


sizes = st.one_of(st.integers(1, 40), st.integers(1, 1200))
zeros = st.sampled_from([None, "2:4", "unstructured 0.2", "activation 0.5"])


@sample_of(
    38, 150, machine=machines(), m=sizes, n=sizes, k=sizes, batch=st.integers(1, 3), sparsity=zeros
)
def test_parts_of_a_product_sum_to_its_time_on_every_kind_of_engine(
    machine: tuple[Device, float], m: int, n: int, k: int, batch: int, sparsity: str | None
) -> None:
    device, launch_s = machine
    if "spatial" in {engine.kind for engine in device.engines.values()}:
        m, n, k, batch = min(m, 64), min(n, 64), min(k, 64), 1  # its search is slow
    result = gemm(m, n, k, device, batch=batch, sparsity=sparsity)
    check(result)
    stated = {row.latency.value for row in device.achievable if row.latency is not None}
    if not stated:
        kernels = 2 if result.tile is not None and result.tile["split"] > 1 else 1
        assert result.breakdown_s["launch"] == pytest.approx(kernels * launch_s, rel=1e-12)
        assert result.parts_s["launch"] == result.breakdown_s["launch"]


@sample_of(15, 60,
    machine=machines(), channels=st.sampled_from([3, 16, 64]), out=st.sampled_from([8, 64]),
    side=st.integers(7, 30), taps=st.sampled_from([1, 3, 5]), stride=st.integers(1, 2),
    pass_=st.sampled_from(["forward", "input-gradient", "weight-gradient"]),
)  # fmt: skip
def test_parts_of_a_convolution_sum_to_its_time(
    machine: tuple[Device, float], channels: int, out: int, side: int, taps: int, stride: int,
    pass_: str,
) -> None:  # fmt: skip
    device, _ = machine
    if "spatial" in {engine.kind for engine in device.engines.values()}:
        channels, out, side, taps = 3, 8, min(side, 9), min(taps, 3)
    loops = Conv(2, channels, side, side, out, taps, taps, (stride, stride))
    check(conv(loops, device, pass_=pass_))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_without_launch_latency_there_is_no_launch(kind: str) -> None:
    device = load_device(KINDS[kind], {"launch_latency": "0 s"})
    if any(row.latency is not None for row in device.achievable):
        pytest.skip("its rows state latencies of their own")
    result = gemm(48, 40, 56, device)
    assert result.breakdown_s["launch"] == 0
    check(result)


BUFFERED = {"memory.hbm.latency": "300 ns", "achievable": []}


def test_fill_and_drain_of_one_tile_are_its_load_and_store_and_the_arrays_ends() -> None:
    device = load_device("tpu-v2", BUFFERED)
    array = device.engines["mxu"].array
    assert array is not None
    m, n, k = 256, 64, 64
    found = gemm(m, n, k, device, format="bf16")
    assert found.mapped is not None
    spent = found.mapped["time_s"]
    rows, columns = array.rows.value, array.columns.value
    parts = found.mapped["parts"]
    alone = systolic_gemm(
        m // parts["m"], n // parts["n"], k // parts["k"], rows, columns,
        found.mapped["dataflow"], array.fold, array.edge,
    )  # fmt: skip
    cycle_s = array.flops_per_cycle / device.engines["mxu"].rates["bf16"].value
    assert found.breakdown_s["fill"] == pytest.approx(
        spent["first load"] + alone.spans.preload * cycle_s
    )
    assert found.breakdown_s["drain"] == pytest.approx(
        spent["last store"] + alone.spans.drain * cycle_s
    )
    assert found.breakdown_s["stall"].get("hbm", 0.0) == pytest.approx(spent["steady stall"])


def test_a_mappings_parts_are_those_of_its_tiles() -> None:
    """A bandwidth-starved machine: loads and stores of equal tiles, played one by one."""
    device = load_device("tpu-v2", {**BUFFERED, "memory.hbm.bandwidth": "20 GB/s"})
    found = gemm(4096, 512, 512, device, format="bf16")
    assert found.mapped is not None
    spent = found.mapped["time_s"]
    assert spent["steady stall"] > 0
    assert found.breakdown_s["stall"]["hbm"] == pytest.approx(spent["steady stall"], rel=1e-9)
    assert found.breakdown_s["fill"] >= spent["first load"]
    assert found.bound.startswith("hbm")


def array_device(folder: Path, **changes: Any) -> Device:
    """One 16 x 8 array behind a memory alone, with registers; its instruction is not stated."""
    write_machine(folder)
    text = DEVICE.replace("kind: tensor-core", "kind: systolic")
    text = text.replace("{fp32: 10 TFLOP/s, fp16: 40 TFLOP/s}", "{fp16: 256 GFLOP/s}")
    text = text.replace("{fp32: flop.fp32, fp16: flop.fp16}", "{fp16: flop.fp16}")
    text = re.sub(r"    instruction: .*\n", "", text)
    text = re.sub(r"  l2: .*\n", "", text)
    (folder / "array.yaml").write_text(text)
    array = {"rows": 16, "columns": 8, "clock": "1 GHz", "dataflows": ["ws"]}
    return load_device(str(folder / "array.yaml"), {"engines.matrix.array": {**array, **changes}})


@pytest.mark.parametrize("dataflow", ["os", "ws", "is"])
@pytest.mark.parametrize("fold", ["serial", "pipelined", "overlapped"])
def test_an_array_without_buffers_fills_waits_and_drains_as_the_closed_form_counts(
    tmp_path: Path, dataflow: Dataflow, fold: Fold
) -> None:
    device = array_device(tmp_path, dataflows=[dataflow], fold=fold)
    for m, n, k in ((70, 30, 90), (3, 200, 5), (1, 1, 1)):
        found = gemm(m, n, k, device)
        spans = systolic_gemm(m, n, k, 16, 8, dataflow, fold, "full").spans
        assert found.breakdown_s["fill"] == pytest.approx(spans.preload * 1e-9)
        assert found.breakdown_s["arithmetic"] == pytest.approx(spans.stream * 1e-9)
        assert found.breakdown_s["stall"].get("array", 0.0) == pytest.approx(spans.wait * 1e-9)
        assert found.breakdown_s["drain"] == pytest.approx(spans.drain * 1e-9)
        check(found)


class Cells:
    """An array that counts every access of a register, one product after the other.

    What moves to the right or down is written into a register of every cell that needs it, and read
    there; what stays is handed down, or out, cell by cell.
    """

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.a = self.b = self.c = 0

    def play(self, m: int, n: int, k: int, dataflow: str) -> Cells:
        height, width = {"os": (m, n), "ws": (k, n), "is": (k, m)}[dataflow]
        steps = {"os": k, "ws": m, "is": n}[dataflow]
        for top in range(0, height, self.rows):
            for left in range(0, width, self.columns):
                down = min(self.rows, height - top)
                across = min(self.columns, width - left)
                for _ in range(steps * down * across):
                    self._multiply(dataflow)
                for row in range(down):  # a stationary word passes all cells above its own
                    for _ in range(across):
                        self._shift(dataflow, row + 1)
        return self

    def _multiply(self, dataflow: str) -> None:
        self.c += 2  # the sum is read and written
        self.a += 1 if dataflow == "is" else 2
        self.b += 1 if dataflow == "ws" else 2

    def _shift(self, dataflow: str, cells: int) -> None:
        name = {"os": "c", "ws": "b", "is": "a"}[dataflow]
        setattr(self, name, getattr(self, name) + 2 * cells)


@pytest.mark.parametrize("dataflow", ["os", "ws", "is"])
@pytest.mark.parametrize("shape", [(5, 7, 3), (40, 20, 35), (1, 9, 33)])
def test_registers_of_an_array_follow_from_its_dataflow(
    tmp_path: Path, dataflow: Dataflow, shape: tuple[int, int, int]
) -> None:
    device = array_device(tmp_path, dataflows=[dataflow])
    found = gemm(*shape, device)
    cells = Cells(16, 8).play(*shape, dataflow)
    assert found.traffic_bytes["registers"] == pytest.approx(2 * (cells.a + cells.b) + 4 * cells.c)
    assert any("derived from the array's dataflow" in note for note in found.notes)


def test_a_stated_instruction_still_decides_and_is_named(tmp_path: Path) -> None:
    device = array_device(tmp_path)
    energy = "energy: {fp16: flop.fp16}"
    text = (tmp_path / "array.yaml").read_text()
    path = tmp_path / "stated.yaml"
    path.write_text(text.replace(energy, f"{energy}\n    instruction: {{m: 4, n: 4, k: 4}}"))
    array = {"rows": 16, "columns": 8, "clock": "1 GHz", "dataflows": ["ws"]}
    stated = gemm(64, 64, 64, load_device(str(path), {"engines.matrix.array": array}))
    assert stated.traffic_bytes["registers"] == 16**3 * (2 * 16 * 2 + 2 * 16 * 4)
    assert "register traffic: `instruction` stated 4x4x4" in stated.notes
    derived = gemm(64, 64, 64, device)
    assert derived.time_s == stated.time_s
    assert derived.energy_j["registers"] > stated.energy_j["registers"]


def test_cores_of_a_grid_multiply_in_the_first_term_of_their_law() -> None:
    device = load_device("lap-dp")
    (name,) = (n for n, engine in device.engines.items() if engine.grid is not None)
    grid = device.engines[name].grid
    assert grid is not None
    side, cores = grid.side.value, grid.cores.value
    m, n, k = 4 * side, 8 * side * cores, 4 * side
    found = gemm(m, n, k, device)
    law = core_gemm_cycles(m, k, n // cores, side, grid.fma_latency.value)
    products = m * k * (n // cores) // side**2
    filling, total = k**2 // side + k, found.parts_s[f"{name}.{found.format} arithmetic"]
    inside = found.breakdown_s["arithmetic"] / total
    assert inside == pytest.approx(products / law)
    assert found.breakdown_s["fill"] >= filling / law * total * (1 - 1e-9)


def test_supersteps_exchange_and_barriers_are_those_of_the_plan() -> None:
    device = load_device("ipu-gc200")
    (engine,) = (one for one in device.engines.values() if one.bsp is not None)
    machine = engine.bsp
    assert machine is not None
    found = gemm(1000, 500, 700, device, format="fp16")
    shape = engine.instruction
    tiles = EqualTiles(
        machine.tiles.value, int(machine.memory.value * (1 - machine.reserved.value)),
        engine.rates["fp16"].value / machine.tiles.value, (shape.m, shape.n, shape.k),
        1 / machine.exchange.value, machine.sync.value,
    )  # fmt: skip
    plan = best_plan(Gemm(1000, 500, 700), ElementSizes(2, 2, 2, 4), tiles)
    assert found.breakdown_s["exchange"] == pytest.approx(plan.exchange_s)
    assert found.breakdown_s["barrier"] == pytest.approx(plan.sync_s)
    assert found.breakdown_s["arithmetic"] == pytest.approx(plan.compute_s)


def test_the_share_of_a_tile_is_what_the_arithmetic_reaches() -> None:
    """Useful FLOPs over the peak, in the time that the engine multiplies."""
    for shape in ((1000, 500, 700), (128, 128, 8192), (5000, 4100, 300)):
        found = gemm(*shape, "v100-sxm2-16gb", format="fp16")
        assert found.tile is not None
        device = load_device("v100-sxm2-16gb")
        peak = device.engines["tensor-cores"].rates["fp16"].value
        reached = found.flops / (peak * found.parts_s["tensor-cores.fp16 arithmetic"])
        assert found.tile["peak_share"] == pytest.approx(reached, rel=1e-12)
        (said,) = (note for note in found.notes if note.startswith("tiles:"))
        assert "the default menu (no `tiles` stated)" in said
        assert f"{found.tile['peak_share']:.0%} in all" in said


def test_stated_tiles_are_not_called_default() -> None:
    found = gemm(512, 512, 512, "titan-x-pascal", format="fp32")
    (said,) = (note for note in found.notes if note.startswith("tiles:"))
    assert "the device's `tiles`" in said


def test_quantisation_by_hand() -> None:
    choice = TileChoice(Gemm(129, 64, 100, 2), 128, 64, 1, 3, 1.0, 0.5, 1.0, "a menu")
    assert choice.waves == 2  # 4 tiles on 3 processors
    assert choice.tile_share == pytest.approx(129 / 256)
    assert choice.wave_share == pytest.approx(4 / 6)
    assert choice.peak_share == pytest.approx(129 / 256 * 4 / 6 * 0.5)
    assert str(choice).startswith("tiles: 128x64 from a menu: 34% of peak by tile and wave")
