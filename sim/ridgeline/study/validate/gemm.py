"""Matrix products on one device: the rows ``gemm`` of a table of kernel times, and frameworks' own.

Tables of measured calls (`measured`) have products of PyTorch (``op`` linear or bmm) and of serving
frameworks, in whose narrow formats the activations are quantised first.
"""

import math
from collections.abc import Iterable, Iterator

from ridgeline.kernels.kernel_price import Repetition
from ridgeline.study.validate import kernels, measured
from ridgeline.study.validate.measured import KernelTimeBounds, MeasuredCall
from ridgeline.study.validate.outcome import Outcome, Skipped
from ridgeline.study.validate.product_ways import BLOCK, product_way
from ridgeline.study.validate.rows import MeasuredRow
from ridgeline.workload.kernel_graphs import linear_graph, product_formats

SHIPPED = kernels.SHIPPED
SAMPLES = (
    "measured/gemm_llm.csv.gz", "measured/gemm_fp32.csv.gz", "share_alike/kernels.csv",
)  # fmt: skip
FOREIGN, COLUMNS = kernels.FOREIGN, (*kernels.COLUMNS, "M", "N", "K")
MEASURED = (*measured.COLUMNS, "m", "n", "k")
SCALE = 1.54
WARM_SHARE = 0.75
"""Of the last cache, for products: the best of 0.5 to 1.3 on six devices (decision 0140)."""
_OPS = {"": "linear", "linear": "linear", "bmm": "bmm", "o_proj": "linear", "up_proj": "linear",
        "down_proj": "linear"}  # fmt: skip
_OPERATORS = {"linear": "FC", "bmm": "BMM"}


def predict(rows: Iterable[MeasuredRow]) -> Iterator[Outcome | Skipped]:
    """Predict the time of every matrix product."""
    table = list(rows)
    ours = [row for row in table if "device_key" in row.values]
    yield from measured.predict_calls(ours, call, "gemm", SCALE)
    others = (row for row in table if "device_key" not in row.values)
    yield from kernels.predict_kernels(others, {"gemm"})


def call(row: MeasuredRow) -> MeasuredCall | None:
    """Read a row of a framework's product; None of another op."""
    op = _OPS.get(row.text("op"))
    if op is None:
        return None
    m, n, k = measured.sizes(row, "m", "n", "k")
    batch = measured.sizes(row, "batch")[0] if row.text("batch") else 1
    name = row.text("format")
    formats = product_formats(name)
    by_itself = not formats.quantises and formats.inputs == formats.weights == formats.outputs
    device = row.text("device_key")
    words = f"gemm {m} {n} {k}" + (f" --batch {batch}" if batch > 1 else "")
    command = f"ridgeline {words} --device {device} --format {name} --quantity time_s"
    way = product_way(row.text("framework"), name, measured.library_named(device), m)
    return MeasuredCall(
        linear_graph(m, n, k, formats, batch=batch),
        op,
        name,
        f"{op} {batch}x{m}x{n}x{k}" if batch > 1 else f"{op} {m}x{n}x{k}",
        command if by_itself else "",
        measured.from_neusight(row, _OPERATORS[op]),
        measured.start_of(row, "gemm", f"{name} {op}" if measured.host_launch_s(row) else name),
        repeated=Repetition(WARM_SHARE, way.weights),
        least=KernelTimeBounds(
            m,
            way.row_s,
            number_s=k * way.element_s,
            sum_s=k * way.k_s,
            blocks=math.ceil(m / BLOCK) * math.ceil(n / BLOCK),
            block_flops=2.0 * BLOCK * BLOCK * k,
            share=way.share,
        ),
    )
