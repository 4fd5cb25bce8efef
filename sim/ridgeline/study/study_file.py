"""Study files: which points a design study has, and what is asked of them."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from ridgeline import units, views
from ridgeline.config import Document, Source, Strict, check_kind, read_yaml, validate
from ridgeline.errors import ConfigError
from ridgeline.study.collective_point import AnyPoint, CollectivePoint
from ridgeline.study.columns import Formula, check_divisors, parse_formula, resolve
from ridgeline.study.point import Point, check_path
from ridgeline.study.samples import MAX_SOBOL, latin_hypercube, sobol

MAX_POINTS = 1_000_000
_DIGITS = 12
_OF_ROWS = ("error", "feasible", "manifest_hash")
Scalar = str | int | float | bool
Row = dict[str, Any]


class ValueSpan(Strict):
    """Values from one end to the other, both included."""

    start: int | float | str = Field(alias="from")
    """First value: a number, or a quantity with its unit."""
    end: int | float | str = Field(alias="to")
    """Last value, of the same dimension; values are in the unit of the first."""
    steps: int = Field(default=0, ge=0, le=MAX_POINTS)
    """How many values; not for samples."""
    scale: Literal["linear", "log"] = "linear"

    def at(self, share: float) -> Any:
        """Return the value that lies so far along the span; whole numbers stay whole."""
        (a, unit), (b, other) = _parted(self.start), _parted(self.end)
        if unit != other:
            if not unit or not other:
                raise ConfigError(f"from has the unit {unit!r}, to {other!r}")
            b = units.parse(str(self.end), unit) / units.quantity(f"1 {unit}")
        if self.scale == "log" and min(a, b) <= 0:
            raise ConfigError("a logarithmic span goes from and to more than 0")
        if share in (0.0, 1.0):
            value: float = a if share == 0.0 else b
        elif self.scale == "log":
            value = math.exp(math.log(a) + share * (math.log(b) - math.log(a)))
        else:
            value = a + share * (b - a)
        if isinstance(self.start, int) and isinstance(self.end, int):
            return round(value)
        value = float(f"{value:.{_DIGITS}g}")  # 900 GB/s, not 900.0000000000001 GB/s
        return f"{value:.{_DIGITS}g} {unit}" if unit else value

    @property
    def rounds(self) -> bool:
        """Whether values may be equal: of whole numbers, or from and to the same one."""
        a, b = self.at(0.0), self.at(1.0)
        if a == b or not isinstance(a, int):
            return bool(a == b)
        return self.scale == "log" or abs(b - a) < self.steps - 1

    def values(self) -> list[Any]:
        """Return all values, each once."""
        if self.steps < 1:
            raise ConfigError("steps must be at least 1")
        last = max(self.steps - 1, 1)
        return list(dict.fromkeys(self.at(i / last) for i in range(self.steps)))


Values = Annotated[
    Annotated[ValueSpan, Tag("span")] | Annotated[list[Any], Tag("values")],
    Discriminator(lambda raw: "span" if isinstance(raw, dict | ValueSpan) else "values"),
]


class SampledPoints(Strict):
    """Points spread over a box of spans, instead of a grid."""

    method: Literal["latin-hypercube", "sobol"]
    count: int = Field(ge=1, le=MAX_POINTS)
    seed: int = Field(default=0, ge=0)
    over: dict[str, Values] = Field(min_length=1)
    """Dotted path -> span, or list of values to choose from."""


class Study(Strict):
    """What to simulate: a point, and the fields of it to vary.

    A point is a training step (model, cluster, plan), or a collective on a cluster.
    """

    kind: Literal["study"]
    name: str
    description: str = ""
    model: str = ""
    """Name or path; may be left out if it is varied."""
    cluster: str = ""
    """Name or path; may be left out if it is varied."""
    software: str = ""
    """Software stack, by name or path; without it, the usual one of the machine or the network."""
    plan: dict[str, Scalar] = Field(default_factory=dict)
    """Fields of the plan."""
    collective: dict[str, Scalar] = Field(default_factory=dict)
    """Fields of a collective: the study is then of collectives, not of training steps."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Dotted path -> value, for all points."""
    faults: list[str] = Field(default_factory=list)
    """What is wrong with the machine, a line each (docs/faults.md): short for `cluster.faults`."""
    vary: dict[str, Values] = Field(default_factory=dict)
    """``model``, ``cluster``, ``software`` or a dotted path -> values; every combination is in the
    grid."""
    zip: list[Annotated[dict[str, Values], Field(min_length=1)]] = Field(default_factory=list)
    """Groups of fields that go through their values together."""
    sample: SampledPoints | None = None
    """Fields that are sampled; each sample is combined with every point of the grid."""
    where: list[str] = Field(default_factory=list)
    """Conditions on varied fields: other points are left out."""
    require: list[str] = Field(default_factory=list)
    """Conditions on the columns of a row, which say whether it is ``feasible``."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Derived columns: name -> formula over the columns before it."""

    @property
    def fields(self) -> list[str]:
        """All fields that differ between points, in the order of the columns."""
        zipped = [name for group in self.zip for name in group]
        return [*self.vary, *zipped, *(self.sample.over if self.sample else ())]

    @cached_property
    def fixed(self) -> Row:
        """Fields that are the same for all points, which formulas may name too."""
        given = {"plan": self.plan, "collective": self.collective}
        fields = {f"{head}.{n}": value for head, of in given.items() for n, value in of.items()}
        return {**fields, **self.set}

    @property
    def _set(self) -> dict[str, Any]:
        return {**self.set, **({"cluster.faults": self.faults} if self.faults else {})}

    @property
    def base(self) -> AnyPoint:
        """The point without its varied fields: of a collective if any field of one is named."""
        paths = (*self.fields, *self.set)
        if self.collective or any(path.startswith("collective.") for path in paths):
            return CollectivePoint(self.cluster, self.collective, self._set)
        return Point(self.model, self.cluster, self.plan, self._set, self.software)

    @property
    def grid_size(self) -> int:
        """Number of combinations, before `where` leaves any out."""
        grid = math.prod(_count(values) for values in self.vary.values())
        zipped = math.prod(_count(next(iter(group.values()))) for group in self.zip)
        return grid * zipped * (self.sample.count if self.sample else 1)

    @property
    def size(self) -> int:
        """Number of points."""
        return self.grid_size if not self.where else sum(1 for _ in self.points())

    def __repr__(self) -> str:
        return f"<Study {self.name}: {self.grid_size:,} points of {len(self.fields)} fields>"

    def _repr_html_(self) -> str:
        return views.html("study", self)

    def combinations(self) -> Iterator[Row]:
        """Yield the varied values of every combination, the last field fastest."""
        axes: list[list[Row]] = [
            [{name: value} for value in axis_values(values)] for name, values in self.vary.items()
        ]
        for group in self.zip:
            together = zip(*(axis_values(values) for values in group.values()), strict=True)
            axes.append([dict(zip(group, values, strict=True)) for values in together])
        if self.sample:
            axes.append(sampled(self.sample))
        for parts in itertools.product(*axes):
            yield {name: value for part in parts for name, value in part.items()}

    def points(self) -> Iterator[tuple[Row, AnyPoint]]:
        """Yield the varied values and the point of every combination that `where` lets pass."""
        base = self.base
        conditions = [parse_formula(text) for text in self.where]
        for values in self.combinations():
            if all(condition.value({**self.fixed, **values}) for condition in conditions):
                yield (
                    {name: cell(value) for name, value in values.items()},
                    base.with_values(values),
                )


