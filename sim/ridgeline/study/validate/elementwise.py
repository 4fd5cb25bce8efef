"""Elementwise functions on one device; norms and softmax of the same tables have suites."""

from collections.abc import Iterable, Iterator

from ridgeline.kernels.library.kernel_model import LibraryCall
from ridgeline.kernels.library.streams import STREAM, stream_work
from ridgeline.study.validate import measured
from ridgeline.study.validate.measured import MeasuredCall
from ridgeline.study.validate.outcome import Outcome, Skipped
from ridgeline.study.validate.rows import MeasuredRow
from ridgeline.workload.formats import bytes_of
from ridgeline.workload.kernel_graphs import elementwise_graph

SHIPPED = "measured/elementwise_norm_softmax.csv.gz"
SHAPE = ("op", "rows", "cols")
COLUMNS = (*measured.COLUMNS, *SHAPE)
SCALE = 1.41
OTHERS = ("ln", "rms", "softmax")
"""Ops of such tables that are not elementwise."""


def predict(rows: Iterable[MeasuredRow]) -> Iterator[Outcome | Skipped]:
    """Predict the time of every elementwise function."""
    return measured.predict_calls(rows, call, "elementwise", SCALE)


def call(row: MeasuredRow) -> MeasuredCall | None:
    """Read a row of an elementwise function; None of a norm or softmax."""
    op, format_ = row.text("op"), row.text("format")
    if op in OTHERS:
        return None
    rows, columns = measured.sizes(row, "rows", "cols")
    graph = elementwise_graph(op, rows, columns, format_)
    words = f"{op} {rows}x{columns}"
    return MeasuredCall(graph, op, format_, words, published=measured.from_neusight(row, "EW"))


def whole_rows(row: MeasuredRow, table: str, op: str, rows: int, columns: int) -> LibraryCall:
    """Return the kernel of a function of whole rows: norm or softmax."""
    format_ = row.text("format")
    size = bytes_of(format_)
    work = stream_work(rows, columns, read_bytes=size, written_bytes=size, warm=False)
    return LibraryCall(STREAM, table, (row.text("framework"), "", op, format_), work)
