"""What a mapping file says about a layout: factors that are settled, and orders of loops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

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
