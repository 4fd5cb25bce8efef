"""Tables of layers as a network: SCALE-Sim's topologies and DeepBench's lists of kernels.

Such a table says what is multiplied and not how layers are joined. The network is a chain: where a
layer does not read what the one before writes, a joint stands between them: one launch without
traffic or arithmetic, for the pooling, concatenation or reshaping that the table leaves out.
Elementwise layers and biases are not in such tables, so they are not in the network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import PrivateAttr

from ridgeline.bounded_files import csv_rows, read_text
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Network
from ridgeline.workload.graph import Conv, Gemm, free_name
from ridgeline.workload.model import Model
from ridgeline.workload.trace.layers import TopologyLine, read_layers

MAX_LAYERS = 100_000
_SYNONYMS = {
    "k_out": "filters", "f_w": "s", "f_h": "r", "filter_w": "s", "filter_h": "r",
    "filter w": "s", "filter h": "r", "pad_w": "pad w", "pad_h": "pad h", "wstride": "stride w",
    "hstride": "stride h", "stride_w": "stride w", "stride_h": "stride h", "vstride": "stride h",
    "trans_a": "a_t", "trans_b": "b_t",
}  # fmt: skip
_CONV = ("w", "h", "c", "n", "r", "s")


class LayerTable(Network):
    """A chain of the layers of a table."""

    recorded: ClassVar[bool] = True

    family: Literal["layer-table"] = "layer-table"
    layers: int
    """How many there are."""
    fixed_batch: int | None = None
    """The batch that the table states, of convolutions; None: it states one sample a layer."""
    _rows: tuple[TopologyLine, ...] = PrivateAttr(default=())

    @property
    def smallest_batch(self) -> int:
        """The smallest mini-batch that the network can be built for."""
        return self.fixed_batch or 1

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        if self.fixed_batch is not None and b.batch != self.fixed_batch:
            raise RidgelineError(
                f"{b.name}: its table states kernels for a batch of {self.fixed_batch}, not"
                f" {b.batch}"
            )
        scale = 1 if self.fixed_batch is not None else b.batch
        x, names = "", set[str]()
        for row in self._rows:
            name = free_name(row.name, names)
            names.add(name)
            x = _layer(b, name, row.loops, x, scale)
        targets = b.input("targets", b.shape(x))
        return ops.mean_squared_error(b, "loss", x, targets)


def _layer(b: GraphBuilder, name: str, loops: Conv | Gemm, x: str, scale: int) -> str:
    if isinstance(loops, Gemm):
        x = _joined(b, name, x, (loops.m * scale, loops.k))
        return ops.linear(b, name, x, loops.n, bias=False)
    shape = (loops.batch * scale, loops.c_in, loops.h_in, loops.w_in)
    x = _joined(b, name, x, shape)
    return ops.conv2d(
        b,
        name,
        x,
        loops.c_out,
        (loops.r, loops.s),
        stride=loops.stride,
        padding=loops.padding,
        groups=loops.groups,
        bias=False,
    )


def _joined(b: GraphBuilder, name: str, x: str, shape: tuple[int, ...]) -> str:
    """Return what a layer reads: the mini-batch, what the layer before wrote, or a joint."""
    if not x:
        return b.input("inputs", shape)
    return x if b.shape(x) == shape else ops.joint(b, f"{name}.joint", x, shape)


def load(path: str | Path) -> Model:
    """Read a SCALE-Sim topology, or a list of kernels with a header as DeepBench has it.

    A SCALE-Sim layer is for one sample, so any batch can be built; kernels of DeepBench state their
    batch.

    Raises
    ------
    ConfigError
        If the header is that of neither, or a value is impossible; with file, line and column.
    """
    header = read_text(path).lstrip(" \r\n").splitlines()[:1]
    names = [_name(cell) for cell in header[0].split(",")] if header else []
    products = {"m", "n", "k"} <= set(names) and not names[0].startswith("layer")
    if products or set(_CONV) <= set(names):
        rows, batch, kind = _deepbench(path), 1, "kernels"
    else:
        rows, batch, kind = read_layers(path), None, "SCALE-Sim topology"
    if not 0 < len(rows) <= MAX_LAYERS:
        raise ConfigError(f"{len(rows)} layers; allowed: 1 to {MAX_LAYERS}", file=str(path))
    name = Path(path).stem
    network = LayerTable(
        title=name,
        citation=f"{kind}: layers without elementwise operations, biases and joints",
        layers=len(rows),
        fixed_batch=batch,
    )
    network._rows = tuple(rows)
    model = Model(name, network)
    try:
        model.forward(network.smallest_batch)
    except RidgelineError as error:
        raise ConfigError(str(error), file=str(path)) from error
    return model


def _name(cell: str) -> str:
    name = cell.strip().strip('"').lower()
    return _SYNONYMS.get(name, name)


def _deepbench(path: str | Path) -> Sequence[TopologyLine]:
    """Read kernels: m, n, k of products C[m, n] = A[m, k] B[k, n]; w, h, c, n, k, ... of images."""
    file = str(path)
    table = csv_rows(read_text(path), file, strict=False)
    rows = [(line, row) for line, row in table if any(cell.strip() for cell in row)]
    columns = [_name(cell) for cell in rows[0][1]]
    both = "filters" in columns  # else k is the number of filters of a convolution
    layers = []
    for line, cells in rows[1:]:
        cell = dict(zip(columns, (c.strip() for c in cells), strict=False))
        if cell.get("pass") not in {None, "", "forward", "fwd"}:
            continue  # the same layer again: the training graph has its own backward pass
        number = _Numbers(cell, file, line)
        name = cell.get("id") or cell.get("name") or f"row{line}"
        if cell.get("m") and not cell.get("w"):
            # The product's n is the batch in DeepBench: A are the weights.
            loops: Conv | Gemm = Gemm(number("n"), number("m"), number("k"))
        else:
            filters = number("filters" if both else "k")
            count = number("batch" if "batch" in columns else "n")
            loops = Conv(
                count, number("c"), number("h"), number("w"), filters, number("r"), number("s"),
                stride=(number("stride h", 1), number("stride w", 1)),
                padding=(number("pad h", 0, 0), number("pad w", 0, 0)),
            )  # fmt: skip
            if loops.h_out < 1 or loops.w_out < 1:
                raise ConfigError(
                    f"the filter of {loops.r} x {loops.s} is larger than the image",
                    file=file,
                    line=line,
                )
        layers.append(TopologyLine(name, loops, "", line))
    return layers


class _Numbers:
    """Whole numbers of one line by column."""

    def __init__(self, cells: Mapping[str, str], file: str, line: int) -> None:
        self.cells, self.file, self.line = cells, file, line

    def __call__(self, column: str, default: int | None = None, least: int = 1) -> int:
        text = self.cells.get(column, "")
        if not text and default is not None:
            return default
        if not text.isdecimal() or not least <= int(text) < 2**31:
            raise ConfigError(
                f"{column} must be a whole number of at least {least}, found {text!r:.40}",
                file=self.file,
                line=self.line,
            )
        return int(text)
