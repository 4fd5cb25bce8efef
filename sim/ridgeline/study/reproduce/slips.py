"""Statements of documents and papers that do not agree with each other, or with their figures."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ridgeline.hardware import load_device, load_energy_table
from ridgeline.hardware.energy import EnergyTable
from ridgeline.study.point import Point
from ridgeline.study.reproduce.caterpillar import reproduce as caterpillar
from ridgeline.study.reproduce.storage_depth import reproduce as storage_depth
from ridgeline.study.reproduce.table import (
    Reproduction,
    printed,
    published_rows,
)

_IMAGES, _EPOCHS, _BATCH = 1_281_167, 90, 32_768
_FULL_SMS, _SMS = 84, 80


def reproduce() -> Reproduction:
    """Compute what each statement should have said."""
    computed = _computed()
    return Reproduction(
        name="slips",
        title="Statements that do not agree with other figures of the same document",
        source=(
            "A. Pedram, C. Lynch and G. Lauterbach, slides of 2018; Y. Li and A. Pedram, "
            "CATERPILLAR, ASAP 2017; A. Pedram et al., Dark Memory, IEEE Design and Test 2017; P. "
            "Labus, slides of 2019; each beside what it cites"
        ),
        rows=tuple(
            printed(
                row["statement"],
                row["quantity"],
                float(row["published"]),
                computed[row["quantity"]],
            )
            for row in published_rows("slips")
        ),
        fits=(),
        notes=(
            "Published is the statement as it stands, predicted is what the documents' own data "
            "give: a large residual is the slip.",
            "Preferred Networks' paper (arXiv:1711.04325) has 1,024 GPUs where the slide has 256.",
            "CATERPILLAR's figure 10 shows 72.8 % where its abstract says over 80 %, figure 6 "
            "shows memory over FPU energy of 2.9 and 2.4 where the text says 1.5 and even, and "
            "its section 4.1 exchanges the shapes of cores and PEs.",
            "The article cited for quadratic storage does not speak of a square; it is true of a "
            "pipeline that never drains (`ridgeline reproduce storage-depth`).",
            "The slide of Volta shows the full GV100; a V100 has 80 of its 84 SMs, and 125 "
            "TFLOP/s are of 80.",
            "GPipe's row of 4 micro-batches is above what its bubble allows: its baseline was "
            "slow (`ridgeline reproduce gpipe`).",
            "Not computable: Amazon's network is 25 Gb/s on the slide and 56 Gb/s in its list of "
            "references; Labus numbers two references 6.",
        ),
    )


def _computed() -> Mapping[str, float]:
    grids = {(row.group, row.quantity): row.predicted for row in caterpillar().rows}
    depth = {(row.group, row.quantity): row.predicted for row in storage_depth().rows}
    dark, circuit = load_energy_table("dark-memory-45nm"), load_energy_table("caterpillar-45nm")
    tensor = load_device("v100-sxm2-16gb").engines["tensor-cores"]
    perceptrons = next(group for group, _ in depth if group.startswith("perceptrons"))
    return {
        "256 GPUs: ResNet-50, 90 epochs, s": _run_s(256),
        "1,024 GPUs: ResNet-50, 90 epochs, s": _run_s(1024),
        "utilisation of SGD on the small network, over 80 %": grids[
            "Fig. 10, N1, utilisation", "SGD"
        ],
        "memory over FPU energy, SGD": grids["Fig. 6, N1, energy", "memory / FPU, SGD"],
        "memory over FPU energy, CP": grids["Fig. 6, N1, energy", "memory / FPU, CP"],
        "GFLOP/s/W of MBGD, N1": grids["Table 2, N1, GFLOP/s/W", "MBGD"],
        "exponent of depth in a synchronous step": depth[perceptrons, "in step"],
        "three fetches from registers, pJ": 3 * dark.access("registers.16word.int16")[0] * 1e12,
        "an addition, pJ": dark.access("add.int16")[0] * 1e12,
        "exponent, 16 bit, 4 K to 32 K words": _exponent(dark, "sram.{}word.int16", "4k", "32k", 8),
        "exponent, 64 bit, 4 K to 32 K words": _exponent(dark, "sram.{}word.fp64", "4k", "32k", 8),
        "exponent, CATERPILLAR, 16 to 512 KB": _exponent(circuit, "sram.{}", "l1", "l2", 32),
        "peak of its tensor cores at the boost clock of 125 TFLOP/s": tensor.rates["fp16"].value
        * _FULL_SMS
        / _SMS,
    }


def _run_s(devices: int) -> float:
    plan = {"data": devices, "global_batch": _BATCH, "precision": "fp32"}
    machine = {"cluster.max_nodes": 128}  # as many as Akiba et al. had
    step_s = Point("resnet50", "dgx1-p100-edr", plan, machine).simulate().step_time_s
    return step_s * _IMAGES * _EPOCHS / _BATCH


def _exponent(table: EnergyTable, entry: str, small: str, large: str, times: float) -> float:
    """Return the power of capacity by which the energy of an access grows."""
    ratio = table.access(entry.format(large))[0] / table.access(entry.format(small))[0]
    return math.log(ratio) / math.log(times)
