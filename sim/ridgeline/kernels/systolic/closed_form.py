"""Cycles of matrix products on a systolic array of R x C multiply-accumulate cells, in closed form.

**The array.** A product C[m, n] = A[m, k] B[k, n] is laid out with two of its three axes along the
rows and columns of the array, and the third one streams through in T steps:

==========================  ======  =========  ====  ===========================================
dataflow                    rows    columns    T     what stays in the cells
==========================  ======  =========  ====  ===========================================
``os`` output stationary    m       n          k     C; A moves right, B moves down
``ws`` weight stationary    k       n          m     B; A moves right, partial sums move down
``is`` input stationary     k       m          n     A; B moves right, partial sums move down
==========================  ======  =========  ====  ===========================================

What is larger than the array is folded into tiles, all tiles of one column strip before the next.
The tiles of the last row and column are smaller, r x c. With ``edge="exact"`` only their r rows and
c columns take part; with ``edge="full"`` every tile takes all R rows and C columns.

**The clock.** A cycle is one clock of all registers. Counting starts with the cycle in which the
first operand enters the array and ends with the cycle in which the last result leaves it; cycles
are counted, so that one cycle of work is 1. An operand that enters at row 0 and column 0 in one
cycle is multiplied there in that cycle. Then

* a value reaches the next row ``hop_row`` cycles later, the next column ``hop_col`` cycles later;
* a sum is in its cell's register ``mac_latency`` cycles after the multiplication began, and a new
  one can begin in each cycle. A partial sum therefore advances one row in ``down`` = ``hop_row`` +
  ``mac_latency`` - 1 cycles (ws, is);
* loading r stationary rows from the top edge, or draining r rows of results at the bottom edge,
  takes (r - 1) ``hop_row`` + 1 cycles. In os a result leaves through this drain; in ws and is it
  has left when the cell of the tile's last row has registered it.

So a single tile takes T + 2r + c - 2 cycles in every dataflow if all three latencies are 1, which
is the formula of SCALE-Sim's paper (Samajdar et al., ISPASS 2020, eq. 1).

**Folds** follow each other in one of three ways. L is the time that one cell row's worth of
stationary data needs: the load of the next tile (ws, is) or the drain of the last one (os).

``serial``
    The array is empty between tiles.
``pipelined``
    The next load (ws, is) follows the last wave of operands through the array, and the next tile's
    first wave (os) follows the drain: a tile begins T - 1 + L after the one before it.
``overlapped``
    The stationary register of each cell is doubled, so that loads and drains are hidden behind the
    stream of another tile: max(T, L).

A column's results leave through one port, one a cycle, tile by tile. A short tile that follows a
tall one is done earlier than the tall one's last results have left; its own wait for them.

The register-level array of `registers` keeps these rules cell by cell; both give the same count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ridgeline.hardware.array import Dataflow, Edge, Fold

IntArray = NDArray[np.int64]
N = TypeVar("N", int, IntArray)
"""Whole numbers: Python integers of any size, or int64 arrays that broadcast."""


class FoldSchedule(NamedTuple):
    """How products are folded onto an array, and its latencies in cycles."""

    dataflow: Dataflow
    fold: Fold = "overlapped"
    edge: Edge = "exact"
    hop_row: int = 1
    hop_col: int = 1
    mac_latency: int = 1

    @property
    def down(self) -> int:
        """Cycles in which a partial sum advances one row."""
        return self.hop_row + self.mac_latency - 1


@dataclass(frozen=True, slots=True)
class CycleSpans(Generic[N]):
    """What the cycles of a product are spent on; they sum to its cycles.

    Attributes
    ----------
    preload
        Before the first operand streams in: the first load; every load if folds are serial.
    stream
        Operands enter the array: T a tile.
    wait
        Between the streams of tiles that overlap, nothing enters: the next load, or the drain of
        the last tile, takes longer than the stream.
    drain
        After the last operand has entered: until the last result has left; after every tile if
        folds are serial.
    """

    preload: N
    stream: N
    wait: N
    drain: N

    def total(self) -> N:
        """Cycles from the first operand to the last result."""
        return self.preload + self.stream + self.wait + self.drain


def layout(dataflow: Dataflow, m: N, n: N, k: N) -> tuple[N, N, N]:
    """Extent of a product along the rows and columns of the array and along time."""
    match dataflow:
        case "os":
            return m, n, k
        case "ws":
            return k, n, m
        case "is":
            return k, m, n


def folds(extent: N, cells: N) -> N:
    """Count the tiles along an axis of the array."""
    return -(-extent // cells)


def passes(dataflow: Dataflow, row_folds: int, column_folds: int) -> tuple[int, int, int]:
    """Count how often A and B enter the array, and results or partial sums leave it."""
    match dataflow:
        case "os":
            return column_folds, row_folds, 1
        case "ws":
            return column_folds, 1, row_folds
        case "is":
            return 1, column_folds, row_folds


def spans(
    m: N, n: N, k: N, batch: N, rows: N, columns: N, how: FoldSchedule, maximum: Callable[[N, N], N]
) -> CycleSpans[N]:
    """Cycles of `batch` products C[m, n] = A[m, k] B[k, n], one after the other, on one array.

    Parameters
    ----------
    maximum
        Larger of two whole numbers: ``max`` or ``np.maximum``.
    """
    height, width, t = layout(how.dataflow, m, n, k)
    stationary = how.dataflow == "os"
    full, overlapped = how.edge == "full", how.fold == "overlapped"
    latencies = (how.hop_row, how.hop_col, how.mac_latency)
    if how.fold == "serial":
        return CycleSpans(
            *serial(height, width, t, batch, rows, columns, stationary, full, latencies)
        )
    return CycleSpans(
        *following(
            height, width, t, batch, rows, columns, stationary, full, overlapped, latencies, maximum
        )
    )


def following(
    height: N, width: N, t: N, batch: N, rows: N, columns: N, stationary: bool, full: bool,
    overlapped: bool, latencies: tuple[int, int, int], maximum: Callable[[N, N], N],
) -> tuple[N, N, N, N]:  # fmt: skip
    """Preload, stream, wait and drain where folds overlap or follow each other.

    Parameters
    ----------
    height, width, t
        As `layout` gives them.
    stationary
        Whether it is the result that stays in the cells (os).
    latencies
        `FoldSchedule`'s hop_row, hop_col and mac_latency.
    """
    hop_row, hop_col, mac_latency = latencies
    row_folds, column_folds = folds(height, rows), folds(width, columns)
    strips = batch * column_folds
    last_row = rows if full else height - (row_folds - 1) * rows
    last_column = columns if full else width - (column_folds - 1) * columns
    # The steps are from the start of one tile's stream to the next one's. A strip is tall tiles of
    # all rows and a last one of `last_row`; `tall` is 0 where it has only the latter.
    tall = 1 * (row_folds > 1)
    first = last_row + tall * (rows - last_row)
    if stationary:
        step = _join(t, _shift(rows, hop_row), overlapped, maximum)
        late = tall * maximum(0 * t, (rows - last_row) * hop_row + _shift(rows, hop_row) - step)
        inside = step * (row_folds - 1)
        across = _join(t, _shift(last_row, hop_row) + late, overlapped, maximum)
        preload = 0 * step
        leave = (last_row - 1) * hop_row + late + _shift(last_row, hop_row)
    else:
        # Weights on their way down may not overtake the partial sums of earlier tiles, which are
        # slower by `lag` a row: those of the tile before and, below a short tile, of a tall one.
        lag = mac_latency - 1
        down = hop_row + lag
        step = _join(t, _shift(rows, hop_row) + (rows - 1) * lag, overlapped, maximum)
        to_last = _join(t, _shift(last_row, hop_row) + (last_row - 1) * lag, overlapped, maximum)
        behind = maximum((last_row - 1) * lag, tall * ((rows - 1) * lag - to_last))
        late = tall * maximum(0 * t, (rows - last_row) * down + t - to_last)
        inside = tall * (step * (row_folds - 2) + to_last)
        across = _join(t, _shift(first, hop_row) + behind, overlapped, maximum)
        preload = _shift(first, hop_row) + 0 * step
        leave = (last_row - 1) * down + late
    strip = inside + across
    last_start = preload + (strips - 1) * strip + inside
    # The strip before the last one is wider than it, and may be done later.
    reach = maximum(
        (last_column - 1) * hop_col,
        1 * (column_folds > 1) * ((columns - 1) * hop_col - strip),
    )
    stream = strips * row_folds * t
    return preload, stream, last_start + t - preload - stream, leave + reach + mac_latency - 1


def serial(
    height: N, width: N, t: N, batch: N, rows: N, columns: N, stationary: bool, full: bool,
    latencies: tuple[int, int, int],
) -> tuple[N, N, N, N]:  # fmt: skip
    """Preload, stream, wait and drain of tiles one by one: linear in a tile's rows and columns.

    The parameters are those of `following`.
    """
    hop_row, hop_col, mac_latency = latencies
    row_folds, column_folds = folds(height, rows), folds(width, columns)
    last_row = rows if full else height - (row_folds - 1) * rows
    last_column = columns if full else width - (column_folds - 1) * columns
    tiles = batch * column_folds * row_folds
    hops_down = batch * column_folds * ((row_folds - 1) * rows + last_row) - tiles
    hops_right = batch * row_folds * ((column_folds - 1) * columns + last_column) - tiles
    shift = hops_down * hop_row + tiles
    compute = hops_right * hop_col + tiles * (mac_latency - 1)
    if stationary:
        return 0 * tiles, tiles * t, 0 * tiles, compute + hops_down * hop_row + shift
    return shift, tiles * t, 0 * tiles, compute + hops_down * (hop_row + mac_latency - 1)


def _shift(r: N, hop_row: int) -> N:
    """Cycles that loading or draining r rows takes."""
    return (r - 1) * hop_row + 1


def _join(t: N, other: N, overlapped: bool, maximum: Callable[[N, N], N]) -> N:
    """Cycles from the start of a stream of T to the next one's."""
    return maximum(t, other) if overlapped else t - 1 + other
