"""Rows of a study, and the same as pandas, polars and xarray hold them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from ridgeline import units
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.report.figures.column_axes import si_unit
from ridgeline.study.ranking import pareto, top
from ridgeline.study.study_file import Row, Study, axis_values, cell, sampled

if TYPE_CHECKING:
    import polars

_SHOWN = 20
_SAMPLE = "sample"


class StudyRows(Sequence[Row]):
    """A row a point, in the order of the study: varied values, results, and ``error``.

    Parameters
    ----------
    rows
        Rows as a sweep writes them, numbers in SI units.
    study
        The study, which says what the dimensions of `to_xarray` are.
    """

    def __init__(self, rows: Iterable[Row], study: Study) -> None:
        self.rows = list(rows)
        self.study = study

    @overload
    def __getitem__(self, at: int) -> Row: ...

    @overload
    def __getitem__(self, at: slice) -> StudyRows: ...

    def __getitem__(self, at: int | slice) -> Row | StudyRows:
        return StudyRows(self.rows[at], self.study) if isinstance(at, slice) else self.rows[at]

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"<StudyRows of {self.study.name}: {len(self)} rows{failed}>"

    def _repr_html_(self) -> str:
        shown = [*self.study.fields, *_results(self.columns, self.study.fields)]
        head = "".join(f"<th>{escape(name)}</th>" for name in shown)
        body = "".join(
            "<tr>"
            + "".join(f"<td>{escape(_brief(row.get(name)))}</td>" for name in shown)
            + "</tr>"
            for row in self.rows[:_SHOWN]
        )
        return f"<div>{escape(repr(self))}<table><tr>{head}</tr>{body}</table></div>"

    @property
    def columns(self) -> list[str]:
        """All columns that any row has, ``error`` last."""
        names = dict.fromkeys(name for row in self.rows for name in row)
        has_error = names.pop("error", 0) is None
        return [*names, "error"] if has_error else list(names)

    @property
    def failed(self) -> list[Row]:
        """Rows of points that could not be simulated."""
        return [row for row in self.rows if row["error"]]

    def top(self, by: str, n: int = 10, *, largest: bool = False) -> StudyRows:
        """Return the rows with the smallest (or largest) values of a column, best first."""
        return StudyRows(top(self.rows, by, n, largest=largest), self.study)

    def pareto(self, min: str | Sequence[str] = (), max: str | Sequence[str] = ()) -> StudyRows:
        """Return the rows that no other row beats in all of some columns (`ridgeline.pareto`)."""
        return StudyRows(front_of(self.rows, min, max), self.study)

    def write(self, path: str | Path) -> None:
        """Write the rows to a ``.csv`` or ``.parquet`` file, whole or not at all.

        Raises
        ------
        ConfigError
            If the file has another ending, cannot be written, or polars is missing for Parquet.
        """
        from ridgeline.study.sweep import write_rows

        write_rows(self.rows, path)

    def _by_column(self) -> dict[str, list[Any]]:
        return {name: [row.get(name) for row in self.rows] for name in self.columns}

    def to_polars(self) -> polars.DataFrame:
        """Return the rows as a polars data frame."""
        try:
            import polars
        except ImportError as error:
            raise _missing("polars") from error
        return polars.DataFrame(self._by_column(), strict=False)

    def to_pandas(self) -> Any:
        """Return the rows as a pandas data frame; ``attrs["units"]`` has the units of columns."""
        try:
            import pandas  # type: ignore[import-untyped,import-not-found,unused-ignore]
        except ImportError as error:
            raise _missing("pandas") from error
        frame = pandas.DataFrame(self._by_column())
        frame.attrs["units"] = {name: unit for name in self.columns if (unit := si_unit(name))}
        return frame

    def to_xarray(self) -> Any:
        """Return the rows as an xarray data set: varied fields are coordinates, with their units.

        Each field of ``vary`` is a dimension. Fields that are varied together share one, and so do
        those of a sample, whose dimension is "sample". Quantities ("900 GB/s") are numbers in SI
        units; the attribute ``units`` says which. Points that `where` leaves out, and those that
        failed, are not-a-number.

        Raises
        ------
        RidgelineError
            If xarray is missing, or rows are not those of the whole study.
        """
        try:
            import xarray  # type: ignore[import-not-found,unused-ignore]
        except ImportError as error:
            raise _missing("xarray") from error
        import numpy as np

        axes = axes_of_rows(self.study)
        shape = tuple(len(values) for _, values in axes)
        places: dict[tuple[str, ...], tuple[int, ...]] = {}
        for at in np.ndindex(*shape):
            point = {
                k: v for (_, values), i in zip(axes, at, strict=True) for k, v in values[i].items()
            }
            places[_key(point, self.study.fields)] = at
        cells: dict[str, Any] = {}
        for row in self.rows:
            place = places.get(_key(row, self.study.fields))
            if place is None:
                raise RidgelineError(
                    "a row is of no point of this study: its table has no place for it"
                )
            for name, value in row.items():
                if name not in self.study.fields:
                    cells.setdefault(name, np.full(shape, None, object))[place] = value
        names = [name for name, _ in axes]
        data = {
            name: (names, _typed(found), _units(si_unit(name))) for name, found in cells.items()
        }
        coordinates: dict[str, Any] = {}
        for dimension, values in axes:
            for field in values[0]:
                numbers, unit = _si([point[field] for point in values])
                coordinates[field] = (dimension, numbers, _units(unit or si_unit(field)))
        return xarray.Dataset(data, coordinates, {"study": self.study.name})


def front_of(rows: Sequence[Row], min: str | Sequence[str], max: str | Sequence[str]) -> list[Row]:
    """Return the Pareto front of rows over columns to minimise and to maximise.

    Raises
    ------
    ConfigError
        If fewer than two columns are named, one is named twice, or is not there.
    """
    smallest, largest = _names(min), _names(max)
    if len(smallest) + len(largest) < 2:
        raise ConfigError("name at least two columns: step_time_s and energy_j.total, say")
    return pareto(rows, smallest, largest)


def _names(columns: str | Sequence[str]) -> list[str]:
    """Read columns in a list, or in a text with commas between them."""
    parts = columns.split(",") if isinstance(columns, str) else columns
    return [name.strip() for name in parts if name.strip()]


def axes_of_rows(study: Study) -> list[tuple[str, list[Row]]]:
    """Return the dimensions of a study in the order of its points, and the values along each."""
    axes = [
        (name, [{name: cell(value)} for value in axis_values(values)])
        for name, values in study.vary.items()
    ]
    for group in study.zip:
        columns = [axis_values(values) for values in group.values()]
        points = [
            {name: cell(value) for name, value in zip(group, together, strict=True)}
            for together in zip(*columns, strict=True)
        ]
        axes.append(("+".join(group) if len(group) > 1 else next(iter(group)), points))
    if study.sample is not None:
        drawn = sampled(study.sample)
        axes.append((_SAMPLE, [{k: cell(v) for k, v in point.items()} for point in drawn]))
    return axes


def _key(row: Mapping[str, Any], fields: Sequence[str]) -> tuple[str, ...]:
    return tuple(repr(row[name]) for name in fields)


def _si(values: Sequence[Any]) -> tuple[list[Any], str]:
    """Return quantities of one unit as SI numbers, and the unit; other values as they are."""
    texts = [value for value in values if isinstance(value, str)]
    found = {units.unprefixed(text.partition(" ")[2].strip()) for text in texts}
    if len(texts) != len(values) or len(found) != 1 or found == {""}:
        return list(values), ""
    try:
        return [units.quantity(text) for text in texts], found.pop()
    except ConfigError:  # words with spaces
        return list(values), ""


def _typed(cells: Any) -> Any:
    """Return cells as numbers where all are, with not-a-number in gaps; else as they are."""
    import numpy as np

    known = [value for value in cells.flat if value is not None]
    if known and all(isinstance(value, bool) for value in known):
        return cells.astype(bool) if len(known) == cells.size else cells
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in known):
        return cells
    if len(known) == cells.size and all(isinstance(value, int) for value in known):
        return cells.astype(np.int64) if max(map(abs, known)) < 2**63 else cells.astype(float)
    return np.where(cells == None, np.nan, cells).astype(float)  # noqa: E711 - cell by cell


def _units(unit: str) -> dict[str, str]:
    return {"units": unit} if unit else {}


def _results(columns: Sequence[str], fields: Sequence[str]) -> list[str]:
    wanted = ("step_time_s", "samples_per_s", "mfu", "energy_j.total", "time_s", "fits", "feasible")
    return [name for name in (*wanted, "bound", "error") if name in columns and name not in fields]


def _brief(value: Any) -> str:
    return "" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)


def _missing(library: str) -> RidgelineError:
    return RidgelineError(f"this needs {library}: pip install 'ridgeline[study]'")
