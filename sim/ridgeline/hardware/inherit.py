"""Descriptions of devices and nodes that start from another's, or take over what it achieves.

``base: NAME`` starts from the description of another device: mappings are merged field by field,
everything else is replaced, and ``null`` removes a field. A board of the same chip, or the next
chip of a family, is so described by what differs.

``achievable_from: {device: NAME, formats: {bf16: fp16}, scale: 0.8}`` takes over the shares of the
peak that kernels of another device reach, or a part of them, behind the device's own. They are not
measurements of this device, and say so: their basis is "extrapolated". So are the rows that come
with a ``base``, which ``achievable_from`` replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ridgeline.config import Document

MAX_STEPS = 8
_NOT_INHERITED = frozenset({"achievable", "achievable_from", "aliases", "base"})
Open = Callable[[Document, str, str], Document]
"""Opens the file that a field refers to: document, name, field."""


def with_inherited(document: Document, open_: Open, steps: int = 0) -> Document:
    """Return a document with everything that it takes from others.

    Raises
    ------
    ConfigError
        If another machine cannot be read, or machines refer to each other in a circle.
    """
    data = document.data
    if "base" not in data and "achievable_from" not in data:
        return document
    if steps == MAX_STEPS:
        raise document.error(
            f"more than {MAX_STEPS} machines start from each other: is there a circle?", ("base",)
        )
    if "base" in data:
        name = _name(document, data["base"], "base")
        base = with_inherited(open_(document, name, "base"), open_, steps + 1).data
        rows = _list(data)
        if "achievable_from" not in data:
            rows = [*rows, *_rows(base, base.get("name", name), {}, 1.0)]
        dropped = {k: v for k, v in base.items() if k not in _NOT_INHERITED}
        merged = _merged(dropped, data)
        shares = {"achievable": _usable(merged, rows, len(_list(data)))} if rows else {}
        data = {**merged, **shares}
    if "achievable_from" in data:
        data = _with_rows_of(replace(document, data=data), open_, steps)
    return replace(document, data=data)


def _with_rows_of(document: Document, open_: Open, steps: int) -> dict[str, Any]:
    data = document.data
    reference = data["achievable_from"]
    if not isinstance(reference, dict) or not isinstance(reference.get("formats", {}), dict):
        raise document.error(
            "expected {device: NAME, formats: {FORMAT HERE: FORMAT THERE}}", ("achievable_from",)
        )
    name = _name(document, reference.get("device"), "achievable_from", "device")
    other = with_inherited(open_(document, name, "achievable_from"), open_, steps + 1).data
    scale = reference.get("scale", {})
    share = scale.get("value", 1.0) if isinstance(scale, dict) else scale
    if not isinstance(share, int | float) or share <= 0:
        raise document.error("expected a share of more than 0", ("achievable_from", "scale"))
    rows = [*_list(data), *_rows(other, name, reference.get("formats", {}), float(share))]
    return {
        **data,
        "sources": {**_mapping(data.get("sources")), name: f"the device file {name}"},
        "achievable": _usable(data, rows, len(_list(data))),
    }


def _usable(data: Mapping[str, Any], rows: list[Any], own: int) -> list[Any]:
    """Keep the device's own rows, and those of others for engines and formats that it has."""
    able = {
        (engine, format_)
        for engine, described in _mapping(data.get("engines")).items()
        for format_ in _mapping(_mapping(described).get("rates"))
    }
    return [
        *rows[:own],
        *(row for row in rows[own:] if (row.get("engine"), row.get("format")) in able),
    ]


def _rows(
    data: Mapping[str, Any], name: str, formats: Mapping[str, str], share: float
) -> Iterator[Any]:
    """Rows of another device, once in their own format and once in each that is like it."""
    for row in _list(data):
        if not isinstance(row, dict) or not isinstance(row.get("fraction"), dict):
            continue
        figures = {
            field: _extrapolated(row[field], name, share if field == "fraction" else 1.0)
            for field in ("fraction", "step_latency", "latency")
            if isinstance(row.get(field), dict)
        }
        alike = [here for here, there in formats.items() if there == row.get("format")]
        for format_ in (row.get("format"), *alike):
            yield {**row, "format": format_, **figures}


def _extrapolated(figure: Mapping[str, Any], name: str, share: float) -> dict[str, Any]:
    note = f"of {name}: {figure.get('note', '')}".rstrip(": ")
    value = figure.get("value")
    if share != 1.0 and isinstance(value, int | float):
        value, note = share * value, f"{share:g} {note}"
    return {**figure, "value": value, "source": name, "basis": "extrapolated", "note": note}


def _merged(base: Any, own: Any) -> Any:
    """Merge mappings field by field; a value with its source is one thing."""
    if not isinstance(base, dict) or not isinstance(own, dict) or "value" in {*base, *own}:
        return own
    kept = {key: value for key, value in base.items() if own.get(key, value) is not None}
    return {
        **{key: _merged(value, own[key]) if key in own else value for key, value in kept.items()},
        **{key: value for key, value in own.items() if key not in base and value is not None},
    }


def _name(document: Document, name: object, *field: str) -> str:
    if not isinstance(name, str):
        raise document.error(f"the field {'.'.join(field)!r} must name a machine", field)
    return name


def _list(data: Mapping[str, Any]) -> list[Any]:
    rows = data.get("achievable", [])
    return rows if isinstance(rows, list) else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
