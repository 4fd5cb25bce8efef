"""Numbers on the command line: 1.5 is no whole number, nan and inf are none at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token
from cyclopts.validators import Number as Bounds


def _whole(_type: Any, tokens: Sequence[Token]) -> int:
    text = tokens[0].value
    try:
        return int(text.replace("_", ""))
    except ValueError as error:
        raise ValueError(f"expected a whole number, found {text!r}") from error


def _finite(_type: Any, tokens: Sequence[Token]) -> float:
    text = tokens[0].value
    try:
        if math.isfinite(number := float(text)):
            return number
    except ValueError:
        pass
    raise ValueError(f"expected a number, found {text!r}")


Whole = Annotated[int, Parameter(converter=_whole)]
Count = Annotated[int, Parameter(converter=_whole, validator=Bounds(gte=1))]
Positive = Annotated[float, Parameter(converter=_finite, validator=Bounds(gt=0))]
Finite = Annotated[float, Parameter(converter=_finite)]


def pair(text: str) -> tuple[int, int]:
    """Read two whole numbers, down and across, or one for both: ``5x20``, ``3``.

    Raises
    ------
    ConfigError
        If the text is something else.
    """
    from ridgeline.errors import ConfigError

    first, x, second = text.replace("_", "").lower().partition("x")
    try:
        return int(first), int(second if x else first)
    except ValueError as error:
        raise ConfigError(f"expected a whole number, or two as 5x20, found {text!r}") from error
