"""Halos: which input rows each output row reads, and what neighbours exchange.

Rows of images are shared as evenly as can be: of n rows on p devices the first n mod p devices have
one more. A device that computes rows of an output needs the rows of the input that their windows
reach; those that other devices have are its *halo*. In the backward pass the same relation is read
the other way round: a row of the input's gradient needs the output's gradients of all windows that
reach it. N. Dryden et al., Improving strong-scaling of CNN training by exploiting finer-grained
parallelism, IPDPS 2019 (there for odd kernels; here for any stride, dilation and padding, and for
shares that differ).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline.workload.sharding_axes import Window

Counts = npt.NDArray[np.int64]
Reads = npt.NDArray[np.bool_]


@lru_cache(maxsize=256)
def reads(window: Window, n_in: int, n_out: int) -> Reads:
    """Return [n_out, n_in] whether a row of the output reads a row of the input."""
    if window.kind == "spread":
        forward = window._replace(kind="slide")
        return reads(forward, n_out, n_in).T
    found = np.zeros((n_out, n_in), dtype=bool)
    out = np.arange(n_out)
    if window.kind == "slide":
        for tap in range(window.kernel):
            row = out * window.stride - window.padding + tap * window.dilation
            inside = (row >= 0) & (row < n_in)
            found[out[inside], row[inside]] = True
        return found
    if window.kind == "adaptive":  # torch.nn.AdaptiveAvgPool2d
        first, end = out * n_in // n_out, -(-(out + 1) * n_in // n_out)
    elif window.kind == "nearest":
        first = out * n_in // n_out
        end = first + 1
    else:  # torch.nn.Upsample(mode="bilinear"): the rows around the middle of a pixel
        middle, whole = np.clip((2 * out + 1) * n_in - n_out, 0, None), 2 * n_out
        first = middle // whole
        end = np.minimum(first + 1 + (middle % whole > 0), n_in)
    row = np.arange(n_in)
    return (row >= first[:, np.newaxis]) & (row < end[:, np.newaxis])


def ends(rows: int, parts: int) -> Counts:
    """Return [parts + 1] where the shares of so many devices begin, and where the last ends."""
    few, more = divmod(rows, parts)
    index = np.arange(parts + 1)
    return index * few + np.minimum(index, more)


@lru_cache(maxsize=1024)
def halo_rows(window: Window, n_in: int, n_out: int, parts: int, *, back: bool) -> Any:
    """Return [parts, parts] how many rows each device (first axis) needs of each other.

    Parameters
    ----------
    n_in, n_out
        Rows of the input and of the output.
    parts
        Devices that share both.
    back
        In the backward pass: rows of the output's gradient for those of the input's.
    """
    matrix = reads(window, n_in, n_out)
    matrix = matrix.T if back else matrix
    mine, theirs = ends(matrix.shape[0], parts), ends(matrix.shape[1], parts)
    needed = np.zeros((parts, parts), dtype=np.int64)
    for part in range(parts):
        rows = matrix[mine[part] : mine[part + 1]].any(axis=0)
        needed[part] = np.add.reduceat(rows.astype(np.int64), theirs[:-1])
        needed[part, part] = 0
    return needed


def written(rows: Counts) -> str:
    """Write what devices send each other as text, ``0>1:3 1>0:2``: source, target, parts."""
    target, source = np.nonzero(rows)
    return " ".join(
        f"{s}>{t}:{rows[t, s]}" for t, s in zip(target.tolist(), source.tolist(), strict=True)
    )


def pairs_of(op: str) -> list[tuple[int, int, float]]:
    """Read source, target and share of all bytes of each message of ``halo 0>1:3 1>0:2``."""
    found = []
    for part in op.split()[1:]:
        pair, _, count = part.partition(":")
        source, _, target = pair.partition(">")
        found.append((int(source), int(target), int(count)))
    total = sum(count for _, _, count in found)
    return [(source, target, count / total) for source, target, count in found]


def written_grid(raw: object) -> object:
    """Check ``4`` or ``2x4``: devices along the rows, and the columns, of images.

    Raises
    ------
    ValueError
        If it is something else.
    """
    text = str(raw).strip().lower()
    parts = text.split("x")
    if isinstance(raw, bool) or len(parts) > 2 or not all(map(_is_degree, parts)):
        raise ValueError(
            f"expected devices along the rows of images, or ROWSxCOLUMNS (2x4), found {raw!r}"
        )
    rows, columns = grid_of(text)
    return f"{rows}x{columns}" if columns > 1 else str(rows)


def _is_degree(text: str) -> bool:
    return text.isascii() and text.isdecimal() and 0 < int(text) < 10**6


def grid_of(text: str) -> tuple[int, int]:
    """Return devices along the rows, and along the columns."""
    rows, _, columns = text.partition("x")
    return int(rows), int(columns or 1)
