"""Scaling and casting of matrices to narrow formats, as serving frameworks call it."""

from collections.abc import Iterable, Iterator

from ridgeline.errors import RidgelineError, nearest
from ridgeline.kernels.library.kernel_model import LibraryCall
from ridgeline.kernels.library.streams import STREAM, stream_work
from ridgeline.study.validate import measured
from ridgeline.study.validate.measured import MeasuredCall
from ridgeline.study.validate.outcome import Outcome, Skipped
from ridgeline.study.validate.rows import MeasuredRow
from ridgeline.workload.formats import bytes_of
from ridgeline.workload.kernel_graphs import cast_graph

SHIPPED = "measured/quantize_cast.csv.gz"
COLUMNS = (*measured.COLUMNS, "m", "k")
SCALE = 0.37
_FORMATS = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8-e4m3", "nvfp4": "nvfp4",
            "int8": "int8"}  # fmt: skip


def predict(rows: Iterable[MeasuredRow]) -> Iterator[Outcome | Skipped]:
    """Predict the time of every cast."""
    return measured.predict_calls(rows, call, "cast", SCALE)


def call(row: MeasuredRow) -> MeasuredCall:
    """Read a row; its format is "source->target"."""
    m, k = measured.sizes(row, "m", "k")
    source, _, target = row.text("format").partition("->")
    for name in (source, target):
        if name not in _FORMATS:
            raise RidgelineError(
                f"no cast is known of the format {name!r}{nearest(name, _FORMATS)} (known: "
                f"{', '.join(_FORMATS)})"
            )
    graph = cast_graph(m, k, _FORMATS[source], _FORMATS[target])
    name = row.text("format")
    start = measured.start_of(row, "cast", name)
    framework, version, kernel = (row.text(n) for n in ("framework", "version", "kernel"))
    work = stream_work(
        m, k, read_bytes=bytes_of(_FORMATS[source]), written_bytes=bytes_of(_FORMATS[target]),
        warm=True,
    )  # fmt: skip
    library = LibraryCall(STREAM, "cast", (framework, version, kernel, name), work, "bf16")
    return MeasuredCall(graph, "cast", name, f"cast {m}x{k}", start=start, library=library)
