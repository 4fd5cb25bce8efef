"""What exporters folded into the numbers of an ONNX file, recognised by its traces.

An export for inference computes ahead what depends on weights alone. Its results have names that
the exporter made up, and say what they were:

- a lookup with constant positions holds copies of a table: the table is its distinct rows;
- a mask of attention holds zeros and very negative numbers, and is no weight;
- batch normalisation is multiplied into the convolution before it, whose bias then has a made-up
  name ("x.weight_bias" or "onnx::Conv_7" of PyTorch's two exporters).
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

import numpy as np

LARGEST = 2**22
"""Elements of the largest tensor whose copies are looked for."""
_MASKED = -1e3  # what is added to scores that must not count
_MADE_UP = re.compile(
    r"(onnx::\w+_\d+|val_\d+|/.*|\d+|(expand|index|unsqueeze|slice|embedding|select|view|add|mul"
    r"|where|clone|repeat|cat|permute|transpose|sub|gather|tile|masked_fill)(_\d+)?)"
)
_FOLDED_CONV = re.compile(r"onnx::Conv_\d+")


class FoldedLookup(NamedTuple):
    """Distinct rows of a folded lookup."""

    rows: int
    width: int


def is_made_up(name: str) -> bool:
    """Tell whether an exporter made up the name of an initializer."""
    return _MADE_UP.fullmatch(name) is not None


def folded(values: Any, *, is_added: bool) -> FoldedLookup | Literal["mask"] | None:
    """Return what an initializer of several axes was computed from, if it is not a weight itself.

    The rows may lie along any axis; of all, the one with the fewest distinct numbers counts.
    """
    if is_added and bool(np.all((values == 0) | (values <= _MASKED))):
        return "mask"
    if values.size and np.ptp(values) == 0:  # a row of equal numbers, copied
        return FoldedLookup(1, values.shape[-1])
    best: FoldedLookup | None = None
    for axis, size in enumerate(values.shape):
        if size < 2 and values.ndim > 1:
            continue
        rows = np.ascontiguousarray(np.moveaxis(values, axis, -1).reshape(-1, size))
        whole = rows.view(np.dtype((np.void, rows.dtype.itemsize * size))).reshape(-1)
        table = FoldedLookup(len(np.unique(whole)), size)
        if best is None or table.rows * table.width < best.rows * best.width:
            best = table
    copies = best is not None and 2 * best.rows * best.width <= values.size
    return best if copies else None


def has_norm(weight: str, bias: str) -> bool:
    """Tell whether an exporter multiplied batch normalisation into a convolution."""
    return bias == f"{weight}_bias" or (
        _FOLDED_CONV.fullmatch(weight) is not None and _FOLDED_CONV.fullmatch(bias) is not None
    )
