"""Calls that are measured on a CUDA device: PyTorch makes them, and their tables are read."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from ridgeline.cli import execute
from ridgeline.hardware import load_device
from ridgeline.study.calibrate import cuda_calls, cuda_clock, cuda_tables
from ridgeline.study.calibrate.cuda_calls import CudaCall, calls
from ridgeline.study.calibrate.cuda_clock import PowerReading
from ridgeline.study.calibrate.kernel_tables import read_kernels

_ON_A_PROCESSOR = 5e7
"""FLOP of a call that is made here."""


class RooflineClock:
    """A board of 1 TB/s and 100 TFLOP/s whose kernels take 3 us at least."""

    name = "NVIDIA H100 80GB HBM3"
    has_meter = True

    def limit_w(self) -> float:
        return 700.0

    def idle_w(self) -> float:
        return 100.0

    def time_s(self, call: CudaCall) -> float:
        if call.table == "attention" and call.fields["kernel"] == "cudnn":
            raise RuntimeError("no kernel\nand where")
        return 3e-6 + max(call.bytes / 1e12, call.flops / 1e14)

    def power(self, call: CudaCall) -> PowerReading:
        return PowerReading(300.0, 1.7e9, 50.0)


@pytest.fixture
def roofline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_clock, "CudaClock", RooflineClock)
    monkeypatch.setattr(cuda_clock, "kernel_name", lambda call: "a_kernel")
    monkeypatch.setattr(cuda_tables, "_torch", lambda: torch)
    monkeypatch.setattr(cuda_tables, "device_name", lambda: RooflineClock.name)
    few = itertools.islice(calls(3), 150)
    monkeypatch.setattr(cuda_calls, "calls", lambda seed: few)


def test_every_kind_of_call_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_calls, "_DEVICE", "cpu")
    made: Counter[str] = Counter()
    for call in itertools.islice(calls(0), 600):
        if call.flops > _ON_A_PROCESSOR or call.bytes > 4e7 or call.fields.get("kernel") == "cudnn":
            continue
        if not made[call.table] > 12:
            call.make()()
            made[call.table] += 1
    assert {"gemm", "conv", "streams", "streams_backward", "attention"} <= set(made)


def test_tables_have_a_time_of_each_call_and_power_of_longer_ones(
    roofline: None, tmp_path: Path
) -> None:
    made = cuda_tables.measure_tables("h100-sxm5-80gb", 60.0, 3, lambda words: None)
    made.write(tmp_path)
    rows = [row for table in made.rows.values() for row in table]
    assert len(rows) > 130
    for row in rows:
        assert float(row["time_us"]) > 3
        assert (float(row["time_us"]) >= 15) == ("power_w" in row)
    assert any("no kernel" in note and "where" not in note for note in made.notes)
    for name in made.READ:
        table = read_kernels(tmp_path / f"{name}.csv", "h100-sxm5-80gb")
        assert len(table.calls) == len(made.rows[name])
        assert not table.skipped


def test_the_command_measures_and_calibrates(
    roofline: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, tables = tmp_path / "mine.yaml", tmp_path / "rows"
    arguments = ["calibrate", "--device", "cuda", "--out", str(out), "--json"]
    assert execute([*arguments, "--tables", str(tables)]) == 0
    assert (tables / "attention_backward.csv").exists()
    load_device(str(out))
    held_out = json.loads(capsys.readouterr().out)["time"]["held out"]["all"]
    assert held_out["after"]["mean"] < 0.8 * held_out["before"]["mean"]
