"""Values of YAML files that refer to others: ``${.hidden_size}``, ``${multiply:4, ${.x}}``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ridgeline.study.launch.sources import hole

_INNERMOST = re.compile(r"\$\{([^${}]*)\}")
_MOST = 50
_FUNCTIONS = {"multiply", "divide_floor", "divide_ceil", "divide", "sum", "int_div"}


def resolved(
    data: Any, location: Sequence[str | int], value: Any, roots: Sequence[str] = ()
) -> Any:
    """Return a value with what it refers to put in; what the file lacks becomes a placeholder.

    Parameters
    ----------
    location
        Where the value stands.
    roots
        First words of references that mean the file itself: ``${training.model.x}``.
    """
    for _ in range(_MOST):
        if not isinstance(value, str) or (found := _INNERMOST.search(value)) is None:
            return value
        new = _meant(data, location, found[1].strip(), roots)
        whole = found[0] == value
        value = new if whole else value[: found.start()] + str(new) + value[found.end() :]
    return hole("a value that refers to itself")


def _meant(data: Any, location: Sequence[str | int], text: str, roots: Sequence[str]) -> Any:
    name, colon, rest = text.partition(":")
    if colon and name in _FUNCTIONS:
        return _applied(name, [part.strip() for part in rest.split(",")])
    if colon and name in {"oc.env", "env"}:
        variable, comma, default = rest.partition(",")
        return default.strip() if comma else hole(variable.strip())
    if colon and re.fullmatch(r"[A-Za-z_]\w*", name):  # ${VARIABLE:default}
        return {"null": None, "": ""}.get(rest, rest)
    path = _absolute(location, text, roots)
    for part in path:
        if isinstance(data, dict) and part in data:
            data = data[part]
        else:
            return hole(text)
    return data


def _absolute(location: Sequence[str | int], text: str, roots: Sequence[str]) -> list[str]:
    if not text.startswith("."):
        parts = text.split(".")
        return parts[1:] if parts[0] in roots and len(parts) > 1 else parts
    up = len(text) - len(text.lstrip("."))
    base = [str(part) for part in location[: len(location) - up]]
    return [*base, *text.lstrip(".").split(".")]


def _applied(name: str, operands: list[str]) -> Any:
    try:
        numbers = [int(each) for each in operands]
    except ValueError:
        return hole(f"${{{name}:{', '.join(operands)}}}")
    first, *others = numbers
    for other in others:
        if name == "multiply":
            first *= other
        elif name == "sum":
            first += other
        elif other == 0:
            return hole(f"${{{name}:{', '.join(operands)}}}")
        else:
            first = -(-first // other) if name == "divide_ceil" else first // other
    return first
