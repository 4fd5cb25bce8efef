"""Loader of software stacks by name or path: bases, overrides, and the source of every value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ridgeline import catalog
from ridgeline.config import Document, check_kind, read_yaml, validate
from ridgeline.errors import ConfigError
from ridgeline.software.stack import GROUPS, Provenance, Stack

_KIND = "software"
_MOST_BASES = 8
_MOST_STACKS = 32
_INHERITED = frozenset({*GROUPS, "supports", "family", "sources"})
"""Fields that a stack takes over from its base; name, description, year and bound are its own."""


def load_software(name: str | Path, overrides: Mapping[str, Any] | None = None) -> Stack:
    """Load a software stack by catalogue name or path.

    Parameters
    ----------
    overrides
        New values by dotted path: ``{"gradients.bucket": "40 MB"}``.

    Raises
    ------
    ConfigError
        With file, line and field of the first mistake.
    """
    document = _read(catalog.name_of(name, "software"))
    stack = _made(document)
    return stack.with_settings(overrides) if overrides else stack


def _read(name: str) -> Document:
    document = read_yaml(catalog.find(_KIND, name))
    check_kind(document, _KIND)
    return document


_stacks: dict[str, tuple[list[Any], Stack]] = {}


def _made(document: Document) -> Stack:
    """Check a document, its bases first, so that a mistake is reported in the file that has it.

    One that is read again as it was, with its bases, is checked once: equal text is parsed once.
    """
    known = _stacks.get(document.file)
    if known is not None and _as_it_was(document, known[0]):
        return known[1]
    read: list[Any] = []
    data, provenance = _with_bases(document, 0, read)
    stack = validate(replace(document, data=data), Stack).model_copy(
        update={"provenance": provenance}
    )
    if len(_stacks) > _MOST_STACKS:
        _stacks.clear()
    _stacks[document.file] = read, stack
    return stack


def _as_it_was(document: Document, read: list[Any]) -> bool:
    """Tell whether a document and its bases are those that were read before."""
    for data in read[:-1]:
        if document.data is not data:
            return False
        document = _base(document, data["base"])
    return document.data is read[-1]


def _with_bases(
    document: Document, steps: int, read: list[Any]
) -> tuple[dict[str, Any], dict[str, Provenance]]:
    """Return the plain values of a stack with those of its bases, and where each comes from.

    Parameters
    ----------
    read
        Gets what the document and its bases hold.
    """
    own, provenance = _parted(document)
    read.append(document.data)
    name = own.get("base", "")
    if not name:
        return own, provenance
    if steps == _MOST_BASES:
        raise document.error(
            f"more than {_MOST_BASES} stacks start from each other: is there a circle?", ("base",)
        )
    if not isinstance(name, str):
        raise document.error("the field 'base' must name a software stack", ("base",))
    base = _base(document, name)
    data, of_base = _with_bases(base, steps + 1, read)
    validate(replace(base, data=data), Stack)
    inherited = {
        path: source if source.of else source.model_copy(update={"of": str(data["name"])})
        for path, source in of_base.items()
        if path not in provenance
    }
    merged = {field: data[field] for field in _INHERITED if field in data}
    for field, value in own.items():
        both = isinstance(value, dict) and isinstance(merged.get(field), dict)
        merged[field] = {**merged[field], **value} if both else value
    return merged, {**inherited, **provenance}


def _base(document: Document, name: str) -> Document:
    """Open the stack that another starts from; a relative path counts from that file."""
    if name not in catalog.names(_KIND) and catalog.is_path(name):
        name = str(Path(document.file).parent / name)
    try:
        return _read(name)
    except ConfigError as error:
        if error.file is not None:
            raise
        raise document.error(error.message, ("base",)) from error


def _parted(document: Document) -> tuple[dict[str, Any], dict[str, Provenance]]:
    """Part values ``{value: ..., source: ...}`` of the groups into plain values and sources."""
    data, provenance = dict(document.data), {}
    for group in GROUPS:
        fields = data.get(group)
        if not isinstance(fields, dict):
            continue
        plain = {}
        for field, value in fields.items():
            if isinstance(value, dict):
                plain[field] = _value(document, (group, field), value)
                said = {key: text for key, text in value.items() if key != "value"}
                provenance[f"{group}.{field}"] = _provenance(document, (group, field), said)
            else:
                plain[field] = value
        data[group] = plain
    return data, provenance


def _value(document: Document, place: tuple[str, str], value: Mapping[str, Any]) -> Any:
    if "value" not in value:
        raise document.error("expected a value, or {value: ..., source: ...}", place)
    return value["value"]


def _provenance(document: Document, place: tuple[str, str], said: Mapping[str, Any]) -> Provenance:
    for key, text in said.items():
        if key not in {"source", "note", "basis"} or not isinstance(text, str):
            raise document.error(
                f"beside a value stand source, basis and note, which are text; found {key!r}", place
            )
    if "source" not in said:
        raise document.error("a value with notes needs its source", place)
    return Provenance(**said)
