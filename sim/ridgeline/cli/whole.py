"""Whole numbers on the command line: 1.5 is a mistake and not 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token


def _whole(_type: Any, tokens: Sequence[Token]) -> int:
    text = tokens[0].value
    try:
        return int(text.replace("_", ""))
    except ValueError as error:
        raise ValueError(f"expected a whole number, found {text!r}") from error


Whole = Annotated[int, Parameter(converter=_whole)]
