"""The published kernels that a device is calibrated by, priced at the peak rate."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.hardware import load_device
from ridgeline.study.calibrate.kernel_shares import (
    KernelShare,
    at_the_peak,
    is_kernel,
    kernels_of,
    priced_alone,
)
from ridgeline.study.validate import shipped
from ridgeline.workload.formats import AS


@dataclass(frozen=True)
class Measured:
    """What the measurements call the device, and how the board they were made on differs."""

    device: str
    overrides: Mapping[str, object]


# DeepBench's P100 is the PCIe board: 9.3 TFLOP/s fp32 instead of 10.6, the same memory.
PCIE_BOARD = {
    "engines.cuda-cores.rates.fp32": "9.3 TFLOP/s",
    "engines.cuda-cores.rates.fp16": "18.7 TFLOP/s",
}
SOURCES = {
    "v100-sxm2-16gb": Measured("NV_V100", {}),
    "v100-sxm2-32gb": Measured("NV_V100", {}),
    "p100-sxm2": Measured("NV_P100", PCIE_BOARD),
    "p100-pcie": Measured("NV_P100", {"engines.cuda-cores.library": None}),  # of its time
    "titan-x-maxwell": Measured("NV_TitanX", {}),
    "titan-x-pascal": Measured("NV_TitanX_Pascal", {}),
    "gtx-1080ti": Measured("NV_1080Ti", {}),
    "mi25": Measured("AMD_MI25", {}),
    "vega-fe": Measured("AMD_VegaFE", {}),
    "xeon-phi-7250": Measured("IA_KNL7250", {}),
}


def class_lines(format_: str) -> list[str]:
    """Write what the kernels of a class multiply, and what they convert to it, as YAML."""
    stored, as_, multiplied = format_.partition(AS)
    if not as_:
        return [f"    format: {format_}"]
    return [f"    format: {multiplied}", f"    stored: {stored}"]


def read_kernels(device_name: str) -> list[KernelShare]:
    """Read the published measurements of a device and price each kernel at the peak rate."""
    measured = SOURCES[device_name]
    return kernels_of(_rows(measured), load_device(device_name, measured.overrides))


def products_alone(device_name: str, least_sum: int) -> list[KernelShare]:
    """Price products in fp32 by a library that splits sums into parts no shorter than this."""
    measured = SOURCES[device_name]
    rows = at_the_peak(load_device(device_name, measured.overrides))
    tried = {"value": least_sum, "source": "tried", "basis": "assumed"}
    sums = {f"engines.{row['engine']}.least_sum": tried for row in rows}
    device = load_device(device_name, {**measured.overrides, **sums, "achievable": rows})
    return [
        priced_alone(row, device)
        for row in _rows(measured)
        if (row["kind"], row["precision"]) == ("gemm", "fp32") and is_kernel(row)
    ]


def _rows(measured: Measured) -> list[dict[str, str]]:
    with shipped("gemm").open(newline="", encoding="utf-8") as stream:
        return [row for row in csv.DictReader(stream) if row["device"] == measured.device]
