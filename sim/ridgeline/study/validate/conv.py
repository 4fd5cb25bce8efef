"""Convolutions on one device: the rows ``conv`` of a table of kernel times, and PyTorch's own.

Tables of measured calls (`measured`) have forward passes with square images and filters.
"""

from collections.abc import Iterable, Iterator

from ridgeline.kernels.library.convolutions import CONVOLUTION, convolution_work
from ridgeline.kernels.library.kernel_model import LibraryCall
from ridgeline.study.validate import kernels, measured
from ridgeline.study.validate.measured import MeasuredCall
from ridgeline.study.validate.outcome import Outcome, Skipped
from ridgeline.study.validate.rows import MeasuredRow
from ridgeline.workload.graph import Conv
from ridgeline.workload.kernel_graphs import conv_graph

SHIPPED, FOREIGN = kernels.SHIPPED, kernels.FOREIGN
SAMPLES = ("measured/conv_fp32.csv.gz",)
COLUMNS = (*kernels.COLUMNS, *kernels.IMAGES)
SHAPE = ("batch", "c_in", "c_out", "kernel_size", "input_size", "stride")
MEASURED = (*measured.COLUMNS, *SHAPE, "padding")
SCALE = 1.83


def predict(rows: Iterable[MeasuredRow]) -> Iterator[Outcome | Skipped]:
    """Predict the time of every convolution."""
    table = list(rows)
    ours = [row for row in table if "device_key" in row.values]
    yield from measured.predict_calls(ours, call, "conv", SCALE)
    others = (row for row in table if "device_key" not in row.values)
    yield from kernels.predict_kernels(others, {"conv"})


def call(row: MeasuredRow) -> MeasuredCall:
    """Read a row of a forward pass."""
    batch, c_in, c_out, taps, side, stride = measured.sizes(row, *SHAPE)
    pad, format_ = row.whole("padding") or 0, row.text("format")
    loops = Conv(
        batch, c_in, side, side, c_out, taps, taps, stride=(stride, stride), padding=(pad, pad)
    )
    words = f"conv {batch}x{c_in}x{side}x{side} -> {c_out}, {taps}x{taps}, stride {stride}"
    library = None
    if format_ == "fp32":
        of = (row.text("framework"), "", "", format_)
        library = LibraryCall(CONVOLUTION, "convolution", of, convolution_work(loops))
    return MeasuredCall(
        conv_graph(loops, format_), f"{taps}x{taps}", format_, words, library=library
    )
