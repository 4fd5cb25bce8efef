"""The spatial array of a compute engine: elements with registers of their own, and networks."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from ridgeline import units
from ridgeline.config import Strict
from ridgeline.hardware.array import ONE
from ridgeline.hardware.sourced import DEFAULT, Sourced

SpatialDataflow = Literal[
    "row-stationary", "weight-stationary", "output-stationary", "input-stationary", "any"
]
Axis = Literal["rows", "columns"]
ZERO = Sourced[int](value=0, source=DEFAULT, basis="assumed")


class OperandPath(Strict):
    """How one input operand comes to the elements."""

    words: Sourced[int]
    """That an element holds of one tile."""
    buffers: Literal[1, 2]
    """With 2 the next tile comes in while this one is used; with 1 the array comes to rest."""
    width: Sourced[int]
    """Words a cycle from the buffer to the array."""
    multicast: bool = True
    """Whether a word goes at once to all elements that need it."""


class SumsPath(Strict):
    """How partial sums come to the elements and leave them."""

    words: Sourced[int]
    """That an element holds of one tile."""
    buffers: Literal[1, 2]
    """With 2 the next tile's sums come in while this one's leave."""
    width_in: Sourced[int]
    """Words a cycle from the buffer."""
    width_out: Sourced[int]
    """Words a cycle to the buffer."""


class SpatialArray(Strict):
    """Rows x columns of elements; ``docs/spatial.md`` says how their cycles are counted."""

    rows: Sourced[int]
    """Elements in a column."""
    columns: Sourced[int]
    """Elements in a row."""
    clock: Sourced[units.Hertz]
    """Cycles a second; 2 FLOP a cycle and element must be a rate of the engine."""
    dataflows: tuple[SpatialDataflow, ...] = Field(strict=False, min_length=1)
    """Which loops may run where; of all layouts that they allow the fastest is taken."""
    images: OperandPath
    """Inputs of a convolution; the first operand of a product."""
    filters: OperandPath
    """Weights of a convolution; the second operand of a product."""
    sums: SumsPath
    """Partial sums, which become outputs."""
    adds_along: tuple[Axis, ...] = Field(default=("rows",), strict=False)
    """Axes along which neighbours hand on their sums."""
    hop: Sourced[int] = ONE
    """Cycles of a sum to the neighbour."""
    setup: Sourced[int] = ZERO
    """Cycles of rest before an operand with one buffer is exchanged."""
    buffer: str
    """The memory level that the networks begin and end at."""
    bypass: tuple[Literal["images", "filters", "sums"], ...] = Field(default=(), strict=False)
    """Operands that take no room in the buffer: they come straight from the memory behind it."""

    @field_validator("rows", "columns", "hop")
    @classmethod
    def _positive(cls, number: Sourced[int]) -> Sourced[int]:
        if number.value < 1:
            raise ValueError(f"must be at least 1, found {number.value}")
        return number

    @field_validator("setup")
    @classmethod
    def _not_negative(cls, number: Sourced[int]) -> Sourced[int]:
        if number.value < 0:
            raise ValueError(f"must be at least 0, found {number.value}")
        return number

    @field_validator("images", "filters")
    @classmethod
    def _carries(cls, path: OperandPath) -> OperandPath:
        for name, number in (("words", path.words), ("width", path.width)):
            if number.value < 1:
                raise ValueError(f"{name} must be at least 1, found {number.value}")
        return path

    @field_validator("sums")
    @classmethod
    def _sums_carry(cls, path: SumsPath) -> SumsPath:
        for name in ("words", "width_in", "width_out"):
            if getattr(path, name).value < 1:
                raise ValueError(f"{name} must be at least 1, found {getattr(path, name).value}")
        return path

    @property
    def flops_per_cycle(self) -> int:
        """FLOP when every element does a multiply-accumulate."""
        return 2 * self.rows.value * self.columns.value
