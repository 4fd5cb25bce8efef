"""The broadcast-grid cores of a compute engine: the Linear Algebra Core, CATERPILLAR."""

from __future__ import annotations

from pydantic import field_validator

from ridgeline import units
from ridgeline.config import Strict
from ridgeline.hardware.array import ONE
from ridgeline.hardware.sourced import Sourced


class GridAreas(Strict):
    """What the silicon of the cores is made of."""

    fma: Sourced[units.SquareMetres]
    """One multiply-accumulate unit."""
    local_memory: Sourced[units.SquareMetres]
    """Memory of one processing element."""
    scratchpad: Sourced[units.SquareMetres]
    """Private memory of one core."""
    rest: Sourced[units.SquareMetres]
    """Everything else, shared out over the processing elements."""


class BroadcastGrid(Strict):
    """Equal cores of side x side processing elements on row and column buses."""

    side: Sourced[int]
    """Processing elements in a row and in a column of a core."""
    cores: Sourced[int] = ONE
    """How many such cores there are."""
    clock: Sourced[units.Hertz]
    """Cycles a second; 2 FLOP a cycle and element must be a rate of the engine."""
    fma_latency: Sourced[int] = ONE
    """Cycles of a multiply-accumulate."""
    local_memory: Sourced[units.Bytes]
    """Of one processing element: what holds weights and blocks of a matrix."""
    spill_words_per_cycle: Sourced[float] | None = None
    """What one core exchanges with the memory behind its elements' own; None: not known."""
    areas: GridAreas | None = None
    """Of its parts; gives the area of a design with other numbers of them."""

    @field_validator("side", "cores", "fma_latency")
    @classmethod
    def _positive(cls, number: Sourced[int]) -> Sourced[int]:
        if number.value < 1:
            raise ValueError(f"must be at least 1, found {number.value}")
        return number

    @field_validator("spill_words_per_cycle")
    @classmethod
    def _flows(cls, rate: Sourced[float] | None) -> Sourced[float] | None:
        if rate is not None and rate.value <= 0:
            raise ValueError(f"must be more than 0, found {rate.value}")
        return rate

    @property
    def elements(self) -> int:
        """Processing elements of all cores."""
        return self.cores.value * self.side.value**2

    @property
    def flops_per_cycle(self) -> int:
        """FLOP of all cores when every element does a multiply-accumulate."""
        return 2 * self.elements

    def area_m2(self, *, rest: bool = True) -> float:
        """Sum of the parts; without the `rest` it is only what they are published to be.

        Raises
        ------
        ValueError
            If the areas of the parts are not known.
        """
        if self.areas is None:
            raise ValueError("the areas of this grid's parts are not known")
        element = self.areas.fma.value + self.areas.local_memory.value
        if rest:
            element += self.areas.rest.value
        return self.elements * element + self.cores.value * self.areas.scratchpad.value
