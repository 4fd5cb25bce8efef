"""Matrix products on one systolic array: cycles of many at once, or one with everything counted."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ridgeline.errors import ConfigError, RidgelineError, nearest
from ridgeline.hardware.array import Dataflow, Edge, Fold
from ridgeline.kernels.systolic.checks import schedule_of, whole_number, whole_numbers
from ridgeline.kernels.systolic.closed_form import (
    CycleSpans,
    FoldSchedule,
    IntArray,
    folds,
    layout,
    passes,
    spans,
)
from ridgeline.kernels.systolic.scalesim import last_cycle
from ridgeline.kernels.systolic.sparsity import StructuredSparsity, parse_sparsity

_COUNT_LIMIT = 2.0**62
"""Cycles up to which no intermediate of the int64 arithmetic overflows."""


def gemm_cycles(
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    rows: ArrayLike,
    cols: ArrayLike,
    dataflow: str = "ws",
    fold: str = "overlapped",
    edge: str = "exact",
    *,
    compat: str | None = None,
    batch: ArrayLike = 1,
    hop_row: int = 1,
    hop_col: int = 1,
    mac_latency: int = 1,
    sparsity: str | tuple[int, int] | None = None,
) -> int | IntArray:
    """Count the cycles of C[m, n] = A[m, k] B[k, n] on an array of rows x cols cells.

    The conventions are those of `ridgeline.kernels.systolic.closed_form`.

    Parameters
    ----------
    m, n, k, rows, cols, batch
        Whole numbers or arrays of them, which broadcast. `batch` products follow each other.
    dataflow
        ``"os"``, ``"ws"`` or ``"is"``.
    fold
        ``"overlapped"``: stationary registers are doubled; ``"pipelined"``: they are not, but the
        next tile's load follows the last one's operands; ``"serial"``: the array runs empty.
    edge
        ``"exact"``: the last tile takes only the rows and columns that it needs; ``"full"``: all.
    compat
        ``"scalesim"``: the figure of SCALE-Sim 3.0.0, which is the index of the last cycle; `fold`
        and `edge` then play no part.
    hop_row, hop_col, mac_latency
        Cycles to the next row, to the next column, and of a multiply-accumulate.
    sparsity
        N:M structured weights, such as ``"2:4"``: only the non-zero rows of B's blocks are loaded
        and multiplied. Needs the dataflow ``"ws"``, except in compat mode.

    Returns
    -------
    int or ndarray of int64
        An int if all sizes are.

    Raises
    ------
    ConfigError
        If a size is not a whole number of at least 1, a name is not known, a parameter does not go
        with another, or a count of an array does not fit into 63 bits.

    Examples
    --------
    >>> gemm_cycles(33, 31, 65, 32, 32, fold="serial")
    316
    >>> gemm_cycles(33, 31, 65, 32, 32, compat="scalesim")
    380
    >>> gemm_cycles([64, 128], 64, 64, 16, 16)
    array([1070, 2094])
    """
    how = schedule_of(dataflow, fold, edge, hop_row, hop_col, mac_latency)
    ratio = parse_sparsity(sparsity)
    sizes = {"m": m, "n": n, "k": k, "batch": batch, "rows": rows, "cols": cols}
    if all(isinstance(size, int | np.integer) for size in sizes.values()):
        numbers = tuple(whole_number(*item) for item in sizes.items())
        return _scalar_cycles(numbers, how, compat, ratio)
    arrays = tuple(whole_numbers(*item) for item in sizes.items())
    try:
        np.broadcast_shapes(*(array.shape for array in arrays))
    except ValueError:
        shapes = ", ".join(f"{name} {a.shape}" for name, a in zip(sizes, arrays, strict=True))
        raise ConfigError(f"the sizes do not broadcast: {shapes}") from None
    return _array_cycles(arrays, how, compat, ratio)


def _scalar_cycles(
    sizes: tuple[int, ...], how: FoldSchedule, compat: str | None, ratio: StructuredSparsity | None
) -> int:
    m, n, k, batch, rows, columns = sizes
    _check_compat(compat, how, ratio, batch == 1)
    stored = ratio.compressed(k) if ratio else k
    if compat is not None:
        return last_cycle(m, n, stored, rows, columns, how.dataflow)
    return spans(m, n, stored, batch, rows, columns, how, max).total()


def _array_cycles(
    sizes: tuple[IntArray, ...],
    how: FoldSchedule,
    compat: str | None,
    ratio: StructuredSparsity | None,
) -> IntArray:
    m, n, k, batch, rows, columns = sizes
    _check_compat(compat, how, ratio, bool((batch == 1).all()))
    height, width, t = layout(how.dataflow, m, n, k)
    slowest = t + 2.0 * rows * (how.hop_row + how.down) + 2.0 * columns * how.hop_col
    tiles = np.ceil(height / rows) * np.ceil(width / columns) * batch
    if (tiles * (slowest + how.mac_latency) > _COUNT_LIMIT).any():
        raise ConfigError("a count does not fit into 63 bits; single products have no such limit")
    stored = ratio.compressed(k) if ratio else k
    if compat is not None:
        return np.asarray(last_cycle(m, n, stored, rows, columns, how.dataflow))
    return np.asarray(spans(m, n, stored, batch, rows, columns, how, np.maximum).total())


def _check_compat(
    compat: str | None, how: FoldSchedule, ratio: StructuredSparsity | None, single: bool
) -> None:
    if compat is None:
        if ratio is not None and how.dataflow != "ws":
            raise ConfigError(
                f"N:M weights are compressed along the rows of a weight-stationary array: sparsity"
                f" needs the dataflow 'ws', found {how.dataflow!r}"
            )
        return
    if compat != "scalesim":
        raise ConfigError(
            f"compat must be 'scalesim' or None; found {compat!r}{nearest(compat, ['scalesim'])}"
        )
    if (how.hop_row, how.hop_col, how.mac_latency) != (1, 1, 1) or not single:
        raise ConfigError("SCALE-Sim knows no batch, and no latency other than 1 cycle")


@dataclass(frozen=True, slots=True)
class SystolicGemm:
    """One product, or a batch of them, on one array, with everything that was counted.

    Attributes
    ----------
    cycles, spans
        And what they are spent on, which sums to them.
    row_folds, column_folds
        Tiles along the array's rows and columns, of one product.
    macs
        Multiply-accumulates that are issued: all, or those with the stored weights if N:M sparse.
    dense_macs
        Of the dense product.
    utilisation
        Issued multiply-accumulates over cells times cycles.
    mapping_efficiency
        Share of cells that have work, averaged over the tiles.
    a_reads, b_reads
        Words read from the operand buffers next to the array. A stored weight comes with
        `index_bits` more bits.
    c_writes, c_read_backs
        Words of results written, partial sums among them, and of partial sums read to add to them.
    """

    m: int
    n: int
    k: int
    batch: int
    rows: int
    columns: int
    schedule: FoldSchedule
    sparsity: StructuredSparsity | None
    cycles: int
    spans: CycleSpans[int]
    row_folds: int
    column_folds: int
    macs: int
    dense_macs: int
    utilisation: float
    mapping_efficiency: float
    a_reads: int
    b_reads: int
    c_writes: int
    c_read_backs: int
    index_bits: int

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        fields = asdict(self)
        fields["schedule"] = self.schedule._asdict()
        fields["sparsity"] = str(self.sparsity) if self.sparsity else None
        return fields


def systolic_gemm(
    m: int,
    n: int,
    k: int,
    rows: int,
    cols: int,
    dataflow: Dataflow = "ws",
    fold: Fold = "overlapped",
    edge: Edge = "exact",
    *,
    batch: int = 1,
    hop_row: int = 1,
    hop_col: int = 1,
    mac_latency: int = 1,
    sparsity: str | tuple[int, int] | None = None,
) -> SystolicGemm:
    """Count everything about C[m, n] = A[m, k] B[k, n] on an array of rows x cols cells.

    Operands are read from a buffer as often as they enter the array: what streams once a tile, what
    is stationary once in all. Partial sums of ws and is gather in a buffer below the array, so that
    every fold along k but the first reads back what the one before wrote.

    Parameters
    ----------
    m, n, k, rows, cols, dataflow, fold, edge, batch, hop_row, hop_col, mac_latency, sparsity
        As in `gemm_cycles`.

    Raises
    ------
    ConfigError
        As `gemm_cycles` does.
    """
    how = schedule_of(dataflow, fold, edge, hop_row, hop_col, mac_latency)
    ratio = parse_sparsity(sparsity)
    sizes = {"m": m, "n": n, "k": k, "batch": batch, "rows": rows, "cols": cols}
    for item in sizes.items():
        whole_number(*item)
    _check_compat(None, how, ratio, single=True)
    stored = ratio.compressed(k) if ratio else k
    spent = spans(m, n, stored, batch, rows, cols, how, max)
    height, width, _ = layout(dataflow, m, n, stored)
    row_folds, column_folds = folds(height, rows), folds(width, cols)
    cycles, cells, macs = spent.total(), rows * cols, batch * m * n * stored
    if macs > cells * cycles:  # pragma: no cover - a cell does at most one a cycle
        raise RidgelineError(f"{macs} multiply-accumulates in {cycles} cycles of {cells} cells")
    a_passes, b_passes, c_passes = passes(dataflow, row_folds, column_folds)
    return SystolicGemm(
        m=m, n=n, k=k, batch=batch, rows=rows, columns=cols, schedule=how, sparsity=ratio,
        cycles=cycles,
        spans=spent,
        row_folds=row_folds,
        column_folds=column_folds,
        macs=macs,
        dense_macs=batch * m * n * k,
        utilisation=macs / (cells * cycles),
        mapping_efficiency=height * width / (row_folds * column_folds * cells),
        a_reads=batch * m * k * a_passes,
        b_reads=batch * stored * n * b_passes,
        c_writes=batch * m * n * c_passes,
        c_read_backs=batch * m * n * (c_passes - 1),
        index_bits=ratio.index_bits if ratio else 0,
    )  # fmt: skip
