"""Logs of nccl-tests are read as they are printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ridgeline.cli import execute
from ridgeline.errors import ConfigError
from ridgeline.study.import_rows.nccl_tests import read_nccl_tests

DEVICES = "\n".join(
    f"#  Rank  {r} Group  0 Pid {r} on node{r // 2} device  {r % 2} [0x0{r}] NVIDIA H100 80GB HBM3"
    for r in range(4)
)
SUMS = """#       size         count      type   redop    root     time   algbw   busbw #wrong
     1048576        262144     float     sum      -1  20.00  52.43  78.64  0  20.10  52  78  0
   268435456      67108864     float     sum      -1  1200.0  223.70  335.54  0  1199  224  336  0
"""


def test_sizes_times_and_devices(tmp_path: Path) -> None:
    log = tmp_path / "job-17.log"
    log.write_text(f"# Collective test starting: all_reduce_perf\n{DEVICES}\n{SUMS}", "utf-8")
    rows = [row for _, row in read_nccl_tests(log)]
    assert [row["bytes"] for row in rows] == ["1048576", "268435456"]
    assert [row["time_us"] for row in rows] == ["20.00", "1200.0"]
    assert {(r["op"], r["ranks"], r["ranks_per_node"], r["nodes"]) for r in rows} == {
        ("all-reduce", "4", "2", "2")
    }


def test_the_operation_may_be_in_the_name_and_times_only_in_place(tmp_path: Path) -> None:
    log = tmp_path / "alltoall_8.txt"
    log.write_text(
        f"{DEVICES}\n  1024  256  float  none  -1  N/A  0.05  0.04  N/A  11.0  0.09  0.07  N/A\n",
        "utf-8",
    )
    ((line, row),) = read_nccl_tests(log)
    assert (line, row["op"], row["time_us"]) == (5, "all-to-all", "11.0")


def test_a_log_is_validated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "all_reduce.log"
    one = DEVICES.replace("node1", "node0")
    log.write_text(f"{one}\n{SUMS}", "utf-8")
    assert execute(["validate", "collectives", "--data", str(log), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)["summary"]
    assert summary["n"] == 2
    assert summary["mean_abs_error"] < 0.2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nothing\n", "no line of sizes"),
        (SUMS, "names the devices"),
        (f"{DEVICES}\n{SUMS}", "which operation"),
    ],
)
def test_what_is_missing_is_said(text: str, says: str, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=says):
        read_nccl_tests(log)
