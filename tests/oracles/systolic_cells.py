"""What the two register-level arrays share: tiles, the machine, and registers in a row."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline._jit import kernel_part

Values = NDArray[Any]
Ints = NDArray[np.int64]

EMPTY = -1
"""Tag of a register that holds nothing; also what a run returns that went wrong."""

# Columns of the table of tiles: which product of the batch, first row and column of the stationary
# operand, rows and columns.
PRODUCT, TOP, LEFT, HEIGHT, WIDTH = range(5)


class CellArray(NamedTuple):
    """The array, and whether folds overlap."""

    rows: int
    columns: int
    hop_row: int
    hop_col: int
    mac: int
    serial: bool
    doubled: bool


class Pipe(NamedTuple):
    """Registers that hand values on, each with a tag that says what it holds."""

    value: Values
    tag: Ints


def pipes(like: Values, *shape: int) -> Pipe:
    """Return empty registers; the last axis is the way through them."""
    return Pipe(np.zeros(shape, like.dtype), np.full(shape, EMPTY, np.int64))


@kernel_part
def push(pipe: Pipe, i: int, j: int, value: Any, tag: int) -> None:
    """Move what is in the registers before cell (i, j) on by one and let a value in."""
    for h in range(pipe.tag.shape[2] - 1, 0, -1):
        pipe.value[i, j, h] = pipe.value[i, j, h - 1]
        pipe.tag[i, j, h] = pipe.tag[i, j, h - 1]
    pipe.value[i, j, 0] = value
    pipe.tag[i, j, 0] = tag
