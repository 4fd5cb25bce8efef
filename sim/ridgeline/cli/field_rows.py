"""Fields of a description as rows of path, value, basis and source."""

from __future__ import annotations

from typing import Any


def field_rows(value: Any, path: str) -> list[tuple[str, str, str, str]]:
    """Flatten a description to rows of path, value, basis and source."""
    if isinstance(value, dict):
        if "value" in value:
            return [
                (
                    path,
                    str(value["value"]),
                    str(value.get("basis", "")),
                    str(value.get("source", "")),
                )
            ]
        parts = ((f"{path}.{k}" if path else k, v) for k, v in value.items() if k != "sources")
        return [row for at, item in parts for row in field_rows(item, at)]
    if isinstance(value, list):
        if all(not isinstance(item, dict) for item in value):
            return [(path, ", ".join(str(item) for item in value), "", "")]
        return [row for i, item in enumerate(value) for row in field_rows(item, f"{path}.{i}")]
    return [(path, str(value), "", "")]
