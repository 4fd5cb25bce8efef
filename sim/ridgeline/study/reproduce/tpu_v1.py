"""Six applications on TPU v1: operations a second, and what the matrix unit waits for."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from importlib import resources

from ridgeline.hardware import load_device
from ridgeline.kernels.traffic import as_gemm
from ridgeline.parallel.plan.plan import Plan
from ridgeline.report.result import Result
from ridgeline.simulation import simulate
from ridgeline.study.reproduce.table import ReproducedFigure, Reproduction

DEVICE = "tpu-v1"
_TOLERANCE = 0.2
_UNEXPLAINED = "lstm1"
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
            " 2017, Table 3: TeraOps/sec, and the shares of cycles in its rows 1 to 6"
        ),
        rows=tuple(_rows()),
        fits=(),
        notes=(
            'Shapes are not published. CNN1 "derives from Inception V2" (Section 3); '
            "the others meet Table 1's layers, weights and intensities and Table 3's shares of "
            "unused cells (models/mlp0.yaml and others say how). CNN1's 1,750 multiply-adds a "
            "weight cannot be: they are 51 TOPS at the 4,700 inferences a second of Section 8.",
            "Table 3 does not agree with itself. LSTM0's 8.2 % of useful cells are 7.5 TeraOps/s, "
            "LSTM1's 6.3 % are 5.8, and half of that is printed: with activations of 16 bits the "
            "array is active twice as long (Section 2). Eight bits are counted here, so that half "
            "of its shares are predicted; the weights that are waited for stay the same. CNN0's "
            "78.2 % are 71.9 and 86.0 are printed, CNN1's 22.5 % are 20.7 and 14.1 are printed.",
            "LSTM1 is bound by its weights: nine tiles of a matrix of 600 x 600 take 18 us "
            "(Section 7), 3.8 TeraOps/s for batches of 96. The 2.8 that were measured are a tile "
            "each 2.7 us, 24 of 34 GB/s, where LSTM0 and MLP0 reach 29 and 31; nothing that is "
            "published says why.",
            "Non-matrix is what is neither of the others. Inputs come over PCIe before the first "
            "product (row 8). Functions and pooling behind a product go on beside it here; stalls "
            "for data of the layer before (row 7) are not modelled.",
        ),
    )


def _rows() -> Iterator[ReproducedFigure]:
    text = resources.files(__package__).joinpath("tpu_v1.csv").read_text("utf-8")
    for line in csv.DictReader(text.splitlines()):
        name, batch = line["application"], int(line["batch"])
        result = simulate(name, DEVICE, Plan(global_batch=batch, forward_only=True))
        tops = result.flops_per_step / result.step_time_s / 1e12
        yield ReproducedFigure(
            group="Table 3, TeraOps/s",
            quantity=name.upper(),
            unit="TOP/s",
            published=(float(line["tops"]),) * 2,
            predicted=tops,
            unfitted=tops,
            tolerance=None if name == _UNEXPLAINED else _TOLERANCE,
        )
        for part, share in _shares(result).items():
            yield ReproducedFigure(
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
