"""Rows of measured collectives: which machine, which algorithm, and how far off."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from ridgeline.errors import RidgelineError
from ridgeline.study.import_rows import imported
from ridgeline.study.import_rows.machines import machine_of
from ridgeline.study.validate import collectives, shipped_files
from ridgeline.study.validate.outcome import Outcome, Skipped
from ridgeline.study.validate.rows import MeasuredRow, read_rows

ROW = MeasuredRow(
    "rows.csv",
    2,
    {
        "id": "1", "op": "all_reduce", "system": "a node", "accelerator": "H200", "n_accel": "8",
        "nodes": "1", "interconnect": "NVLink", "algo": "NCCL", "size_bytes": "8e9",
        "time_us": "", "busbw_GBps": "400", "method": "nccl-tests", "source": "a page",
    },
)  # fmt: skip


def one(**values: str) -> Outcome | Skipped:
    rows = imported("collectives", [replace(ROW, values={**ROW.values, **values})])
    return next(iter(collectives.predict(rows)))


def configuration(**values: str) -> str:
    found = one(**values)
    assert isinstance(found, Outcome), found
    return found.configuration


@pytest.mark.parametrize(
    ("device", "devices", "nodes", "system", "machine"),
    [
        ("m40", 4, 1, "NV_M40", "pcie3-8gpu-root"),
        ("m40", 16, 2, "NV_M40", "pcie3-8gpu-root-fdr"),
        ("m40", 4, 1, "", "pcie3-8gpu"),
        ("m40", 16, 2, "", "pcie3-8gpu-edr"),
        ("gtx-1080ti", 16, 2, "NV_1080Ti", "pcie3-8gpu-fdr"),
        ("v100-sxm2-16gb", 8, 1, "", "dgx1-v100"),
        ("v100-sxm2-16gb", 16, 1, "DGX-2 (16xV100)", "dgx-2"),
        ("v100-sxm2-16gb", 16, None, "", "dgx1-v100-edr"),
        ("v100-sxm2-32gb", 16, 4, "Jean Zay 4 node(s)", "v100-4gpu-opa"),
        ("gb200", 144, None, "", "gb200-nvl72-ndr"),
        ("xeon-phi-7250", 16, 16, "", "knl-opa-cluster"),
    ],
)
def test_a_row_finds_its_machine(
    device: str, devices: int, nodes: int | None, system: str, machine: str
) -> None:
    assert machine_of(device, devices, nodes, system)[0] == machine


def test_a_machine_that_is_not_described_is_said() -> None:
    with pytest.raises(RidgelineError, match="no description of a machine"):
        machine_of("eyeriss", 8, 1)


def test_a_row_that_names_an_algorithm_is_priced_by_it() -> None:
    assert configuration().endswith("nvls")
    assert configuration(algo="Ring (NVLS off)").endswith("ring-simple")
    assert configuration(algo="NVLS", n_accel="4").endswith("nvls")
    assert configuration(interconnect="NVLink4/NVSwitch ring").endswith("ring-simple")
    assert configuration(interconnect="NVLink4 (NVLS)", size_bytes="1000").endswith("ring-ll")


def test_rows_of_large_messages_need_no_size() -> None:
    large = configuration(size_bytes="", method="asymptotic large-message bus bandwidth")
    assert large.startswith("all-reduce of 1.72e+10 B")
    assert isinstance(one(size_bytes=""), Skipped)
    assert isinstance(one(n_accel=""), Skipped)
    assert isinstance(one(busbw_GBps=""), Skipped)


def test_machines_that_gave_no_parameter_are_as_near_as_those_that_did() -> None:
    """Group medians at 1 MB and more; docs/network.md and decision 0028 list what was taken."""
    rows = [row for path in shipped_files("collectives") for row in read_rows(path)]
    given = ("vTrain", "NV_M40", "NV_1080Ti", "CoreWeave GB200", "Jean Zay")
    kept = [
        row
        for row in rows
        if (row.number("size_bytes") or 0) >= 1e6 and not row.text("system").startswith(given)
    ]
    groups: dict[str, list[float]] = {}
    for found in collectives.predict(kept):
        if isinstance(found, Outcome):
            groups.setdefault(found.group, []).append(abs(found.predicted / found.measured - 1))
    medians = {group: statistics.median(errors) for group, errors in groups.items()}
    assert len(medians) >= 20
    assert statistics.median(medians.values()) < 0.05
    assert sum(median > 0.12 for median in medians.values()) <= 4, medians


def test_what_a_misconfigured_cluster_did_is_not_compared() -> None:
    noted = one(method="median of 80 samples; LOW QUALITY: noisy/misconfigured cluster")
    assert isinstance(noted, Skipped)
    assert "misconfigured" in noted.reason
    assert isinstance(one(), Outcome)


def call(framework: str, library: str = "NCCL", op: str = "all_gather") -> str:
    """Return the command of a measured call, a row as the tables of measured kernels have it."""
    values = {
        "id": "1", "system": "a node", "device_key": "h100-sxm5-80gb", "library": library,
        "framework": framework, "op": op, "dtype": "half", "ranks": "8", "nodes": "1",
        "ranks_per_node": "8", "bytes": "8192", "time_us": "20", "source": "a table",
    }  # fmt: skip
    found = next(
        iter(collectives.predict(imported("collectives", [MeasuredRow("calls.csv", 2, values)])))
    )
    assert isinstance(found, Outcome), found
    return found.command


def test_calls_in_graphs_wait_for_no_host_and_those_of_a_benchmark_do() -> None:
    assert "--launch queued" in call("nccl")
    assert "--launch queued" in call("vllm", "vLLM_custom_graph", "all_reduce")
    assert "--launch eager" in call("vllm", "vLLM_custom_eager", "all_reduce")
    assert "--launch stream" in call("nccl-tests")
    found = one()
    assert isinstance(found, Outcome)
    assert "--launch stream" in found.command
