"""Dies of a package (chiplets): equal parts of a device, and the links between them.

All other fields of a device are those of the whole package: each die has an equal part of its
engines, levels of memory and power. `one_die` is what one of them is by itself.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal, NamedTuple

from pydantic import PositiveInt, field_validator, model_validator

from ridgeline import units
from ridgeline.config import FieldError, Strict
from ridgeline.hardware.sourced import Sourced

DIE_LINKS = "die links"
"""The place where bytes between the dies of a package are counted."""
_MOST_DIES = 256


class DieLink(Strict):
    """A link between two neighbouring dies."""

    bandwidth: Sourced[units.BytesPerSecond]
    """In each direction."""
    latency: Sourced[units.Seconds]
    """From one die to the next."""
    energy: str
    """Entry of the energy table, or a quantity such as ``1.2 pJ/bit``; of every link passed."""

    @field_validator("bandwidth")
    @classmethod
    def _flows(cls, rate: Sourced[float]) -> Sourced[float]:
        if rate.value <= 0:
            raise ValueError(f"must be more than 0, found {rate.value}")
        return rate


class Dies(Strict):
    """Equal dies that share a device's engines and memory; see ``docs/devices.md``."""

    count: Sourced[PositiveInt]
    """How many. Processors, arrays, cores, tiles and instances of levels divide evenly."""
    topology: Literal["all-to-all", "ring", "mesh"] = "all-to-all"
    """Which dies have a link: every two; each and the next, round; neighbours on a grid."""
    rows: Sourced[PositiveInt] | None = None
    """Rows of the grid of a mesh; by default it is as square as it can be."""
    link: DieLink
    """Between every two neighbours."""
    placement: Literal["cut", "interleaved"] = "cut"
    """Where operands lie. cut: each die's memory has the part that the op gives to the die, once;
    what several dies need is fetched from the one that has it. interleaved: all dies' memories have
    equal parts of everything, page by page."""

    @model_validator(mode="after")
    def _arranged(self) -> Dies:
        if self.count.value > _MOST_DIES:
            raise FieldError(f"must be at most {_MOST_DIES}, found {self.count.value}", "count")
        if self.rows is None:
            return self
        if self.topology != "mesh":
            raise FieldError(f"is of a mesh; this is a {self.topology}", "rows")
        if self.count.value % self.rows.value:
            raise FieldError(f"must divide the {self.count.value} dies", "rows")
        return self

    def paths(self, used: int) -> DiePaths:
        """Return the ways between the dies in use, which are neighbours."""
        if used == 1:
            return DiePaths(0, 0.0, 0, 0)
        pairs = used * (used - 1)
        match self.topology:
            case "all-to-all":
                return DiePaths(pairs, 1.0, 1, 1)
            case "ring":
                # Shortest ways; the farthest die of an even ring is reached half by either side.
                hops, links = (used**2 // 4) / (used - 1), 2 * used if used > 2 else 2
                return DiePaths(links, hops, pairs * hops / links, used // 2)
            case "mesh":
                whole = self.rows is not None and used == self.count.value
                rows = self.rows.value if whole and self.rows is not None else squarest(used)
                return _mesh(rows, used // rows)

    def route(self, start: int, end: int) -> dict[tuple[int, int], float]:
        """Return the links on the way from a die to another, with the share of bytes on each.

        Dies are numbered so that each is a neighbour of the next: round the ring, and on a mesh
        along the rows, every other one backwards.
        """
        if self.topology == "all-to-all":
            return {(start, end): 1.0}
        count = self.count.value
        if self.topology == "ring":
            ahead = (end - start) % count
            shares = {1: ahead <= count - ahead, -1: ahead >= count - ahead}
            found: dict[tuple[int, int], float] = {}
            for step, taken in shares.items():
                for hop in range(ahead if step > 0 else count - ahead) if taken else ():
                    at = (start + step * hop) % count
                    link = at, (at + step) % count
                    found[link] = found.get(link, 0.0) + 1.0 / sum(shares.values())
            return found
        columns = count // (squarest(count) if self.rows is None else self.rows.value)
        (row, column), (last_row, last_column) = _on_grid(start, columns), _on_grid(end, columns)
        way = [(row, c) for c in _between(column, last_column)]
        way += [(r, last_column) for r in _between(row, last_row)][1:]
        numbers = [r * columns + (columns - 1 - c if r % 2 else c) for r, c in way]
        return dict.fromkeys(pairwise(numbers), 1.0)


def _on_grid(die: int, columns: int) -> tuple[int, int]:
    row, column = divmod(die, columns)
    return row, columns - 1 - column if row % 2 else column


def _between(start: int, end: int) -> range:
    step = 1 if end >= start else -1
    return range(start, end + step, step)


class DiePaths(NamedTuple):
    """Ways between dies when every two exchange alike.

    Attributes
    ----------
    links
        Directed links.
    mean_hops, most_hops
        Links on the way between two dies.
    busiest
        Ordered pairs of dies whose way has the busiest link.
    """

    links: int
    mean_hops: float
    busiest: float
    most_hops: int


def _mesh(rows: int, columns: int) -> DiePaths:
    """Ways on a grid, first along the row and then along the column."""
    dies = rows * columns
    links = 2 * (rows * (columns - 1) + columns * (rows - 1))
    mean = ((rows**2 - 1) / (3 * rows) + (columns**2 - 1) / (3 * columns)) * dies / (dies - 1)
    along = rows * (columns // 2) * ((columns + 1) // 2)
    across = columns * (rows // 2) * ((rows + 1) // 2)
    return DiePaths(links, mean, max(along, across), rows + columns - 2)


def squarest(count: int) -> int:
    """Return the rows of the grid of so many dies that is as square as it can be."""
    return max(side for side in range(1, math.isqrt(count) + 1) if count % side == 0)
