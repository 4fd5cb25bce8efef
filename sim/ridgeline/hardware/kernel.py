"""Measured kernels: what other ops take, and what products take besides their arithmetic."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ridgeline import units
from ridgeline.config import Strict
from ridgeline.hardware.sourced import Sourced


class Repack(Strict):
    """Rates at which a library of matrix products moves its operands when it does no arithmetic.

    A product on a general-purpose core copies panels of A and B into buffers that the inner kernel
    streams through, pads what is left over at the edges, and reads and writes the result (Goto and
    van de Geijn, "Anatomy of High-Performance Matrix Multiplication", ACM TOMS 34(3), 2008). That
    takes time in proportion to the bytes of each, which nothing hides. None: it takes none.
    """

    a: Sourced[units.BytesPerSecond] | None = None
    """Of the first operand."""
    b: Sourced[units.BytesPerSecond] | None = None
    """Of the second operand."""
    c: Sourced[units.BytesPerSecond] | None = None
    """Of the result."""


class MeasuredKernel(Strict):
    """How long ops of one kind outside contractions take, from microbenchmarks."""

    op: str
    """Kind of op: "relu", "softmax", "optimizer", ..."""
    pass_: Literal["forward", "input-gradient", "weight-gradient", "update"] | None = Field(
        default=None, alias="pass"
    )
    """None: any pass."""
    rule: str | None = None
    """Of an update: the optimizer; None: any."""
    latency: Sourced[units.Seconds]
    """Fixed time of the op."""
    throughput: Sourced[units.BytesPerSecond] | None = None
    """Bytes read and written per second, of data in the nearest cache. None: as fast as memory."""
