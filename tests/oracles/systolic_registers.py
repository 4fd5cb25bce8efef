"""The array itself, register by register: it returns the product and the cycles that it took.

Every operand, weight, partial sum and result sits in a register and moves at most one register a
cycle. Each carries a tag that says what it is, and a cell that is handed the wrong thing (a weight
of another tile, a partial sum without its operand, a result into an occupied register) stops the
simulation. The control keeps the rules of `closed_form` by looking at the cells: it starts a load,
a stream or a drain in the first cycle in which no cell objects. Nothing is known here of tile
classes or of sums over tiles, so equal counts prove the closed form.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from oracles import systolic_output_stationary as output_stationary
from oracles import systolic_weight_stationary as weight_stationary
from oracles.systolic_cells import EMPTY, CellArray, Ints, Values
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware.array import Dataflow, Edge, Fold
from ridgeline.kernels.systolic.checks import schedule_of, whole_number
from ridgeline.kernels.systolic.closed_form import FoldSchedule


def register_level_product(
    a: ArrayLike,
    b: ArrayLike,
    rows: int,
    cols: int,
    dataflow: Dataflow = "ws",
    fold: Fold = "overlapped",
    edge: Edge = "exact",
    *,
    hop_row: int = 1,
    hop_col: int = 1,
    mac_latency: int = 1,
) -> tuple[Values, int]:
    """Multiply two matrices on a systolic array by moving every operand through its registers.

    Parameters
    ----------
    a, b
        Matrices [m, k] and [k, n], or stacks of them [batch, m, k] and [batch, k, n], of integers
        or floats.
    rows, cols
        Cells of the array.
    dataflow, fold, edge, hop_row, hop_col, mac_latency
        As in `ridgeline.kernels.systolic.gemm_cycles`.

    Returns
    -------
    product : ndarray [m, n] or [batch, m, n], int64 or float64
    cycles : int
        From the cycle in which the first operand enters to the one in which the last result leaves.

    Raises
    ------
    ConfigError
        If the matrices do not fit together, or a parameter is not allowed.
    """
    how = schedule_of(dataflow, fold, edge, hop_row, hop_col, mac_latency)
    whole_number("rows", rows)
    whole_number("cols", cols)
    left, right = np.asarray(a), np.asarray(b)
    if left.ndim not in {2, 3} or left.ndim != right.ndim:
        raise ConfigError(
            f"need two matrices or two stacks of them, found {left.ndim} and {right.ndim} axes"
        )
    if left.shape[-1] != right.shape[-2] or left.shape[:-2] != right.shape[:-2]:
        raise ConfigError(f"cannot multiply matrices of shapes {left.shape} and {right.shape}")
    if 0 in left.shape + right.shape:
        raise ConfigError(f"the matrices are empty: shapes {left.shape} and {right.shape}")
    kind = np.int64 if np.result_type(left, right).kind in "iu" else np.float64
    shape = (*left.shape[:-1], right.shape[-1])
    left = left.astype(kind).reshape(-1, *left.shape[-2:])
    right = right.astype(kind).reshape(-1, *right.shape[-2:])
    if dataflow == "is":  # C' = B' A', and A' is stationary
        product, cycles = _run(right.swapaxes(1, 2), left.swapaxes(1, 2), rows, cols, how)
        product = product.swapaxes(1, 2)
    else:
        product, cycles = _run(left, right, rows, cols, how)
    return product.reshape(shape), cycles


def _run(
    left: Values, right: Values, rows: int, columns: int, how: FoldSchedule
) -> tuple[Values, int]:
    """Lay the tiles out, with zeros around them if edges are full, and play them."""
    outputs_stay = how.dataflow == "os"
    m, n = left.shape[1], right.shape[2]
    if how.edge == "full":
        stationary = 1 if outputs_stay else 2
        pad = [(0, 0)] * 3
        pad[stationary] = (0, -left.shape[stationary] % rows)
        left = np.pad(left, pad)
        right = np.pad(right, [(0, 0), (0, left.shape[2] - right.shape[1]), (0, -n % columns)])
    tiles = _tiles(len(left), left.shape[1 if outputs_stay else 2], right.shape[2], rows, columns)
    machine = CellArray(
        rows, columns, how.hop_row, how.hop_col, how.mac_latency,
        serial=how.fold == "serial", doubled=how.fold == "overlapped",
    )  # fmt: skip
    left, right = np.ascontiguousarray(left), np.ascontiguousarray(right)
    product = np.zeros((len(left), left.shape[1], right.shape[2]), left.dtype)
    if outputs_stay:
        results = output_stationary.empty_array(left, tiles, machine)
        cycles = output_stationary.play(left, right, product, tiles, machine, results)
    else:
        weights = weight_stationary.empty_array(left, tiles, machine)
        cycles = weight_stationary.play(left, right, product, tiles, machine, weights)
    if cycles == EMPTY:  # pragma: no cover - the control would not keep the rules
        raise RidgelineError("a register of the systolic array was handed the wrong value")
    return product[:, :m, :n], int(cycles)


def _tiles(batch: int, height: int, width: int, rows: int, columns: int) -> Ints:
    """Table of all tiles in order: product, first row and column, rows and columns."""
    return np.array(
        [
            (p, i, j, min(rows, height - i), min(columns, width - j))
            for p in range(batch)
            for j in range(0, width, columns)
            for i in range(0, height, rows)
        ],
        dtype=np.int64,
    )
