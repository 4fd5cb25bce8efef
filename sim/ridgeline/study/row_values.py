"""Rows from whatever holds them: lists, data frames, saved results, validations, reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.errors import ConfigError


def flat_rows(data: Any, name: str, wanted: str = "rows") -> list[dict[str, Any]]:
    """Return rows with the columns of ``Result.to_row``.

    Parameters
    ----------
    data
        A list of mappings, results or `Result`, a polars or pandas data frame, or a mapping that
        has them as its ``rows``.
    name
        Of the file or argument, for messages.
    wanted
        What is expected, for messages.

    Raises
    ------
    ConfigError
        If it is something else, or there is no row.
    """
    if isinstance(data, Mapping) and isinstance(data.get("rows"), list):
        data = data["rows"]
    elif isinstance(data, Mapping) and "step_time_s" in data:
        data = [data]
    elif hasattr(data, "to_dicts"):  # polars
        data = data.to_dicts()
    elif hasattr(data, "to_dict") and hasattr(data, "columns"):  # pandas
        data = data.to_dict("records")
    if not isinstance(data, Sequence) or isinstance(data, str):
        raise ConfigError(f"expected {wanted}, found {_kind(data)}", file=name)
    rows = [row.to_dict() if hasattr(row, "to_row") else row for row in data]
    wrong = next((row for row in rows if not isinstance(row, Mapping)), None)
    if wrong is not None:
        raise ConfigError(f"expected {wanted}, found a list with {_kind(wrong)} in it", file=name)
    if not rows:
        raise ConfigError("there is no row in it", file=name)
    return [_flat(row) for row in rows]


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a mapping with {', '.join(map(str, list(value)[:4]))}"
    return "nothing" if value is None else f"a {type(value).__name__}"


def _flat(row: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return a row; of a result, what it is of and its plan first, then as ``Result.to_row``."""
    flat: dict[str, Any] = {}
    given = row.get("manifest")
    if isinstance(given, Mapping):
        for name in ("model", "cluster", "software"):
            if isinstance(given.get(name), Mapping):
                flat[name] = given[name].get("name")
        if isinstance(given.get("plan"), Mapping):
            flat |= _flat(given["plan"], "plan.")
    for name, value in row.items():
        if name == "manifest" and isinstance(value, Mapping):
            flat["manifest_hash"] = value.get("hash")
        elif isinstance(value, Mapping):
            flat |= _flat(value, f"{before}{name}.")
        else:
            flat[f"{before}{name}"] = value
    return flat
