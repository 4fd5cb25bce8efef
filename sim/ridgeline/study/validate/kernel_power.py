"""Mean board power while one kernel repeats: the rows of measured calls that have it.

What a benchmark reads is not what a call draws (`power_meter`). Readings that contradict the load
(``power_suspect``) are skipped with that reason. The trivial
predictors are the board's limit, and the share of it that is best on all rows of the collection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ridgeline.errors import RidgelineError
from ridgeline.study.validate import attention, cast, elementwise, gemm, linear_attention, measured
from ridgeline.study.validate import moe as experts
from ridgeline.study.validate.measured import Caller, MeasuredCall, PricedRow
from ridgeline.study.validate.outcome import Outcome, Skipped, predict_each, skip
from ridgeline.study.validate.power_meter import power_meter
from ridgeline.study.validate.rows import MeasuredRow

COLUMNS = (*measured.COLUMNS, *measured.POWER)
SHIPPED = "measured/gemm_llm.csv.gz"
SAMPLES = (
    attention.SHIPPED, *attention.SAMPLES, experts.SHIPPED, linear_attention.SHIPPED, cast.SHIPPED,
)  # fmt: skip
_SHARE = 0.31
_TABLES: tuple[tuple[str, tuple[str, ...], Caller], ...] = (
    ("attention", attention.SHAPE, attention.call),
    ("moe", experts.SHAPE, experts.call),
    ("linear attention", ("op_name", "phase", "batch", "seq"), linear_attention.call),
    ("gemm", ("m", "n", "k"), gemm.call),
    ("cast", ("m", "k"), cast.call),
    ("elementwise", elementwise.SHAPE, elementwise.call),
)
"""Kinds of tables by their columns: the first that fits counts."""


def predict(rows: Iterable[MeasuredRow]) -> Iterator[Outcome | Skipped]:
    """Predict the power of every row that has one."""
    with_power = [row for row in rows if row.text("power_w")]
    sound = []
    for row in with_power:
        if row.text("power_suspect") == "1":
            yield skip(row, "the reading contradicts the load (power_suspect)")
        else:
            sound.append(row)
    by_line = {}
    for made in measured.priced(sound, call):
        if isinstance(made, Skipped):
            yield made
        else:
            by_line[made.row.file, made.row.line] = made

    def one(row: MeasuredRow) -> Outcome | None:
        made = by_line.get((row.file, row.line))
        if made is None:
            return None
        watts = measured.positive(row, "power_w")
        limit = measured.positive(row, "board_limit_w")
        trivial = {"the limit": limit, f"{_SHARE:.0%} of the limit": _SHARE * limit}
        power_w = made.power_w(power_meter(*meter_key(made)))
        return measured.outcome_of(
            made, "kernel-power", "power_w", power_w, watts, trivial, limit=limit
        )

    yield from predict_each(sound, one)


def meter_key(made: PricedRow) -> tuple[str, str, str, int]:
    """Kind of call, variant, framework and rows, by which readings differ (`power_meter`).

    The variant of a product is its format, that of attention its pass: prefill, encoder, decode.
    Rows are those of a product's activations, 0 of other calls.
    """
    row, kind, rows = made.row, made.call.kind, 0
    variant = ""
    if kind == "gemm":
        variant, rows = row.text("format"), row.whole("m") or 0
    if kind == "attention":
        one = row.whole("seq_q") == 1
        causal = row.text("causal") in {"True", "1"}
        variant = "decode" if one else "prefill" if causal else "encoder"
    return kind, variant, row.text("framework"), rows


def call(row: MeasuredRow) -> MeasuredCall | None:
    """Read a row of any table of measured calls.

    Raises
    ------
    RidgelineError
        If its columns are those of no such table.
    """
    for name, columns, caller in _TABLES:
        if measured.has(row, *columns):
            found = caller(row)
            if found is None:
                return None
            return replace(found, kind=name)
    raise RidgelineError("the columns are those of no table of measured kernels")
