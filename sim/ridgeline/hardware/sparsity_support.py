"""Sparsity support: what an engine can do with zeros in its operands."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, model_validator

from ridgeline.config import FieldError, Strict
from ridgeline.hardware.sourced import DEFAULT, NOT_STATED, Basis, Sourced

_RATIO = re.compile(r"(\d{1,6}):(\d{1,6})")


class Skip(Strict):
    """One kind of zeros that an engine makes use of."""

    zeros: Literal["n:m", "unstructured", "block", "activation"]
    """The pattern: ``docs/sparsity.md``."""
    saves: tuple[Literal["cycles", "energy", "traffic"], ...] = Field(strict=False, min_length=1)
    """cycles: zeros take no time; energy: they take time, but their arithmetic is gated; traffic:
    the operand stays compressed until it reaches the engine."""
    ratio: str | None = None
    """N:M that the engine is made for, such as 2:4."""
    granule: tuple[int, int] = Field(default=(1, 1), strict=False)
    """Rows, along the sum, and columns of the smallest piece that can be left out as a whole."""
    efficiency: Sourced[float] = Sourced[float](value=1.0, source=DEFAULT, basis="assumed")
    """Time that the work would take ideally, over the time that it takes: imbalance, look-ups."""
    source: str = NOT_STATED
    """A key of the file's ``sources``, or a citation in words."""
    basis: Basis = NOT_STATED
    """How this is known."""
    note: str = ""
    """What a reader must know."""

    @model_validator(mode="after")
    def _agrees(self) -> Skip:
        if (self.ratio is not None) != (self.zeros == "n:m"):
            raise FieldError("a ratio belongs to the zeros 'n:m', and those need one", "ratio")
        if self.ratio is not None:
            kept, of = self.kept_of
            if not 1 <= kept <= of:
                raise FieldError(f"must be N:M with 1 <= N <= M, found {self.ratio!r}", "ratio")
        if min(self.granule) < 1:
            raise FieldError("must be at least 1 x 1", "granule")
        if not 0 < self.efficiency.value <= 1:
            raise FieldError("must be more than 0 and at most 1", "efficiency")
        return self

    @property
    def kept_of(self) -> tuple[int, int]:
        """N and M of the ratio; (0, 1) if it cannot be read."""
        match = _RATIO.fullmatch(self.ratio or "")
        return (int(match[1]), int(match[2])) if match else (0, 1)
