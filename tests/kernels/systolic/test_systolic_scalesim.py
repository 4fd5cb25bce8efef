"""SCALE-Sim's figures against recorded runs of SCALE-Sim 3.0.0: no difference at all."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from ridgeline.errors import ConfigError
from ridgeline.kernels.systolic import (
    ScaleSimGemm,
    gemm_cycles,
    scalesim_gemm,
    scalesim_product,
)
from ridgeline.workload.graph import Conv, Gemm

DATA = Path(__file__).parents[2] / "data"


def recorded(name: str) -> list[dict[str, str]]:
    with (DATA / name).open() as stream:
        return list(csv.DictReader(line for line in stream if not line.startswith("#")))


RUNS = recorded("scalesim_3_0_0.csv")
RANDOM = recorded("scalesim_3_0_0_random.csv")


def product_of(row: dict[str, str]) -> tuple[int, int, int]:
    sizes = [int(size) for size in row["shape"].split("x")]
    if len(sizes) == 3:
        return scalesim_product(Gemm(*sizes))
    h, w, r, s, channels, filters, stride = sizes
    return scalesim_product(Conv(1, channels, h, w, filters, r, s, stride=(stride, stride)))


def counted(row: dict[str, str]) -> ScaleSimGemm:
    rows, columns = (int(x) for x in row["array"].split("x"))
    options: dict[str, object] = {"stall_cycles": int(row.get("stall", 0))}
    if block := re.search(r"(?:blk|block )(\d+)(?: seed (\d+))?", row["sparsity"]):
        options["row_wise_block"] = int(block[1])
        if block[2]:
            options["seed"] = int(block[2])
    elif row["sparsity"]:
        options["sparsity"] = row["sparsity"].removesuffix(" layerwise")
    return scalesim_gemm(*product_of(row), rows, columns, row["dataflow"], **options)  # type: ignore[arg-type]


def test_every_recorded_run() -> None:
    assert len(RUNS) == 349
    for row in RUNS:
        found = counted(row)
        assert found.compute_cycles == int(row["compute"]), row
        assert found.total_cycles == int(row["compute"]) + int(row["stall"]), row
        assert found.overall_util_pct == float(row["util"]), row
        assert found.mapping_eff_pct == float(row["mapping"]), row
        reads_and_writes = (
            found.sram_ifmap_reads, found.sram_filter_reads, found.sram_ofmap_writes,
        )  # fmt: skip
        assert reads_and_writes == (int(row["ifmap"]), int(row["filter"]), int(row["ofmap"])), row


def test_every_random_run() -> None:
    assert len(RANDOM) == 400
    for row in RANDOM:
        found = counted(row)
        assert found.total_cycles == int(row["total"]), row
        assert found.overall_util_pct == float(row["util"]), row
        assert found.mapping_eff_pct == float(row["mapping"]), row
        assert found.compute_util_pct == float(row["compute_util"]), row
        assert found.sram_ifmap_reads == float(row["ifmap"]), row
        assert (found.sram_filter_reads, found.sram_ofmap_writes) == (
            int(row["filter"]), int(row["ofmap"]),
        ), row  # fmt: skip
        if row["stored"]:
            assert found.stored_words == float(row["stored"]), row
            assert found.metadata_words == float(row["metadata"]), row


def test_compat_mode_of_the_broadcasting_function() -> None:
    dense = [row for row in RUNS if not row["sparsity"]]
    for dataflow in ("os", "ws", "is"):
        rows = [row for row in dense if row["dataflow"] == dataflow]
        m, n, k = zip(*(product_of(row) for row in rows), strict=True)
        height, width = zip(*(map(int, row["array"].split("x")) for row in rows), strict=True)
        found = gemm_cycles(m, n, k, height, width, dataflow, compat="scalesim")
        assert found.tolist() == [int(row["compute"]) for row in rows]  # type: ignore[union-attr]
    # The N:M rows, one by one.
    assert gemm_cycles(64, 64, 96, 16, 16, compat="scalesim", sparsity="1:8") == 439


def test_what_differs_from_scalesim() -> None:
    # A count instead of the index of the last cycle, with the same policies.
    for row in RUNS:
        if row["sparsity"] or row["dataflow"] == "os":
            continue
        rows, columns = (int(x) for x in row["array"].split("x"))
        ours = gemm_cycles(*product_of(row), rows, columns, row["dataflow"], "serial", "full")
        assert ours == int(row["compute"]) + 1
    # Output stationary: SCALE-Sim leaves out the R cycles of draining each fold.
    folds, rows = (1024 // 128) ** 2, 128
    theirs = gemm_cycles(1024, 1024, 1024, 128, 128, "os", compat="scalesim")
    ours = gemm_cycles(1024, 1024, 1024, 128, 128, "os", "serial", "full")
    assert ours == theirs + 1 + folds * rows
    # Utilisation of sparse layers is of what is issued, never more than 1.
    assert scalesim_gemm(64, 64, 96, 16, 16, sparsity="1:8").overall_util_pct > 349


def test_rounding_of_many_folds() -> None:
    # Sums go on from block to block of folds: 1,600,000 folds of a third of 3 x 1 cells.
    found = scalesim_gemm(1, 1_600_000, 1, 3, 1)
    total = 0.0
    for _ in range(1_600_000):
        total += 1 / 3
    assert found.mapping_eff_pct == total / 1_600_000 * 100


@pytest.mark.parametrize(
    "loops",
    [
        Gemm(2, 2, 2, batch=2),
        Conv(2, 1, 4, 4, 1, 3, 3),
        Conv(1, 1, 4, 4, 1, 3, 3, padding=(1, 0)),
        Conv(1, 1, 9, 9, 1, 3, 3, dilation=(1, 2)),
    ],
)
def test_layers_that_scalesim_does_not_know(loops: Gemm | Conv) -> None:
    with pytest.raises(ConfigError, match="SCALE-Sim knows no batch"):
        scalesim_product(loops)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataflow": "sw"}, "dataflow must be one of"),
        ({"m": -1}, "m must be a whole number"),
        ({"dataflow": "os", "row_wise_block": 4}, "row-wise sparsity needs the dataflow ws"),
        ({"row_wise_block": 3}, "must be even"),
        ({"row_wise_block": 16}, "at most the array's 8 rows"),
    ],
)
def test_bad_input(options: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"m": 4, "n": 4, "k": 4, "rows": 8, "cols": 8}
    with pytest.raises(ConfigError, match=message):
        scalesim_gemm(**(arguments | options))  # type: ignore[arg-type]
