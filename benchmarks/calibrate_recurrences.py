"""Achievable shares of recurrent layers, from published kernel microbenchmarks.

    python benchmarks/calibrate_recurrences.py v100-sxm2-16gb

prints the rows of op ``recurrence`` in the ``achievable:`` block of a device file. The pricing is
that of `ridgeline.kernels`, where a step of a recurrence takes

    latency + step latency + max(arithmetic / fraction, traffic at each level)

Two figures are estimated for each engine, format and pass: the share of the peak that the products
of a step reach and the time of the cell's other kernels, those of a grid with the least sum of
|log(predicted / measured)| over all rows of LSTM, GRU and plain layers.

Layers that are stored in half precision and multiplied as fp32 take the rows of fp32: those of a
P100 take 2.2 times as long as fp32 with a batch of 32, and as long with 16 and 128, which no pair
of figures holds.
"""

from __future__ import annotations

import argparse
import csv
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from published_kernels import SOURCES
from ridgeline.hardware import Device, load_device
from ridgeline.kernels import price, single_rnn_layer
from ridgeline.study.calibrate.kernel_shares import at_the_peak, format_of
from ridgeline.study.validate import shipped
from ridgeline.workload.graph import Pass

STORAGE_ONLY = "pseudo"
FRACTIONS = np.geomspace(0.05, 1.2, 65)
STEP_LATENCIES_S = np.arange(0, 160e-6, 2e-6)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Layers:
    """All rows of one engine, format and pass, priced at the peak; seconds, [rows]."""

    engine: str
    format: str
    pass_: str
    steps: Floats
    latency_s: Floats
    arithmetic_s: Floats
    memory_s: Floats
    measured_s: Floats


def layers(device_name: str) -> Iterator[Layers]:
    """Price the published measurements of a device."""
    measured = SOURCES[device_name]
    device = load_device(device_name, measured.overrides)
    device = load_device(device_name, {**measured.overrides, "achievable": at_the_peak(device)})
    rows = [_row(row, device) for row in _measurements(measured.device)]
    keys = [row[0] for row in rows]
    for key in sorted(set(keys)):
        figures = np.array([row[1] for row in rows if row[0] == key]).T
        yield Layers(*key, *figures)


def _measurements(device: str) -> list[dict[str, str]]:
    with shipped("rnn").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return [
        row
        for row in rows
        if row["device"] == device
        and row["op"] in single_rnn_layer.CELLS
        and row["pass"] != "weight-gradient"
        and not row["precision"].startswith(STORAGE_ONLY)
    ]


def _row(row: dict[str, str], device: Device) -> tuple[tuple[str, str, str], tuple[float, ...]]:
    """Price one layer; of a whole backward pass, the gradient of the weights is taken off."""
    format_, cell, steps = format_of(row), row["op"], int(row["timesteps"])
    precision = single_rnn_layer.PRECISIONS.get(format_, format_)
    graph = single_rnn_layer.layer(cell, int(row["batch"]), int(row["hidden"]), steps, precision)
    costs = {
        op.pass_: price(op, graph, device)
        for op in graph.ops
        if op.kind == cell and op.pass_ in single_rnn_layer.PASSES[row["pass"]]
    }
    measured_s = float(row["time_ms"]) * 1e-3
    if row["pass"] == "backward":
        measured_s -= costs.pop(Pass.WEIGHT_GRADIENT).time_s(device)
    ((pass_, cost),) = costs.items()
    engine = next(iter(cost.engine_work)).rpartition(".")[0]
    memory_s = max(cost.memory_s(device).values())
    figures = (steps, cost.latency_s, cost.compute_s(device), memory_s, max(measured_s, 1e-9))
    return (engine, format_, pass_.value), figures


def predicted_s(rows: Layers, fraction: float, step_latency_s: float) -> Floats:
    """Time that the model predicts, in seconds, [rows]."""
    busy = np.maximum(rows.arithmetic_s / fraction, rows.memory_s)
    return np.asarray(rows.latency_s + rows.steps * step_latency_s + busy)


def best(rows: Layers) -> tuple[float, float]:
    """Find the share and the step latency, in seconds, with the least error."""

    def error(pair: tuple[float, float]) -> float:
        return float(np.abs(np.log(predicted_s(rows, *pair) / rows.measured_s)).sum())

    return min(itertools.product(FRACTIONS.tolist(), STEP_LATENCIES_S.tolist()), key=error)


def yaml_rows(rows: Layers) -> str:
    """Write the row of a device file."""
    fraction, step_latency_s = best(rows)
    errors = predicted_s(rows, fraction, step_latency_s) / rows.measured_s - 1
    low, high = np.quantile(errors, (0.1, 0.9))
    return "\n".join(
        [
            f"  - engine: {rows.engine}",
            f"    format: {rows.format}",
            "    op: recurrence",
            f"    pass: {rows.pass_}",
            f"    step_latency: {{value: {step_latency_s * 1e6:.0f} us, source: deepbench,"
            " basis: measured}",
            "    fraction:",
            f"      value: {fraction:.3f}",
            "      source: deepbench",
            "      basis: measured",
            "      note: >-",
            f"        {len(errors)} layers; the middle 80 % of them are predicted"
            f" {low:+.0%} to {high:+.0%}",
            f"        (median {np.median(errors):+.0%})",
        ]
    )


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("device", choices=sorted(SOURCES))
    for rows in layers(parser.parse_args().device):
        print(yaml_rows(rows))


if __name__ == "__main__":
    main()
