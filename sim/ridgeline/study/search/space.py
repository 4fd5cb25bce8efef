"""The space of a search: one axis a field, or a group of fields that change together.

A design is a place in the unit box, a number an axis. Places of an axis with listed values are the
middles of as many equal slices, so that equal designs are equal places.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline.errors import ConfigError
from ridgeline.study.columns import Formula, number, parse_formula
from ridgeline.study.study_file import Study, ValueSpan

Design = tuple[float, ...]
Row = dict[str, Any]
MAX_LISTED = 200_000
"""Designs that are listed to choose among what is left; larger spaces are drawn from."""
_MOST_DRAWS = 20_000


@dataclass(frozen=True)
class SearchAxis:
    """One dimension of a search.

    Attributes
    ----------
    names
        The fields that it sets.
    values
        Listed values, a tuple of one value a field each; empty for a span.
    span
        From one end to the other, without steps.
    """

    names: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...] = ()
    span: ValueSpan | None = None

    @cached_property
    def count(self) -> int | None:
        """Number of values; None: without end."""
        if self.span is None:
            return len(self.values)
        first, last = self.span.at(0.0), self.span.at(1.0)
        if first == last:
            return 1
        return abs(last - first) + 1 if isinstance(first, int) else None

    @cached_property
    def ordered(self) -> bool:
        """Whether values have an order: numbers or quantities that rise, or fall."""
        if self.span is not None or len(self.names) > 1:
            return self.span is not None
        read = [number(value) for (value,) in self.values]
        if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in read):
            return False
        pairs = list(itertools.pairwise(read))
        return all(a < b for a, b in pairs) or all(a > b for a, b in pairs)

    def snapped(self, place: float) -> float:
        """Return the place of the value that lies at a place."""
        if self.span is None:
            count = len(self.values)
            return (min(int(place * count), count - 1) + 0.5) / count
        if self.count is None:
            return place
        return self._share_of(self.span.at(place))

    def chosen(self, place: float) -> tuple[Any, ...]:
        """Return the values of the fields at a place."""
        if self.span is not None:
            return (self.span.at(place),)
        return self.values[min(int(place * len(self.values)), len(self.values) - 1)]

    def places(self) -> list[float]:
        """Return the places of all values, in their order."""
        if self.span is None:
            return [(i + 0.5) / len(self.values) for i in range(len(self.values))]
        first, last = self.span.at(0.0), self.span.at(1.0)
        step = 1 if last >= first else -1
        return [self._share_of(value) for value in range(first, last + step, step)]

    def _share_of(self, value: Any) -> float:
        """Return how far along its span a whole number lies."""
        assert self.span is not None
        first, last = self.span.at(0.0), self.span.at(1.0)
        if first == last:
            return 0.0
        if self.span.scale == "log":
            return math.log(value / first) / math.log(last / first)
        return float((value - first) / (last - first))


class SearchSpace:
    """All designs of a study: axes, and the conditions that leave designs out."""

    def __init__(self, study: Study) -> None:
        self.axes = tuple(_axes(study))
        self._where: list[Formula] = [parse_formula(text) for text in study.where]
        self._fixed = study.fixed
        self._empty = f"no design passes `where` in {_MOST_DRAWS:,} draws: {', '.join(study.where)}"

    def __repr__(self) -> str:
        size = "without end" if self.size is None else f"{self.size:,} designs"
        return f"<SearchSpace of {len(self.axes)} axes: {size}>"

    @cached_property
    def size(self) -> int | None:
        """Number of designs before `where` leaves any out; None: without end."""
        counts = [axis.count for axis in self.axes]
        return None if None in counts else math.prod(count for count in counts if count is not None)

    def values(self, design: Design) -> Row:
        """Return the values of all fields of a design."""
        return {
            name: value
            for axis, place in zip(self.axes, design, strict=True)
            for name, value in zip(axis.names, axis.chosen(place), strict=True)
        }

    def snapped(self, places: npt.ArrayLike) -> Design:
        """Return the design that lies at a place of the unit box."""
        inside = np.clip(np.asarray(places, np.float64), 0.0, 1.0).tolist()
        return tuple(axis.snapped(place) for axis, place in zip(self.axes, inside, strict=True))

    def allows(self, design: Design) -> bool:
        """Tell whether `where` lets a design pass."""
        if not self._where:
            return True
        known: Mapping[str, Any] = {**self._fixed, **self.values(design)}
        return all(condition.value(known) for condition in self._where)

    def check_finite(self) -> None:
        """Raise ConfigError if an axis has values without end."""
        endless = next((axis.names[0] for axis in self.axes if axis.count is None), None)
        if endless is not None:
            raise ConfigError(
                f"{endless} has a span without steps, whose values are without end: give steps, or "
                "another method",
                field="search.method",
            )

    def designs(self) -> Iterator[Design]:
        """Yield every design that `where` lets pass, the last axis fastest.

        Raises
        ------
        ConfigError
            If an axis has values without end.
        """
        self.check_finite()
        for places in itertools.product(*(axis.places() for axis in self.axes)):
            if self.allows(places):
                yield places

    @cached_property
    def listed(self) -> tuple[Design, ...] | None:
        """All designs where there are few, or None."""
        if self.size is None or self.size > MAX_LISTED:
            return None
        found = tuple(self.designs())
        if not found:
            raise ConfigError("these conditions leave no point", field="where")
        return found

    def drawn(self, rng: np.random.Generator) -> Design:
        """Return a random design.

        Raises
        ------
        ConfigError
            If `where` lets no draw pass.
        """
        for _ in range(_MOST_DRAWS):
            design = self.snapped(rng.random(len(self.axes)))
            if self.allows(design):
                return design
        raise ConfigError(self._empty, field="where")

    def coordinates(self, designs: list[Design]) -> npt.NDArray[np.float64]:
        """Return designs as points, (designs, dimensions): an unordered value is a dimension."""
        places = np.array(designs).reshape(len(designs), len(self.axes))
        columns = []
        for i, axis in enumerate(self.axes):
            if axis.ordered or len(axis.values) < 2:
                columns.append(places[:, i : i + 1])
            else:
                chosen = (places[:, i] * len(axis.values)).astype(np.int64)
                columns.append(np.eye(len(axis.values))[chosen] / math.sqrt(2.0))
        return np.concatenate(columns, axis=1)

    @cached_property
    def groups(self) -> npt.NDArray[np.int64]:
        """The axis of each dimension of `coordinates`."""
        widths = [1 if a.ordered or len(a.values) < 2 else len(a.values) for a in self.axes]
        return np.repeat(np.arange(len(self.axes)), widths)


def _axes(study: Study) -> Iterator[SearchAxis]:
    for name, values in study.vary.items():
        if isinstance(values, ValueSpan) and not values.steps:
            yield SearchAxis((name,), span=values)
        else:
            listed = values.values() if isinstance(values, ValueSpan) else values
            yield SearchAxis((name,), tuple((value,) for value in listed))
    for group in study.zip:
        together = [v.values() if isinstance(v, ValueSpan) else v for v in group.values()]
        yield SearchAxis(tuple(group), tuple(zip(*together, strict=True)))
