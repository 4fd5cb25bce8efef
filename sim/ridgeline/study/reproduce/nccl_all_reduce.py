"""All-reduce on nodes of A100 and V100 as nccl-tests measured it, published with vTrain.

Without fits the prediction is what NCCL takes on the described machine (`ridgeline.network.nccl`).
With fits two numbers are added for every algorithm and protocol of a machine, a time of starting
and a share of the modelled bandwidth, from the rows of even place; those of odd place are out of
sample.
"""

from __future__ import annotations

import csv
from importlib import resources

import numpy as np

from ridgeline.network.calibration import fit_ways
from ridgeline.network.collectives import collective
from ridgeline.study.reproduce.table import Fit, Reproduction, Row

_MACHINES = {"A100": "dgx-a100", "V100": "dgx1-v100"}
_LEAST = 8 * 2**20  # bytes; below, launches of kernels decide


def reproduce() -> Reproduction:
    """Compute all rows of 8 MiB and more."""
    text = resources.files(__package__).joinpath("nccl_all_reduce.csv").read_text("utf-8")
    given = [row for row in csv.DictReader(text.splitlines()) if int(row["size_bytes"]) >= _LEAST]
    rows: list[Row] = []
    fits: list[Fit] = []
    notes: list[str] = []
    for device, n in dict.fromkeys((row["device"], int(row["gpus"])) for row in given):
        own = [row for row in given if (row["device"], int(row["gpus"])) == (device, n)]
        sizes = [float(row["size_bytes"]) for row in own]
        results = [collective("all-reduce", s, _MACHINES[device], ranks=n) for s in sizes]
        ways = [result.algorithm for result in results]
        model = np.array([result.time_s for result in results])
        measured = np.array([float(row["time_ns"]) for row in own]) * 1e-9
        correction = fit_ways(ways[::2], model[::2], measured[::2])
        fitted = np.array(
            [correction.time_s(way, time_s) for way, time_s in zip(ways, model, strict=True)]
        )
        columns = (sizes, measured.tolist(), fitted.tolist(), model.tolist())
        for size, told, with_fit, without in zip(*columns, strict=True):
            rows.append(
                Row(
                    group=f"{n} x {device}",
                    quantity=f"all-reduce of {size / 2**20:g} MiB",
                    unit="us",
                    published=(told * 1e6, told * 1e6),
                    predicted=with_fit * 1e6,
                    unfitted=without * 1e6,
                )
            )
        fits += [
            Fit(
                f"{n} x {device}, {way}",
                f"{start_s * 1e6:.1f} us more to start, bandwidth x {1 / scale:.3f}",
                "least mean of absolute relative errors on every other row",
            )
            for way, (start_s, scale) in correction.by_way.items()
        ]
        mean = [float(np.abs(t / measured - 1).mean()) for t in (fitted, model)]
        median = float(np.median(np.abs(model / measured - 1)))
        out = float(np.abs(fitted / measured - 1)[1::2].mean())
        notes.append(
            f"{n} x {device}: mean error {mean[0]:.1%} with fits ({out:.1%} on the rows that were "
            f"left out), {mean[1]:.1%} without (median {median:.1%})"
        )
    return Reproduction(
        name="nccl-all-reduce",
        title="All-reduce on nodes of A100 and V100, nccl-tests",
        source="nccl-tests, published with vTrain (Bang et al., MICRO 2024), MIT licence",
        rows=tuple(rows),
        fits=tuple(fits),
        notes=tuple(notes),
    )
