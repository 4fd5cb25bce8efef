"""SCALE-Sim 3.0.0's figures, number for number, its slips included.

For comparison only: what is wrong in them, and what ridgeline says instead, is in
``docs/systolic.md``. The formulas were read in SCALE-Sim's code (``compute/systolic_compute_*.py``,
``compute/operand_matrix.py``, ``compute/compression.py``) and checked against its output.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import ConfigError, nearest
from ridgeline.hardware.array import Dataflow
from ridgeline.hardware.scalesim import DEFAULT_SEED
from ridgeline.kernels.systolic.checks import whole_number
from ridgeline.kernels.systolic.closed_form import N, folds, layout
from ridgeline.kernels.systolic.sparsity import StructuredSparsity, parse_sparsity
from ridgeline.workload.graph import Conv, Gemm

_SUMMED_AT_ONCE = 2**20
_WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class ScaleSimGemm:
    """A layer as SCALE-Sim reports it.

    Attributes
    ----------
    compute_cycles
        Index of the last cycle, which is the count less one.
    total_cycles
        With `stall_cycles`, which are the caller's: they come from SCALE-Sim's memory replay.
    overall_util_pct
        Of the dense product's multiply-accumulates, over `total_cycles`.
    mapping_eff_pct, compute_util_pct
        Means over folds.
    sram_ifmap_reads, sram_filter_reads, sram_ofmap_writes
        Words; a fraction where M/N of a sparse layer is one.
    filter_words, stored_words, metadata_words
        Of the filter: dense, stored with its metadata in ELLPACK blocks, and of the metadata alone.
    """

    compute_cycles: int
    stall_cycles: int
    total_cycles: int
    overall_util_pct: float
    mapping_eff_pct: float
    compute_util_pct: float
    sram_ifmap_reads: int | float
    sram_filter_reads: int
    sram_ofmap_writes: int
    filter_words: int
    stored_words: float
    metadata_words: float

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        return asdict(self)


def last_cycle(m: N, n: N, k: N, rows: N, columns: N, dataflow: Dataflow) -> N:
    """Index of the last cycle of a product: folds never overlap and take the whole array."""
    height, width, t = layout(dataflow, m, n, k)
    return folds(height, rows) * folds(width, columns) * _fold(t, rows, columns, dataflow) - 1


def _fold(t: N, rows: N, columns: N, dataflow: Dataflow) -> N:
    """Cycles of one fold. For os they end before the results of the last row have drained."""
    return t + (rows if dataflow == "os" else 2 * rows) + columns - 2


def scalesim_product(loops: Conv | Gemm) -> tuple[int, int, int]:
    """Return M, N and K that SCALE-Sim makes of a layer; of one group, if there are several.

    Its windows may hang over the lower and right edge of the image.

    Raises
    ------
    ConfigError
        If the layer has what SCALE-Sim does not know: a batch, padding, dilation.
    """
    if isinstance(loops, Gemm):
        if loops.batch > 1:
            raise ConfigError(f"SCALE-Sim knows no batch, found {loops.batch}")
        return loops.m, loops.n, loops.k
    if loops.batch > 1 or loops.padding != (0, 0) or loops.dilation != (1, 1):
        raise ConfigError(
            f"SCALE-Sim knows no batch, padding or dilation; found a batch of {loops.batch},"
            f" padding {loops.padding} and dilation {loops.dilation}"
        )
    pixels = folds(loops.h_in - loops.r + loops.stride[0], loops.stride[0]) * folds(
        loops.w_in - loops.s + loops.stride[1], loops.stride[1]
    )
    groups = loops.groups
    return pixels, loops.c_out // groups, loops.r * loops.s * (loops.c_in // groups)


def scalesim_gemm(
    m: int,
    n: int,
    k: int,
    rows: int,
    cols: int,
    dataflow: Dataflow = "ws",
    *,
    sparsity: str | tuple[int, int] | None = None,
    row_wise_block: int | None = None,
    seed: int = DEFAULT_SEED,
    stall_cycles: int = 0,
) -> ScaleSimGemm:
    """Report C[m, n] = A[m, k] B[k, n], or a convolution that amounts to it, as SCALE-Sim does.

    Parameters
    ----------
    rows, cols
        Cells of the array.
    sparsity
        Layer-wise N:M weights (``SparsitySupport: true``); None: sparsity support is off.
    row_wise_block
        Block size of row-wise sparsity (``OptimizedMapping: true``); it replaces `sparsity`.
    seed
        ``RandomNumberGeneratorSeed`` of row-wise sparsity.
    stall_cycles
        Of SCALE-Sim's memory replay, to see the utilisation that it gives for them.

    Raises
    ------
    ConfigError
        If a parameter is not allowed, or SCALE-Sim itself would stop.
    """
    for name, value in {"m": m, "n": n, "k": k, "rows": rows, "cols": cols}.items():
        whole_number(name, value)
    if dataflow not in get_args(Dataflow):
        raise ConfigError(
            f"dataflow must be one of {', '.join(get_args(Dataflow))}; found {dataflow!r}"
            f"{nearest(str(dataflow), get_args(Dataflow))}"
        )
    ratio = parse_sparsity(sparsity)
    if row_wise_block is not None:
        _check_row_wise(row_wise_block, rows, dataflow)
        stored = folds(k, 2 * row_wise_block) * row_wise_block
    else:
        stored = ratio.compressed(k) if ratio else k
    height, width, t = layout(dataflow, m, n, stored)
    row_folds, column_folds = folds(height, rows), folds(width, cols)
    compute = last_cycle(m, n, stored, rows, cols, dataflow)
    total = compute + stall_cycles
    if total == 0:
        raise ConfigError("SCALE-Sim itself stops: a layer of one cycle has 0 cycles, its divisor")
    cells = rows * cols

    r = np.array([rows] * 2 + [height - (row_folds - 1) * rows] * 2)
    c = np.array([cols, width - (column_folds - 1) * cols] * 2)
    used = (r * c).reshape(2, 2)  # [whole, last] rows x [whole, last] cols
    busy = _fold(t, rows, cols, dataflow) + (0 if dataflow == "os" else cols - 1)
    mapped = used / cells
    if row_wise_block is not None:
        mapping = _row_wise_mapping(n, k, rows, cols, row_wise_block, stored, seed)
    else:
        mapping = _mean_of_folds(mapped, row_folds, column_folds)
    metadata = _metadata_words(stored * n, ratio, row_wise_block)
    return ScaleSimGemm(
        compute_cycles=compute,
        stall_cycles=stall_cycles,
        total_cycles=total,
        overall_util_pct=m * n * k * 100 / (total * cells),
        mapping_eff_pct=mapping * 100,
        compute_util_pct=_mean_of_folds(used * t / (cells * busy), row_folds, column_folds) * 100,
        sram_ifmap_reads=_ifmap_reads(
            m, stored, rows, row_folds, column_folds, dataflow, ratio, row_wise_block
        ),
        sram_filter_reads=stored * n * {"os": row_folds, "ws": 1, "is": column_folds}[dataflow],
        sram_ofmap_writes=(
            m * n + row_folds * column_folds * (rows + cols)
            if dataflow == "os"
            else row_folds * m * n
        ),
        filter_words=k * n,
        stored_words=stored * n + metadata,
        metadata_words=metadata,
    )


def _ifmap_reads(
    m: int, stored: int, rows: int, row_folds: int, column_folds: int, dataflow: Dataflow,
    ratio: StructuredSparsity | None, row_wise_block: int | None,
) -> int | float:  # fmt: skip
    if row_wise_block is not None:  # a whole block for every row of the array, skewed
        return (m + rows - 1) * rows * row_wise_block * row_folds * column_folds
    if dataflow == "is":
        return m * stored
    if dataflow == "os" or ratio is None:
        return column_folds * m * stored
    again = ratio.block / ratio.kept
    last = stored - (row_folds - 1) * rows
    reads = _mean_of_folds(
        np.array([[m * rows * again] * 2, [m * last * again] * 2]),
        row_folds,
        column_folds,
        sum_=True,
    )
    return int(reads) if reads.is_integer() else reads


def _metadata_words(
    words: int, ratio: StructuredSparsity | None, row_wise_block: int | None
) -> float:
    """Index words of a filter in ELLPACK blocks."""
    if ratio is None:
        return 0.0
    return words * ratio.index_bits / _WORD_BITS


def _check_row_wise(block: int, rows: int, dataflow: Dataflow) -> None:
    whole_number("row_wise_block", block)
    if dataflow != "ws":
        raise ConfigError(f"row-wise sparsity needs the dataflow ws; found {dataflow!r}")
    if block % 2 or 2 * rows % block or block > rows:
        raise ConfigError(
            f"a row-wise block must be even, at most the array's {rows} rows, and divide twice"
            f" their number; found {block}"
        )


def _row_wise_mapping(
    n: int, k: int, rows: int, columns: int, block: int, stored: int, seed: int
) -> float:
    """Mean share of cells with a non-zero weight: each filter keeps a random number per block."""
    kept = np.random.RandomState(seed).randint(1, block // 2 + 1, size=n)
    half = block // 2
    place = np.arange(stored)
    room = np.clip(k - place // half * block, 0, half)  # of the block, inside the filter
    filled = (place % half)[:, None] < np.minimum(np.arange(half + 1), room[:, None])
    by_row_fold = np.add.reduceat(filled.astype(np.int64), np.arange(0, stored, rows), axis=0)
    by_column_fold = np.add.reduceat(
        (kept[:, None] == np.arange(half + 1)).astype(np.int64), np.arange(0, n, columns), axis=0
    )
    shares = by_column_fold @ by_row_fold.T / (rows * columns)
    return float(np.add.accumulate(shares.ravel())[-1] / shares.size)


def _mean_of_folds(
    values: NDArray[np.float64], row_folds: int, column_folds: int, *, sum_: bool = False
) -> float:
    """Mean over folds, or their sum, added up one after the other, as rounding depends on it.

    Parameters
    ----------
    values
        Of a fold with [all, last] rows and [all, last] columns.
    """
    total = 0.0
    for column, repeats in ((values[:, 0], column_folds - 1), (values[:, 1], 1)):
        strip = np.append(np.full(row_folds - 1, column[0]), column[1])
        at_once = max(1, _SUMMED_AT_ONCE // row_folds)
        for done in range(0, repeats, at_once):
            run = np.tile(strip, min(at_once, repeats - done))
            total = float(np.add.accumulate(np.append(total, run))[-1])
    return total if sum_ else total / (row_folds * column_folds)
