"""SCALE-Sim's stalls, DRAM words and reports against recorded runs of it: no character differs."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ridgeline.errors import ConfigError
from ridgeline.hardware.scalesim import ScaleSimConfig
from ridgeline.kernels.systolic.scalesim import scalesim_gemm
from ridgeline.kernels.systolic.scalesim_files import TopologyLayer
from ridgeline.kernels.systolic.scalesim_memory import (
    BufferSizes,
    MemoryReplay,
    PortWords,
    replay_memory,
)
from ridgeline.kernels.systolic.scalesim_report import layer_reports, report_files
from ridgeline.kernels.systolic.sparsity import parse_sparsity
from ridgeline.workload.graph import Conv, Gemm

DATA = Path(__file__).parents[2] / "data" / "scalesim_3_0_0_memory.csv"
with DATA.open() as stream:
    RUNS = list(csv.DictReader(line for line in stream if not line.startswith("#")))
FILES = {
    "compute": "COMPUTE_REPORT.csv",
    "bandwidth": "BANDWIDTH_REPORT.csv",
    "detailed": "DETAILED_ACCESS_REPORT.csv",
    "sparse": "SPARSE_REPORT.csv",
}


def loops_of(shape: str) -> Conv | Gemm:
    sizes = [int(size) for size in shape.split("x")]
    if len(sizes) == 3:
        return Gemm(*sizes)
    h, w, r, s, channels, filters, stride = sizes
    return Conv(1, channels, h, w, filters, r, s, stride=(stride, stride))


def config_of(row: dict[str, str]) -> ScaleSimConfig:
    rows, columns = (int(side) for side in row["array"].split("x"))
    sram = [int(size) for size in row["sram"].split("/")]
    ports = None if row["ports"] == "CALC" else tuple(int(n) for n in row["ports"].split("/"))
    fields: dict[str, Any] = {
        "run_name": "run", "rows": rows, "columns": columns, "dataflow": row["dataflow"],
        "bandwidth_mode": "USER" if ports else "CALC", "bandwidths": ports[2:] if ports else (),
        "ifmap_kb": sram[0], "filter_kb": sram[1], "ofmap_kb": sram[2],
        "sparsity": bool(row["sparsity"]), "row_wise_block": None, "seed": 40, "port_words": ports,
    }  # fmt: skip
    return ScaleSimConfig(**fields)


def reports_of(row: dict[str, str]) -> dict[str, str]:
    config = config_of(row)
    layer = TopologyLayer("L", loops_of(row["shape"]), parse_sparsity(row["sparsity"] or None), 2)
    return report_files(config, layer_reports(config, [layer], "scalesim"))


def test_recorded_runs_are_enough() -> None:
    shipped = [row for row in RUNS if row["config"] != "random"]
    assert len(RUNS) - len(shipped) == 300
    assert len(shipped) >= 80
    assert {row["config"].split()[0] for row in shipped} >= {"scale.cfg", "eyeriss.cfg"}
    assert {row["dataflow"] for row in RUNS} == {"os", "ws", "is"}
    assert sum(bool(row["sparsity"]) for row in RUNS) > 20
    stalled = [row for row in RUNS if int(row["compute"].split(",")[3])]
    assert len(stalled) > 100


def test_every_report_of_every_recorded_run() -> None:
    for row in RUNS:
        files = reports_of(row)
        for column, file in FILES.items():
            if row[column]:
                assert files[file].splitlines()[1].strip() == row[column], row
            else:
                assert file not in files


def test_headers_are_scalesims() -> None:
    files = reports_of(next(row for row in RUNS if row["sparsity"]))
    heads = {name: text.splitlines()[0] for name, text in files.items()}
    assert heads["COMPUTE_REPORT.csv"].startswith("LayerID, Total Cycles (incl. prefetch), Total")
    assert heads["BANDWIDTH_REPORT.csv"] == (
        "LayerID, Avg IFMAP SRAM BW, Avg FILTER SRAM BW, Avg FILTER Metadata SRAM BW,"
        " Avg OFMAP SRAM BW, Avg IFMAP DRAM BW, Avg FILTER DRAM BW, Avg OFMAP DRAM BW,"
    )
    assert heads["DETAILED_ACCESS_REPORT.csv"] == (
        "LayerID, SRAM IFMAP Start Cycle, SRAM IFMAP Stop Cycle, SRAM IFMAP Reads,"
        " SRAM Filter Start Cycle, SRAM Filter Stop Cycle, SRAM Filter Reads,"
        " SRAM OFMAP Start Cycle, SRAM OFMAP Stop Cycle, SRAM OFMAP Writes,"
        " DRAM IFMAP Start Cycle, DRAM IFMAP Stop Cycle, DRAM IFMAP Reads,"
        " DRAM Filter Start Cycle, DRAM Filter Stop Cycle, DRAM Filter Reads,"
        " DRAM OFMAP Start Cycle, DRAM OFMAP Stop Cycle, DRAM OFMAP Writes,"
    )
    for name, text in files.items():
        head, line = text.splitlines()
        assert head.rstrip(" ,").count(",") == line.rstrip(" ,").count(","), name


SIZE = st.integers(1, 40)
SIDE = st.integers(1, 8)


def replayed(
    shape: tuple[int, int, int], rows: int, columns: int, dataflow: str,
    sram: tuple[int, int, int], ports: PortWords | None,
) -> MemoryReplay:  # fmt: skip
    return replay_memory(
        Gemm(*shape), rows, columns, dataflow, BufferSizes(*sram), ports,  # type: ignore[arg-type]
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(SIZE, SIZE, SIZE), rows=SIDE, columns=SIDE,
    dataflow=st.sampled_from(["os", "ws", "is"]),
    words=st.integers(1, 32),
)  # fmt: skip
def test_large_buffers_never_stall_and_every_word_comes_once(
    shape: tuple[int, int, int], rows: int, columns: int, dataflow: str, words: int
) -> None:
    m, n, k = shape
    assume(shape != (1, 1, 1) or rows * columns > 1)  # no cycle at all, which SCALE-Sim divides by
    counted = scalesim_gemm(m, n, k, rows, columns, dataflow)  # type: ignore[arg-type]
    calc = replayed(shape, rows, columns, dataflow, (64, 64, 1024), None)
    user = replayed(shape, rows, columns, dataflow, (64, 64, 1024), PortWords(words, words, words))
    for found in (calc, user):
        assert (found.total_cycles, found.stall_cycles) == (counted.compute_cycles, 0)
        assert found.ofmap.dram_words == (m * n if dataflow == "os" else -(-k // rows) * m * n)
    assert (calc.ifmap.dram_words, calc.filter.dram_words) == (m * k, k * n)
    # In USER mode whole lanes are fetched, a whole line of the port at once.
    assert m * k <= user.ifmap.dram_words < (m + columns) * (k + rows) * max(rows, columns) + words
    assert k * n <= user.filter.dram_words


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(SIZE, SIZE, SIZE), rows=SIDE, columns=SIDE,
    dataflow=st.sampled_from(["os", "ws", "is"]),
)  # fmt: skip
def test_words_that_are_counted_are_those_that_are_looked_up(
    shape: tuple[int, int, int], rows: int, columns: int, dataflow: str
) -> None:
    """A product as a convolution of 1 x 1, and as one whose windows overlap in nothing."""
    m, n, k = shape
    for ports in (None, PortWords(4, 4, 4)):
        product = replayed(shape, rows, columns, dataflow, (1, 1, 1), ports)
        pixels = Conv(1, k, m, 1, n, 1, 1)
        found = replay_memory(
            pixels, rows, columns, dataflow, BufferSizes(1, 1, 1), ports,  # type: ignore[arg-type]
        )  # fmt: skip
        assert found == product


def test_what_scalesim_does_not_know_or_nobody_can_hold() -> None:
    with pytest.raises(ConfigError, match="SCALE-Sim knows no batch"):
        replay_memory(Gemm(4, 4, 4, 2), 4, 4, "ws", BufferSizes(1, 1, 1), None)
    with pytest.raises(ConfigError, match="too many to replay one by one"):
        replay_memory(Gemm(2**15, 4, 2**14), 4, 4, "ws", BufferSizes(1, 1, 1), None)


def test_layers_whose_figures_contradict_themselves_say_so() -> None:
    row = next(r for r in RUNS if r["config"] == "scale.cfg USER ws" and r["net"] == "vit_s")
    config = config_of(row)
    layer = TopologyLayer("L", loops_of(row["shape"]), None, 2)
    (report,) = layer_reports(config, [layer], "scalesim")
    said = " ".join(report.notes)
    assert "never reads them back" in said
    assert report.memory is not None
    asked = report.sram_ifmap_reads
    assert ("more words of ifmap" in said) == (report.memory.ifmap.dram_words > asked)


def test_banks_that_do_not_divide_the_port_stop_scalesim() -> None:
    fields = {name: getattr(config_of(RUNS[0]), name) for name in ScaleSimConfig.__slots__}
    fields |= {"port_words": (10, 640, 10), "port_banks": (3, 1), "bandwidth_mode": "USER"}
    layer = TopologyLayer("L", Gemm(4, 4, 4), None, 2)
    with pytest.raises(ConfigError, match="IfmapSRAMBankBandwidth, 10, must be a multiple of"):
        layer_reports(ScaleSimConfig(**fields), [layer], "scalesim")
