"""Layers of SCALE-Sim's topology files (CSV), versions 1 to 3: loops and where they stand.

More is accepted than SCALE-Sim 3.0.0 itself can read of the files that it ships: no comma at the
end of a line, tabs instead of commas, comments, headings between layers, a batch size.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from ridgeline.bounded_files import read_text
from ridgeline.errors import ConfigError, nearest
from ridgeline.workload.graph import Conv, Gemm

_GEMM = ("m", "n", "k")
_CONV = (
    "ifmap height",
    "ifmap width",
    "filter height",
    "filter width",
    "channels",
    "num filter",
    "strides",
)
# Spellings in the shipped files. Several say "IFMAP Width, IFMAP Width"; the order is the same.
_SAME_COLUMN = {
    "ifmap height": {"ifmap width"},
    "channels": {"channel"},
    "num filter": {"num filters"},
    "strides": {"stride", "stride height"},
}
_FURTHER = {"k": ("sparsity",), "strides": ("stride width", "batch size", "sparsity")}
_FURTHER_NAMES = {
    "batch": "batch size",
    "sparsity ratio": "sparsity",
    "sparsity ratios": "sparsity",
}
_DEPTHWISE = "DP"
"""A layer with this in its name has a filter of one channel for each channel, in SCALE-Sim."""


class TopologyLine(NamedTuple):
    """One line of a topology.

    Attributes
    ----------
    loops
        A convolution without padding, or a matrix product. A depthwise layer is a convolution in as
        many groups as it has channels.
    sparsity
        N:M of its weights as it stands there; empty if the file does not say.
    """

    name: str
    loops: Conv | Gemm
    sparsity: str
    line: int


def read_layers(path: str | Path) -> tuple[TopologyLine, ...]:
    """Read the layers of a topology CSV; its header says if they are convolutions or products.

    Raises
    ------
    ConfigError
        With file, line, column and reason.
    """
    file = str(path)
    rows = _rows(read_text(path))
    if not rows:
        raise ConfigError("the file is empty", file=file, line=1)
    line, header = rows[0]
    columns = _columns(_filled(header, rows[1:]), file, line)
    return tuple(
        _layer(cells, columns, file, line)
        for line, cells in rows[1:]
        if any(cells[1:])  # else a blank line, or the heading of a group of layers
    )


def _rows(text: str) -> list[tuple[int, list[str]]]:
    """Cells of all lines that are not blank, without comments and without commas at the end."""
    lines = text.splitlines()
    filled = [line for line in lines if line.strip()]
    separator = "," if filled and "," in filled[0] else "\t"
    rows = []
    for number, line in enumerate(lines, start=1):
        cells = [cell.strip() for cell in line.split("#")[0].split(separator)]
        while cells and not cells[-1]:
            cells.pop()
        if cells:
            rows.append((number, cells))
    return rows


def _filled(header: list[str], rows: list[tuple[int, list[str]]]) -> list[str]:
    """Return a header without its last columns that no layer has a value in."""
    most = max((len(cells) for _, cells in rows), default=len(header))
    return header[: max(most, 1 + len(_GEMM if header[1:2] in (["M"], ["m"]) else _CONV))]


def _columns(header: list[str], file: str, line: int) -> list[str]:
    """Name the columns after the layer's; the first ones are in a fixed order in both forms."""
    found = [re.sub(r"[\s_]+", " ", cell).lower() for cell in header[1:]]
    if any(cell.isdecimal() for cell in found):
        raise ConfigError("the first line must be a header; it has numbers", file=file, line=line)
    form = _GEMM if found[:1] == ["m"] else _CONV
    allowed = _FURTHER[form[-1]]
    for position, name in enumerate(form):
        cell = found[position] if position < len(found) else "nothing"
        if cell != name and cell not in _SAME_COLUMN.get(name, ()):
            raise ConfigError(
                f"column {position + 2} must be {name!r}, found {cell!r} (convolutions have"
                f" {', '.join(_CONV)}; matrix products m, n, k)",
                file=file,
                line=line,
            )
    further = [_FURTHER_NAMES.get(cell, cell) for cell in found[len(form) :]]
    for cell in further:
        if cell not in allowed or further.count(cell) > 1:
            raise ConfigError(
                f"unknown or repeated column {cell!r}{nearest(cell, allowed)}"
                f" (allowed after {form[-1]!r}: {', '.join(allowed)})",
                file=file,
                line=line,
            )
    return [*form, *further]


def _layer(cells: list[str], columns: list[str], file: str, line: int) -> TopologyLine:
    name, values = cells[0], cells[1:]
    # SCALE-Sim goes by position: some files have one value more than their header has names.
    if len(values) == len(columns) + 1 and columns[-1] in {"strides", "k"}:
        is_ratio = columns[-1] == "k" or ":" in values[-1]
        columns = [*columns, "sparsity" if is_ratio else "stride width"]
    if len(values) > len(columns):
        raise ConfigError(
            f"{len(values)} values for the {len(columns)} columns {', '.join(columns)}",
            file=file,
            line=line,
            field=name,
        )
    cell = dict(zip(columns, values, strict=False))

    def number(column: str, default: int | None = None) -> int:
        text = cell.get(column, "")
        if not text and default is not None:
            return default
        if not text.isdecimal() or int(text) < 1:
            raise ConfigError(
                f"{column} must be a whole number of at least 1, found {text!r}",
                file=file,
                line=line,
                field=name,
            )
        return int(text)

    sparsity = cell.get("sparsity", "")
    if columns[0] == "m":
        return TopologyLine(name, Gemm(number("m"), number("n"), number("k")), sparsity, line)
    h, w, r, s, channels, filters, stride = (number(column) for column in _CONV)
    if r > h or s > w:
        raise ConfigError(
            f"the filter of {r} x {s} is larger than the image of {h} x {w}",
            file=file,
            line=line,
            field=name,
        )
    groups = channels if _DEPTHWISE in name else 1
    loops = Conv(
        number("batch size", 1), channels, h, w, groups * filters, r, s,
        stride=(stride, number("stride width", stride)), groups=groups,
    )  # fmt: skip
    return TopologyLine(name, loops, sparsity, line)
