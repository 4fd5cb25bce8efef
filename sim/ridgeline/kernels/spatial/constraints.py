"""What a mapping file settles of a layout on a spatial array."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ridgeline.kernels.mapping.mapping_file import Factor, MappingFile
from ridgeline.kernels.spatial.dataflows import DATAFLOWS
from ridgeline.kernels.spatial.nest import LOOPS, ConvolutionNest, SpatialLayout, TemporalLoop

Place = Literal["element", "rows", "columns", "buffer", "memory"]


@dataclass(frozen=True, slots=True)
class Constraints:
    """Settled factors and orders; what is not settled is searched for.

    Attributes
    ----------
    dataflow
        Name of a dataflow, or None: those of the array.
    settled
        (place, loop, factor), of the nest's own loops.
    ordered
        Loops over tiles, the outermost first; others go around them.
    source
        What says so.
    """

    dataflow: str | None = None
    settled: tuple[tuple[str, str, int], ...] = ()
    ordered: tuple[str, ...] = ()
    source: str = ""

    def factors(self, place: Place) -> dict[str, int]:
        """Settled factors of one place."""
        return {d: factor for where, d, factor in self.settled if where == place}

    def order(self, loops: Iterable[str]) -> list[str]:
        """Put loops into the settled order: each named one where one of the named ones was."""
        loops = list(loops)
        named = iter(d for d in self.ordered if d in loops)
        return [next(named) if d in self.ordered else d for d in loops]

    @property
    def shown(self) -> str:
        """End of a message."""
        return f", as {self.source} settles it" if self.source else ""


FREE = Constraints()


def settled_by(
    given: MappingFile, nest: ConvolutionNest, levels: list[str]
) -> SpatialLayout | Constraints:
    """Return the layout of a mapping file, or what it settles of one.

    Parameters
    ----------
    levels
        The memory behind the buffer, the buffer, and the elements' registers, by their names.

    Raises
    ------
    ConfigError
        If the file names a loop, a level or a dataflow that there is not.
    """
    names = nest.names
    given.check(names, levels, DATAFLOWS)
    memory, buffer, element = (given.levels.get(level) for level in levels)
    places: dict[Place, tuple[Factor, ...] | None] = {
        "memory": memory,
        "buffer": buffer,
        "element": element,
        "rows": given.rows,
        "columns": given.columns,
    }
    own: dict[Place, tuple[Factor, ...]] = {
        place: tuple((names[name], factor) for name, factor in factors)
        for place, factors in places.items()
        if factors is not None
    }
    whole = {
        place: {d: factor for d, factor in factors if factor is not None}
        for place, factors in own.items()
    }
    if len(own) == len(places) and all(len(own[place]) == len(whole[place]) for place in own):
        loops = {
            place: tuple(TemporalLoop(d, whole[place][d]) for d, _ in own[place]) for place in own
        }
        return SpatialLayout(
            whole["element"], whole["rows"], whole["columns"], loops["buffer"], loops["memory"]
        )
    settled: list[tuple[str, str, int]] = []
    for place, factors in own.items():
        free = {d for d, factor in factors if factor is None}
        settled += [(place, d, whole[place].get(d, 1)) for d in LOOPS if d not in free]
    inner = [d for d, _ in own.get("buffer", ())]
    outer = [d for d, _ in own.get("memory", ()) if d not in inner]
    return Constraints(given.dataflow, tuple(settled), tuple(outer + inner), given.file)
