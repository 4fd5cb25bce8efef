"""Elementwise functions on one device; norms and softmax of the same tables have suites."""

from collections.abc import Iterable, Iterator

from ridgeline.study.validate import measured
from ridgeline.study.validate.measured import Call
from ridgeline.study.validate.outcome import Outcome, Skipped
from ridgeline.study.validate.rows import Row
from ridgeline.workload.kernel_graphs import elementwise_graph

SHIPPED = "measured/elementwise_norm_softmax.csv.gz"
SHAPE = ("op", "rows", "cols")
COLUMNS = (*measured.COLUMNS, *SHAPE)
SCALE = 1.41
OTHERS = ("ln", "rms", "softmax")
"""Ops of such tables that are not elementwise."""


def predict(rows: Iterable[Row]) -> Iterator[Outcome | Skipped]:
    """Predict the time of every elementwise function."""
    return measured.predict_calls(rows, call, "elementwise", SCALE)


def call(row: Row) -> Call | None:
    """Read a row of an elementwise function; None of a norm or softmax."""
    op, format_ = row.text("op"), row.text("format")
    if op in OTHERS:
        return None
    rows, columns = measured.sizes(row, "rows", "cols")
    graph = elementwise_graph(op, rows, columns, format_)
    words = f"{op} {rows}x{columns}"
    return Call(graph, op, format_, words, published=measured.from_neusight(row, "EW"))
