"""Steps of Megatron-LM on A100s, from the rows that `validate llm` ships: one set of parameters."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.study.reproduce.table import ReproducedFigure, Reproduction
from ridgeline.study.validate import shipped
from ridgeline.study.validate.llm import predict
from ridgeline.study.validate.outcome import Outcome
from ridgeline.study.validate.rows import MeasuredRow as Line
from ridgeline.study.validate.rows import read_rows

_TOLERANCE = 0.1
_TABLES = {
    "arXiv:2104.04473 Table 1": "Narayanan et al., SC 2021, table 1",
    "arXiv:2104.04473 Table 2": "Narayanan et al., SC 2021, table 2",
    "arXiv:2205.05198": "Korthikanti et al., 2022, table 5",
}
_SOFTWARE = "megatron-lm-2021"


def reproduce() -> Reproduction:
    """Predict the tables."""
    return Reproduction(
        name="megatron",
        title="Steps of Megatron-LM on DGX A100s (selene-a100), 8 to 3,072 devices",
        source=(
            "D. Narayanan et al., 'Efficient Large-Scale Language Model Training on GPU Clusters "
            "Using Megatron-LM', SC 2021, arXiv:2104.04473; V. Korthikanti et al., 'Reducing "
            "Activation Recomputation in Large Transformer Models', 2022, arXiv:2205.05198"
        ),
        rows=tuple(rows(lines())),
        fits=(),
        notes=(
            "Nothing is fitted to these rows: an A100 is described by its data sheet and "
            "microbenchmarks of products and all-reduces.",
            "Table 1 does not give micro-batches: 1 in a pipeline, else all 16 or 32 of a rank's "
            "samples. Where there is no pipeline 2 are shown, too, since the step time depends on "
            "it by up to 10 %.",
        ),
    )


def lines() -> list[Line]:
    """Return the rows of the two papers that Megatron-LM's own plans made, table by table."""
    order = list(_TABLES.values())
    found = [
        line
        for line in read_rows(shipped("llm"))
        if _table(line) and line.text("software") == _SOFTWARE
    ]
    return sorted(found, key=lambda line: (order.index(_table(line)), line.line))


def rows(chosen: list[Line]) -> Iterator[ReproducedFigure]:
    """Predict some of `lines`."""
    outcomes = {o.line: o for o in predict(chosen) if isinstance(o, Outcome)}
    for line in chosen:
        if line.line in outcomes:
            yield _row(line, _table(line), outcomes[line.line])
    unsaid = [_with_two(line) for line in chosen if _is_unsaid(line)]
    outcomes = {o.line: o for o in predict(unsaid) if isinstance(o, Outcome)}
    for line in unsaid:
        yield _row(line, f"{_table(line)}, micro-batches of 2 instead", outcomes[line.line])


def _row(line: Line, group: str, outcome: Outcome) -> ReproducedFigure:
    degrees = ", ".join(
        f"{name} {line.text(column)}"
        for name, column in (("tensor", "tp"), ("pipeline", "pp"), ("data", "dp"))
        if line.text(column) not in {"", "1"}
    )
    kept = line.text("recompute").partition(",")[0].partition(" ")[0]
    return ReproducedFigure(
        group=group,
        quantity=f"{line.text('source_model')}: {degrees}, {kept} recomputation",
        unit="s",
        published=(outcome.measured, outcome.measured),
        predicted=outcome.predicted,
        unfitted=outcome.predicted,
        tolerance=_TOLERANCE,
    )


def _is_unsaid(line: Line) -> bool:
    """Tell whether the micro-batch is not given, and would be all that a rank has."""
    return not line.text("micro_batch") and line.text("pp") == "1"


def _with_two(line: Line) -> Line:
    plan = f"{line.text('plan')},micro_batch=2"
    return Line(line.file, line.line, {**line.values, "micro_batch": "2", "plan": plan})


def _table(line: Line) -> str:
    source = line.text("source")
    return next((title for start, title in _TABLES.items() if source.startswith(start)), "")
