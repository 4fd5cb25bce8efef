"""Arithmetic and memory that hide each other only in part, at any clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_Seconds = TypeVar("_Seconds", float, NDArray[np.float64])
_LEAST_S = 1e-30


def together_s(exponent: float, longest: _Seconds, *times: _Seconds) -> _Seconds:
    """Return the time of parts that hide each other in part: their norm with this exponent."""
    parts = [(time / (longest + _LEAST_S)) ** exponent for time in times]
    found: _Seconds = longest * sum(parts[1:], parts[0]) ** (1.0 / exponent)
    return found


@dataclass(frozen=True, slots=True)
class PartialOverlap:
    """What the parts of an op take by themselves, which together take their norm.

    Attributes
    ----------
    exponent
        Of the norm (`waves.KernelLaw.overlap`).
    arithmetic_s, near_s
        Of the arithmetic and of the memory levels before the farthest, which follow the clock.
    kept_s
        Of operands that such a level has kept from other ops, in the place of the farthest memory.
    far_s, reread_s
        Of the farthest memory, which has a clock of its own.
    """

    exponent: float
    arithmetic_s: float
    near_s: float
    kept_s: float
    far_s: float
    reread_s: float

    def waiting_s(self, clock: float = 1.0) -> float:
        """Return what the parts take beyond the longest one, at a share of the full clock."""
        arithmetic_s, near_s = self.arithmetic_s / clock, self.near_s / clock
        floor_s = self.far_s + self.kept_s / clock
        longest_s = max(arithmetic_s, near_s, floor_s)
        whole_s = together_s(self.exponent, longest_s, arithmetic_s, near_s, floor_s, self.reread_s)
        return max(0.0, whole_s - max(arithmetic_s, near_s, self.far_s))
