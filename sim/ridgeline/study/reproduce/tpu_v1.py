"""Six applications on TPU v1: operations a second, and what the matrix unit waits for."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from importlib import resources

from ridgeline.hardware import load_device
from ridgeline.kernels.traffic import as_gemm
from ridgeline.parallel.plans.plan import Plan
from ridgeline.report.result import Result
from ridgeline.simulation import simulate
from ridgeline.study.reproduce.table import Reproduction, Row

DEVICE = "tpu-v1"
_PARTS = (
    "array_active", "useful_macs", "unused_macs", "weight_stall", "weight_shift", "non_matrix"
)  # fmt: skip


def reproduce() -> Reproduction:
    """Compute the rows of Table 3 from forward passes as `ridgeline run` prices them."""
    return Reproduction(
        name="tpu-v1",
        title="Six applications on TPU v1: 256 x 256 cells at 700 MHz, 34 GB/s of weights",
        source=(
            "N. Jouppi et al., In-Datacenter Performance Analysis of a Tensor Processing Unit, ISCA"
            " 2017, Table 3: TeraOps/sec, and the shares of cycles in its rows 1, 4, 5 and 6"
        ),
        rows=tuple(_rows()),
        fits=(),
        notes=(
            "The networks are derived, not published: layer counts, weights and intensities of "
            "Table 1 are met (models/mlp0.yaml and others say how).",
            "Table 3 does not agree with itself: LSTM0's array is active in 8.2 % of the cycles "
            "without unused cells, 7.5 TeraOps/s, and 3.7 are printed; CNN0's 78.2 % are 71.7, and "
            "86.0 are printed. No model can be near both.",
            "Weight shift is what the arithmetic takes beyond the rows that stream through tiles "
            "of 256 x 256: our array loads the next tile behind the stream of the one before, so "
            "that only what is longer than the stream counts. Non-matrix is all that is neither.",
        ),
    )


def _rows() -> Iterator[Row]:
    text = resources.files(__package__).joinpath("tpu_v1.csv").read_text("utf-8")
    for line in csv.DictReader(text.splitlines()):
        name, batch = line["application"], int(line["batch"])
        result = simulate(name, DEVICE, Plan(global_batch=batch, forward_only=True))
        tops = result.flops_per_step / result.step_time_s / 1e12
        yield Row(
            group="Table 3, TeraOps/s",
            quantity=name.upper(),
            unit="TOP/s",
            published=(float(line["tops"]),) * 2,
            predicted=tops,
            unfitted=tops,
        )
        for part, share in _shares(result).items():
            yield Row(
                group=f"Table 3, {name.upper()}, share of cycles",
                quantity=part.replace("_", " "),
                unit="",
                published=(float(line[part]),) * 2,
                predicted=share,
                unfitted=share,
                points=True,
            )


def _shares(result: Result) -> dict[str, float]:
    """Divide a forward pass into the counters of Table 3.

    The array is active while rows stream through it. A tile is shifted in behind the stream of the
    one before; where that is done earlier, up to all cycles of a shift are idle, and what is longer
    still is a wait for the tile to come from its memory.
    """
    lowered, device = result.details.lowered, load_device(DEVICE)
    array = device.engines["mxu"].array
    assert array is not None
    clock_hz, far = array.clock.value, device.far_memory
    rows, columns = array.rows.value, array.columns.value
    active_s = useful_s = shift_s = stall_s = 0.0
    for op, cost in zip(lowered.ops, lowered.op_costs, strict=True):
        if op.loops is None:
            continue
        gemm = as_gemm(op.loops, op.priced_as)
        tiles = math.ceil(gemm.k / rows) * math.ceil(gemm.n / columns) * gemm.batch
        assert cost.mapped is not None
        cycles_s = min(cost.mapped[0].cycles_s, cost.compute_s(device))
        streams_s = min(tiles * gemm.m / clock_hz, cycles_s)
        memory_s = cost.memory_s(device)
        waits_for_weights = memory_s[far] == max(memory_s.values())
        idle_s = (cost.time_s(device) if waits_for_weights else cycles_s) - streams_s
        shifted_s = min(idle_s, tiles * rows / clock_hz)
        active_s += streams_s
        useful_s += gemm.batch * gemm.m * gemm.n * gemm.k / (rows * columns * clock_hz)
        shift_s += shifted_s
        stall_s += idle_s - shifted_s
    step_s = result.step_time_s
    unused_s, other_s = active_s - useful_s, step_s - active_s - stall_s - shift_s
    seconds = (active_s, useful_s, unused_s, stall_s, shift_s, other_s)
    return {part: part_s / step_s for part, part_s in zip(_PARTS, seconds, strict=True)}
