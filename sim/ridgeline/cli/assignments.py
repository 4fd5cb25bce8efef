"""Values of ``--set path=value``, read as they would stand in a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ridgeline.errors import ConfigError


def assignments(texts: Sequence[str]) -> dict[str, Any]:
    """Read the words of all ``--set``: values by dotted path.

    Raises
    ------
    ConfigError
        If one is not ``path=value``, or a path stands twice.
    """
    fields: dict[str, Any] = {}
    for text in texts:
        name, value = _assignment(text)
        if name in fields:
            raise ConfigError(f"the field {name!r} is given twice", field="--set")
        fields[name] = value
    return fields


def _assignment(text: str) -> tuple[str, Any]:
    """Part ``path=value``; the value is read as YAML, as it would stand in a file."""
    from ridgeline.config import parse_yaml

    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name or not value:
        raise ConfigError(f"expected path=value, found {text!r}", field="--set")
    return name, parse_yaml(value, f"--set {name}").data
