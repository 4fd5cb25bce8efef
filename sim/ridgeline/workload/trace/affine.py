"""Numbers that depend on the batch as ``a + b * batch``, and documents that hold them.

A graph is built for one batch. Two graphs of the same network at two batches, written as plain
documents, differ only in numbers; each pair of numbers is one line through two points. A third
batch shows whether the line holds.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, NamedTuple

from ridgeline.errors import RidgelineError

SYMBOL = "batch"
_TERM = re.compile(r"(?:(-?\d{1,40}(?:/\d{1,40})?)\*)?batch(?:([+-]\d{1,40}(?:/\d{1,40})?))?")
_FRACTION = re.compile(r"-?\d{1,40}/\d{1,40}")


class AffineNumber(NamedTuple):
    """The number ``at_zero + slope * batch``."""

    at_zero: Fraction
    slope: Fraction

    def at(self, batch: int) -> int | Fraction:
        """Return the number for a batch; an int if it is whole."""
        value = self.at_zero + self.slope * batch
        return value.numerator if value.denominator == 1 else value

    def __str__(self) -> str:
        slope = "" if self.slope == 1 else f"{self.slope}*"
        rest = "" if not self.at_zero else f"{'+' if self.at_zero > 0 else ''}{self.at_zero}"
        return f"{slope}{SYMBOL}{rest}"


class NotAffineError(RidgelineError):
    """Two documents differ in more than numbers, or a number is no line in the batch."""


def parse(text: str) -> AffineNumber | Fraction | None:
    """Read "2*batch+1", "1/3*batch" or "1/3"; None if it is neither.

    >>> parse("2*batch+1").at(8)
    17
    """
    try:
        if _FRACTION.fullmatch(text):
            return Fraction(text)
        found = _TERM.fullmatch(text)
        if found is None:
            return None
        return AffineNumber(Fraction(found[2] or 0), Fraction(found[1] or 1))
    except ZeroDivisionError:
        return None


def joined(one: Any, two: Any, batches: tuple[int, int], place: str = "") -> Any:
    """Return the document that gives `one` at the first batch and `two` at the second.

    Raises
    ------
    NotAffineError
        If they differ in anything but whole numbers and fractions; with the place.
    """
    if one == two and type(one) is type(two):
        return one
    if isinstance(one, dict) and isinstance(two, dict) and one.keys() == two.keys():
        return {key: joined(one[key], two[key], batches, f"{place}.{key}") for key in one}
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        pairs = zip(one, two, strict=True)
        return [joined(a, b, batches, f"{place}.{i}") for i, (a, b) in enumerate(pairs)]
    if _is_number(one) and _is_number(two):
        slope = Fraction(two - one) / (batches[1] - batches[0])
        return AffineNumber(one - slope * batches[0], slope)
    raise NotAffineError(f"{place.lstrip('.')} does not depend on the batch as a + b * batch")


def at_batch(document: Any, batch: int) -> Any:
    """Return a document with its numbers for one batch."""
    if isinstance(document, AffineNumber):
        return document.at(batch)
    if isinstance(document, dict):
        return {key: at_batch(value, batch) for key, value in document.items()}
    if isinstance(document, list):
        return [at_batch(value, batch) for value in document]
    return document


def _is_number(value: object) -> bool:
    return isinstance(value, int | Fraction) and not isinstance(value, bool)
