"""A spatial array as its device describes it, with what the search for a layout asks of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from ridgeline.errors import RidgelineError
from ridgeline.hardware.spatial import SpatialArray
from ridgeline.kernels.spatial.cycle_model import CycleMachine
from ridgeline.kernels.spatial.nest import LOOPS, SUMMED, ConvolutionNest, Operand, SpatialLayout

OPERANDS: dict[Operand, str] = {"x": "images", "w": "filters", "y": "sums"}
Objective = Literal["time", "energy", "edp"]


class LayoutPrices(NamedTuple):
    """What the device's report charges besides the array's cycles; a layout is ranked by it.

    Attributes
    ----------
    near_cycles
        Cycles of the array for one word between buffer and array, at the slowest of the levels
        that such a word passes; 0: none states a bandwidth.
    least_cycles
        That the op takes whatever its layout is.
    near_j, far_j
        Joules of a word between buffer and array, and of one from or to the memory behind it.
    idle_j
        Joules of the whole device in a cycle.
    fixed_j
        Joules that the op takes whatever its layout is.
    objective
        What is looked for. Ties go to less time, then to less energy, then to fewer words.
    """

    near_cycles: float = 0.0
    least_cycles: float = 0.0
    near_j: float = 0.0
    far_j: float = 0.0
    idle_j: float = 0.0
    fixed_j: float = 0.0
    objective: Objective = "time"


PLAIN = LayoutPrices()


@dataclass(frozen=True, slots=True)
class Elements:
    """An array of elements and the buffer next to it.

    Attributes
    ----------
    networks
        Words a cycle, multicast, buffers.
    room
        Words of x, w and y that an element holds of one tile.
    buffer_words
        Of the buffer.
    memory_width
        Words a cycle between the buffer and the memory behind it.
    held
        Operands that take room in the buffer.
    adds_along
        "rows", "columns": axes along which sums go from neighbour to neighbour.
    prices
        What the report of an op counts besides.
    """

    rows: int
    columns: int
    networks: CycleMachine
    room: tuple[int, int, int]
    buffer_words: int
    memory_width: float
    held: frozenset[Operand]
    adds_along: frozenset[str]
    dataflows: tuple[str, ...]
    prices: LayoutPrices = PLAIN

    def refusal(self, nest: ConvolutionNest, layout: SpatialLayout) -> str | None:
        """Say why a layout does not go with the array, or None if it does."""
        return self._too_wide(layout) or self._too_large(nest, layout) or _not_covered(nest, layout)

    def _too_wide(self, layout: SpatialLayout) -> str | None:
        for axis, parts, limit in (
            ("rows", layout.rows, self.rows),
            ("columns", layout.columns, self.columns),
        ):
            used = 1
            for d, factor in parts.items():
                used *= factor
                if factor > 1 and d in SUMMED and axis not in self.adds_along:
                    return f"{axis} add up no sums, so that {d} cannot be spread along them"
            if used > limit:
                return f"the {axis} have {limit} elements, and the mapping needs {used}"
        for d in SUMMED:
            if layout.rows.get(d, 1) > 1 and layout.columns.get(d, 1) > 1:
                return f"{d} is a sum and can be spread along one axis only"
        return None

    def _too_large(self, nest: ConvolutionNest, layout: SpatialLayout) -> str | None:
        for operand, words in zip(OPERANDS, self.room, strict=True):
            needed = nest.words(operand, layout.element)
            if needed > words:
                name = OPERANDS[operand]
                return f"an element holds {words} words of {name}, and its tile has {needed}"
        needed = self.buffered(nest, layout.buffer_tile)
        if needed > self.buffer_words:
            return f"the buffer holds {self.buffer_words} words, and its tile has {needed}"
        return None

    def buffered(self, nest: ConvolutionNest, tile: dict[str, int]) -> int:
        """Words that a tile takes in the buffer."""
        return sum(nest.words(operand, tile) for operand in self.held)


def _not_covered(nest: ConvolutionNest, layout: SpatialLayout) -> str | None:
    tile = layout.buffer_tile
    for loop in layout.memory:
        tile[loop.of] *= loop.trips
    for d in LOOPS:
        if tile[d] < nest.size(d):
            name = next(name for name, own in nest.names.items() if own == d)
            return f"the factors of {name} cover {tile[d]} of {nest.size(d)} points"
    return None


def elements_of(
    array: SpatialArray, buffer_words: float, memory_width: float, prices: LayoutPrices = PLAIN
) -> Elements:
    """Return an engine's array.

    Parameters
    ----------
    buffer_words
        Capacity of the memory level next to it.
    memory_width
        Words a cycle of the memory behind that.
    prices
        What a layout is ranked by besides its cycles.
    """
    x, w, y = array.images, array.filters, array.sums
    networks = CycleMachine(
        x.width.value, w.width.value, y.width_in.value, y.width_out.value,
        x.multicast, w.multicast, x.buffers == 2, w.buffers == 2, y.buffers == 2,
        array.hop.value, array.setup.value,
    )  # fmt: skip
    if buffer_words < 3:
        raise RidgelineError(f"the buffer {array.buffer!r} does not hold a word of each operand")
    return Elements(
        rows=array.rows.value,
        columns=array.columns.value,
        networks=networks,
        room=(x.words.value, w.words.value, y.words.value),
        buffer_words=int(buffer_words),
        memory_width=memory_width,
        held=frozenset(operand for operand in OPERANDS if OPERANDS[operand] not in array.bypass),
        adds_along=frozenset(array.adds_along),
        dataflows=array.dataflows,
        prices=prices,
    )
