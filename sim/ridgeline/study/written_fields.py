"""Fields written in one line: ``path=value;path=value``, and plans as ``--plan`` reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from ridgeline.config import parse_yaml
from ridgeline.errors import ConfigError


def assignments(text: str) -> Iterator[tuple[str, Any]]:
    """Yield paths and values of ``path=value;path=value``, as ``--set`` reads them.

    Raises
    ------
    ConfigError
        If a part is not of this form.
    """
    for part in filter(None, (part.strip() for part in text.split(";"))):
        path, equals, value = (piece.strip() for piece in part.partition("="))
        if not (path and equals and value):
            raise ConfigError(f"expected path=value, found {part!r}")
        yield path, _value(value)


@lru_cache(maxsize=1024)
def _value(text: str) -> Any:
    return parse_yaml(text, text).data


def written(fields: Mapping[str, Any]) -> str:
    """Write fields as ``path=value;path=value``, as `assignments` reads them."""
    return ";".join(f"{path}={_scalar(value)}" for path, value in fields.items())


def _scalar(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_scalar, value))}]"
    if isinstance(value, float):
        text = repr(value)
        return text if "." in text or "e" not in text else text.replace("e", ".0e")
    return str(value) or '""'


def plan_text(fields: Mapping[str, Any]) -> str:
    """Write fields of a plan as ``--plan`` reads them."""
    return ",".join(f"{name}={_in_brackets(_scalar(value))}" for name, value in fields.items())


def _in_brackets(text: str) -> str:
    return f"[{text}]" if "," in text or ":" in text else text
