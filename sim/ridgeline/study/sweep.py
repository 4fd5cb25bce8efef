"""A sweep: every combination of values of any model, machine or plan field, one row each."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ridgeline.config import Document, Strict, read_yaml, validate
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.report.files import replacing
from ridgeline.study.point import Point, check_path

MAX_POINTS = 1_000_000
Scalar = str | int | float | bool
Row = dict[str, Any]


class Study(Strict):
    """What to simulate: a point, and the fields of it to vary."""

    kind: Literal["study"]
    name: str
    description: str = ""
    model: str = ""
    """Name or path; may be left out if it is varied."""
    cluster: str = ""
    """Name or path; may be left out if it is varied."""
    plan: dict[str, Scalar] = Field(default_factory=dict)
    """Fields of the plan."""
    set: dict[str, Scalar] = Field(default_factory=dict)
    """Dotted path -> value, for all points."""
    vary: dict[str, list[Any]] = Field(min_length=1)
    """``model``, ``cluster`` or a dotted path -> values; the grid is every combination."""

    @property
    def size(self) -> int:
        """Number of points."""
        return math.prod(len(values) for values in self.vary.values())

    def points(self) -> Iterator[tuple[Row, Point]]:
        """Yield the varied values and the point of every combination, the last field fastest."""
        base = Point(self.model, self.cluster, self.plan, self.set)
        for combination in itertools.product(*self.vary.values()):
            values = dict(zip(self.vary, combination, strict=True))
            yield {name: _cell(value) for name, value in values.items()}, base.with_values(values)


def load_study(path: str | Path) -> Study:
    """Read a study file.

    Raises
    ------
    ConfigError
        With file, line and field: unknown field, a path that leads nowhere, an empty list of
        values, or more than `MAX_POINTS` points.
    """
    document = read_yaml(path)
    study = validate(document, Study)
    for name, values in study.vary.items():
        _check_field(document, ("vary", name), name)
        if not values:
            raise document.error("there must be at least one value", ("vary", name))
    for name in study.set:
        _check_field(document, ("set", name), name)
    for name in ("model", "cluster"):
        if not getattr(study, name) and name not in study.vary:
            raise document.error(f"the field {name!r} is missing, and is not varied either")
    if study.size > MAX_POINTS:
        raise document.error(f"{study.size} points; at most {MAX_POINTS} are allowed", ("vary",))
    return study


def _check_field(document: Document, place: tuple[str, ...], path: str) -> None:
    if path in {"model", "cluster"} and place[0] == "vary":
        return
    try:
        check_path(path)
    except ConfigError as error:
        raise document.error(error.message, place) from error


def run_sweep(study: Study, progress: Callable[[], None] = lambda: None) -> list[Row]:
    """Simulate every point of a study in order, in this process.

    Returns
    -------
    list of dict
        A row a point: the varied values, the numbers of the result, and `error`: empty, or why this
        point could not be simulated.
    """
    rows: list[Row] = []
    for values, point in study.points():
        try:
            rows.append({**values, **point.simulate().to_row(), "error": ""})
        except RidgelineError as error:
            rows.append({**values, "error": str(error)})
        progress()
    return rows


def write_rows(rows: list[Row], path: str | Path) -> None:
    """Write rows to a ``.csv`` or ``.parquet`` file, whole or not at all.

    Raises
    ------
    ConfigError
        If the file has another ending, cannot be written, or polars is missing for Parquet.
    """
    path = Path(path)
    writer = writer_for(path)
    with replacing(path) as temporary:
        writer(rows, temporary)


def writer_for(path: Path) -> Callable[[list[Row], Path], None]:
    """Return the function that writes files of this ending, or raise ConfigError."""
    writers = {".csv": _write_csv, ".parquet": _write_parquet}
    if path.suffix not in writers:
        raise ConfigError(f"the file must end in {' or '.join(writers)}", file=str(path))
    if path.suffix == ".parquet":
        try:
            import polars  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                "writing Parquet needs polars: pip install 'ridgeline[study]', or write .csv",
                file=str(path),
            ) from error
    return writers[path.suffix]


def rows_to_csv(rows: list[Row]) -> str:
    """Return rows as CSV text, with all columns that any row has."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Return a varied value as a cell of a table: lists and mappings as JSON."""
    return value if isinstance(value, Scalar) else json.dumps(value)


def _write_csv(rows: list[Row], path: Path) -> None:
    path.write_text(rows_to_csv(rows), encoding="utf-8")


def _write_parquet(rows: list[Row], path: Path) -> None:
    import polars

    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = {name: [row.get(name) for row in rows] for name in columns}
    polars.DataFrame(table, strict=False).write_parquet(path)
