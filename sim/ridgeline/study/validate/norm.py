"""Layer norms on one device: the rows ``ln`` (and ``rms``) of a table of elementwise functions."""

from collections.abc import Iterable, Iterator

from ridgeline.study.validate import elementwise, measured
from ridgeline.study.validate.measured import MeasuredCall
from ridgeline.study.validate.outcome import Outcome, Skipped
from ridgeline.study.validate.rows import MeasuredRow
from ridgeline.workload.kernel_graphs import norm_graph

SHIPPED, COLUMNS, SCALE = elementwise.SHIPPED, elementwise.COLUMNS, elementwise.SCALE


def predict(rows: Iterable[MeasuredRow]) -> Iterator[Outcome | Skipped]:
    """Predict the time of every norm."""
    return measured.predict_calls(rows, call, "norm", SCALE)


def call(row: MeasuredRow) -> MeasuredCall | None:
    """Read a row of a norm; None of another op."""
    op, format_ = row.text("op"), row.text("format")
    if op not in ("ln", "rms"):
        return None
    rows, columns = measured.sizes(row, "rows", "cols")
    graph = norm_graph(rows, columns, format_, rms=op == "rms")
    words = f"{op} {rows}x{columns}"
    published = measured.from_neusight(row, "LN")
    library = elementwise.whole_rows(row, "norm", op, rows, columns)
    start = measured.start_of(row, "norm", format_)
    return MeasuredCall(
        graph, op, format_, words, published=published, start=start, library=library
    )