@dataclass(frozen=True)
class PointJudge:
    """Adds derived columns, and whether a row meets the study's requirements."""

    columns: tuple[tuple[str, Formula], ...]
    require: tuple[Formula, ...]
    fixed: Row

    @classmethod
    def of(cls, study: Study) -> PointJudge:
        """Read the formulas of a study."""
        return cls(
            tuple((name, parse_formula(text)) for name, text in study.columns.items()),
            tuple(parse_formula(text) for text in study.require),
            study.fixed,
        )

    def judged(self, row: Row) -> Row:
        """Return a row with its derived columns; a row with an error stays as it is."""
        if row["error"]:
            return row
        row = dict(row)
        error = row.pop("error")
        try:
            for name, formula in self.columns:
                place = f"columns.{name}"
                row[name] = formula.value({**self.fixed, **row})
            place = "require"
            if self.require:
                known = {**self.fixed, **row}
                row["feasible"] = all(bool(formula.value(known)) for formula in self.require)
        except ConfigError as problem:
            error = f"{place}: {problem.message}"
        return {**row, "error": error}


def load_study(path: Source) -> Study:
    """Read a study file, or what one would say.

    Raises
    ------
    ConfigError
        With file, line, column and field: unknown field, a path that leads nowhere, a value of the
        wrong type, an empty list of values, or more than `MAX_POINTS` points.
    """
    document = read_yaml(path)
    check_kind(document, "study")
    study = validate(document, Study)
    point = study.base
    _check_axes(document, study, point)
    for name in study.set:
        _check_field(document, ("set", name), name, point)
    for name in ("model", "plan", "software"):
        if name not in point.HEADS and getattr(study, name):
            raise document.error(f"a study of collectives has no {name}", (name,))
    for name in point.NAMES:
        if name != "software" and not getattr(study, name) and name not in study.fields:
            raise document.error(f"the field {name!r} is missing, and is not varied either")
    if study.grid_size > MAX_POINTS:
        place = "vary" if study.vary else "zip" if study.zip else "sample"
        raise document.error(
            f"{study.grid_size} points; at most {MAX_POINTS} are allowed", (place,)
        )
    _check_formulas(document, study)
    return study


