"""Steps of Megatron-LM on A100s, from the rows that `validate llm` ships: one set of parameters."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.study.reproduce.table import Reproduction, Row
from ridgeline.study.validate import shipped
from ridgeline.study.validate.llm import predict
from ridgeline.study.validate.outcome import Outcome
from ridgeline.study.validate.rows import Row as Line
from ridgeline.study.validate.rows import read_rows

_TOLERANCE = 0.1
_TABLES = {
    "arXiv:2104.04473 Table 1": "Narayanan et al., SC 2021, table 1",
    "arXiv:2104.04473 Table 2": "Narayanan et al., SC 2021, table 2",
    "arXiv:2205.05198": "Korthikanti et al., 2022, table 5",
}
_NOT_MEGATRON = "ZeRO"


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
            "Table 1 does not give micro-batches: 1 in a pipeline, else all of a rank's samples.",
        ),
    )


def lines() -> list[Line]:
    """Return the rows of the two papers that Megatron-LM's own plans made."""
    return [
        line
        for line in read_rows(shipped("llm"))
        if _table(line) and _NOT_MEGATRON not in line.text("framework")
    ]


def rows(chosen: list[Line]) -> Iterator[Row]:
    """Predict some of `lines`."""
    titles = {line.id: (line.text("model"), _table(line)) for line in chosen}
    for outcome in predict(chosen):
        if not isinstance(outcome, Outcome):
            continue
        model, table = titles[outcome.id]
        yield Row(
            group=table,
            quantity=f"{model}, {outcome.configuration.partition(', ')[2]}",
            unit="s",
            published=(outcome.measured, outcome.measured),
            predicted=outcome.predicted,
            unfitted=outcome.predicted,
            tolerance=_TOLERANCE,
        )


def _table(line: Line) -> str:
    source = line.text("source")
    return next((title for start, title in _TABLES.items() if source.startswith(start)), "")
