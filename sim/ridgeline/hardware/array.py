"""The systolic arrays of a compute engine."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, field_validator, model_validator

from ridgeline import units
from ridgeline.config import FieldError, Strict
from ridgeline.hardware.sourced import DEFAULT, Sourced

Dataflow = Literal["os", "ws", "is"]
Fold = Literal["serial", "pipelined", "overlapped"]
Edge = Literal["exact", "full"]

ONE = Sourced[int](value=1, source=DEFAULT, basis="assumed")


class ArrayNetwork(Strict):
    """What connects the arrays of a device, so that they can add up each other's partial sums."""

    latency: Sourced[units.Seconds]
    """From one array to the next."""
    bandwidth: Sourced[units.BytesPerSecond]
    """That each array sends and receives with."""


class SystolicArray(Strict):
    """Equal arrays of multiply-accumulate cells; ``docs/systolic.md`` says how they are counted."""

    rows: Sourced[int]
    """Cells in a column of one array."""
    columns: Sourced[int]
    """Cells in a row of one array."""
    count: Sourced[int] = ONE
    """How many such arrays work side by side."""
    clock: Sourced[units.Hertz]
    """Cycles a second; rows x columns x count x 2 FLOP a cycle must be a rate of the engine."""
    dataflows: tuple[Dataflow, ...] = Field(strict=False, min_length=1)
    """What may stay in the cells; the fastest is taken for each op."""
    fold: Fold = "overlapped"
    """When the next tile starts. serial: after the last result of this one; pipelined: when its
    operands have been loaded between two streams; overlapped: loads hide behind a stream."""
    edge: Edge = "full"
    """Whether the last tile of a row or column uses only the cells that it needs (exact), or takes
    the time of the whole array (full)."""
    hop_row: Sourced[int] = ONE
    """Cycles to the cell below."""
    hop_column: Sourced[int] = ONE
    """Cycles to the cell on the right."""
    mac_latency: Sourced[int] = ONE
    """Cycles of a multiply-accumulate."""
    network: ArrayNetwork | None = None
    """Without it a product is never split along k."""
    multicast: Sourced[bool] = Sourced[bool](value=False, source=DEFAULT, basis="assumed")
    """Whether one read of the nearest memory serves all arrays that want the same words."""

    padded_weights: Sourced[bool] | None = None
    """Whether what stays in the cells is stored and fetched as whole tiles of rows x columns, zeros
    included. Of weight-stationary arrays behind a buffer."""

    @field_validator("rows", "columns", "count", "hop_row", "hop_column", "mac_latency")
    @classmethod
    def _positive(cls, number: Sourced[int]) -> Sourced[int]:
        if number.value < 1:
            raise ValueError(f"must be at least 1, found {number.value}")
        return number

    @model_validator(mode="after")
    def _weights_stay(self) -> SystolicArray:
        if self.is_padded and self.dataflows != ("ws",):
            raise FieldError("is of arrays with dataflows: [ws] alone", "padded_weights")
        return self

    @property
    def is_padded(self) -> bool:
        """Whether weights are fetched as whole tiles."""
        return self.padded_weights is not None and self.padded_weights.value

    def tile_padding(self, k: int, n: int) -> float:
        """Bytes fetched of a k x n matrix of weights over its own bytes."""
        if not self.is_padded:
            return 1.0
        rows, columns = self.rows.value, self.columns.value
        return math.ceil(k / rows) * rows / k * (math.ceil(n / columns) * columns / n)

    @property
    def flops_per_cycle(self) -> int:
        """FLOP of all arrays when every cell does a multiply-accumulate."""
        return 2 * self.rows.value * self.columns.value * self.count.value
