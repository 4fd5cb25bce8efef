"""What a file states, in the words of the rules: rows, facts of the whole, figures, free text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from ridgeline.report.honesty.vocabulary import Meaning, meaning

Kind = Literal["result", "comparison", "study", "table", "figure", "document"]

_TEXTS = frozenset({"claim", "x_label", "y_label"})
_WHOLE_TEXT = frozenset({"claim"})


@dataclass(frozen=True, slots=True)
class Statement:
    """A named value; `name` is a column, a key with its parents, or a label."""

    name: str
    meaning: Meaning
    value: Any

    @property
    def number(self) -> float | None:
        """The value as a number, in the unit that it has."""
        return number(self.value)

    @property
    def is_stated(self) -> bool:
        """Whether there is a value at all: neither empty nor called unknown."""
        return is_stated(self.value)


Row = tuple[Statement, ...]


@dataclass(frozen=True)
class PublishedRun:
    """A row about a known run, and what was published of it."""

    row: int
    system: str
    differs: str


@dataclass(frozen=True)
class Evidence:
    """Everything that a file states.

    Attributes
    ----------
    name
        Of the file.
    kind
        Of file.
    facts
        What holds for the whole.
    rows
        Points of a series, sides of a comparison, rows of a table.
    simulated
        Whether ridgeline made it: its manifests say what was modelled.
    texts
        Further text that a reader sees: titles, captions, labels.
    published
        Rows that contradict what was published of the same run.
    unread
        Why nothing can be said of it; empty: it was read.
    """

    name: str
    kind: Kind
    facts: Row = ()
    rows: tuple[Row, ...] = ()
    simulated: bool = False
    texts: tuple[str, ...] = ()
    published: tuple[PublishedRun, ...] = ()
    unread: str = ""
    notes: tuple[str, ...] = field(default=())

    def all(self, *concepts: str) -> Iterator[Statement]:
        """Yield every statement of these concepts: of the whole, then row by row."""
        for statements in (self.facts, *self.rows):
            for one in statements:
                if one.meaning.concept in concepts:
                    yield one

    def stated(self, *concepts: str) -> list[Statement]:
        """Return the statements of these concepts that have a value."""
        return [one for one in self.all(*concepts) if one.is_stated]

    def numbers(self, *concepts: str) -> list[float]:
        """Return the values of these concepts that are numbers."""
        return [x for one in self.all(*concepts) if (x := one.number) is not None]

    def column(
        self, concept: str, where: Callable[[Statement], bool] = lambda one: True
    ) -> list[Any]:
        """Return a value for each row, None where it has none; facts stand in for all rows."""
        common = next(
            (s.value for s in self.facts if s.meaning.concept == concept and where(s)), None
        )
        found = []
        for row in self.rows:
            own = (s.value for s in row if s.meaning.concept == concept and s.is_stated)
            mine = (
                s.value for s in row if s.meaning.concept == concept and s.is_stated and where(s)
            )
            found.append(next(mine, common if next(own, None) is None else None))
        return found

    def column_numbers(self, concept: str) -> list[float | None]:
        """Return a number for each row, None where it has none."""
        return [number(value) for value in self.column(concept)]

    def one_number(self, concept: str) -> float | None:
        """Return the first number of a concept."""
        return next(iter(self.numbers(concept)), None)

    def flag(self, concept: str) -> bool | None:
        """Return whether something is so; None: nothing is said."""
        for one in self.all(concept):
            if (so := truth(one.value)) is not None:
                return so
        return None

    @cached_property
    def text(self) -> str:
        """Everything that a reader sees as words, in lower case."""
        said = [str(one.value) for one in self.all(*_TEXTS) if isinstance(one.value, str)]
        said += [
            str(part)
            for one in self.all(*_WHOLE_TEXT)
            if isinstance(one.value, list)
            for part in one.value
        ]
        return "\n".join([*said, *self.texts]).lower()

    @cached_property
    def names(self) -> str:
        """Names of all columns and keys, as words."""
        found = dict.fromkeys(one.name for row in (self.facts, *self.rows) for one in row)
        return "\n".join(re.sub(r"[_.]+", " ", name).lower() for name in found)

    def says(self, pattern: str) -> bool:
        """Tell whether a pattern stands in the text that a reader sees."""
        return re.search(pattern, self.text) is not None

    @property
    def is_figure(self) -> bool:
        """Whether it is, or describes, something drawn on axes."""
        return self.kind == "figure" or any(
            self.all("y_scale", "y_min", "y_limits", "zero_based", "x_scale", "y_label")
        )

    @property
    def has_claim(self) -> bool:
        """Whether anybody has written words about the numbers."""
        return bool(self.text.strip())


def statement(name: str, value: Any) -> Statement:
    """Return a value under the name that a file gives it; a "gpu" called V100 is no count."""
    found = meaning(name)
    if found.concept == "devices" and isinstance(value, str) and number(value) is None:
        found = replace(found, concept="hardware")
    return Statement(name, found, value)


_UNSTATED = frozenset({
    "", "none", "null", "n/a", "na", "nan", "unknown", "unstated", "not reported", "not stated",
    "?", "-", "unreported", "not given", "undefined", "unspecified", "not specified", "missing",
    "tbd", "not disclosed", "undisclosed",
})  # fmt: skip
_TRUE = frozenset({"true", "yes", "y", "on", "included", "shown", "drawn", "present", "1"})
_FALSE = frozenset({
    "false", "no", "n", "off", "none", "excluded", "not shown", "absent", "0", "omitted", "missing",
    "hidden", "not drawn", "null", "not included",
})  # fmt: skip
_NUMBER = re.compile(
    r"^[~≈<>=±$€]*\s*([+-]?\d[\d,_]*\.?\d*(?:e[+-]?\d+)?)\s*([a-zµ%/$²\d.]*)", re.IGNORECASE
)
_SECONDS = {
    "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "s": 1.0, "sec": 1.0, "seconds": 1.0,
    "min": 60.0, "mins": 60.0, "minutes": 60.0, "h": 3600.0, "hr": 3600.0, "hours": 3600.0,
    "days": 86400.0, "hour": 3600.0, "minute": 60.0,
}  # fmt: skip
_THOUSANDS = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}


def is_stated(value: Any) -> bool:
    """Tell whether a value says anything."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return False
    if isinstance(value, str):
        return value.strip().lower() not in _UNSTATED
    return not (isinstance(value, list | tuple | dict) and not value)


