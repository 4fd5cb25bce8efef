"""All-reduce on nodes of A100 and V100 as nccl-tests measured it, published with vTrain.

Without fits the prediction is what NCCL takes on the described machine (`ridgeline.network.nccl`).
With fits each machine has a few constants (`ridgeline.network.calibration`), the same for all of
its groups, fitted to every second size (2, 8, 32, ... MiB); the sizes between are out of sample.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np

from ridgeline.hardware import load_cluster
from ridgeline.network import from_cluster, nccl
from ridgeline.network.calibration import Correction, Timing, fit_machine
from ridgeline.network.collectives import collective
from ridgeline.study.reproduce.table import FittedConstant, ReproducedFigure, Reproduction

_MACHINES = {"A100": "dgx-a100", "V100": "dgx1-v100"}
_LEAST = 8 * 2**20  # bytes; below, launches of kernels decide


def reproduce() -> Reproduction:
    """Compute all rows of 8 MiB and more."""
    text = resources.files(__package__).joinpath("nccl_all_reduce.csv").read_text("utf-8")
    given = list(csv.DictReader(text.splitlines()))
    rows: list[ReproducedFigure] = []
    fits: list[FittedConstant] = []
    notes: list[str] = []
    for device, name in _MACHINES.items():
        own = [row for row in given if row["device"] == device]
        machine = _Machine.of(name, own)
        correction = machine.calibrated()
        fits += _fits(device, correction)
        for n in dict.fromkeys(int(row["gpus"]) for row in own):
            made = machine.rows(n, device, correction)
            rows += made
            notes.append(_note(made))
    return Reproduction(
        name="nccl-all-reduce",
        title="All-reduce on nodes of A100 and V100, nccl-tests",
        source="nccl-tests, published with vTrain (Bang et al., MICRO 2024), MIT licence",
        rows=tuple(rows),
        fits=tuple(fits),
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class _Machine:
    """All rows of a machine beside what the model says of them."""

    gpus: list[int]
    size_bytes: list[float]
    measured_s: list[float]
    timings: list[Timing]
    cache_bytes: float

    @classmethod
    def of(cls, name: str, rows: Sequence[dict[str, str]]) -> _Machine:
        cluster = load_cluster(name)
        cache = cluster.device.memory["l2"]
        topology = from_cluster(cluster, cluster.nodes.count)
        gpus = [int(row["gpus"]) for row in rows]
        sizes = [float(row["size_bytes"]) for row in rows]
        results = [
            collective("all-reduce", size, topology, ranks=n)
            for n, size in zip(gpus, sizes, strict=True)
        ]
        timings = [
            Timing(
                result.algorithm,
                result.time_s,
                nccl.ring_parts("all-reduce", topology, range(n), size),
            )
            for n, size, result in zip(gpus, sizes, results, strict=True)
        ]
        measured_s = [float(row["time_ns"]) * 1e-9 for row in rows]
        partition_bytes = cache.capacity.value / cache.instances.value
        return cls(gpus, sizes, measured_s, timings, partition_bytes)

    def calibrated(self) -> Correction:
        """Fit to every second size."""
        used = [i for i, size in enumerate(self.size_bytes) if round(math.log2(size)) % 2]
        measured_s = np.array([self.measured_s[i] for i in used])
        return fit_machine([self.timings[i] for i in used], measured_s, self.cache_bytes)

    def rows(self, gpus: int, device: str, correction: Correction) -> list[ReproducedFigure]:
        columns = zip(self.gpus, self.size_bytes, self.measured_s, self.timings, strict=True)
        return [
            ReproducedFigure(
                group=f"{gpus} x {device}",
                quantity=f"all-reduce of {size / 2**20:g} MiB",
                unit="us",
                published=(told_s * 1e6, told_s * 1e6),
                predicted=correction.time_s(timing) * 1e6,
                unfitted=timing.model_s * 1e6,
            )
            for n, size, told_s, timing in columns
            if n == gpus and size >= _LEAST
        ]


def _fits(device: str, correction: Correction) -> list[FittedConstant]:
    chosen_by = "least mean of absolute relative errors on every second size"
    made = [
        FittedConstant(
            f"{device}, {way}",
            f"{start_s * 1e6:.1f} us more to start, bandwidth x {1 / scale:.3f}",
            chosen_by,
        )
        for way, (start_s, scale) in correction.by_way.items()
    ]
    ring = correction.ring
    if ring is not None:
        made.insert(0, FittedConstant(
            f"{device}, ring-simple",
            f"{ring.start_s * 1e6:.1f} us to start, {ring.slice_s * 1e6:.2f} us a slice, "
            f"bandwidth x {1 / ring.scale_in_cache:.3f} with the buffers in cache and "
            f"{1 / ring.scale:.3f} beyond, "
            f"last part copied at {1e-9 / ring.copy_s_per_byte:.0f} GB/s",
            chosen_by,
        ))  # fmt: skip
    return made


def _note(rows: Sequence[ReproducedFigure]) -> str:
    fitted = np.abs([row.residual for row in rows])
    told = np.array([row.published[0] for row in rows])
    plain = np.abs(np.array([row.unfitted for row in rows]) / told - 1)
    return (
        f"{rows[0].group}: mean error {fitted.mean():.1%} with fits ({fitted[1::2].mean():.1%} on "
        f"the sizes that were left out), {plain.mean():.1%} without (median "
        f"{np.median(plain):.1%})"
    )
