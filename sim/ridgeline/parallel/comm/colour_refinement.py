"""Colour refinement: 64-bit colours that are equal where what they are made of is."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from ridgeline.network.topology import Floats
from ridgeline.parallel.plan.mesh import Ranks

Colours = npt.NDArray[np.uint64]

_DIGITS = 2.0**36  # of a load: those that differ by rounding are equal


def hash_of(value: object) -> int:
    """Return 64 bits that depend on a value's text alone."""
    return int.from_bytes(blake2b(repr(value).encode(), digest_size=8).digest(), "little")


def mixed(*columns: Colours | Ranks) -> Colours:
    """Mix columns of numbers into one column of 64 bits each (finaliser of SplitMix64)."""
    total = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        total = (total ^ column.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
        total = (total ^ (total >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        total = (total ^ (total >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        total ^= total >> np.uint64(31)
    return total


def digits(values: Floats) -> Colours:
    """Return numbers that are equal where values are equal but for rounding."""
    mantissa, exponent = np.frexp(values)
    return mixed(np.rint(mantissa * _DIGITS).astype(np.int64), exponent.astype(np.int64))


def added(where: Ranks, colours: Colours, n: int) -> Colours:
    """Add up the colours of a multiset at each of n things."""
    total = np.zeros(n, np.uint64)
    np.add.at(total, where, colours)
    return total


def n_colours(colours: Colours) -> int:
    """Return how many colours there are."""
    return len(np.unique(colours))