def number(value: Any) -> float | None:
    """Read a number as people write it: 1,024, 15 min (in seconds), 97.6 %, 3.2x, 32k."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value) if math.isfinite(value) else None
    if not isinstance(value, str) or (found := _NUMBER.match(value.strip())) is None:
        return None
    try:
        read = float(found[1].replace(",", "").replace("_", ""))
    except ValueError:
        return None
    unit = found[2].lower()
    return read * _SECONDS.get(unit, _THOUSANDS.get(unit, 1.0))


def truth(value: Any) -> bool | None:
    """Read yes and no as people write them; None: neither."""
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    word = value.strip().lower() if isinstance(value, str) else None
    return True if word in _TRUE else False if word in _FALSE else None


def sizes(value: Any) -> list[float]:
    """Read the lengths of a shape: 224x224, 8k x 8k, (3, 224, 224), [224, 224], 512."""
    if isinstance(value, list | tuple):
        return [x for part in value if (x := number(part)) is not None]
    if isinstance(value, str):
        parts = re.split(r"\s*[x×,*]\s*", value.strip("()[] ").lower())
        return [x for part in parts if (x := number(part)) is not None]
    read = number(value)
    return [] if read is None else [read]


def differing(values: Sequence[Any]) -> bool:
    """Tell whether there are two different values among those that are stated."""
    known = {str(value).strip().lower() for value in values if is_stated(value)}
    return len(known) > 1


def facts_of(values: Mapping[str, Any]) -> Row:
    """Return the statements of named values."""
    return tuple(statement(name, value) for name, value in values.items())