def axes_of(study: Study) -> Iterator[tuple[tuple[str | int, ...], str, ValueSpan | list[Any]]]:
    """Yield where each varied field stands in the file, its path and its values."""
    for name, values in study.vary.items():
        yield ("vary", name), name, values
    for i, group in enumerate(study.zip):
        for name, values in group.items():
            yield ("zip", i, name), name, values
    for name, values in (study.sample.over if study.sample else {}).items():
        yield ("sample", "over", name), name, values


def sampled(sample: SampledPoints) -> list[Row]:
    """Draw the points of a sample; the same seed draws the same points."""
    draw = {"latin-hypercube": latin_hypercube, "sobol": sobol}[sample.method]
    rows = draw(sample.count, len(sample.over), sample.seed).tolist()
    return [
        {
            name: _chosen(values, u)
            for (name, values), u in zip(sample.over.items(), row, strict=True)
        }
        for row in rows
    ]


def _chosen(values: ValueSpan | list[Any], share: float) -> Any:
    if isinstance(values, ValueSpan):
        return values.at(share)
    return values[min(int(share * len(values)), len(values) - 1)]


def _check_axes(document: Document, study: Study, point: AnyPoint) -> None:
    seen: set[str] = set()
    for place, name, values in axes_of(study):
        _check_field(document, place, name, point)
        if name in point.NAMES:
            _check_names(document, place, values)
        if name in seen:
            raise document.error(f"the field {name!r} is varied twice", place)
        if name in study.set:
            raise document.error(f"the field {name!r} is both set and varied", place)
        seen.add(name)
        try:
            if isinstance(values, ValueSpan):
                values.at(0.5)
                if place[0] != "sample":
                    _count(values)
            elif not values:
                raise ConfigError("there must be at least one value")
        except ConfigError as error:
            raise document.error(error.message, place) from error
    if study.sample and study.sample.method == "sobol" and len(study.sample.over) > MAX_SOBOL:
        raise document.error(
            f"sobol samples at most {MAX_SOBOL} fields; use latin-hypercube", ("sample", "over")
        )
    if not seen:
        raise document.error("nothing is varied: give vary, zip or sample")
    for i, group in enumerate(study.zip):
        if len({_count(values) for values in group.values()}) != 1:
            counts = ", ".join(f"{name}: {_count(values)}" for name, values in group.items())
            raise document.error(f"fields of a group need as many values ({counts})", ("zip", i))


def _check_formulas(document: Document, study: Study) -> None:
    known = list(dict.fromkeys([*study.fields, *study.fixed]))
    for i, text in enumerate(study.where):
        try:
            for name in parse_formula(text).names:
                resolve(name, known)
        except ConfigError as error:
            raise document.error(error.message, ("where", i)) from error
    for i, text in enumerate(study.require):
        _check_formula(document, ("require", i), text)
    for name, text in study.columns.items():
        if not name.strip() or name in _OF_ROWS:
            reserved = "has no letters" if not name.strip() else "is one that every row has"
            raise document.error(f"the name {name!r} {reserved}", ("columns", name))
        _check_formula(document, ("columns", name), text)


def _check_formula(document: Document, place: tuple[str | int, ...], text: str) -> None:
    try:
        check_divisors(parse_formula(text))
    except ConfigError as error:
        raise document.error(error.message, place) from error


def _check_field(
    document: Document, place: tuple[str | int, ...], path: str, point: AnyPoint
) -> None:
    if path in point.NAMES and place[0] != "set":
        return
    try:
        check_path(path, point.HEADS)
    except ConfigError as error:
        raise document.error(error.message, place) from error


def _check_names(
    document: Document, place: tuple[str | int, ...], values: ValueSpan | list[Any]
) -> None:
    if isinstance(values, ValueSpan):
        raise document.error("names have no span: write a list of them", place)
    for i, value in enumerate(values):
        if not isinstance(value, str):
            raise document.error(f"expected a name, found {value!r}", (*place, i))


def axis_values(values: ValueSpan | list[Any]) -> list[Any]:
    """Return the values of a varied field, of a span one after the other."""
    return values.values() if isinstance(values, ValueSpan) else values


def _count(values: ValueSpan | list[Any]) -> int:
    """Return how many values there are, without making more than a study may have."""
    if isinstance(values, ValueSpan) and values.steps > 1 and not values.rounds:
        return values.steps
    return len(axis_values(values))


def cell(value: Any) -> Any:
    """Return a varied value as a cell of a table: lists and mappings as JSON."""
    return value if isinstance(value, Scalar) else json.dumps(value)


def _parted(value: Scalar) -> tuple[float, str]:
    """Part a quantity into its number and its unit."""
    if not isinstance(value, str):
        try:
            return float(value), ""
        except OverflowError as error:
            raise ConfigError("the number is too large") from error
    text, _, unit = value.strip().partition(" ")
    units.quantity(value)
    try:
        return float(text), unit.strip()
    except ValueError as error:
        raise ConfigError(f"{value!r}: put a space between number and unit") from error


def shown(values: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the varied values of a row in one line."""
    return ", ".join(f"{name}={values[name]}" for name in names)
