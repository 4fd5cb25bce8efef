"""Softmax on one device: the rows ``softmax`` of a table of elementwise functions."""

from collections.abc import Iterable, Iterator

from ridgeline.study.validate import elementwise, measured
from ridgeline.study.validate.measured import MeasuredCall
from ridgeline.study.validate.outcome import Outcome, Skipped
from ridgeline.study.validate.rows import MeasuredRow
from ridgeline.workload.kernel_graphs import softmax_graph

SHIPPED, COLUMNS, SCALE = elementwise.SHIPPED, elementwise.COLUMNS, elementwise.SCALE


def predict(rows: Iterable[MeasuredRow]) -> Iterator[Outcome | Skipped]:
    """Predict the time of every softmax."""
    return measured.predict_calls(rows, call, "softmax", SCALE)


def call(row: MeasuredRow) -> MeasuredCall | None:
    """Read a row of a softmax; None of another op."""
    format_ = row.text("format")
    if row.text("op") != "softmax":
        return None
    rows, columns = measured.sizes(row, "rows", "cols")
    graph = softmax_graph(rows, columns, format_)
    words = f"softmax {rows}x{columns}"
    published = measured.from_neusight(row, "Softmax")
    library = elementwise.whole_rows(row, "softmax", "softmax", rows, columns)
    start = measured.start_of(row, "softmax", format_)
    return MeasuredCall(
        graph, "softmax", format_, words, published=published, start=start, library=library
    )
